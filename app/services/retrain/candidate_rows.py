"""Stored measurements as rows to train on: which of them count, and what each is for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from wattcast.app.services.retrain.messages import Target
from wattcast.app.store.measurements import Batch, Measurement, MeasurementStore
from wattcast.features.errors import DataError
from wattcast.features.gpus import GpuProfile
from wattcast.features.schemas import get_schema
from wattcast.models.cards import ModelCard, SchemaReference, Source
from wattcast.models.clocks import default_clocks
from wattcast.models.learned import Marks, code_marks, group_mark, ptx_mark
from wattcast.models.power.boosted import launch_features
from wattcast.models.power.physical import SAME_CLOCK
from wattcast.predictor.messages import Clocks

if TYPE_CHECKING:
    from wattcast.training.retrain.inputs import Base, Champion, Uploads

PREFERRED_SCHEMA = "alavani2023"
"""The schema of the packaged boosted models."""

FindRows = Callable[[Sequence[UUID]], Iterator[tuple[UUID, Measurement]]]


MOST_TOLD = 1000
"""Rows that do not train which are told one by one; all of them are counted."""


@dataclass
class Rest:
    """Rows that do not train: counted by reason, and the first of them with batch and number."""

    counts: Counter[str] = field(default_factory=Counter)
    rows: list[tuple[UUID, int, str]] = field(default_factory=list)

    def add(self, batch: UUID, row: int, why: str) -> None:
        """One more row that does not train."""
        self.counts[why] += 1
        if len(self.rows) < MOST_TOLD:
            self.rows.append((batch, row, why))


@dataclass(frozen=True)
class Wanted:
    """Which rows count: of a GPU and board (``None``: any), with the target measured.
    Boosted models answer for the default clocks, the physical ones for ``any_clocks``."""

    gpu: GpuProfile
    board: str | None
    target: Target = "power"
    any_clocks: bool = False


@dataclass(frozen=True)
class Together:
    """Rows to train on: of a request's batches, and of earlier ones, which are ``known`` already to
    what answers now."""

    batches: Mapping[UUID, Batch]
    rows: Sequence[tuple[UUID, Measurement]]
    known: frozenset[UUID]
    target: Target

    @property
    def measured(self) -> list[Measurement]:
        """The measurements, in order."""
        return [row for _, row in self.rows]

    def where(self, reasons: Sequence[str | None], rest: Rest) -> Together:
        """Those without a reason against them."""
        kept = []
        for (batch, row), why in zip(self.rows, reasons, strict=True):
            if why is None:
                kept.append((batch, row))
            else:
                rest.add(batch, row.row, why)
        return replace(self, rows=kept)

    def uploads(self, vectors: NDArray[np.float64]) -> Uploads:
        """The rows with their model inputs ``[n, k]``."""
        from wattcast.training.evaluation.splits import Rows
        from wattcast.training.retrain.inputs import Uploads

        measured = self.measured
        values = [
            row.power_watts if self.target == "power" else row.time_seconds for row in measured
        ]
        return Uploads(
            rows=Rows.of(
                vectors,
                np.array(values, dtype=np.float64),
                [row.kernel_group for row in measured],
            ),
            new=np.array([batch not in self.known for batch, _ in self.rows]),
            batches=tuple(sorted(str(batch) for batch in self.batches)),
            sources=tuple(_source(batch) for _, batch in sorted(self.batches.items())),
            marks=marks_of_rows(measured),
        )


@dataclass(frozen=True)
class Gathered:
    """Rows of the batches of a request that count, all of one board."""

    batches: Mapping[UUID, Batch]
    rows: Sequence[tuple[UUID, Measurement]]
    board: str
    schema_id: str
    wanted: Wanted

    @property
    def reference(self) -> SchemaReference:
        """The schema as cards name it."""
        return SchemaReference(id=self.schema_id, sha256=get_schema(self.schema_id).sha256)

    def inputs(self, champion: Champion | None) -> tuple[str, ...]:
        """Names of the model inputs: the champion's, without one those of the schema."""
        if champion is not None:
            return champion.card.feature_names
        return tuple(get_schema(self.schema_id).model_fields)

    def with_earlier(
        self, trained_on: Sequence[str], store: MeasurementStore, find: FindRows, rest: Rest
    ) -> Together:
        """These rows, and those of earlier uploads that the board's champion was trained on.
        Earlier rows keep what is known of the board, and tell whether the candidate forgets it."""
        known = frozenset(UUID(batch) for batch in trained_on)
        earlier = store.get_many([batch for batch in known if batch not in self.batches])
        wanted = replace(self.wanted, board=self.board)
        found = usable(find(list(earlier)), wanted, self.schema_id, rest) if earlier else []
        return Together(
            {**self.batches, **earlier}, [*self.rows, *found], known, self.wanted.target
        )

    def boosted(
        self, champion: Champion | None, together: Together, rest: Rest
    ) -> tuple[Uploads, list[Measurement]]:
        """What a boosted model trains on, and the measurements behind it, in the same order.
        Raises DataError where no row is left."""
        gpu, inputs = self.wanted.gpu, self.inputs(champion)
        if champion is not None:
            reasons = _gaps(together.measured, champion, self.schema_id, inputs, gpu)
            together = together.where(reasons, rest)
        if not together.rows:
            raise nothing_left(gpu, rest)
        measured = together.measured
        return together.uploads(vectors_of(measured, self.schema_id, inputs, gpu)), measured


def gathered(
    batches: Mapping[UUID, Batch],
    find: FindRows,
    wanted: Wanted,
    schema_id: str | None,
    rest: Rest,
) -> Gathered:
    """Usable rows of a request's batches.

    Raises DataError where there are none, where they are of several boards and none is named, or
    where their features follow another definition of the schema; SchemaError for an unknown one.
    """
    if not batches:
        raise DataError("the measurements have been deleted")
    schema = schema_id or _schema_of(batches.values())
    current = get_schema(schema).sha256
    old = [str(key) for key, one in batches.items() if one.schemas.get(schema, current) != current]
    if old:
        raise DataError(
            f"features of {', '.join(old[:5])} follow another definition of {schema}: upload again"
        )
    rows = usable(find(list(batches)), wanted, schema, rest)
    return Gathered(batches, rows, one_board(rows, wanted.gpu, rest), schema, wanted)


def one_board(rows: Iterable[tuple[UUID, Measurement]], gpu: GpuProfile, rest: Rest) -> str:
    """The board that all rows are of. Raises DataError where there are several, or no rows."""
    boards = sorted({row.board or "" for _, row in rows})
    if not boards:
        raise nothing_left(gpu, rest)
    if len(boards) > 1:
        raise DataError(
            "the measurements are of several boards; name one of them",
            field="board",
            known=boards,
        )
    return boards[0]


def has_base(gpu_id: str, champion: Champion | None) -> bool:
    """Whether rows that the packaged model of a GPU was trained on are at hand and count."""
    from wattcast.training.data.datasets import find_data
    from wattcast.training.power_rows import SCHEMA, THESIS_FILES
    from wattcast.training.retrain.inputs import knows_base

    if champion is None or not knows_base(champion.card) or gpu_id not in THESIS_FILES:
        return False
    folder, known = find_data(), get_schema(SCHEMA).model_fields
    # ``wattcast data fetch`` brings the measurements, not the names of their kernels.
    named = folder is not None and (folder / "power" / "kernel_names.csv").is_file()
    return named and champion.card.feature_names == known


def base_rows(gpu_id: str, champion: Champion | None) -> Base | None:
    """Those rows, where they are."""
    from wattcast.training.power_rows import source_of, training_table
    from wattcast.training.retrain.inputs import Base

    if not has_base(gpu_id, champion):
        return None
    table = training_table(gpu_id)
    return Base(table.rows["as_recomputed"], (source_of(table.clean),))


def _schema_of(batches: Iterable[Batch]) -> str:
    shared = set.intersection(*(set(batch.schemas) for batch in batches))
    if not shared:
        raise DataError("the batches have no feature schema in common; name one", field="schema")
    # activity1 holds counts of any GPU, and is there beside another schema wherever there is PTX.
    return min(shared, key=lambda one: (one != PREFERRED_SCHEMA, one == "activity1", one))


def usable(
    found: Iterable[tuple[UUID, Measurement]],
    wanted: Wanted,
    schema: str | None,
    rest: Rest,
) -> list[tuple[UUID, Measurement]]:
    """Rows that count; of any schema, where none is named."""
    rows = []
    for batch, row in found:
        why = _unusable(row, wanted, schema)
        if why is None:
            rows.append((batch, row))
        else:
            rest.add(batch, row.row, why)
    return rows


def _unusable(row: Measurement, wanted: Wanted, schema: str | None) -> str | None:
    if (row.power_watts if wanted.target == "power" else row.time_seconds) is None:
        return f"no {wanted.target} was measured"
    if wanted.board is not None and (row.board or "") != wanted.board:
        return "of another board"
    if schema is not None and schema not in row.vectors:
        return f"no features of {schema}"
    if wanted.any_clocks or at_default_clocks(row, wanted.gpu):
        return None
    return "measured at other clocks than the models answer for"


def at_default_clocks(row: Measurement, gpu: GpuProfile) -> bool:
    """Whether a launch ran at the clocks that boosted models answer for."""
    at = Clocks(core_mhz=row.core_mhz, memory_mhz=row.memory_mhz).pair(gpu)
    usual = default_clocks(gpu)
    return all(abs(a / b - 1) <= SAME_CLOCK for a, b in zip(at, usual, strict=True))


def _gaps(
    rows: Sequence[Measurement],
    champion: Champion,
    schema: str,
    inputs: Sequence[str],
    gpu: GpuProfile,
) -> list[str | None]:
    """What is wrong with rows that have a gap where the champion was trained on rows without."""
    if not rows:
        return []
    whole = complete(champion.card, vectors_of(rows, schema, inputs, gpu))
    return [None if one else "a feature is missing" for one in whole]


def complete(card: ModelCard, vectors: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which of the inputs ``[n, k]`` have no gap where the model was trained on rows without."""
    may_miss = np.array([feature.missing_share > 0 for feature in card.features])
    whole: NDArray[np.bool_] = ~(np.isnan(vectors) & ~may_miss).any(axis=1)
    return whole


def vectors_of(
    rows: Sequence[Measurement],
    schema_id: str,
    inputs: Sequence[str],
    gpu: GpuProfile,
    blocks: float = np.nan,
) -> NDArray[np.float64]:
    """Model inputs ``[n, k]``: fields of the schema, and what follows from the launch; of
    ``blocks`` where a row does not tell its grid."""
    names = [each.name for each in get_schema(schema_id).fields]
    fields = dict(zip(names, np.array([row.vectors[schema_id] for row in rows]).T, strict=True))
    if any(name not in fields for name in inputs):
        told = fields["grid_size"]
        grid = np.where(np.isnan(told), blocks, told)
        fields |= launch_features(grid, fields["block_size"], fields["occupancy"], gpu)
    return np.column_stack([fields[name] for name in inputs]).astype(np.float64)


def marks_of_rows(rows: Sequence[Measurement]) -> tuple[Marks, ...]:
    """By what the kernel of each row is known again: group, PTX, and the code that its features of
    every schema tell."""
    found: list[set[str]] = [{group_mark(row.kernel_group)} for row in rows]
    for row, own in zip(rows, found, strict=True):
        if row.ptx_sha256:
            own.add(ptx_mark(row.ptx_sha256))
    for schema in sorted({schema for row in rows for schema in row.vectors}):
        having = [at for at, row in enumerate(rows) if schema in row.vectors]
        names = [each.name for each in get_schema(schema).fields]
        vectors = np.array([rows[at].vectors[schema] for at in having], dtype=np.float64)
        for at, mark in zip(having, code_marks(schema, names, vectors), strict=True):
            if mark is not None:
                found[at].add(mark)
    return tuple(frozenset(own) for own in found)


def _source(batch: Batch) -> Source:
    return Source(
        repository="uploads",
        path=f"measurements/{batch.id}",
        sha256=batch.content_sha256,
        used_sha256=batch.content_sha256,
        licence="the operator's own measurements",
    )


def nothing_left(gpu: GpuProfile, rest: Rest) -> DataError:
    """The error of a retraining whose rows all fall away, with the reasons."""
    why = ", ".join(f"{count} {reason}" for reason, count in sorted(rest.counts.items()))
    return DataError(f"no measurement of {gpu.id} is left to train on ({why or 'there are none'})")
