"""Predictions: kept in memory at once, written by one thread in batches.

An answer does not wait for the disk. ``PredictionStore.add`` takes a record, a writer thread
commits everything that has gathered within a few milliseconds in one transaction, and ``get``
finds a record from the moment ``add`` returned. ``close`` writes what is left.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError, StatementError

from wattcast.app.logs import log
from wattcast.app.store.database import StoreError
from wattcast.app.store.tables import PREDICTIONS, PTX
from wattcast.predictor.parts.stored import PredictionRecord

_RETRY_SECONDS = 0.5
"""Pause after a failed write; the rows stay queued."""

_CLOSE_SECONDS = 10.0
"""How long ``close`` waits for the last rows."""


class PredictionStore:
    """Repository of predictions over ``engine``. Safe to call from any thread."""

    def __init__(
        self,
        engine: Engine,
        *,
        recent: int = 1024,
        queue_rows: int = 10_000,
        flush_seconds: float = 0.05,
    ) -> None:
        self._engine = engine
        self._recent: OrderedDict[UUID, PredictionRecord] = OrderedDict()
        self._recent_size = recent
        self._waiting: list[PredictionRecord] = []
        self._writing: Sequence[PredictionRecord] = ()
        self._queue_rows = queue_rows
        self._flush_seconds = flush_seconds
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._failing = False
        self._known_ptx: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="prediction-writer", daemon=True)
        self._thread.start()

    @property
    def healthy(self) -> bool:
        """Whether the last write succeeded."""
        return not self._failing

    @property
    def waiting(self) -> int:
        """Predictions that are not written yet."""
        return len(self._waiting) + len(self._writing)

    def add(self, record: PredictionRecord) -> None:
        """Remember and queue a record. Raises StoreError when the writer has fallen behind."""
        with self._changed:
            if len(self._waiting) >= self._queue_rows:
                raise StoreError("the database does not keep up; the prediction was not stored")
            self._waiting.append(record)
            self._recent[record.id] = record
            if len(self._recent) > self._recent_size:
                self._recent.popitem(last=False)
            if len(self._waiting) == 1:
                self._changed.notify_all()

    def recent(self, prediction_id: UUID) -> PredictionRecord | None:
        """A record that is still in memory; never touches the database."""
        with self._changed:
            found = self._recent.get(prediction_id)
            if found is None:
                pending = (*self._writing, *self._waiting)
                found = next((r for r in pending if r.id == prediction_id), None)
            return found

    def get(self, prediction_id: UUID) -> PredictionRecord | None:
        """A record from memory or the database. Raises StoreError if the latter is gone."""
        found = self.recent(prediction_id)
        if found is not None:
            return found
        columns = PREDICTIONS.c
        query = sa.select(*columns).where(columns.id == prediction_id)
        try:
            with self._engine.connect() as connection:
                row = connection.execute(query).one_or_none()
        except SQLAlchemyError as error:
            raise StoreError("the database cannot be read") from error
        if row is None:
            return None
        created = row.created if row.created.tzinfo else row.created.replace(tzinfo=UTC)
        return PredictionRecord(
            id=row.id,
            created=created,
            ptx_sha256=row.ptx_sha256,
            gpu=row.gpu,
            kernel=row.kernel,
            request=row.request,
            result=row.result.encode(),
            vectors=row.vectors,
            models=row.models,
        )

    def ptx(self, sha256: str) -> str | None:
        """A stored PTX text by its hash."""
        query = sa.select(PTX.c.compressed).where(PTX.c.sha256 == sha256)
        with self._engine.connect() as connection:
            compressed = connection.scalar(query)
        return None if compressed is None else zlib.decompress(compressed).decode()

    def check(self) -> None:
        """Ask the database for a sign of life. Raises StoreError."""
        try:
            with self._engine.connect() as connection:
                connection.execute(sa.select(1))
        except SQLAlchemyError as error:
            raise StoreError("the database does not answer") from error

    def flush(self, timeout_seconds: float = _CLOSE_SECONDS) -> bool:
        """Wait until everything added so far is committed; ``False`` if that did not happen."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._waiting and not self._writing, timeout_seconds
            )

    def close(self) -> None:
        """Write what is left, stop the writer and release the database's connections."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive() or self._waiting:
            log().error("predictions lost", rows=len(self._waiting) + len(self._writing))
        self._engine.dispose()

    def _run(self) -> None:
        deadline: float | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing.is_set())
                if not self._waiting:
                    return
            # Gather what arrives in the next moment: one commit for many requests.
            self._closing.wait(self._flush_seconds)
            if self._closing.is_set() and deadline is None:
                deadline = time.monotonic() + _CLOSE_SECONDS / 2
            with self._changed:
                self._writing, self._waiting = self._waiting, []
            written = self._write(self._writing)
            with self._changed:
                if not written:
                    self._waiting = [*self._writing, *self._waiting]
                self._writing = ()
                self._changed.notify_all()
            if not written:
                if deadline is not None and time.monotonic() > deadline:
                    return
                time.sleep(_RETRY_SECONDS)

    def _write(self, records: Sequence[PredictionRecord]) -> bool:
        """Commit records; ``False`` if the database failed and they should be tried again."""
        try:
            self._commit(records)
        except (IntegrityError, DataError) as error:
            # One row the database will never take must not hold up the others.
            if len(records) == 1:
                why = str(error.orig).partition("\n")[0]  # the lines below it quote the row
                log().error("prediction refused by the database", id=str(records[0].id), why=why)
            else:
                for record in records:
                    if not self._write([record]):
                        return False
        except (SQLAlchemyError, StatementError) as error:
            if not self._failing:
                log().error("cannot write predictions; trying again", why=str(error.args[:1]))
            self._failing = True
            return False
        self._failing = False
        return True

    def _commit(self, records: Sequence[PredictionRecord]) -> None:
        rows = [record.row() for record in records]
        texts: dict[str, PredictionRecord] = {
            record.ptx_sha256: record
            for record in records
            if record.ptx is not None
            and record.ptx_sha256 is not None
            and record.ptx_sha256 not in self._known_ptx
        }
        with self._engine.begin() as connection:
            if texts:
                # In one order everywhere: two writers of the same texts cannot lock each other out.
                rows_of_ptx = [
                    ptx_row(sha256, texts[sha256].ptx or "", texts[sha256].created)
                    for sha256 in sorted(texts)
                ]
                connection.execute(insert_or_leave(self._engine.dialect.name, PTX), rows_of_ptx)
            # Left where a commit went through whose answer got lost with the connection.
            connection.execute(insert_or_leave(self._engine.dialect.name, PREDICTIONS), rows)
        if len(self._known_ptx) > 100_000:
            self._known_ptx.clear()
        self._known_ptx.update(texts)


def ptx_row(sha256: str, text: str, created: datetime | None = None) -> dict[str, Any]:
    """The columns of ``PTX`` for a text."""
    encoded = text.encode()
    return {
        "sha256": sha256,
        "size": len(encoded),
        "compressed": zlib.compress(encoded, 6),
        "created": created or datetime.now(UTC),
    }


def insert_or_leave(dialect: str, table: sa.Table) -> sa.Insert:
    """Insert, or leave the row another process has stored (each PTX is stored once)."""
    if dialect == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table).on_conflict_do_nothing()
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table).on_conflict_do_nothing()
