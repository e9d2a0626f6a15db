"""Uploaded measurements: batches of rows, each batch stored whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy.engine import Engine, Row

from wattcast.app.store import tables
from wattcast.app.store.predictions import insert_or_leave, ptx_row, ptx_texts
from wattcast.app.store.registry import OBSERVATIONS, Observation, next_generation

Form = Literal["ptx", "features"]

_ROWS_AT_ONCE = 1000
"""Rows fetched from the database at a time."""

_NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Measurement:
    """One accepted row.

    ``row`` counts the upload's rows from 1. ``kernel_group`` is what grouped protocols keep
    together. ``launch`` (how the kernel was started, as a request of ``POST /predict`` says it:
    ``grid``, ``block``, ``dynamic_shared_bytes``, ``arguments``, and ``loops``,
    ``registers_per_thread``, ``static_shared_bytes`` where given) and ``ptx_sha256`` are ``None``
    where only features were uploaded. A clock is ``None`` where none was told. At least one of
    ``power_watts`` (mean over the launch) and ``time_seconds`` (of one launch) is there.
    ``vectors`` holds every field of each schema in the schema's order, NaN for a missing one.
    """

    row: Annotated[int, "primary_key"]
    gpu: Annotated[str, 64]
    board: Annotated[str | None, 64]
    kernel: str
    kernel_group: str
    ptx_sha256: Annotated[str | None, 64, sa.ForeignKey("ptx.sha256")]
    launch: Mapping[str, Any] | None
    core_mhz: float | None
    memory_mhz: float | None
    power_watts: float | None
    time_seconds: float | None
    repeats: int
    vectors: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a row was not taken; ``column`` is ``None`` where the row as a whole is wrong."""

    row: int
    column: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class NewBatch:
    """What an upload gave. ``schemas``: hash of each schema's definition by its id.
    ``ptx``: texts by SHA-256 that the rows refer to and that may not be stored yet.
    ``observed``: what the rows say of answers given before."""

    content_sha256: str
    form: Form
    schemas: Mapping[str, str]
    rows: Sequence[Measurement]
    rejected: int = 0
    rejections: Sequence[Rejection] = ()
    ptx: Mapping[str, str] = field(default_factory=dict)
    observed: Sequence[Observation] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """A stored batch without its rows. ``rejections`` are the first of the ``rejected``."""

    id: Annotated[UUID, "primary_key"]
    created: Annotated[datetime, "index"]
    uploaded_by: Annotated[str, 100]
    form: Annotated[Form, 16]
    schemas: Mapping[str, str]
    content_sha256: Annotated[str, 64, "unique"]
    accepted: int
    rejected: int
    rejections: tuple[Rejection, ...]


MEASUREMENT_BATCHES = tables.table("measurement_batches", Batch)
"""Uploads. ``content_sha256`` is over the accepted rows as they mean, not over the file, so that
the same rows compressed or in another format are the same batch. ``form`` is ``ptx`` or
``features``. JSON text: ``schemas`` the hash of each schema's definition by its id,
``rejections`` the first rejected rows as ``[{"row": 3, "column": "grid", "reason": "..."}]``."""

_OF_ITS_BATCH = sa.ForeignKey(MEASUREMENT_BATCHES.c.id, ondelete="CASCADE")

MEASUREMENTS = tables.table(
    "measurements",
    Measurement,
    sa.Column("batch_id", sa.Uuid, _OF_ITS_BATCH, primary_key=True),
    sa.Index("ix_measurements_gpu_board", "gpu", "board"),
)
"""Accepted rows; ``row`` counts the upload's rows from 1. JSON text: ``launch`` how the kernel was
started (``null`` where only features were given), ``vectors`` every field of each schema in its
order (``{"activity1": [1.0, null]}``)."""


class MeasurementStore:
    """Repository of measurements over ``engine``. Safe to call from any thread.
    Every method raises sqlalchemy.exc.SQLAlchemyError where the database is gone."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, new: NewBatch, actor: str) -> tuple[Batch, bool]:
        """Store a batch in one transaction; ``False`` if these rows were stored already.
        The answer to a repetition is the batch as it was first stored."""
        batch_id = uuid4()
        values = {
            "id": batch_id,
            "created": datetime.now(UTC),
            "content_sha256": new.content_sha256,
            "uploaded_by": actor,
            "form": new.form,
            "schemas": new.schemas,
            "accepted": len(new.rows),
            "rejected": new.rejected,
            "rejections": [asdict(one) for one in new.rejections],
        }
        dialect = self._engine.dialect.name
        columns = MEASUREMENT_BATCHES.c
        with self._engine.begin() as connection:
            # Written before anything is read: an SQLite transaction that reads first cannot
            # wait for another writer.
            connection.execute(insert_or_leave(dialect, MEASUREMENT_BATCHES), values)
            stored = connection.execute(
                sa.select(*columns).where(columns.content_sha256 == new.content_sha256)
            ).one()
            is_new = bool(stored.id == batch_id)
            if is_new:
                if new.ptx:
                    texts = [ptx_row(sha256, text) for sha256, text in sorted(new.ptx.items())]
                    connection.execute(insert_or_leave(dialect, tables.PTX), texts)
                if new.rows:
                    rows = [{"batch_id": batch_id, **tables.plain(row)} for row in new.rows]
                    connection.execute(sa.insert(MEASUREMENTS), rows)
                if new.observed:
                    at = {"batch_id": batch_id, "at": values["created"]}
                    told = [{**at, **tables.plain(one)} for one in new.observed]
                    connection.execute(sa.insert(OBSERVATIONS), told)
                    next_generation(connection)  # replicas look what their intervals held
                facts = {"accepted": len(new.rows), "rejected": new.rejected, "form": new.form}
                tables.record(connection, actor, "measurements.upload", str(batch_id), facts)
            return _batch(stored), is_new

    def get(self, batch_id: UUID) -> Batch | None:
        """A batch by its id."""
        return self.get_many([batch_id]).get(batch_id)

    def get_many(self, batch_ids: Sequence[UUID]) -> dict[UUID, Batch]:
        """Batches by id; one that does not exist is missing."""
        columns = MEASUREMENT_BATCHES.c
        query = sa.select(*columns).where(columns.id.in_(batch_ids))
        return {row.id: _batch(row) for row in tables.found(self._engine, query)}

    def latest(self, *, limit: int = 100, before: UUID | None = None) -> list[Batch]:
        """Batches, newest first; ``before`` is the last of the page before.
        A ``before`` that does not exist gives an empty page."""
        query = tables.page(sa.select(MEASUREMENT_BATCHES), MEASUREMENT_BATCHES, limit, before)
        return [_batch(row) for row in tables.found(self._engine, query)]

    def rows(
        self, batch_ids: Sequence[UUID], *, gpu: str | None = None
    ) -> Iterator[tuple[UUID, Measurement]]:
        """Rows of batches, by batch and row, a thousand at a time; of one GPU if named."""
        columns = MEASUREMENTS.c
        query = (
            sa.select(*columns)
            .where(columns.batch_id.in_(batch_ids))
            .order_by(columns.batch_id, columns.row)
        )
        if gpu is not None:
            query = query.where(columns.gpu == gpu)
        with self._engine.connect() as connection:
            streamed = connection.execution_options(yield_per=_ROWS_AT_ONCE).execute(query)
            for row in streamed:
                yield row.batch_id, _measurement(row)

    def times(self, batch_ids: Sequence[UUID], gpu: str, board: str | None = None) -> int:
        """How many rows of batches hold the time of a launch of this GPU, or board if named."""
        columns = MEASUREMENTS.c
        query = sa.select(sa.func.count(columns.time_seconds)).where(
            columns.batch_id.in_(batch_ids), columns.gpu == gpu
        )
        if board is not None:
            query = query.where(sa.func.coalesce(columns.board, "") == board)
        return int(tables.found(self._engine, query)[0][0])

    def ptx(self, sha256s: Sequence[str]) -> dict[str, str]:
        """Stored PTX texts by hash; one that is not stored is missing."""
        return ptx_texts(self._engine, sha256s)

    def delete(self, batch_id: UUID, actor: str) -> bool:
        """Delete a batch with its rows; ``False`` if there is none. Its PTX stays."""
        columns = MEASUREMENT_BATCHES.c
        with self._engine.begin() as connection:
            of_it = OBSERVATIONS.c.batch_id == batch_id
            if connection.execute(sa.delete(OBSERVATIONS).where(of_it)).rowcount:
                next_generation(connection)
            gone = connection.execute(sa.delete(MEASUREMENT_BATCHES).where(columns.id == batch_id))
            if gone.rowcount:
                tables.record(connection, actor, "measurements.delete", str(batch_id))
            return bool(gone.rowcount)


def _measurement(row: Row[Any]) -> Measurement:
    vectors = {
        schema: tuple(_NAN if value is None else value for value in vector)
        for schema, vector in row.vectors.items()
    }
    return tables.read(Measurement, row, vectors=vectors)


def _batch(row: Row[Any]) -> Batch:
    return tables.read(Batch, row, rejections=tuple(Rejection(**one) for one in row.rejections))
