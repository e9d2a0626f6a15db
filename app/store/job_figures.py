"""Figures of all jobs in a database, whichever processes run them: what Prometheus asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from wattcast.app.store.clock import database_now, seconds_since_1970
from wattcast.app.store.job_tables import JOBS
from wattcast.app.store.jobs import ENDED, STATES, State


@dataclass(frozen=True, slots=True)
class Durations:
    """How long jobs of one kind and outcome took, from their first start to their end.

    ``at_most[i]`` is the number of them that took no longer than the i-th bound.
    """

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

    Raises sqlalchemy.exc.SQLAlchemyError where the database is gone.
    """
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
    with engine.connect() as connection:
        rows = connection.execute(query).all()
    by_state = {(kind, state): 0 for kind in kinds for state in STATES}
    oldest = dict.fromkeys(kinds, 0.0)
    durations = []
    for row in rows:
        by_state[row.kind, row.state] = int(row.jobs)
        if row.state == "queued":
            oldest[row.kind] = max(0.0, float(row.waited))
        if row.state in ENDED:
            at_most = tuple(int(count) for count in row[-len(bounds) :])
            durations.append(
                Durations(row.kind, row.state, int(row.timed), float(row.seconds), at_most)
            )
    return JobFigures(by_state, oldest, tuple(durations))
