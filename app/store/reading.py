"""Reading a database that somebody else keeps: it is neither made, nor migrated, nor written to."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import SQLAlchemyError

from wattcast.app.store.database import HEAD, StoreError, revision, with_driver
from wattcast.app.store.postgres import DATABASE_SECONDS, be_patient, connect_arguments

REGISTRY_SINCE = "0004"
"""Migration that brought the registry: an older database has promoted nothing."""

_WITHOUT = "WATTCAST_REGISTRY=off predicts without them"
_SECONDS = DATABASE_SECONDS
"""As long as a service waits by default."""


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
                self._engine = sa.create_engine(
                    self._address,
                    poolclass=sa.NullPool,
                    connect_args=connect_arguments(self._address, _SECONDS),
                )
                be_patient(self._engine, _SECONDS)
        except (SQLAlchemyError, ImportError) as error:
            raise cannot_read(url, error) from error
        self._checked = False

    def engine(self) -> Engine | None:
        """An engine to read with; ``None`` where there is no database, or none with a registry.

        Raises SQLAlchemyError where it does not answer, and StoreError where it is of a newer
        program.
        """
        if self._file is not None and not self._file.is_file():
            self._checked = False
            return None
        if not self._checked:
            found = revision(self._engine)
            if found is None or found < REGISTRY_SINCE:
                return None
            if found > HEAD:
                raise StoreError(
                    f"the database is at migration {found}, which this program does not know: its "
                    f"promoted models need a newer Wattcast; {_WITHOUT}"
                )
            self._checked = True
        return self._engine

    def _connect(self) -> sqlite3.Connection:
        assert self._file is not None
        return sqlite3.connect(
            f"file:{quote(str(self._file.absolute()))}?mode=ro",
            uri=True,
            check_same_thread=False,
            timeout=_SECONDS,
        )


def cannot_read(url: str, error: Exception) -> StoreError:
    """What to say of a database that is there but does not answer; never tells its password."""
    try:
        shown = make_url(url).render_as_string(hide_password=True)
    except SQLAlchemyError:
        return StoreError("WATTCAST_DATABASE_URL is not an SQLAlchemy URL")
    reason = str(getattr(error, "orig", None) or error).splitlines()[0]
    return StoreError(f"cannot ask {shown} for promoted models: {reason}; {_WITHOUT}")
