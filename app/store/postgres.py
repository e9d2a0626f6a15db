"""Connections to PostgreSQL that never wait for ever.

Four limits, since each sees what the others do not: the server ends a statement or a wait for a
lock that takes too long (``statement_timeout``, ``lock_timeout``); the kernel gives up a peer that
acknowledges nothing (``tcp_user_timeout``, keepalives); and the client gives up a server that is
stopped or swapped out, whose kernel goes on acknowledging while nobody answers (``Patient``).

Whatever the URL sets itself stands.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine

if TYPE_CHECKING:
    import psycopg

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
