"""Opening the database and bringing it to the newest schema; reading one that others keep."""

from __future__ import annotations

import contextlib
import fcntl
import sqlite3
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from wattcast.app.store import HEAD, private, tables
from wattcast.features.errors import ServiceError

if TYPE_CHECKING:
    import psycopg


# Connections to PostgreSQL that never wait for ever.
#
# Four limits, since each sees what the others do not: the server ends a statement or a wait for a
# lock that takes too long (``statement_timeout``, ``lock_timeout``); the kernel gives up a peer
# that acknowledges nothing (``tcp_user_timeout``, keepalives); and the client gives up a server
# that is stopped or swapped out, whose kernel goes on acknowledging while nobody answers
# (``Patient``).
#
# Whatever the URL sets itself stands.

DATABASE_SECONDS = 5.0
"""Default of ``WATTCAST_DATABASE_SECONDS``."""

CONNECT_SECONDS = 3
"""How long a new connection may take: one round trip to the other side of the world and TLS come
to about one second."""

PING_SECONDS = 2.0
"""How long a kept connection may take to tell that it lives, before it is used again."""

SILENCE_SECONDS = 1.0
"""How much longer than the server's own limit the client waits for its word."""


def connect_arguments(address: URL, seconds: float) -> dict[str, Any]:
    """What libpq is told besides the URL; statements and locks end after ``seconds``."""
    milliseconds = max(1, round(seconds * 1e3))
    # A lock is waited for a little shorter than its statement: the error then names the lock.
    limits = f"-c statement_timeout={milliseconds} -c lock_timeout={max(1, milliseconds * 4 // 5)}"
    own: dict[str, Any] = {
        "connect_timeout": CONNECT_SECONDS,
        "application_name": "wattcast",
        "tcp_user_timeout": milliseconds,
        "keepalives": 1,
        "keepalives_idle": 10,
        "keepalives_interval": 3,
        "keepalives_count": 3,
    }
    given = {name: value for name, value in own.items() if name not in address.query}
    theirs = address.query.get("options", "")
    # Of two settings of one name the last holds.
    return {**given, "options": f"{limits} {theirs if isinstance(theirs, str) else ''}".strip()}


def be_patient(engine: Engine, seconds: float) -> None:
    """Let the engine's connections give up a server that says nothing for ``seconds`` and a bit."""
    kind: list[type[psycopg.Connection[Any]]] = []

    @sa.event.listens_for(engine, "do_connect")
    def _connect(dialect: Any, _record: Any, arguments: Any, named: Any) -> Any:
        if dialect.driver != "psycopg":  # another driver, which whoever named it answers for
            return None
        if not kind:
            kind.append(_patient())
        made = kind[0].connect(*arguments, **named)
        made.silence_seconds = seconds + SILENCE_SECONDS  # type: ignore[attr-defined]
        return made

    # Between these two the pool asks for a sign of life, and nothing else.
    @sa.event.listens_for(engine, "checkin")
    def _kept(connection: Any, _record: Any) -> None:
        if hasattr(connection, "silence_seconds"):
            connection.silence_seconds = PING_SECONDS

    @sa.event.listens_for(engine, "checkout")
    def _used(connection: Any, _record: Any, _proxy: Any) -> None:
        if hasattr(connection, "silence_seconds"):
            connection.silence_seconds = seconds + SILENCE_SECONDS


def lift_limits(connection: Connection, seconds: float) -> None:
    """Let this connection, which must not go back to its pool, take ``seconds`` a statement."""
    milliseconds = round(seconds * 1e3)
    driver: Any = connection.connection.driver_connection
    if hasattr(driver, "silence_seconds"):
        driver.silence_seconds = seconds + SILENCE_SECONDS
    for name in ("statement_timeout", "lock_timeout"):
        connection.exec_driver_sql(f"SET {name} = {milliseconds}")
    connection.commit()


def _patient() -> type[psycopg.Connection[Any]]:
    import psycopg

    class Patient(psycopg.Connection[Any]):
        """A connection that closes itself where its server says nothing for too long."""

        silence_seconds = DATABASE_SECONDS

        def wait(self, gen: Any, *arguments: Any, **named: Any) -> Any:
            most = self.silence_seconds
            try:
                return super().wait(_listening(gen, most), *arguments, **named)
            except _SilentError:
                self.close()
                raise psycopg.OperationalError(
                    f"the server said nothing for {most:g} s (WATTCAST_DATABASE_SECONDS)"
                ) from None

    return Patient


class _SilentError(Exception):
    """Nothing came in time."""


def _listening(waiting: Generator[Any, Any, Any], seconds: float) -> Generator[Any, Any, Any]:
    """What psycopg waits by, ended where nothing comes for ``seconds``.

    psycopg sends it what its socket is ready for, and 0 each tenth of a second that it is not
    (its documentation, ``psycopg.waiting``).
    """
    until = time.monotonic() + seconds
    try:
        wanted = next(waiting)
        while True:
            ready = yield wanted
            if ready:
                until = time.monotonic() + seconds
            elif time.monotonic() > until:
                raise _SilentError
            wanted = waiting.send(ready)
    except StopIteration as ended:
        return ended.value


MIGRATIONS = Path(__file__).parent / "migrations"

_ADVISORY_LOCK = 0x77617474
"""PostgreSQL lock under which one replica migrates while the others wait ("watt")."""


class StoreError(ServiceError):
    """The database is gone, does not keep up, or is newer than this program."""

    def __init__(self, detail: str) -> None:
        super().__init__("store", detail)


@contextlib.contextmanager
def store_errors(otherwise: str = "the database does not answer") -> Iterator[None]:
    """What is inside asks the database: raises StoreError, saying ``otherwise``, where it fails."""
    try:
        yield
    except SQLAlchemyError as error:
        raise StoreError(otherwise) from error


MIGRATION_SECONDS = 600.0
"""Longest statement of a migration, and longest wait for another process that migrates."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Connections of one process to PostgreSQL: kept, and at most; when one is renewed.

    ``seconds`` is how long a statement, a lock (of SQLite too) or a free connection is waited for.
    """

    kept: int = 5
    most: int = 20
    recycle_seconds: float = 1800.0
    seconds: float = DATABASE_SECONDS


def with_driver(address: URL) -> URL:
    """The URL with the PostgreSQL driver that the extra ``postgres`` brings, if it names none."""
    if address.drivername in ("postgresql", "postgres"):
        return address.set(drivername="postgresql+psycopg")
    return address


def open_database(url: str, pool: Pool | None = None) -> Engine:
    """The engine of a migrated database. Raises StoreError naming the database, not its password.
    SQLite runs in WAL mode: readers never wait for the writer."""
    try:
        address = with_driver(make_url(url))
    except SQLAlchemyError as error:
        raise StoreError("WATTCAST_DATABASE_URL is not an SQLAlchemy URL") from error
    shown = address.render_as_string(hide_password=True)
    engine: Engine | None = None
    try:
        pool = pool or Pool()
        if address.get_backend_name() == "sqlite":
            engine = _sqlite(address.database, url, pool.seconds)
        else:
            engine = _postgres(
                address,
                pool.seconds,
                pool_pre_ping=True,  # a restarted server costs one reconnect, not an error
                pool_size=min(pool.kept, pool.most),
                max_overflow=max(0, pool.most - pool.kept),
                pool_recycle=int(pool.recycle_seconds),
                pool_timeout=pool.seconds,
            )
        migrate(engine)
    except (StoreError, SQLAlchemyError, OSError, ImportError) as error:
        if engine is not None:
            engine.dispose()
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"cannot open the database {shown}: {_reason(error)}") from error
    return engine


def _reason(error: Exception) -> str:
    """The first line of what the driver says."""
    return str(getattr(error, "orig", None) or error).splitlines()[0]


def _postgres(address: URL, seconds: float, **pool: Any) -> Engine:
    connection = connect_arguments(address, seconds)
    engine = sa.create_engine(address, connect_args=connection, **pool)
    be_patient(engine, seconds)
    return engine


def _sqlite(database: str | None, url: str, seconds: float) -> Engine:
    in_memory = database in (None, "", ":memory:")
    if not in_memory:
        assert database is not None
        private.private_database(Path(database))
    engine = sa.create_engine(
        url,
        connect_args={"check_same_thread": False, "timeout": seconds},
        poolclass=sa.StaticPool if in_memory else None,
    )

    @sa.event.listens_for(engine, "connect")
    def _configure(connection: object, _: object) -> None:
        cursor = connection.cursor()  # type: ignore[attr-defined]
        # NORMAL with WAL: a crash of the process loses nothing that was committed; only a
        # power cut may lose the last transactions, never the database's consistency.
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    if not in_memory:
        with alone_on(str(database)), engine.connect():
            pass  # it makes the file WAL, which waits for others ``seconds`` at the most
    return engine


def revision(engine: Engine) -> str | None:
    """The database's migration, ``None`` for an empty one."""
    with engine.connect() as connection:
        return _revision(connection)


def _revision(connection: Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    return found


def migrate(engine: Engine) -> None:
    """Make the tables of an empty database, or bring those of an older one up to date (Alembic's
    cookbook, "Building an Up to Date Database from Scratch"). Raises StoreError for a database of
    another program."""
    if revision(engine) == HEAD:
        return
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    # Every table; by name, since what has them rests on this module.
    import_module("wattcast.app.store.repositories")

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    with _alone(engine) as connection:
        config.attributes["connection"] = connection
        current = _revision(connection)
        try:
            if current is None:
                tables.METADATA.create_all(connection)
                connection.execute(sa.insert(tables.REGISTRY).values(**tables.FIRST_GENERATION))
                command.stamp(config, "head")
            else:
                command.upgrade(config, "head")
        except CommandError as error:
            raise StoreError(f"{unknown(current)}; it needs another Wattcast") from error
        connection.commit()


@contextlib.contextmanager
def _alone(engine: Engine) -> Iterator[Connection]:
    """A connection while no other process migrates the same database."""
    with engine.connect() as connection, contextlib.ExitStack() as locks:
        database = engine.url.database
        if engine.dialect.name == "postgresql":
            connection.detach()  # closed afterwards: its limits are not those of others
            lift_limits(connection, MIGRATION_SECONDS)
            connection.execute(sa.text(f"SELECT pg_advisory_lock({_ADVISORY_LOCK})"))
            connection.commit()
            locks.callback(
                connection.execute, sa.text(f"SELECT pg_advisory_unlock({_ADVISORY_LOCK})")
            )
        elif engine.dialect.name == "sqlite" and database and database != ":memory:":
            locks.enter_context(alone_on(database))
        yield connection


@contextlib.contextmanager
def alone_on(database: str) -> Iterator[None]:
    """While no other process makes or migrates the SQLite file."""
    path = Path(f"{database}.migrating")
    private.private_file(path)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


_UNIX_EPOCH_JULIAN_DAY = 2440587.5
"""1970-01-01T00:00Z as a Julian day number."""


class database_now(FunctionElement[float]):  # noqa: N801 - reads as the SQL function it is
    """Seconds since 1970 when the statement runs."""

    type = sa.Float()
    inherit_cache = True


@compiles(database_now, "sqlite")
def _sqlite_now(element: Any, compiler: Any, **more: Any) -> str:
    return f"((julianday('now') - {_UNIX_EPOCH_JULIAN_DAY}) * 86400.0)"


@compiles(database_now, "postgresql")
def _postgresql_now(element: Any, compiler: Any, **more: Any) -> str:
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


def unknown(migration: str | None) -> str:
    """What is said of a database that another program made."""
    return f"the database is at migration {migration}, which this program does not know"


_WITHOUT = "WATTCAST_REGISTRY=off predicts without them"


class Reading:
    """The database of a URL, while it is there."""

    def __init__(self, url: str) -> None:
        """Raises StoreError for a URL that is none, or whose driver is not installed."""
        try:
            self._address = with_driver(make_url(url))
            self._file: Path | None = None
            # No connection is kept: what asks now and then shall not hold one of the server's.
            if self._address.get_backend_name() == "sqlite":
                self._file = Path(self._address.database or "")
                self._engine = sa.create_engine(
                    "sqlite://", creator=self._connect, poolclass=sa.NullPool
                )
            else:
                self._engine = _postgres(self._address, DATABASE_SECONDS, poolclass=sa.NullPool)
        except (SQLAlchemyError, ImportError) as error:
            raise cannot_read(url, error) from error
        self._checked = False

    def engine(self) -> Engine | None:
        """An engine to read with; ``None`` where there is no database, or an empty one.

        Raises SQLAlchemyError where it does not answer, and StoreError where it is of another
        program.
        """
        if self._file is not None and not self._file.is_file():
            self._checked = False
            return None
        if not self._checked:
            found = revision(self._engine)
            if found is None:
                return None
            if found != HEAD:
                promoted = "its promoted models need another Wattcast"
                raise StoreError(f"{unknown(found)}: {promoted}; {_WITHOUT}")
            self._checked = True
        return self._engine

    def _connect(self) -> sqlite3.Connection:
        assert self._file is not None
        return sqlite3.connect(
            f"file:{quote(str(self._file.absolute()))}?mode=ro",
            uri=True,
            check_same_thread=False,
            timeout=DATABASE_SECONDS,
        )


def cannot_read(url: str, error: Exception) -> StoreError:
    """What to say of a database that is there but does not answer; never tells its password."""
    try:
        shown = make_url(url).render_as_string(hide_password=True)
    except SQLAlchemyError:
        return StoreError("WATTCAST_DATABASE_URL is not an SQLAlchemy URL")
    return StoreError(f"cannot ask {shown} for promoted models: {_reason(error)}; {_WITHOUT}")
