"""All tables, by what they hold: predictions, access, jobs, measurements, the registry of models.

Changing one takes a new Alembic migration beside it; a test compares the two.

SQLAlchemy Core: rows are written in batches and read by key, so the object-relational mapper
would add a tenth of a second to every start and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import sqlalchemy as sa
from pydantic_core import from_json, to_json
from sqlalchemy.engine import Connection, Engine

from wattcast.app.logs import REQUEST_ID

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Record = TypeVar("Record", bound=DataclassInstance)


class Time(sa.types.TypeDecorator[datetime]):
    """A time in UTC; SQLite leaves the zone out."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: datetime | None, dialect: object) -> datetime | None:
        return value.replace(tzinfo=UTC) if value and not value.tzinfo else value


class Json(sa.types.TypeDecorator[Any]):
    """Plain data as JSON text; NaN and infinities become ``null``."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: object) -> str | None:
        return None if value is None else to_json(value, inf_nan_mode="null").decode()

    def process_result_value(self, value: str | None, dialect: object) -> Any:
        return None if value is None else from_json(value)


def read(kind: type[Record], row: sa.Row[Any], **more: Any) -> Record:
    """A row as a dataclass, each field by the column of its name; ``more`` are its other fields."""
    names = [one.name for one in fields(kind) if one.name not in more]
    return kind(**{name: getattr(row, name) for name in names}, **more)


def found(engine: Engine, query: sa.Select[Any]) -> list[sa.Row[Any]]:
    """What a query finds, in a transaction of its own. Raises SQLAlchemyError."""
    with engine.connect() as connection:
        return list(connection.execute(query))


def records(engine: Engine, kind: type[Record], query: sa.Select[Any]) -> list[Record]:
    """The same as dataclasses."""
    return [read(kind, row) for row in found(engine, query)]


def plain(record: DataclassInstance, *without: str) -> dict[str, Any]:
    """A record's fields by name, but ``without`` some; times as text (ISO 8601)."""
    found = {one.name: getattr(record, one.name) for one in fields(record)}
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in found.items()
        if name not in without
    }


def page(query: sa.Select[Any], table: sa.Table, limit: int, before: UUID | None) -> sa.Select[Any]:
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


METADATA = sa.MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)
"""All tables; constraints have predictable names, so migrations can address them."""

PTX = sa.Table(
    "ptx",
    METADATA,
    sa.Column("sha256", sa.String(64), primary_key=True),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("compressed", sa.LargeBinary, nullable=False),
    sa.Column("created", Time, nullable=False),
)
"""PTX texts, each stored once under its SHA-256: UTF-8 compressed with zlib, ``size`` before."""

PREDICTIONS = sa.Table(
    "predictions",
    METADATA,
    sa.Column("id", sa.Uuid, primary_key=True),
    sa.Column("created", Time, nullable=False, index=True),
    # Hash of the request without its PTX text, together with the PTX's hash.
    sa.Column("request_sha256", sa.String(64), nullable=False, index=True),
    sa.Column("ptx_sha256", sa.String(64), sa.ForeignKey(PTX.c.sha256), nullable=True, index=True),
    sa.Column("gpu", sa.String(64), nullable=False),
    sa.Column("kernel", sa.Text, nullable=False),
    sa.Column("request", sa.Text, nullable=False),
    sa.Column("result", sa.Text, nullable=False),
    sa.Column("vectors", sa.Text, nullable=False),
    sa.Column("models", sa.Text, nullable=False),
)
"""Answered predictions. ``kernel`` is the mangled name. A prediction from measured work has no
PTX, and its ``kernel`` is empty. JSON text: ``request`` without its PTX, ``result`` exactly as
answered, ``vectors`` the model inputs by feature schema (``{"alavani2023": [1.0, null]}``),
``models`` the artifact that answered or ``null``."""


API_KEYS = sa.Table(
    "api_keys",
    METADATA,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("name", sa.String(100), nullable=False),
    sa.Column("secret_sha256", sa.String(64), nullable=False),
    sa.Column("scopes", sa.String(64), nullable=False),
    sa.Column("created", Time, nullable=False),
    sa.Column("revoked", Time, nullable=True),
)
"""API keys. ``id`` is the public part of a key; of its secret only the SHA-256 is kept, which is
enough for 256 random bits. ``scopes`` are words separated by blanks."""

AUDIT_LOG = sa.Table(
    "audit_log",
    METADATA,
    # SQLite counts up by itself only what it calls INTEGER.
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
    sa.Column("at", Time, nullable=False, index=True),
    sa.Column("actor", sa.String(100), nullable=False),
    sa.Column("action", sa.String(64), nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("detail", Json, nullable=False),
    sa.Column("request_id", sa.String(64), nullable=True),
)
"""Who changed what; rows are only ever added. ``detail`` is JSON text."""


JOBS = sa.Table(
    "jobs",
    METADATA,
    sa.Column("id", sa.Uuid, primary_key=True),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("stage", sa.String(64), nullable=False),
    sa.Column("progress", sa.Float, nullable=False),
    sa.Column("request", Json, nullable=False),
    sa.Column("request_sha256", sa.String(64), nullable=False),
    sa.Column("idempotency_key", sa.String(200), nullable=True, unique=True),
    sa.Column("actor", sa.String(100), nullable=False),
    sa.Column("created", Time, nullable=False, index=True),
    sa.Column("started", Time, nullable=True),
    sa.Column("finished", Time, nullable=True),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("not_before", sa.Float, nullable=False),
    sa.Column("lease_token", sa.String(32), nullable=True),
    sa.Column("lease_until", sa.Float, nullable=True),
    sa.Column("cancel_requested", sa.Boolean, nullable=False),
    sa.Column("result", Json, nullable=True),
    sa.Column("error", Json, nullable=True),
    sa.Index("ix_jobs_state_created", "state", "created"),
)
"""Jobs. ``state`` is ``queued``, ``running``, ``done``, ``failed`` or ``cancelled``. A running job
belongs to who knows ``lease_token``, until ``lease_until`` (seconds since 1970 by the database's
clock); a queued one starts no sooner than ``not_before``. JSON text: ``request``, ``result``;
``error`` is ``{"kind": "data", "detail": "..."}``."""

JOB_EVENTS = sa.Table(
    "job_events",
    METADATA,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
    sa.Column(
        "job_id", sa.Uuid, sa.ForeignKey(JOBS.c.id, ondelete="CASCADE"), nullable=False, index=True
    ),
    sa.Column("at", Time, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("stage", sa.String(64), nullable=False),
    sa.Column("progress", sa.Float, nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
)
"""What happened to a job, in the order of ``id``: whoever adds an event has locked the job's row,
so that of one job no smaller id appears later."""


MEASUREMENT_BATCHES = sa.Table(
    "measurement_batches",
    METADATA,
    sa.Column("id", sa.Uuid, primary_key=True),
    sa.Column("created", Time, nullable=False, index=True),
    sa.Column("content_sha256", sa.String(64), nullable=False, unique=True),
    sa.Column("uploaded_by", sa.String(100), nullable=False),
    sa.Column("form", sa.String(16), nullable=False),
    sa.Column("schemas", Json, nullable=False),
    sa.Column("accepted", sa.Integer, nullable=False),
    sa.Column("rejected", sa.Integer, nullable=False),
    sa.Column("rejections", Json, nullable=False),
)
"""Uploads. ``content_sha256`` is over the accepted rows as they mean, not over the file, so that
the same rows compressed or in another format are the same batch. ``form`` is ``ptx`` or
``features``. JSON text: ``schemas`` the hash of each schema's definition by its id,
``rejections`` the first rejected rows as ``[{"row": 3, "column": "grid", "reason": "..."}]``."""

_OF_ITS_BATCH = sa.ForeignKey(MEASUREMENT_BATCHES.c.id, ondelete="CASCADE")

MEASUREMENTS = sa.Table(
    "measurements",
    METADATA,
    sa.Column("batch_id", sa.Uuid, _OF_ITS_BATCH, primary_key=True),
    sa.Column("row", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("gpu", sa.String(64), nullable=False),
    sa.Column("board", sa.String(64), nullable=True),
    sa.Column("kernel", sa.Text, nullable=False),
    sa.Column("kernel_group", sa.Text, nullable=False),
    sa.Column("ptx_sha256", sa.String(64), sa.ForeignKey(PTX.c.sha256), nullable=True),
    sa.Column("launch", Json, nullable=True),
    sa.Column("core_mhz", sa.Float, nullable=True),
    sa.Column("memory_mhz", sa.Float, nullable=True),
    sa.Column("power_watts", sa.Float, nullable=True),
    sa.Column("time_seconds", sa.Float, nullable=True),
    sa.Column("repeats", sa.Integer, nullable=False),
    sa.Column("vectors", Json, nullable=False),
    sa.Index("ix_measurements_gpu_board", "gpu", "board"),
)
"""Accepted rows; ``row`` counts the upload's rows from 1. JSON text: ``launch`` how the kernel was
started (``null`` where only features were given), ``vectors`` every field of each schema in its
order (``{"activity1": [1.0, null]}``)."""


OBSERVATIONS = sa.Table(
    "observations",
    METADATA,
    sa.Column("batch_id", sa.Uuid, primary_key=True),
    sa.Column("row", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("target", sa.String(32), primary_key=True),
    sa.Column("gpu", sa.String(64), nullable=False),
    sa.Column("board", sa.String(64), nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("kernel_group", sa.Text, nullable=False),
    sa.Column("at", Time, nullable=False),
    sa.Column("level", sa.Float, nullable=False),
    sa.Column("score", sa.Float, nullable=False),
    sa.ForeignKeyConstraint(
        ["batch_id", "row"],
        [MEASUREMENTS.c.batch_id, MEASUREMENTS.c.row],
        name="fk_observations_measurement",
        ondelete="CASCADE",
    ),
)
"""What accepted rows say of intervals answered before: ``model`` is the place of a card, or the
family of a time model without one, ``score`` how many half widths the row lay from its prediction
(``models.intervals.miss_score``), ``level`` what was promised."""


REGISTRY = sa.Table(
    "registry",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("next_version", sa.Integer, nullable=False),
)
"""One row. Every change of an alias adds one to ``generation``, first thing in its transaction, so
that changes come one after the other and a reader tells by one number whether anything moved."""

FIRST_GENERATION = {"id": 1, "generation": 0, "next_version": 1001}
"""Its row at first: versions above every packaged one, so that a number means one model."""

MODEL_VERSIONS = sa.Table(
    "model_versions",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("gpu", sa.String(64), nullable=False),
    sa.Column("target", sa.String(32), nullable=False),
    sa.Column("family", sa.String(32), nullable=False),
    sa.Column("schema_id", sa.String(64), nullable=False),
    sa.Column("source", sa.String(32), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("board", sa.String(64), nullable=False),
    sa.Column("origin", sa.String(16), nullable=False),
    sa.Column("card_sha256", sa.String(64), nullable=False),
    sa.Column("verdict", Json, nullable=True),
    sa.Column("job_id", sa.Uuid, sa.ForeignKey(JOBS.c.id, ondelete="SET NULL"), nullable=True),
    sa.Column("created", Time, nullable=False),
    sa.UniqueConstraint(
        "gpu", "target", "family", "schema_id", "source", "version", name="uq_model_versions_model"
    ),
)
"""Versions that aliases may point to; never changed. ``origin`` is ``packaged`` or ``retrained``
(its artifact lies in the registry's folder). ``verdict`` is the gate's, JSON text."""

ALIAS_MOVES = sa.Table(
    "alias_moves",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("gpu", sa.String(64), nullable=False),
    sa.Column("board", sa.String(64), nullable=False),
    sa.Column("target", sa.String(32), nullable=False),
    sa.Column("version_id", sa.Integer, sa.ForeignKey(MODEL_VERSIONS.c.id), nullable=False),
    sa.Column("before_id", sa.Integer, sa.ForeignKey("alias_moves.id"), nullable=True),
    sa.Column("at", Time, nullable=False),
    sa.Column("actor", sa.String(100), nullable=False),
    sa.Column("why", sa.Text, nullable=False),
)
"""Promotions; rows are only ever added. ``before_id`` is the promotion that stood before it
(``NULL``: the packaged default), to which a rollback returns."""

MODEL_ALIASES = sa.Table(
    "model_aliases",
    METADATA,
    sa.Column("gpu", sa.String(64), primary_key=True),
    sa.Column("board", sa.String(64), primary_key=True),
    sa.Column("target", sa.String(32), primary_key=True),
    sa.Column("champion_move_id", sa.Integer, sa.ForeignKey(ALIAS_MOVES.c.id), nullable=True),
    sa.Column("candidate_id", sa.Integer, sa.ForeignKey(MODEL_VERSIONS.c.id), nullable=True),
)
"""One row, so one champion, for each GPU, board (empty: any) and target. Without a promotion the
packaged default serves."""


# The audit log: who uploaded, deleted, retrained, promoted.
#
# ``record`` takes a connection, so that an entry is committed together with what it tells of, or
# not at all.


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
    told = {"actor": actor, "action": action, "subject": subject, "detail": detail or {}}
    now = {"at": datetime.now(UTC), "request_id": REQUEST_ID.get()}
    connection.execute(sa.insert(AUDIT_LOG).values(**told, **now))


def entries(engine: Engine, *, limit: int = 100) -> list[AuditEntry]:
    """The latest ``limit`` entries, newest first."""
    query = sa.select(AUDIT_LOG).order_by(AUDIT_LOG.c.id.desc()).limit(limit)
    return records(engine, AuditEntry, query)
