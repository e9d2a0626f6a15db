"""Durable jobs: whoever works on one holds a lease, and only who holds it can end it.

    submit -> queued -> claim -> running -> finish | fail | release (queued again)
                  \\-> cancel -> cancelled <-/

A worker claims a job with a token and renews its lease by heartbeats. A worker that dies stops
renewing; the job is claimed anew with another token, and whatever the first one still does with its
own comes to nothing. A result counts only through ``finish``, in the transaction of its effects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, get_args
from uuid import UUID, uuid4

import sqlalchemy as sa
from pydantic_core import to_json
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import IntegrityError

from wattcast.app.store.database import database_now, seconds_since_1970
from wattcast.app.store.tables import COUNTED, found, read, record, records, table
from wattcast.features.errors import ServiceError

State = Literal["queued", "running", "done", "failed", "cancelled"]
STATES: tuple[State, ...] = get_args(State)
ENDED: tuple[State, ...] = ("done", "failed", "cancelled")
_QUEUED = {"state": "queued", "stage": "queued", "progress": 0.0}
_FREE: Mapping[str, None] = {"lease_token": None, "lease_until": None}


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it stands. ``progress`` is the share of ``stage``'s whole job that is done."""

    id: Annotated[UUID, "primary_key"]
    kind: Annotated[str, 32]
    state: Annotated[State, 16]
    stage: Annotated[str, 64]
    progress: float
    attempts: int
    created: Annotated[datetime, "index"]
    started: datetime | None
    finished: datetime | None
    cancel_requested: bool
    request: Mapping[str, Any]
    result: Mapping[str, Any] | None
    error: Mapping[str, Any] | None
    actor: Annotated[str, 100]

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in ENDED


JOBS = table(
    "jobs",
    Job,
    sa.Column("request_sha256", sa.String(64), nullable=False),
    sa.Column("idempotency_key", sa.String(200), unique=True),
    sa.Column("not_before", sa.Float, nullable=False),
    sa.Column("lease_token", sa.String(32)),
    sa.Column("lease_until", sa.Float),
    sa.Index("ix_jobs_state_created", "state", "created"),
)
"""Jobs. ``state`` is ``queued``, ``running``, ``done``, ``failed`` or ``cancelled``. A running job
belongs to who knows ``lease_token``, until ``lease_until`` (seconds since 1970 by the database's
clock); a queued one starts no sooner than ``not_before``. JSON text: ``request``, ``result``;
``error`` is ``{"kind": "data", "detail": "..."}``."""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something that happened to a job."""

    id: Annotated[int, COUNTED, "primary_key"]
    at: datetime
    state: Annotated[str, 16]
    stage: Annotated[str, 64]
    progress: float
    detail: str


_OF_ITS_JOB = sa.ForeignKey(JOBS.c.id, ondelete="CASCADE")
JOB_EVENTS = table(
    "job_events",
    JobEvent,
    sa.Column("job_id", sa.Uuid, _OF_ITS_JOB, nullable=False, index=True),
)
"""What happened to a job, in the order of ``id``: whoever adds an event has locked the job's row,
so that of one job no smaller id appears later."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A job and the token of the lease on it."""

    job: Job
    token: str


class LeaseLostError(ServiceError):
    """The job is no longer this worker's: another one has it, or it was cancelled."""

    def __init__(self, job_id: UUID) -> None:
        super().__init__("internal", f"job {job_id} is no longer this worker's")


class JobStore:
    """Repository of jobs over ``engine``. Safe to call from any thread.
    Every method raises sqlalchemy.exc.SQLAlchemyError where the database is gone."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def submit(
        self, kind: str, request: Mapping[str, Any], actor: str, key: str | None = None
    ) -> tuple[Job, bool]:
        """Queue a job; ``False`` with the job that was queued under the same ``key`` before.
        Raises ServiceError ``idempotency-key`` where that one was another request."""
        text = to_json(request, inf_nan_mode="null")
        digest = hashlib.sha256(kind.encode() + b"\n" + text).hexdigest()
        job_id = uuid4()
        values = {
            "id": job_id,
            "kind": kind,
            **_QUEUED,
            "request": request,
            "request_sha256": digest,
            "idempotency_key": key,
            "actor": actor,
            "created": datetime.now(UTC),
            "attempts": 0,
            "not_before": 0.0,
            "cancel_requested": False,
        }
        try:
            with self._engine.begin() as connection:
                connection.execute(sa.insert(JOBS), values)
                _event(connection, job_id, "queued", "queued", 0.0)
                record(connection, actor, f"jobs.{kind}", str(job_id))
        except IntegrityError:
            if key is None:
                raise
            return self._under_key(key, digest), False
        job = self.get(job_id)
        assert job is not None
        return job, True

    def _under_key(self, key: str, digest: str) -> Job:
        (row,) = found(self._engine, sa.select(JOBS).where(JOBS.c.idempotency_key == key))
        if row.request_sha256 != digest:
            raise ServiceError(
                "idempotency-key",
                f"the idempotency key {key!r} was used for another request (job {row.id})",
            )
        return read(Job, row)

    def get(self, job_id: UUID) -> Job | None:
        """A job by its id."""
        jobs = records(self._engine, Job, sa.select(JOBS).where(JOBS.c.id == job_id))
        return jobs[0] if jobs else None

    def ended_of(self, job_ids: Sequence[UUID]) -> list[UUID]:
        """Which of these jobs have ended."""
        if not job_ids:
            return []
        query = sa.select(JOBS.c.id).where(JOBS.c.id.in_(job_ids), JOBS.c.state.in_(ENDED))
        return [row.id for row in found(self._engine, query)]

    def latest(self, limit: int = 100) -> list[Job]:
        """Jobs, newest first."""
        query = sa.select(JOBS).order_by(JOBS.c.created.desc(), JOBS.c.id).limit(limit)
        return records(self._engine, Job, query)

    def events(self, job_id: UUID, after: int = 0, limit: int = 1000) -> list[JobEvent]:
        """What happened to a job after the event of id ``after``, in order."""
        columns = JOB_EVENTS.c
        query = (
            sa.select(JOB_EVENTS)
            .where(columns.job_id == job_id, columns.id > after)
            .order_by(columns.id)
            .limit(limit)
        )
        return records(self._engine, JobEvent, query)

    def claim(self, kinds: Sequence[str], lease_seconds: float, most_attempts: int) -> Claim | None:
        """Take the oldest job that waits, or whose worker is gone; ``None`` if there is none.

        A job whose worker died for the ``most_attempts``-th time fails instead, and one that was
        to be cancelled when its worker died is cancelled.
        """
        columns = JOBS.c
        now = database_now()
        expired = sa.and_(columns.state == "running", columns.lease_until < now)
        self._bury(expired, most_attempts)
        waiting = sa.and_(columns.state == "queued", columns.not_before <= now)
        # One statement: SQLite has one writer at a time, PostgreSQL skips rows that others hold.
        oldest = (
            sa.select(columns.id)
            .where(columns.kind.in_(kinds), sa.or_(waiting, expired))
            .order_by(columns.created, columns.id)
            .limit(1)
            .with_for_update(skip_locked=True)
            .scalar_subquery()
        )
        token = uuid4().hex
        claim = (
            sa.update(JOBS)
            .where(columns.id == oldest)
            .values(
                state="running",
                stage="starting",
                progress=0.0,
                attempts=columns.attempts + 1,
                lease_token=token,
                lease_until=now + lease_seconds,
                started=sa.func.coalesce(columns.started, datetime.now(UTC)),
            )
            .returning(JOBS)
        )
        with self._engine.begin() as connection:
            row = connection.execute(claim).one_or_none()
            if row is None:
                return None
            _event(connection, row.id, "running", "starting", 0.0, f"attempt {row.attempts}")
            return Claim(read(Job, row), token)

    def _bury(self, expired: sa.ColumnElement[bool], most_attempts: int) -> None:
        """End jobs whose worker is gone and that shall not run again."""
        columns = JOBS.c
        gone = sa.or_(columns.cancel_requested, columns.attempts >= most_attempts)
        lost = sa.select(columns.id, columns.lease_token).where(expired, gone)
        for row in found(self._engine, lost):  # as a rule none
            why = f"its worker died {most_attempts} times; see the log"
            error = {"kind": "internal", "detail": why}
            try:
                with self._lease(row.id, row.lease_token) as (connection, job):
                    if job.cancel_requested:
                        self._end(connection, row.id, "cancelled", {})
                    else:
                        self._end(connection, row.id, "failed", {"error": error}, why)
            except LeaseLostError:
                continue  # another worker came first

    def beat(self, job_id: UUID, token: str, lease_seconds: float) -> bool:
        """Renew a lease; ``True`` if the job is to be cancelled. Raises LeaseLostError."""
        until = database_now() + lease_seconds
        with self._lease(job_id, token, lease_until=until) as (_, job):
            return job.cancel_requested

    def progress(
        self, job_id: UUID, token: str, stage: str, share: float, detail: str = ""
    ) -> None:
        """Tell how far a job is. Raises LeaseLostError."""
        with self._lease(job_id, token, stage=stage, progress=share) as (connection, _):
            _event(connection, job_id, "running", stage, share, detail)

    def finish(
        self, connection: Connection, job_id: UUID, token: str, result: Mapping[str, Any]
    ) -> None:
        """End a job well, in the transaction of its effects, as the first statement of it.
        Raises LeaseLostError: then none of them may be committed."""
        job = self._held(connection, job_id, token)
        if job.cancel_requested:
            raise LeaseLostError(job_id)
        self._end(connection, job_id, "done", {"result": result, "progress": 1.0})

    def fail(self, job_id: UUID, token: str, error: Mapping[str, Any]) -> None:
        """End a job that cannot succeed. Raises LeaseLostError."""
        with self._lease(job_id, token) as (connection, _):
            self._end(connection, job_id, "failed", {"error": error}, str(error.get("detail")))

    def release(
        self, job_id: UUID, token: str, why: str, *, wait_seconds: float = 0.0, used: bool = True
    ) -> None:
        """Give a job back to the queue; ``used``: the attempt counts. Raises LeaseLostError."""
        with self._lease(job_id, token) as (connection, job):
            if job.cancel_requested:
                self._end(connection, job_id, "cancelled", {})
                return
            values = {
                **_QUEUED,
                **_FREE,
                "not_before": database_now() + wait_seconds,
                "attempts": JOBS.c.attempts - (0 if used else 1),
            }
            connection.execute(sa.update(JOBS).where(JOBS.c.id == job_id).values(values))
            _event(connection, job_id, "queued", "queued", 0.0, why)

    def cancel(self, job_id: UUID, actor: str) -> Job | None:
        """Cancel a job: at once where it waits, else as soon as its worker hears of it.
        The job as it stands then; one that has ended stays as it is. ``None`` if there is none."""
        columns = JOBS.c
        mark = (
            sa.update(JOBS)
            .where(columns.id == job_id, columns.state.in_(("queued", "running")))
            .values(cancel_requested=True)
            .returning(columns.state)
        )
        with self._engine.begin() as connection:
            row = connection.execute(mark).one_or_none()
            if row is not None:
                record(connection, actor, "jobs.cancel", str(job_id))
            if row is not None and row.state == "queued":
                self._end(connection, job_id, "cancelled", {})
        return self.get(job_id)

    def cancelled(self, job_id: UUID, token: str) -> None:
        """Tell that a job has stopped as asked. Raises LeaseLostError."""
        with self._lease(job_id, token) as (connection, _):
            self._end(connection, job_id, "cancelled", {})

    @contextmanager
    def _lease(self, job_id: UUID, token: str, **values: Any) -> Iterator[tuple[Connection, Job]]:
        """A transaction and the job under this lease. Raises LeaseLostError."""
        with self._engine.begin() as connection:
            yield connection, self._held(connection, job_id, token, **values)

    def _held(self, connection: Connection, job_id: UUID, token: str, **values: Any) -> Job:
        """The job under this lease, its row locked until the transaction ends.

        A statement that writes comes first: on SQLite a transaction that reads first cannot wait
        for another writer.
        """
        columns = JOBS.c
        lock = (
            sa.update(JOBS)
            .where(columns.id == job_id, columns.lease_token == token, columns.state == "running")
            .values(values or {"lease_token": token})
            .returning(JOBS)
        )
        row = connection.execute(lock).one_or_none()
        if row is None:
            raise LeaseLostError(job_id)
        return read(Job, row)

    def _end(
        self,
        connection: Connection,
        job_id: UUID,
        state: State,
        values: Mapping[str, Any],
        detail: str = "",
    ) -> None:
        ended = {"state": state, "stage": state, **_FREE, "finished": datetime.now(UTC), **values}
        done = sa.update(JOBS).where(JOBS.c.id == job_id).values(ended).returning(JOBS.c.progress)
        share = connection.execute(done).scalar_one()
        _event(connection, job_id, state, state, share, detail)


def _event(
    connection: Connection, job_id: UUID, state: str, stage: str, share: float, detail: str = ""
) -> None:
    values = {"state": state, "stage": stage, "progress": share, "detail": detail}
    connection.execute(sa.insert(JOB_EVENTS).values(job_id=job_id, at=datetime.now(UTC), **values))


@dataclass(frozen=True, slots=True)
class Durations:
    """How long jobs of one kind and outcome took, from their first start to their end.
    ``at_most[i]`` is the number of them that took no longer than the i-th bound."""

    kind: str
    outcome: State
    count: int
    seconds: float
    at_most: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JobFigures:
    """Jobs by kind and state, seconds that the oldest queued one of each kind has waited (0 where
    none waits), and durations of those that were started and have ended."""

    by_state: dict[tuple[str, State], int]
    oldest_queued_seconds: dict[str, float]
    durations: tuple[Durations, ...]


def job_figures(engine: Engine, kinds: Sequence[str], bounds: Sequence[float]) -> JobFigures:
    """Figures of the jobs of ``kinds``, in one query; ``bounds`` are seconds.
    Raises sqlalchemy.exc.SQLAlchemyError where the database is gone."""
    columns = JOBS.c
    waited = database_now() - seconds_since_1970(columns.created)
    took = seconds_since_1970(columns.finished) - seconds_since_1970(columns.started)
    query = (
        sa.select(
            columns.kind,
            columns.state,
            sa.func.count().label("jobs"),
            sa.func.max(waited).label("waited"),
            sa.func.count(took).label("timed"),
            sa.func.coalesce(sa.func.sum(took), 0.0).label("seconds"),
            *(sa.func.count(sa.case((took <= bound, 1))) for bound in bounds),
        )
        .where(columns.kind.in_(kinds))
        .group_by(columns.kind, columns.state)
    )
    by_state = {(kind, state): 0 for kind in kinds for state in STATES}
    oldest = dict.fromkeys(kinds, 0.0)
    durations = []
    for row in found(engine, query):
        by_state[row.kind, row.state] = int(row.jobs)
        if row.state == "queued":
            oldest[row.kind] = max(0.0, float(row.waited))
        if row.state in ENDED:
            at_most = tuple(int(count) for count in row[-len(bounds) :])
            durations.append(
                Durations(row.kind, row.state, int(row.timed), float(row.seconds), at_most)
            )
    return JobFigures(by_state, oldest, tuple(durations))
