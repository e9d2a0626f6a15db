"""What makes the table of a record, and the tables of predictions and changes. Those of keys, jobs,
measurements and models stand beside their records.

Changing one takes a new Alembic migration beside it; a test compares the two.

SQLAlchemy Core: rows are written in batches and read by key, so the object-relational mapper
would add a tenth of a second to every start and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin, get_type_hints
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

_KINDS: Mapping[Any, Any] = {
    UUID: sa.Uuid, str: sa.Text, float: sa.Float, int: sa.Integer, bool: sa.Boolean, datetime: Time
}  # fmt: skip
"""Columns by the types of fields; others hold JSON."""

COUNTED = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""Ids that the database counts up: SQLite does only for what it calls INTEGER."""


def table(name: str, record: type, *more: sa.schema.SchemaItem) -> sa.Table:
    """The table of a record: ``more`` columns, then one for each field, then constraints. What a
    field's type does not tell stands in its ``Annotated``: the length of a text, another type, a
    foreign key, ``primary_key``, ``index`` or ``unique``."""
    columns = [each for each in more if isinstance(each, sa.Column)]
    rest = [each for each in more if not isinstance(each, sa.Column)]
    return sa.Table(name, METADATA, *columns, *_columns(record), *rest)


def _columns(record: type) -> Iterator[sa.Column[Any]]:
    """One for each field; those of a tuple in it stand for it, and another record is none."""
    for name, hint in get_type_hints(record, include_extras=True).items():
        if hasattr(hint, "_fields"):
            yield from _columns(hint)
        elif not is_dataclass(hint):
            yield _column(name, hint)


def _column(name: str, hint: Any) -> sa.Column[Any]:
    of, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    kinds = get_args(of) if get_origin(of) is UnionType else (of,)
    options: dict[str, Any] = {"nullable": NoneType in kinds}
    options |= {mark: True for mark in marks if isinstance(mark, str)}
    keys = [mark for mark in marks if isinstance(mark, sa.ForeignKey)]
    kind = _KINDS.get(kinds[0], Json)
    for mark in marks:
        if isinstance(mark, int):
            kind = sa.String(mark)
        elif isinstance(mark, sa.types.TypeEngine):
            kind = mark
    return sa.Column(name, kind, *keys, **options)


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


# The audit log: who uploaded, deleted, retrained, promoted.
#
# ``record`` takes a connection, so that an entry is committed together with what it tells of, or
# not at all.


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change: ``actor`` is ``key:<id>``, or how the caller was known without a key."""

    id: Annotated[int, COUNTED, "primary_key"]
    at: Annotated[datetime, "index"]
    actor: Annotated[str, 100]
    action: Annotated[str, 64]
    subject: str
    detail: Mapping[str, Any]
    request_id: Annotated[str | None, 64]


AUDIT_LOG = table("audit_log", AuditEntry)
"""Who changed what; rows are only ever added. ``detail`` is JSON text."""


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
