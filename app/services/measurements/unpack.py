"""What lies in an uploaded file: one table, and PTX texts by their names in the zip.

An archive is never unpacked to the file system: what its members are called only serves rows to
refer to them. Bytes are counted as they are unpacked, whatever an archive claims of itself.
"""

from __future__ import annotations

import gzip
import re
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, Literal, Protocol

from wattcast.features.errors import DataError, ServiceError

Kind = Literal["csv", "jsonl", "parquet"]

_CHUNK = 1 << 20
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    OverflowError,
    struct.error,
    gzip.BadGzipFile,
)
"""What the standard library raises for archives that are none."""

_TABLE = re.compile(r"\.(csv|jsonl|ndjson|parquet)(\.gz)?$", re.IGNORECASE)
_END_OF_DIRECTORY = struct.Struct("<4s4H2LH")
_DIRECTORY_BYTES_PER_FILE = 1024
"""Most bytes of a zip's directory for each file: 46 and a name of ordinary length."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Most bytes unpacked in all, most files of a zip, most bytes of one PTX text."""

    unpacked_bytes: int
    files: int
    ptx_bytes: int


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A table in a temporary file, at its start, and PTX texts by name."""

    table: IO[bytes]
    kind: Kind
    ptx: Mapping[str, str]


@contextmanager
def unpacked(file: IO[bytes], limits: Limits) -> Iterator[Unpacked]:
    """What is in ``file``, told by its content and not by its name.

    Raises DataError for an archive that is broken or holds what it should not, and ServiceError
    ``too-large``.
    """
    budget = _Budget(limits.unpacked_bytes)
    with tempfile.TemporaryFile() as table:
        ptx: dict[str, str] = {}
        file.seek(0)
        start = file.read(4)
        file.seek(0)
        if start.startswith(b"PK"):
            ptx = _unzip(file, table, budget, limits)
        elif start.startswith(b"\x1f\x8b"):
            _gunzip(file, table, budget)
        else:
            _copy(file, table, budget)
        yield Unpacked(table, _kind(table), ptx)


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Budget:
    """Bytes that may still be unpacked."""

    def __init__(self, limit: int) -> None:
        self._limit = self._left = limit

    def take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ServiceError(
                "too-large",
                f"the upload unpacks to more than {self._limit} bytes "
                "(WATTCAST_MAX_UNPACKED_BYTES)",
            )


def _copy(source: _Readable, target: IO[bytes], budget: _Budget) -> None:
    while True:
        with _sound("archive"):
            chunk = source.read(_CHUNK)
        if not chunk:
            return
        budget.take(len(chunk))
        target.write(chunk)


def _gunzip(file: IO[bytes], table: IO[bytes], budget: _Budget) -> None:
    with gzip.GzipFile(fileobj=file, mode="rb") as opened:
        _copy(opened, table, budget)


def _unzip(file: IO[bytes], table: IO[bytes], budget: _Budget, limits: Limits) -> dict[str, str]:
    _check_directory(file, limits)
    with _sound("zip"):
        archive = zipfile.ZipFile(file)
    with archive:
        members = [m for m in archive.infolist() if not m.is_dir() and not _is_litter(m.filename)]
        if len(members) > limits.files:
            raise _too_many(limits)
        names = [_checked_name(member) for member in members]
        if len(set(names)) < len(names):
            raise DataError("the zip has two files of the same name")
        tables = [name for name in names if _TABLE.search(name)]
        if len(tables) != 1:
            raise DataError(
                f"the zip holds {len(tables)} tables; it takes exactly one "
                "(.csv, .jsonl or .parquet, each also .gz)"
            )
        ptx: dict[str, str] = {}
        for name, member in zip(names, members, strict=True):
            if name == tables[0]:
                with _opened(archive, member) as opened:
                    if name.lower().endswith(".gz"):
                        _gunzip(opened, table, budget)
                    else:
                        _copy(opened, table, budget)
            elif name.lower().endswith(".ptx"):
                ptx[name] = _text(archive, member, budget, limits)
            else:
                raise DataError(f"{name[:100]!r} in the zip is neither PTX nor a table")
        return ptx


def _check_directory(file: IO[bytes], limits: Limits) -> None:
    """Refuse a directory of millions of entries before it is read into memory."""
    end = file.seek(0, 2)
    file.seek(max(0, end - _END_OF_DIRECTORY.size - 0xFFFF))
    tail = file.read()
    file.seek(0)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < _END_OF_DIRECTORY.size:
        raise DataError("the zip is broken: it has no directory")
    _, _, _, _, entries, size, _, _ = _END_OF_DIRECTORY.unpack_from(tail, at)
    # The 64-bit format is for archives far beyond any limit here.
    if b"PK\x06\x07" in tail[max(0, at - 20) : at]:
        raise DataError("the zip is of the 64-bit kind; pack it without that")
    # Folders have entries too.
    if entries > 2 * limits.files or size > 2 * limits.files * _DIRECTORY_BYTES_PER_FILE:
        raise _too_many(limits)


def _too_many(limits: Limits) -> ServiceError:
    return ServiceError(
        "too-large",
        f"the zip holds more than {limits.files} files (WATTCAST_MAX_UPLOAD_FILES)",
    )


def _is_litter(name: str) -> bool:
    """What macOS adds to every zip."""
    return name.startswith("__MACOSX/") or PurePosixPath(name).name == ".DS_Store"


def _checked_name(member: zipfile.ZipInfo) -> str:
    """A member's name. No file is ever made of it; one that tries to leave is refused all the
    same, since it is no mistake."""
    name = member.filename
    path = PurePosixPath(name)
    if (
        not name.isprintable()
        or len(name) > 255
        or path.is_absolute()
        or ".." in path.parts
        or "\\" in name
        or ":" in name
    ):
        raise DataError(f"the zip has a file with the forbidden name {name[:100]!r}")
    if stat.S_ISLNK(member.external_attr >> 16):  # the mode, where Unix packed it (zip(1))
        raise DataError(f"{name!r} in the zip is a symbolic link; pack the file itself")
    if member.flag_bits & 0x1:
        raise DataError("the zip is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{name!r} is compressed by a method other than deflate")
    return name


@contextmanager
def _opened(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[IO[bytes]]:
    with _sound("zip"):
        opened = archive.open(member)
    with opened:
        yield opened


@contextmanager
def _sound(what: str) -> Iterator[None]:
    """Raises DataError where what is read inside is broken."""
    try:
        yield
    except _BROKEN as error:
        raise DataError(f"the {what} is broken: {error}") from error


def _text(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, budget: _Budget, limits: Limits
) -> str:
    with _opened(archive, member) as opened, _sound("zip"):
        content = opened.read(limits.ptx_bytes + 1)
    if len(content) > limits.ptx_bytes:
        raise ServiceError(
            "too-large",
            f"{member.filename!r} may have at most {limits.ptx_bytes} bytes "
            "(WATTCAST_MAX_PTX_BYTES)",
        )
    budget.take(len(content))
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{member.filename!r} is not UTF-8", file=member.filename) from error


def _kind(table: IO[bytes]) -> Kind:
    table.seek(0)
    start = table.read(4096)
    table.seek(0)
    if start.startswith(b"PAR1"):
        return "parquet"
    return "jsonl" if start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{" else "csv"
