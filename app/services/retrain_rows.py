"""Stored measurements as rows to train on: which of them count, and what each is for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from app.messages import Clocks
from app.store.measurements import Batch, Measurement, MeasurementStore
from app.store.registry import Place
from features.errors import DataError
from features.gpus import GpuProfile
from features.schemas import get_schema
from models.cards import SchemaReference, Source
from models.clocks import default_clocks
from models.power.inputs import launch_features

if TYPE_CHECKING:
    from training.retrain.run import Base, Champion, Uploads

PREFERRED_SCHEMA = "alavani2023"
"""The schema of the packaged boosted models."""

SAME_CLOCK = 0.01
"""Clocks this near, relatively, are the same setting: NVML reports the supported step beside the
one asked for."""

FindRows = Callable[[Sequence[UUID]], Iterator[tuple[UUID, Measurement]]]


@dataclass
class Rest:
    """Rows that do not train, counted by reason."""

    reasons: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Gathered:
    """Rows of the batches of a request that count, all of one board."""

    batches: Mapping[UUID, Batch]
    rows: Sequence[tuple[UUID, Measurement]]
    board: str
    schema_id: str

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
        self,
        champion: Champion | None,
        place: Place,
        store: MeasurementStore,
        find: FindRows,
        gpu: GpuProfile,
        rest: Rest,
    ) -> tuple[Uploads, list[Measurement]]:
        """These rows, and those of earlier uploads that the board's champion was trained on; and
        the measurements behind them, in the same order.

        Earlier rows keep what is known of the board, and tell whether the candidate forgets it.
        Raises DataError where no row is left.
        """
        from training.evaluation.rows import Rows
        from training.retrain.run import Uploads

        known: set[UUID] = set()
        rows, batches = list(self.rows), dict(self.batches)
        if champion is not None and champion.card.board is not None:
            if champion.card.board.label == place.board:
                known = {UUID(batch) for batch in champion.card.board.batches}
            earlier = store.get_many([batch for batch in known if batch not in batches])
            found = _usable(find(list(earlier)), gpu, place.board, self.schema_id, rest)
            rows += found
            batches |= earlier
        inputs = self.inputs(champion)
        if champion is not None:
            rows = _complete(rows, champion, self.schema_id, inputs, gpu, rest)
        if not rows:
            raise _nothing(gpu, rest)
        measured = [row for _, row in rows]
        uploads = Uploads(
            rows=Rows.of(
                vectors_of(measured, self.schema_id, inputs, gpu),
                np.array([row.power_watts for row in measured], dtype=np.float64),
                [row.kernel_group for row in measured],
            ),
            new=np.array([batch not in known for batch, _ in rows]),
            batches=tuple(sorted(str(batch) for batch in batches)),
            sources=tuple(_source(batch) for _, batch in sorted(batches.items())),
        )
        return uploads, measured


def gathered(
    batches: Mapping[UUID, Batch],
    find: FindRows,
    gpu: GpuProfile,
    board: str | None,
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
    rows = _usable(find(list(batches)), gpu, board, schema, rest)
    if not rows:
        raise _nothing(gpu, rest)
    boards = sorted({row.board or "" for _, row in rows})
    if len(boards) > 1:
        raise DataError(
            "the measurements are of several boards; name one of them",
            field="board",
            known=boards,
        )
    return Gathered(batches, rows, boards[0], schema)


def base_rows(gpu_id: str, champion: Champion | None) -> Base | None:
    """Rows that the packaged model of a GPU was trained on, where they are at hand and count."""
    from training.data.datasets import find_data, sources
    from training.fit import SCHEMA, THESIS_FILES, training_table
    from training.retrain.run import Base, knows_base

    if champion is None or not knows_base(champion.card) or gpu_id not in THESIS_FILES:
        return None
    if find_data() is None or champion.card.feature_schema.id != SCHEMA:
        return None
    table = training_table(gpu_id)
    if table.rows["as_recomputed"].vectors.shape[1] != len(champion.card.features):
        return None
    file = table.clean.source
    source = Source(
        repository=sources().repository,
        path=file.path,
        sha256=file.sha256,
        used_sha256=table.clean.sha256,
        licence=sources().licence,
    )
    return Base(table.rows["as_recomputed"], (source,))


def _schema_of(batches: Iterable[Batch]) -> str:
    shared = set.intersection(*(set(batch.schemas) for batch in batches))
    if not shared:
        raise DataError("the batches have no feature schema in common; name one", field="schema")
    # activity1 holds counts of any GPU, and is there beside another schema wherever there is PTX.
    return min(shared, key=lambda one: (one != PREFERRED_SCHEMA, one == "activity1", one))


def _usable(
    found: Iterable[tuple[UUID, Measurement]],
    gpu: GpuProfile,
    board: str | None,
    schema: str,
    rest: Rest,
) -> list[tuple[UUID, Measurement]]:
    rows = []
    for batch, row in found:
        why = _unusable(row, gpu, board, schema)
        if why is None:
            rows.append((batch, row))
        else:
            rest.reasons[why] += 1
    return rows


def _unusable(row: Measurement, gpu: GpuProfile, board: str | None, schema: str) -> str | None:
    if row.power_watts is None:
        return "no power was measured"
    if board is not None and (row.board or "") != board:
        return "of another board"
    if schema not in row.vectors:
        return f"no features of {schema}"
    at, usual = (
        Clocks(core_mhz=row.core_mhz, memory_mhz=row.memory_mhz).pair(gpu),
        default_clocks(gpu),
    )
    if any(abs(a / b - 1) > SAME_CLOCK for a, b in zip(at, usual, strict=True)):
        return "measured at other clocks than the models answer for"
    return None


def _complete(
    rows: Sequence[tuple[UUID, Measurement]],
    champion: Champion,
    schema: str,
    inputs: Sequence[str],
    gpu: GpuProfile,
    rest: Rest,
) -> list[tuple[UUID, Measurement]]:
    """Rows without a gap where the champion was trained on rows without one."""
    if not rows:
        return []
    may_miss = np.array([feature.missing_share > 0 for feature in champion.card.features])
    vectors = vectors_of([row for _, row in rows], schema, inputs, gpu)
    whole = ~(np.isnan(vectors) & ~may_miss).any(axis=1)
    if not whole.all():
        rest.reasons["a feature is missing"] += int(np.sum(~whole))
    return [row for row, keep in zip(rows, whole, strict=True) if keep]


def vectors_of(
    rows: Sequence[Measurement], schema_id: str, inputs: Sequence[str], gpu: GpuProfile
) -> NDArray[np.float64]:
    """Model inputs ``[n, k]``: fields of the schema, and what follows from the launch."""
    names = [each.name for each in get_schema(schema_id).fields]
    fields = dict(zip(names, np.array([row.vectors[schema_id] for row in rows]).T, strict=True))
    if any(name not in fields for name in inputs):
        fields |= launch_features(
            fields["grid_size"], fields["block_size"], fields["occupancy"], gpu
        )
    return np.column_stack([fields[name] for name in inputs]).astype(np.float64)


def _source(batch: Batch) -> Source:
    return Source(
        repository="uploads",
        path=f"measurements/{batch.id}",
        sha256=batch.content_sha256,
        used_sha256=batch.content_sha256,
        licence="the operator's own measurements",
    )


def _nothing(gpu: GpuProfile, rest: Rest) -> DataError:
    why = ", ".join(f"{count} {reason}" for reason, count in sorted(rest.reasons.items()))
    return DataError(f"no measurement of {gpu.id} is left to train on ({why or 'there are none'})")
