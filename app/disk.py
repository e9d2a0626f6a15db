"""Whether an error says that a disk is full, whoever noticed it."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Full disk, used-up quota, and a file as large as this process may write."""

_DISK_FULL_SQLSTATE = "53100"
"""PostgreSQL's ``disk_full`` (its documentation, appendix A)."""


def is_full(error: BaseException) -> bool:
    """Whether it, or what it was raised from, is for want of room on a disk."""
    return any(_says_so(each) for each in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__


def _says_so(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in NO_ROOM
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    # psycopg's, which need not be installed.
    return getattr(error, "sqlstate", None) == _DISK_FULL_SQLSTATE
