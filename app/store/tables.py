"""All tables, by what they hold: predictions, access, jobs, measurements, the registry of models.

Changing one takes a new Alembic migration beside it; a test compares the two.

SQLAlchemy Core: rows are written in batches and read by key, so the object-relational mapper
would add a tenth of a second to every start and nothing else.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import sqlalchemy as sa
from pydantic_core import from_json, to_json
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Record = TypeVar("Record", bound=DataclassInstance)


class Time(sa.types.TypeDecorator[datetime]):
    """A time in UTC; SQLite leaves the zone out."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: datetime | None, dialect: object) -> datetime | None:
        return value.replace(tzinfo=UTC) if value and not value.tzinfo else value


class Json(sa.types.TypeDecorator[Any]):
    """Plain data as JSON text; NaN and infinities become ``null``."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: object) -> str | None:
        return None if value is None else to_json(value, inf_nan_mode="null").decode()

    def process_result_value(self, value: str | None, dialect: object) -> Any:
        return None if value is None else from_json(value)


def read(kind: type[Record], row: sa.Row[Any], **more: Any) -> Record:
    """A row as a dataclass, each field by the column of its name; ``more`` are its other fields."""
    names = [one.name for one in fields(kind) if one.name not in more]
    return kind(**{name: getattr(row, name) for name in names}, **more)


def plain(record: DataclassInstance, *without: str) -> dict[str, Any]:
    """A record's fields by name, but ``without`` some; times as text (ISO 8601)."""
    found = {one.name: getattr(record, one.name) for one in fields(record)}
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in found.items()
        if name not in without
    }


def page(query: sa.Select[Any], table: Table, limit: int, before: UUID | None) -> sa.Select[Any]:
    """Rows of ``query``, newest first; ``before`` is the id of the last one of the page before.
    A ``before`` that does not exist gives an empty page."""
    columns = table.c
    query = query.order_by(columns.created.desc(), columns.id.desc()).limit(limit)
    if before is None:
        return query
    last = sa.select(columns.created, columns.id).where(columns.id == before).subquery()
    earlier = columns.created < last.c.created
    same = sa.and_(columns.created == last.c.created, columns.id < last.c.id)
    return query.where(sa.exists().where(sa.or_(earlier, same)))


METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)
"""All tables; constraints have predictable names, so migrations can address them."""

PTX = Table(
    "ptx",
    METADATA,
    Column("sha256", String(64), primary_key=True),
    Column("size", Integer, nullable=False),
    Column("compressed", LargeBinary, nullable=False),
    Column("created", Time, nullable=False),
)
"""PTX texts, each stored once under its SHA-256: UTF-8 compressed with zlib, ``size`` before."""

PREDICTIONS = Table(
    "predictions",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("created", Time, nullable=False, index=True),
    # Hash of the request without its PTX text, together with the PTX's hash.
    Column("request_sha256", String(64), nullable=False, index=True),
    Column("ptx_sha256", String(64), ForeignKey(PTX.c.sha256), nullable=True),
    Column("gpu", String(64), nullable=False),
    Column("kernel", Text, nullable=False),
    Column("request", Text, nullable=False),
    Column("result", Text, nullable=False),
    Column("vectors", Text, nullable=False),
    Column("models", Text, nullable=False),
)
"""Answered predictions. ``kernel`` is the mangled name. A prediction from measured work has no
PTX, and its ``kernel`` is empty. JSON text: ``request`` without its PTX, ``result`` exactly as
answered, ``vectors`` the model inputs by feature schema (``{"alavani2023": [1.0, null]}``),
``models`` the artifact that answered or ``null``."""


API_KEYS = Table(
    "api_keys",
    METADATA,
    Column("id", String(16), primary_key=True),
    Column("name", String(100), nullable=False),
    Column("secret_sha256", String(64), nullable=False),
    Column("scopes", String(64), nullable=False),
    Column("created", Time, nullable=False),
    Column("revoked", Time, nullable=True),
)
"""API keys. ``id`` is the public part of a key; of its secret only the SHA-256 is kept, which is
enough for 256 random bits. ``scopes`` are words separated by blanks."""

AUDIT_LOG = Table(
    "audit_log",
    METADATA,
    # SQLite counts up by itself only what it calls INTEGER.
    Column("id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True),
    Column("at", Time, nullable=False, index=True),
    Column("actor", String(100), nullable=False),
    Column("action", String(64), nullable=False),
    Column("subject", Text, nullable=False),
    Column("detail", Json, nullable=False),
    Column("request_id", String(64), nullable=True),
)
"""Who changed what; rows are only ever added. ``detail`` is JSON text."""


JOBS = Table(
    "jobs",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("kind", String(32), nullable=False),
    Column("state", String(16), nullable=False),
    Column("stage", String(64), nullable=False),
    Column("progress", Float, nullable=False),
    Column("request", Json, nullable=False),
    Column("request_sha256", String(64), nullable=False),
    Column("idempotency_key", String(200), nullable=True, unique=True),
    Column("actor", String(100), nullable=False),
    Column("created", Time, nullable=False, index=True),
    Column("started", Time, nullable=True),
    Column("finished", Time, nullable=True),
    Column("attempts", Integer, nullable=False),
    Column("not_before", Float, nullable=False),
    Column("lease_token", String(32), nullable=True),
    Column("lease_until", Float, nullable=True),
    Column("cancel_requested", Boolean, nullable=False),
    Column("result", Json, nullable=True),
    Column("error", Json, nullable=True),
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
    Column("at", Time, nullable=False),
    Column("state", String(16), nullable=False),
    Column("stage", String(64), nullable=False),
    Column("progress", Float, nullable=False),
    Column("detail", Text, nullable=False),
)
"""What happened to a job, in the order of ``id``: whoever adds an event has locked the job's row,
so that of one job no smaller id appears later."""


MEASUREMENT_BATCHES = Table(
    "measurement_batches",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("created", Time, nullable=False, index=True),
    Column("content_sha256", String(64), nullable=False, unique=True),
    Column("uploaded_by", String(100), nullable=False),
    Column("form", String(16), nullable=False),
    Column("schemas", Json, nullable=False),
    Column("accepted", Integer, nullable=False),
    Column("rejected", Integer, nullable=False),
    Column("rejections", Json, nullable=False),
)
"""Uploads. ``content_sha256`` is over the accepted rows as they mean, not over the file, so that
the same rows compressed or in another format are the same batch. ``form`` is ``ptx`` or
``features``. JSON text: ``schemas`` the hash of each schema's definition by its id,
``rejections`` the first rejected rows as ``[{"row": 3, "column": "grid", "reason": "..."}]``."""

MEASUREMENTS = Table(
    "measurements",
    METADATA,
    Column(
        "batch_id",
        Uuid,
        ForeignKey(MEASUREMENT_BATCHES.c.id, ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("row", Integer, primary_key=True, autoincrement=False),
    Column("gpu", String(64), nullable=False),
    Column("board", String(64), nullable=True),
    Column("kernel", Text, nullable=False),
    Column("kernel_group", Text, nullable=False),
    Column("ptx_sha256", String(64), ForeignKey(PTX.c.sha256), nullable=True),
    Column("launch", Json, nullable=True),
    Column("core_mhz", Float, nullable=True),
    Column("memory_mhz", Float, nullable=True),
    Column("power_watts", Float, nullable=True),
    Column("time_seconds", Float, nullable=True),
    Column("repeats", Integer, nullable=False),
    Column("vectors", Json, nullable=False),
    Index("ix_measurements_gpu_board", "gpu", "board"),
)
"""Accepted rows; ``row`` counts the upload's rows from 1. JSON text: ``launch`` how the kernel was
started (``null`` where only features were given), ``vectors`` every field of each schema in its
order (``{"activity1": [1.0, null]}``)."""


REGISTRY = Table(
    "registry",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("generation", Integer, nullable=False),
    Column("next_version", Integer, nullable=False),
)
"""One row. Every change of an alias adds one to ``generation``, first thing in its transaction, so
that changes come one after the other and a reader tells by one number whether anything moved."""

MODEL_VERSIONS = Table(
    "model_versions",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("gpu", String(64), nullable=False),
    Column("target", String(32), nullable=False),
    Column("family", String(32), nullable=False),
    Column("schema_id", String(64), nullable=False),
    Column("source", String(32), nullable=False),
    Column("version", Integer, nullable=False),
    Column("board", String(64), nullable=False),
    Column("origin", String(16), nullable=False),
    Column("card_sha256", String(64), nullable=False),
    Column("verdict", Json, nullable=True),
    Column("job_id", Uuid, ForeignKey(JOBS.c.id, ondelete="SET NULL"), nullable=True),
    Column("created", Time, nullable=False),
    UniqueConstraint(
        "gpu", "target", "family", "schema_id", "source", "version", name="uq_model_versions_model"
    ),
)
"""Versions that aliases may point to; never changed. ``origin`` is ``packaged`` or ``retrained``
(its artifact lies in the registry's folder). ``verdict`` is the gate's, JSON text."""

ALIAS_MOVES = Table(
    "alias_moves",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("gpu", String(64), nullable=False),
    Column("board", String(64), nullable=False),
    Column("target", String(32), nullable=False),
    Column("version_id", Integer, ForeignKey(MODEL_VERSIONS.c.id), nullable=False),
    Column("before_id", Integer, ForeignKey("alias_moves.id"), nullable=True),
    Column("at", Time, nullable=False),
    Column("actor", String(100), nullable=False),
    Column("why", Text, nullable=False),
)
"""Promotions; rows are only ever added. ``before_id`` is the promotion that stood before it
(``NULL``: the packaged default), to which a rollback returns."""

MODEL_ALIASES = Table(
    "model_aliases",
    METADATA,
    Column("gpu", String(64), primary_key=True),
    Column("board", String(64), primary_key=True),
    Column("target", String(32), primary_key=True),
    Column("champion_move_id", Integer, ForeignKey(ALIAS_MOVES.c.id), nullable=True),
    Column("candidate_id", Integer, ForeignKey(MODEL_VERSIONS.c.id), nullable=True),
)
"""One row, so one champion, for each GPU, board (empty: any) and target. Without a promotion the
packaged default serves."""
