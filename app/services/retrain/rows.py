"""Stored measurements as rows to train on: which of them count, what each is for, and what the
physical models work out of their launches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from wattcast.app.services.measurements.rows import request_of
from wattcast.app.services.retrain.messages import LeftOutRow, Target
from wattcast.app.store.measurements import Batch, Measurement, MeasurementStore
from wattcast.features.activity import Activity
from wattcast.features.errors import DataError
from wattcast.features.gpus import GpuProfile
from wattcast.features.schemas import activity_schema, get_schema
from wattcast.models.cards import Marks, ModelCard, Source, code_marks, group_mark, ptx_mark
from wattcast.models.clocks import ClockPair, default_clocks
from wattcast.models.power import boosted, physical
from wattcast.models.power.activities import UnitActivities, unit_activities
from wattcast.models.time import base, bottleneck
from wattcast.models.time.beside import NOTHING_BESIDE, beside
from wattcast.predictor import Predictor, messages, parts
from wattcast.training.evaluation.scores import Floats, Rows
from wattcast.training.uploads import Uploads

PREFERRED_SCHEMA = "alavani2023"
"""The schema of the packaged boosted models."""

MOST_LISTED = 1000
"""Rows that do not train which are listed one by one; all of them are counted."""


@dataclass
class TrainingRows:
    """Stored measurements of one board that train a model of one target.

    ``batches`` are those of the request, later also earlier ones. ``board`` is ``None`` until
    ``load`` has seen it in the rows. ``schema``: rows must have its features (``None``: of any).
    Boosted models answer for the default clocks alone, the physical ones for ``any_clocks``.
    ``left_out`` counts rows that do not train, by reason; ``left_out_rows`` are the first of them.
    """

    store: MeasurementStore
    gpu: GpuProfile
    batches: dict[UUID, Batch]
    board: str | None
    target: Target = "power"
    schema: str | None = None
    any_clocks: bool = False
    rows: list[tuple[UUID, Measurement]] = field(default_factory=list)
    trained_on: frozenset[UUID] = frozenset()
    left_out: Counter[str] = field(default_factory=Counter)
    left_out_rows: list[LeftOutRow] = field(default_factory=list)

    def load(self) -> str:
        """Read the usable rows of the batches; the board they are of.

        Raises DataError where there are none, where they are of several boards and none is named,
        or where their features follow another definition of the schema; SchemaError for an unknown
        one.
        """
        if not self.batches:
            raise DataError("the measurements have been deleted")
        if self.schema is not None:
            self._check_definition(self.schema)
        self._read(self.batches)
        boards = sorted({row.board or "" for row in self.measured})
        if not boards:
            raise self._nothing_left()
        if len(boards) > 1:
            raise DataError(
                "the measurements are of several boards; name one of them",
                field="board",
                known=boards,
            )
        self.board = boards[0]
        return self.board

    def load_earlier(self, trained_on: Iterable[str]) -> None:
        """Add the rows of earlier uploads that the board's champion was trained on.
        They keep what is known of the board, and show whether the candidate forgets it."""
        self.trained_on = frozenset(UUID(batch) for batch in trained_on)
        missing = [batch for batch in self.trained_on if batch not in self.batches]
        earlier = self.store.get_many(missing) if missing else {}
        if earlier:
            self._read(earlier)
            self.batches = {**self.batches, **earlier}

    def drop(self, reasons: Sequence[str | None]) -> None:
        """Leave out the rows with a reason against them. Raises DataError where none is left."""
        kept = []
        for (batch, row), why in zip(self.rows, reasons, strict=True):
            if why is None:
                kept.append((batch, row))
            else:
                self._leave_out(batch, row, why)
        self.rows = kept
        if not kept:
            raise self._nothing_left()

    @property
    def measured(self) -> list[Measurement]:
        """The measurements, in order."""
        return [row for _, row in self.rows]

    @property
    def schemas(self) -> set[str]:
        """All schemas of which any row has features."""
        return {schema for _, row in self.rows for schema in row.vectors}

    def uploads(self, vectors: Floats) -> Uploads:
        """The rows with their model inputs ``[n, k]``."""
        measured = self.measured
        values = [self._value(row) for row in measured]
        return Uploads(
            rows=Rows.of(
                vectors,
                np.array(values, dtype=np.float64),
                [row.kernel_group for row in measured],
            ),
            new=np.array([batch not in self.trained_on for batch, _ in self.rows]),
            batches=tuple(sorted(str(batch) for batch in self.batches)),
            sources=tuple(
                Source(
                    repository="uploads",
                    path=f"measurements/{batch.id}",
                    sha256=batch.content_sha256,
                    used_sha256=batch.content_sha256,
                    licence="the operator's own measurements",
                )
                for _, batch in sorted(self.batches.items())
            ),
            marks=marks_of_rows(measured),
        )

    def _check_definition(self, schema: str) -> None:
        current = get_schema(schema).sha256
        old = [
            str(key)
            for key, batch in self.batches.items()
            if batch.schemas.get(schema, current) != current
        ]
        if old:
            raise DataError(
                f"features of {', '.join(old[:5])} follow another definition of {schema}: "
                "upload again"
            )

    def _read(self, batches: Iterable[UUID]) -> None:
        for batch, row in self.store.rows(list(batches), gpu=self.gpu.id):
            why = self._unusable(row)
            if why is None:
                self.rows.append((batch, row))
            else:
                self._leave_out(batch, row, why)

    def _unusable(self, row: Measurement) -> str | None:
        if self._value(row) is None:
            return f"no {self.target} was measured"
        if self.board is not None and (row.board or "") != self.board:
            return "of another board"
        if self.schema is not None and self.schema not in row.vectors:
            return f"no features of {self.schema}"
        if self.any_clocks or at_default_clocks(row, self.gpu):
            return None
        return "measured at other clocks than the models answer for"

    def _value(self, row: Measurement) -> float | None:
        return row.power_watts if self.target == "power" else row.time_seconds

    def _leave_out(self, batch: UUID, row: Measurement, why: str) -> None:
        self.left_out[why] += 1
        if len(self.left_out_rows) < MOST_LISTED:
            self.left_out_rows.append(LeftOutRow(batch=batch, row=row.row, reason=why))

    def _nothing_left(self) -> DataError:
        why = ", ".join(f"{count} {reason}" for reason, count in sorted(self.left_out.items()))
        return DataError(
            f"no measurement of {self.gpu.id} is left to train on ({why or 'there are none'})"
        )


def shared_schema(batches: Iterable[Batch]) -> str:
    """The schema to train on that all batches have. Raises DataError where there is none."""
    shared = set.intersection(*(set(batch.schemas) for batch in batches))
    if not shared:
        raise DataError("the batches have no feature schema in common; name one", field="schema")
    # activity1 holds counts of any GPU, and is there beside another schema wherever there is PTX.
    return min(shared, key=lambda name: (name != PREFERRED_SCHEMA, name == "activity1", name))


def at_default_clocks(row: Measurement, gpu: GpuProfile) -> bool:
    """Whether a launch ran at the clocks that boosted models answer for."""
    pairs = zip(_clocks(row, gpu), default_clocks(gpu), strict=True)
    return all(abs(a / b - 1) <= physical.SAME_CLOCK for a, b in pairs)


def _clocks(row: Measurement, gpu: GpuProfile) -> ClockPair:
    return messages.Clocks(core_mhz=row.core_mhz, memory_mhz=row.memory_mhz).pair(gpu)


def complete(card: ModelCard, vectors: Floats) -> NDArray[np.bool_]:
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
) -> Floats:
    """Model inputs ``[n, k]``: fields of the schema, and what follows from the launch, with a grid
    of ``blocks`` where a row has none."""
    names = [each.name for each in get_schema(schema_id).fields]
    fields = dict(zip(names, np.array([row.vectors[schema_id] for row in rows]).T, strict=True))
    if any(name not in fields for name in inputs):
        own_grid = fields["grid_size"]
        grid = np.where(np.isnan(own_grid), blocks, own_grid)
        fields |= boosted.launch_features(grid, fields["block_size"], fields["occupancy"], gpu)
    return np.column_stack([fields[name] for name in inputs]).astype(np.float64)


def marks_of_rows(rows: Sequence[Measurement]) -> tuple[Marks, ...]:
    """What identifies the kernel of each row: its group, its PTX, and what its features of every
    schema say about the code."""
    marks: list[set[str]] = [{group_mark(row.kernel_group)} for row in rows]
    for row, own in zip(rows, marks, strict=True):
        if row.ptx_sha256:
            own.add(ptx_mark(row.ptx_sha256))
    for schema in sorted({schema for row in rows for schema in row.vectors}):
        having = [at for at, row in enumerate(rows) if schema in row.vectors]
        names = [each.name for each in get_schema(schema).fields]
        vectors = np.array([rows[at].vectors[schema] for at in having], dtype=np.float64)
        for at, mark in zip(having, code_marks(schema, names, vectors), strict=True):
            if mark is not None:
                marks[at].add(mark)
    return tuple(frozenset(own) for own in marks)


# --- launches as the physical time and power models see them --------------------------------------


@dataclass(frozen=True, slots=True)
class ModelledLaunch:
    """What the models make of a measured launch at the clocks it ran at: the default time model's
    seconds and regime, and the units' activities at that time."""

    clocks: ClockPair
    seconds: float
    regime: base.Regime
    activities: UnitActivities


@dataclass(frozen=True)
class Launches:
    """Measured launches of a GPU, as ``predictor`` analyses them; ``store`` has their PTX.

    Matrix units, atomics and dependent chains show in the code alone, not in ``activity1``. So
    launches whose code is known are analysed as a prediction would, and those that use the first
    two need it.
    """

    predictor: Predictor
    gpu: GpuProfile
    store: MeasurementStore

    def modelled(self, rows: Sequence[Measurement]) -> list[ModelledLaunch | str]:
        """Each launch, or why no model can be asked about it."""
        return [
            known if isinstance(known, str) else self._modelled(row, *known)
            for row, known in zip(rows, self._known(rows), strict=True)
        ]

    def refused(self, rows: Sequence[Measurement]) -> list[str | None]:
        """Why no model can be asked about a launch, as far as shows without an analysis."""
        return [known if isinstance(known, str) else None for known in self._known(rows)]

    def _known(self, rows: Sequence[Measurement]) -> list[tuple[Activity, str | None] | str]:
        """The activity of each launch and its code, if that is stored; or what is wrong."""
        activities = [_activity(row) for row in rows]
        sound = [row for row, one in zip(rows, activities, strict=True) if not isinstance(one, str)]
        texts = self.store.ptx(sorted({row.ptx_sha256 for row in sound if row.ptx_sha256}))
        known: list[tuple[Activity, str | None] | str] = []
        for row, activity in zip(rows, activities, strict=True):
            ptx = texts.get(row.ptx_sha256 or "")
            if isinstance(activity, str):
                known.append(activity)
            elif ptx is None and (activity.tensor_instructions or activity.atomic_requests):
                known.append("uses atomics or matrix units, of which features do not tell enough")
            else:
                known.append((activity, ptx))
        return known

    def _modelled(
        self, row: Measurement, activity: Activity, ptx: str | None
    ) -> ModelledLaunch | str:
        gpu, more = self.gpu, NOTHING_BESIDE
        if ptx is not None:
            # The very analysis that a prediction of the launch rests on, as in the upload.
            request = request_of(row, ptx)
            source = self.predictor.sources.read(request, gpu)
            more = beside(parts.analysed(self.predictor, request, source, gpu, ptxas=True).extras)
        clocks = _clocks(row, gpu)
        resources = bottleneck.resource_seconds(activity, gpu, clocks, more=more)
        start = bottleneck.launch_seconds(activity, gpu)
        seconds = bottleneck.combined_seconds(resources) + start
        if not (seconds > 0 and math.isfinite(seconds)):
            return "its activity1 is no launch"
        # Rates are counts over the time it really took, where that was measured: power is answered
        # at the time that is answered, which a correction of times brings near it.
        took = row.time_seconds or seconds
        units = unit_activities(activity, gpu, clocks, took, more=more)
        return ModelledLaunch(clocks, seconds, bottleneck.regime(resources, start), units)


def _activity(row: Measurement) -> Activity | str:
    schema = activity_schema()
    vector = row.vectors.get(schema.id)
    if vector is None:
        return f"no features of {schema.id}"
    named = dict(zip((each.name for each in schema.fields), vector, strict=True))
    # Uploaded features may say anything; these two no model can do without.
    needed = named["sm_imbalance"] and named["kernel_launches"]
    if needed and all(math.isfinite(value) and value >= 0 for value in vector):
        return Activity(**named)
    return f"its {schema.id} is no launch"
