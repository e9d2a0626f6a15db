"""What the program writes is for its own user alone: folders 0700, databases 0600."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from wattcast.app.logs import log

_BESIDE = ("", "-wal", "-shm", ".migrating")
"""A database and what SQLite and we keep beside it; SQLite gives ``-wal`` and ``-shm`` its mode."""

UMASK = 0o077
"""Mask of a process that writes below the home: nothing for the group or others."""


def private_folder(folder: Path) -> Path:
    """Make a folder that its user alone may enter; one that exists is only warned of.

    It may be a folder that others need (a home directory, ``/srv``): whoever made it decides.
    Raises OSError where it cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.stat()
    if found.st_uid == os.geteuid() and found.st_mode & stat.S_IRWXO:
        log().warning(
            "others may look into this folder",
            folder=str(folder),
            mode=f"{stat.S_IMODE(found.st_mode):04o}",
            advice=f"chmod 700 {folder}",
        )
    return folder


def private_database(database: Path) -> None:
    """Make an SQLite database's folder and its empty file; take one that exists from others.
    A file that the group may write is shared on purpose, and stays so. Raises OSError."""
    private_folder(database.parent)
    private_file(database)
    for ending in _BESIDE:
        path = Path(f"{database}{ending}")
        try:
            found = path.stat()
        except FileNotFoundError:
            continue
        mode = stat.S_IMODE(found.st_mode)
        own = mode & (0o770 if mode & stat.S_IWGRP else 0o700)
        if found.st_uid == os.geteuid() and own != mode:
            path.chmod(own)
            log().warning("taken from others", file=str(path), was=f"{mode:04o}", now=f"{own:04o}")


def private_file(path: Path) -> None:
    """Make an empty file of mode 0600 where there is none. Raises OSError.

    One that exists is not opened: closing it again would take SQLite's locks from this process
    (fcntl(2): closing any descriptor of a file releases all of the process's locks on it).
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
