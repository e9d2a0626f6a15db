"""Databases to test on: SQLite always, PostgreSQL where one answers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from wattcast.app.store.database import with_driver

SERVER = os.environ.get("WATTCAST_TEST_POSTGRES", "postgresql://127.0.0.1:5432/postgres")
"""A server on which the tests may create databases of their own."""

KINDS = ("sqlite", "postgresql")


@lru_cache(maxsize=1)
def _server() -> sa.Engine | None:
    """An engine of the server outside of transactions, ``None`` if it does not answer."""
    url = with_driver(sa.make_url(SERVER)).update_query_dict({"connect_timeout": "3"})
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    try:
        with engine.connect() as connection:
            connection.execute(sa.select(1))
    except (SQLAlchemyError, ImportError):
        return None
    return engine


@contextmanager
def database(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty database that is gone afterwards; skips where no PostgreSQL answers."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'home' / 'w.db'}"
        return
    server = _server()
    if server is None:
        pytest.skip(f"no PostgreSQL answers at {sa.make_url(SERVER).render_as_string()}")
    # A name of its own: test runs and their workers do not meet.
    name = f"wattcast_test_{uuid4().hex}"
    with server.connect() as connection:
        connection.exec_driver_sql(f'CREATE DATABASE "{name}"')
    try:
        yield server.url.set(database=name).render_as_string(hide_password=False)
    finally:
        with server.connect() as connection:
            connection.exec_driver_sql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
