"""Predictions answered before, newest first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from wattcast.app.store.tables import PREDICTIONS


@dataclass(frozen=True, slots=True)
class Past:
    """One prediction; ``result`` is the JSON text as answered."""

    id: UUID
    created: datetime
    result: str


def latest(engine: Engine, *, limit: int, before: UUID | None = None) -> list[Past]:
    """One page, newest first; ``before`` is the last prediction of the page before.

    A ``before`` that does not exist gives an empty page. Predictions of the last moment may not
    be written yet. Raises sqlalchemy.exc.SQLAlchemyError where the database is gone.
    """
    columns = PREDICTIONS.c
    query = sa.select(columns.id, columns.created, columns.result)
    query = query.order_by(columns.created.desc(), columns.id.desc()).limit(limit)
    if before is not None:
        last = sa.select(columns.created, columns.id).where(columns.id == before).subquery()
        query = query.where(
            sa.exists().where(
                sa.or_(
                    columns.created < last.c.created,
                    sa.and_(columns.created == last.c.created, columns.id < last.c.id),
                )
            )
        )
    with engine.connect() as connection:
        return [_past(row) for row in connection.execute(query)]


def _past(row: Any) -> Past:
    created = row.created if row.created.tzinfo else row.created.replace(tzinfo=UTC)
    return Past(row.id, created, row.result)
