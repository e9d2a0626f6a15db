"""Databases to test on: SQLite always, PostgreSQL where one answers."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from uuid import uuid4

import psutil
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


# --- A PostgreSQL server of a test's own: one that may be killed and started again

SECONDS = 60


@dataclass(frozen=True)
class OwnServer:
    """A cluster in a folder, run by ``user`` (PostgreSQL refuses to run as root)."""

    folder: Path
    programs: Path
    port: int
    user: str | None

    @property
    def url(self) -> str:
        """The server's own database."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it and wait until it answers; what was left half-done is recovered first."""
        options = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.folder}"
        )
        self._run("pg_ctl", "-w", "-l", str(self.folder / "log"), "-o", options, "start")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Every process of it stops, as on a machine that swaps; its kernel goes on answering."""
        first = psutil.Process(
            int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        )
        first.suspend()  # first, so that no process is added
        stopped = first.children(recursive=True)
        for process in stopped:
            process.suspend()
        try:
            yield
        finally:
            for process in (*stopped, first):
                with suppress(psutil.NoSuchProcess):
                    process.resume()

    def kill(self) -> None:
        """Every process of it ends at once, nothing is written any more."""
        self._run("pg_ctl", "-m", "immediate", "stop")

    def create(self) -> None:
        """An empty cluster."""
        self._run("initdb", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync")

    def _run(self, program: str, *arguments: str) -> None:
        # Into a file: a server inherits the pipe and would never close it.
        with (self.folder / "output").open("wb") as output:
            done = subprocess.run(
                [str(self.programs / program), "-D", str(self.folder / "data"), *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                user=self.user,
                timeout=SECONDS,
                check=False,
            )
        if done.returncode:
            raise RuntimeError((self.folder / "output").read_text("utf-8"))


@contextmanager
def own_server() -> Iterator[OwnServer]:
    """A running server; skips where its programs are not installed or nobody can run them."""
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL's own programs (initdb, pg_ctl) are not installed")
    user = None
    if os.geteuid() == 0:
        user = next((one for one in ("postgres", "nobody") if _known(one)), None)
        if user is None:
            pytest.skip("PostgreSQL does not run as root, and there is no other user")
    # Not below pytest's folder, which others may not enter.
    folder = Path(tempfile.mkdtemp(prefix="wattcast-postgres-"))
    if user is not None:
        shutil.chown(folder, user)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    server = OwnServer(folder, programs, port, user)
    try:
        server.create()
        server.start()
        yield server
    finally:
        if (folder / "data" / "postmaster.pid").exists():
            server.kill()
        shutil.rmtree(folder)


def _programs() -> Path | None:
    found = shutil.which("pg_config")
    places = [Path(directory) for directory in os.get_exec_path()]
    if found is not None:
        told = subprocess.run([found, "--bindir"], capture_output=True, text=True, check=False)
        places.insert(0, Path(told.stdout.strip()))
    return next((one for one in places if (one / "initdb").exists()), None)


def _known(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
