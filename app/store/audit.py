"""The audit log: who uploaded, deleted, retrained, promoted.

``record`` takes a connection, so that an entry is committed together with what it tells of, or
not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from wattcast.app.logs import REQUEST_ID
from wattcast.app.store.tables import AUDIT_LOG, read


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change: ``actor`` is ``key:<id>``, or how the caller was known without a key."""

    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    detail: Mapping[str, Any]
    request_id: str | None


def record(
    connection: Connection,
    actor: str,
    action: str,
    subject: str,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Add an entry to the caller's transaction.

    ``action`` names kind and verb (``measurements.upload``), ``subject`` what it was done to (an
    id); ``detail`` holds JSON data, and never a secret. The request's id is added by itself.
    """
    connection.execute(
        sa.insert(AUDIT_LOG).values(
            at=datetime.now(UTC),
            actor=actor,
            action=action,
            subject=subject,
            detail=detail or {},
            request_id=REQUEST_ID.get(),
        )
    )


def entries(engine: Engine, *, limit: int = 100) -> list[AuditEntry]:
    """The latest ``limit`` entries, newest first."""
    query = sa.select(AUDIT_LOG).order_by(AUDIT_LOG.c.id.desc()).limit(limit)
    with engine.connect() as connection:
        return [read(AuditEntry, row) for row in connection.execute(query)]
