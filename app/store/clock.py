"""The database's clock: leases compare times of one clock, whichever replica asks."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

_UNIX_EPOCH_JULIAN_DAY = 2440587.5
"""1970-01-01T00:00Z as a Julian day number."""


class database_now(FunctionElement[float]):  # noqa: N801 - reads as the SQL function it is
    """Seconds since 1970 when the statement runs."""

    type = sa.Float()
    inherit_cache = True


@compiles(database_now, "sqlite")
def _sqlite(element: Any, compiler: Any, **more: Any) -> str:
    return f"((julianday('now') - {_UNIX_EPOCH_JULIAN_DAY}) * 86400.0)"


@compiles(database_now, "postgresql")
def _postgresql(element: Any, compiler: Any, **more: Any) -> str:
    return "(extract(epoch from clock_timestamp())::double precision)"


class seconds_since_1970(sa.sql.functions.GenericFunction[float]):  # noqa: N801 - as above
    """A column's time as ``database_now`` counts it."""

    type = sa.Float()
    inherit_cache = True


@compiles(seconds_since_1970, "sqlite")
def _sqlite_seconds(element: Any, compiler: Any, **more: Any) -> str:
    time = compiler.process(element.clauses, **more)
    return f"((julianday({time}) - {_UNIX_EPOCH_JULIAN_DAY}) * 86400.0)"


@compiles(seconds_since_1970, "postgresql")
def _postgresql_seconds(element: Any, compiler: Any, **more: Any) -> str:
    return f"(extract(epoch from {compiler.process(element.clauses, **more)})::double precision)"
