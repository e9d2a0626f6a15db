"""Predictions: written by one thread, and answered once they are committed.

``PredictionStore.add`` queues a record. The writer commits everything that is queued in one
transaction as soon as the one before has ended: a lone prediction waits for nobody, and many at
once share their commits. Whoever acknowledges a prediction waits for its row first (``wait``, or
``committed`` on an event loop), so that a process that is killed loses nothing acknowledged.
``close`` writes what is left.
"""

from __future__ import annotations

import asyncio
import threading
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from sys import getsizeof
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError, StatementError

from wattcast.app import logs, problems
from wattcast.app.store.database import DATABASE_SECONDS, StoreError, store_errors
from wattcast.app.store.tables import PREDICTIONS, PTX, found, page, read, records
from wattcast.predictor.parts.memory import Kept, Memory
from wattcast.predictor.parts.stored import PredictionRecord

_RETRY_SECONDS = 0.5
"""Pause before what failed is tried again."""

_PROBE_BYTES = 32 * 1024
"""Some pages of any database: where they find no room, a prediction finds none."""

_CLOSE_SECONDS = 3.0
"""How long ``close`` waits for the last rows."""

_RECENT_BYTES = 8 * 2**20
"""Memory for the latest predictions of a store that shares none with others."""


@dataclass(slots=True)
class _Queued:
    """A record on its way to the database, its PTX compressed where it may not be stored yet.
    ``committed`` ends when the row is there for good, or raises StoreError."""

    record: PredictionRecord
    text: dict[str, Any] | None
    committed: Future[None]


class PredictionStore:
    """Repository of predictions over ``engine``. Safe to call from any thread.

    A row that the database does not take is given up together with its request.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        memory: Memory | None = None,
        queue_rows: int = 10_000,
        seconds: float = DATABASE_SECONDS,
    ) -> None:
        self._engine = engine
        # Rows stand for themselves. A batch is one implicit transaction there, which saves the
        # round trips of BEGIN and COMMIT; SQLite would commit each row of its own.
        self._writer = (
            engine.execution_options(isolation_level="AUTOCOMMIT")
            if engine.dialect.name == "postgresql"
            else engine
        )
        # Made once: making them and finding out that they are the same takes as long as writing.
        dialect = engine.dialect.name
        self._insert_ptx = insert_or_leave(dialect, PTX)
        self._insert = insert_or_leave(dialect, PREDICTIONS)
        self._recent: Kept[UUID, PredictionRecord] = (memory or Memory(_RECENT_BYTES)).room(
            _held_bytes
        )
        self._waiting: list[_Queued] = []
        self._writing: list[_Queued] = []
        self._queue_rows = queue_rows
        self._seconds = seconds
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

    def add(self, record: PredictionRecord) -> Future[None]:
        """Remember and queue a record; what it returns ends once the row is committed, and raises
        StoreError where it will not be.

        Compresses PTX that the database may not have yet: call it in the thread that analysed.
        Raises StoreError when the writer has fallen behind.
        """
        text = None
        sha256 = record.ptx_sha256
        if record.ptx is not None and sha256 is not None and sha256 not in self._known_ptx:
            text = ptx_row(sha256, record.ptx, record.created)
        queued = _Queued(record, text, Future())
        with self._changed:
            if len(self._waiting) >= self._queue_rows:
                raise StoreError("the database is too slow; the prediction was not stored")
            self._waiting.append(queued)
            self._recent.put(record.id, replace(record, ptx=None))
            if len(self._waiting) == 1:
                self._changed.notify_all()
        return queued.committed

    def wait(self, rows: Sequence[Future[None]]) -> None:
        """Until rows are committed. Raises StoreError where one is not, or not in time."""
        until = time.monotonic() + self._seconds
        try:
            for row in rows:
                row.result(max(0.0, until - time.monotonic()))
        except TimeoutError:
            raise self._late(rows) from None

    async def committed(self, rows: Sequence[Future[None]]) -> None:
        """The same on an event loop."""
        try:
            async with asyncio.timeout(self._seconds):
                for row in rows:
                    if not row.done():
                        await asyncio.wrap_future(row)
                    row.result()
        except TimeoutError:
            raise self._late(rows) from None

    def _late(self, rows: Sequence[Future[None]]) -> StoreError:
        for row in rows:
            row.cancel()  # succeeds only where nobody has begun to write it
        return StoreError(
            f"the database did not take the prediction within {self._seconds:g} s "
            "(WATTCAST_DATABASE_SECONDS); it may be stored or not"
        )

    def recent(self, prediction_id: UUID) -> PredictionRecord | None:
        """A record that is still in memory; never touches the database."""
        with self._changed:
            recent = self._recent.get(prediction_id)
            if recent is None:
                pending = (*self._writing, *self._waiting)
                recent = next((q.record for q in pending if q.record.id == prediction_id), None)
            return recent

    def get(self, prediction_id: UUID) -> PredictionRecord | None:
        """A record from memory or the database. Raises StoreError if the latter is gone."""
        recent = self.recent(prediction_id)
        if recent is not None:
            return recent
        query = sa.select(PREDICTIONS).where(PREDICTIONS.c.id == prediction_id)
        with store_errors("the database cannot be read"):
            rows = found(self._engine, query)
        if not rows:
            return None
        return read(PredictionRecord, rows[0], result=rows[0].result.encode(), ptx=None)

    def ptx(self, sha256: str) -> str | None:
        """A stored PTX text by its hash."""
        with self._changed:
            for queued in (*self._writing, *self._waiting):
                record = queued.record
                if record.ptx is not None and record.ptx_sha256 == sha256:
                    return record.ptx
        return ptx_texts(self._engine, [sha256]).get(sha256)

    def check(self) -> None:
        """Ask the database for a sign of life. Raises StoreError."""
        with store_errors(), self._engine.connect() as connection:
            connection.execute(sa.select(1))

    def flush(self, timeout_seconds: float = _CLOSE_SECONDS) -> bool:
        """Wait until everything added so far is committed or refused; ``False`` if it is not."""
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
        if self._thread.is_alive() or self._waiting or self._writing:
            logs.log().error("predictions lost", rows=self.waiting)
        self._engine.dispose()

    def _run(self) -> None:
        while True:
            with self._changed:
                pause = _RETRY_SECONDS if self._failing else None
                self._changed.wait_for(lambda: self._waiting or self._closing.is_set(), pause)
                # Whoever waited for a row may have gone.
                self._writing = [
                    each for each in self._waiting if each.committed.set_running_or_notify_cancel()
                ]
                self._waiting = []
            if self._writing:
                self._write(self._writing)
                with self._changed:
                    self._writing = []
                    self._changed.notify_all()
            elif self._failing:
                self._failing = not self._takes_rows()
            if self._closing.is_set() and not self._waiting:
                return

    def _write(self, queued: list[_Queued]) -> None:
        """Commit rows, and tell who waits for them."""
        try:
            self._commit(queued)
        except (IntegrityError, DataError) as error:
            # One row the database will never take must not hold up the others.
            if len(queued) > 1:
                for one in queued:
                    self._write([one])
                return
            (one,) = queued
            why = str(error.orig).partition("\n")[0]  # the lines below it quote the row
            logs.log().error("prediction refused by the database", id=str(one.record.id), why=why)
            self._give_up(one, "the database refuses the prediction; see the log", error)
        except (SQLAlchemyError, StatementError) as error:
            if not self._failing:
                logs.log().error("cannot write predictions", why=str(error.args[:1]))
            self._failing = True
            for one in queued:
                self._give_up(one, problems.NOT_STORED, error)
        else:
            for one in queued:
                one.committed.set_result(None)
            self._failing = False

    def _give_up(self, queued: _Queued, why: str, cause: Exception) -> None:
        with self._changed:
            self._recent.drop(queued.record.id)
        refusal = StoreError(why)
        refusal.__cause__ = cause  # tells a full disk
        queued.committed.set_exception(refusal)

    def _takes_rows(self) -> bool:
        """Whether a row of some pages is taken, which is gone again once it is committed."""
        probe = {
            "sha256": f"probe {uuid4()}",
            "size": 0,
            "compressed": bytes(_PROBE_BYTES),
            "created": datetime.now(UTC),
        }
        try:
            with self._engine.begin() as connection:
                connection.execute(sa.insert(PTX), probe)
                connection.execute(sa.delete(PTX).where(PTX.c.sha256 == probe["sha256"]))
        except SQLAlchemyError:
            return False
        return True

    def _commit(self, queued: Sequence[_Queued]) -> None:
        rows = [each.record.row() for each in queued]
        texts = {
            each.text["sha256"]: each.text
            for each in queued
            if each.text is not None and each.text["sha256"] not in self._known_ptx
        }
        with self._writer.begin() as connection:
            if texts:
                # In one order everywhere: two writers of the same texts cannot lock each other out.
                rows_of_ptx = [texts[sha256] for sha256 in sorted(texts)]
                connection.execute(self._insert_ptx, rows_of_ptx)
            # Left where a commit went through whose answer got lost with the connection.
            connection.execute(self._insert, rows)
        if len(self._known_ptx) > 100_000:
            self._known_ptx.clear()
        self._known_ptx.update(texts)


def _held_bytes(record: PredictionRecord) -> int:
    texts = (record.kernel, record.request, record.result, record.vectors, record.models)
    return sum(getsizeof(text) for text in texts)


def ptx_row(sha256: str, text: str, created: datetime | None = None) -> dict[str, Any]:
    """The columns of ``PTX`` for a text."""
    encoded = text.encode()
    return {
        "sha256": sha256,
        "size": len(encoded),
        "compressed": zlib.compress(encoded, 6),
        "created": created or datetime.now(UTC),
    }


def ptx_texts(engine: Engine, sha256s: Sequence[str]) -> dict[str, str]:
    """Stored PTX texts by hash; one that is not stored is missing."""
    query = sa.select(PTX.c.sha256, PTX.c.compressed).where(PTX.c.sha256.in_(sha256s))
    rows = found(engine, query) if sha256s else []
    return {row.sha256: zlib.decompress(row.compressed).decode() for row in rows}


def insert_or_leave(dialect: str, table: sa.Table) -> sa.Insert:
    """Insert, or leave the row another process has stored (each PTX is stored once)."""
    if dialect == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table).on_conflict_do_nothing()
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table).on_conflict_do_nothing()


@dataclass(frozen=True, slots=True)
class Past:
    """One prediction; ``request`` (without its PTX) and ``result`` are the JSON texts."""

    id: UUID
    created: datetime
    request: str
    result: str


def latest(engine: Engine, *, limit: int, before: UUID | None = None) -> list[Past]:
    """One page, newest first; ``before`` is the last prediction of the page before.

    A ``before`` that does not exist gives an empty page. Predictions of the last moment may not
    be written yet. Raises sqlalchemy.exc.SQLAlchemyError where the database is gone.
    """
    columns = PREDICTIONS.c
    query = sa.select(columns.id, columns.created, columns.request, columns.result)
    return records(engine, Past, page(query, PREDICTIONS, limit, before))


MOST_ANSWERED = 20_000
"""Answers that an upload is compared with: the latest; a second or two."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A prediction that measurements may be compared with; JSON text as stored."""

    ptx_sha256: str
    gpu: str
    kernel: str
    request: str
    result: str


def answered(engine: Engine, sha256s: Sequence[str]) -> list[Answered]:
    """Predictions of PTX texts, newest first. Raises sqlalchemy.exc.SQLAlchemyError."""
    columns = PREDICTIONS.c
    query = (
        sa.select(*(columns[one.name] for one in fields(Answered)))
        .where(columns.ptx_sha256.in_(sha256s))
        .order_by(columns.created.desc())
        .limit(MOST_ANSWERED)
    )
    return records(engine, Answered, query)
