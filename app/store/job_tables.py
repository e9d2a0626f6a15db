"""Tables of durable jobs."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    Uuid,
)

from wattcast.app.store.tables import METADATA

JOBS = Table(
    "jobs",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("kind", String(32), nullable=False),
    Column("state", String(16), nullable=False),
    Column("stage", String(64), nullable=False),
    Column("progress", Float, nullable=False),
    Column("request", Text, nullable=False),
    Column("request_sha256", String(64), nullable=False),
    Column("idempotency_key", String(200), nullable=True, unique=True),
    Column("actor", String(100), nullable=False),
    Column("created", DateTime(timezone=True), nullable=False, index=True),
    Column("started", DateTime(timezone=True), nullable=True),
    Column("finished", DateTime(timezone=True), nullable=True),
    Column("attempts", Integer, nullable=False),
    Column("not_before", Float, nullable=False),
    Column("lease_token", String(32), nullable=True),
    Column("lease_until", Float, nullable=True),
    Column("cancel_requested", Boolean, nullable=False),
    Column("result", Text, nullable=True),
    Column("error", Text, nullable=True),
    Index("ix_jobs_state_created", "state", "created"),
)
"""Jobs. ``state`` is ``queued``, ``running``, ``done``, ``failed`` or ``cancelled``. A running job
belongs to who knows ``lease_token``, until ``lease_until`` (seconds since 1970 by the database's
clock); a queued one starts no sooner than ``not_before``. JSON text: ``request``, ``result``;
``error`` is ``{"kind": "data", "detail": "..."}``."""

JOB_EVENTS = Table(
    "job_events",
    METADATA,
    Column("id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True),
    Column("job_id", Uuid, ForeignKey(JOBS.c.id, ondelete="CASCADE"), nullable=False, index=True),
    Column("at", DateTime(timezone=True), nullable=False),
    Column("state", String(16), nullable=False),
    Column("stage", String(64), nullable=False),
    Column("progress", Float, nullable=False),
    Column("detail", Text, nullable=False),
)
"""What happened to a job, in the order of ``id``: whoever adds an event has locked the job's row,
so that of one job no smaller id appears later."""
