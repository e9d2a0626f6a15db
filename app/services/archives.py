"""Archives that callers upload: zip, tar, and tar under gzip.

An archive is never unpacked to the file system: what its members are called only serves to refer
to them. Bytes are counted as they are unpacked, whatever an archive claims of itself. An archive
inside another one is a file like any other.
"""

from __future__ import annotations

import gzip
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, Protocol

from wattcast.features.errors import DataError, ServiceError, checkpoint

CHUNK = 1 << 20
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
    tarfile.TarError,
)
"""What the standard library raises for archives that are none."""

_END_OF_DIRECTORY = struct.Struct("<4s4H2LH")
_DIRECTORY_BYTES_PER_FILE = 1024
"""Most bytes of a zip's directory for each file: 46 and a name of ordinary length."""

_TAR_AT, _TAR = 257, b"ustar"
"""Where a tar of POSIX or GNU says that it is one (IEEE 1003.1, ustar interchange format)."""

_LONGEST_HEADER = 1 << 16
"""Most bytes of a tar's header of its own (a long name, pax records), which is read at once."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Most bytes unpacked in all, most files read of an archive, most bytes of one PTX text, and
    how many times as many files as are read may lie in it."""

    unpacked_bytes: int
    files: int
    ptx_bytes: int
    beside: int = 1


class Readable(Protocol):
    """What gives its next bytes."""

    def read(self, size: int, /) -> bytes: ...


def too_large(what: str, setting: str) -> ServiceError:
    """The error of an upload beyond a limit, which ``setting`` moves."""
    return ServiceError("too-large", f"{what} (WATTCAST_{setting})")


class Budget:
    """Bytes that may still be unpacked."""

    def __init__(self, limit: int) -> None:
        self._limit = self._left = limit

    def take(self, size: int) -> None:
        """Raises ServiceError ``too-large`` where they are more than are left."""
        self._left -= size
        if self._left < 0:
            what = f"the upload unpacks to more than {self._limit} bytes"
            raise too_large(what, "MAX_UNPACKED_BYTES")


def copy(source: Readable, target: IO[bytes], budget: Budget) -> None:
    """All bytes, counted. Raises DataError where what is read is broken."""
    while True:
        with sound("archive"):
            chunk = source.read(CHUNK)
        checkpoint()
        if not chunk:
            return
        budget.take(len(chunk))
        target.write(chunk)


def gunzip(file: IO[bytes], target: IO[bytes], budget: Budget) -> None:
    """What is under gzip. Raises as ``copy``."""
    with gzip.GzipFile(fileobj=file, mode="rb") as opened:
        copy(opened, target, budget)


def archived(start: bytes) -> str | None:
    """``zip``, ``gzip`` or ``tar``, by the first 512 bytes; ``None`` for what is no archive."""
    if start.startswith(b"PK"):
        return "zip"
    if start.startswith(b"\x1f\x8b"):
        return "gzip"
    return "tar" if start[_TAR_AT:].startswith(_TAR) else None


def members(
    file: IO[bytes], kind: str, wanted: Callable[[str], bool], limits: Limits
) -> Iterator[tuple[str, IO[bytes]]]:
    """Names and contents of the files of an archive of ``kind`` that are ``wanted`` by their
    names, each to be read before the next.

    Raises DataError for an archive that is broken or holds what it should not, and ServiceError
    ``too-large``.
    """
    file.seek(0)
    if kind == "zip":
        with opened_zip(file, limits) as (archive, found):
            read = [each for each in found if wanted(each[0])]
            if len(read) > limits.files:
                raise _too_many("zip", limits.files)
            for name, member in read:
                with opened(archive, member) as content:
                    yield name, content
        return
    if kind == "gzip":
        with gzip.GzipFile(fileobj=file, mode="rb") as packed:
            passed = Budget(limits.unpacked_bytes)  # of its own: what is read counts for ``budget``
            yield from _untarred(_Counted(packed, passed), wanted, limits)
    else:
        yield from _untarred(file, wanted, limits)


class _Counted:
    """A stream whose bytes count, those that are passed over as well."""

    def __init__(self, source: Readable, budget: Budget) -> None:
        self._source, self._budget = source, budget

    def read(self, size: int, /) -> bytes:
        chunk = self._source.read(size)
        self._budget.take(len(chunk))
        checkpoint()
        return chunk


class _Header(tarfile.TarInfo):
    """A header whose size is looked at before anything is made of it."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        found = super().frombuf(buf, encoding, errors)
        is_file = found.type in tarfile.REGULAR_TYPES
        if found.size < 0 or (not is_file and found.size > _LONGEST_HEADER):
            raise DataError(f"the tar is broken: a header of {found.size:,} bytes")
        return found


def _untarred(
    source: Readable, wanted: Callable[[str], bool], limits: Limits
) -> Iterator[tuple[str, IO[bytes]]]:
    seen: set[str] = set()
    read = 0
    with sound("tar"):
        archive = tarfile.open(fileobj=source, mode="r|", tarinfo=_Header)  # type: ignore[call-overload]  # noqa: SIM115 - closed below
    with archive:
        while True:
            with sound("tar"):
                member = archive.next()
            if member is None:
                return
            archive.members.clear()  # it would remember every one
            checkpoint()
            if member.isdir() or is_litter(member.name):
                continue
            name = _allowed(member.name, "tar")
            if not member.isfile():
                raise DataError(f"{name!r} in the tar is a link or a device; pack the file itself")
            if name in seen:
                raise DataError("the tar has two files of the same name")
            seen.add(name)
            if len(seen) > limits.files * limits.beside:
                raise _too_many("tar", limits.files * limits.beside)
            if wanted(name):
                read += 1
                if read > limits.files:
                    raise _too_many("tar", limits.files)
                content = archive.extractfile(member)
                assert content is not None
                yield name, content


@contextmanager
def opened_zip(
    file: IO[bytes], limits: Limits
) -> Iterator[tuple[zipfile.ZipFile, list[tuple[str, zipfile.ZipInfo]]]]:
    """A zip and its files by name. Raises as ``members``."""
    _check_directory(file, limits)
    with sound("zip"):
        archive = zipfile.ZipFile(file)
    with archive:
        found = [m for m in archive.infolist() if not m.is_dir() and not is_litter(m.filename)]
        if len(found) > limits.files * limits.beside:
            raise _too_many("zip", limits.files * limits.beside)
        names = [_checked_name(member) for member in found]
        if len(set(names)) < len(names):
            raise DataError("the zip has two files of the same name")
        yield archive, list(zip(names, found, strict=True))


def _check_directory(file: IO[bytes], limits: Limits) -> None:
    """Refuse a directory of millions of entries before it is read into memory."""
    file.seek(max(0, file.seek(0, 2) - _END_OF_DIRECTORY.size - 0xFFFF))
    tail = file.read()
    file.seek(0)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < _END_OF_DIRECTORY.size:
        raise DataError("the zip is broken: it has no directory")
    _, _, _, _, entries, size, _, _ = _END_OF_DIRECTORY.unpack_from(tail, at)
    # The 64-bit format is for archives far beyond any limit here.
    if b"PK\x06\x07" in tail[max(0, at - 20) : at]:
        raise DataError("the zip is of the 64-bit kind; pack it without that")
    most = limits.files * limits.beside
    # Folders have entries too.
    if entries > 2 * most or size > 2 * most * _DIRECTORY_BYTES_PER_FILE:
        raise _too_many("zip", most)


def _too_many(what: str, most: int) -> ServiceError:
    return too_large(f"the {what} holds more than {most} files", "MAX_UPLOAD_FILES")


def is_litter(name: str) -> bool:
    """What macOS adds to every archive."""
    last = PurePosixPath(name).name
    return name.startswith("__MACOSX/") or last == ".DS_Store" or last.startswith("._")


def _checked_name(member: zipfile.ZipInfo) -> str:
    name = _allowed(member.filename, "zip")
    if stat.S_ISLNK(member.external_attr >> 16):  # the mode, where Unix packed it (zip(1))
        raise DataError(f"{name!r} in the zip is a symbolic link; pack the file itself")
    if member.flag_bits & 0x1:
        raise DataError("the zip is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{name!r} is compressed by a method other than deflate")
    return name


def _allowed(name: str, what: str) -> str:
    """A member's name. No file is ever made of it; one that tries to leave is refused all the
    same, since it is no mistake."""
    path = PurePosixPath(name)
    if (
        not name.isprintable()
        or len(name) > 255
        or path.is_absolute()
        or ".." in path.parts
        or "\\" in name
        or ":" in name
    ):
        raise DataError(f"the {what} has a file with the forbidden name {name[:100]!r}")
    return name


@contextmanager
def opened(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[IO[bytes]]:
    """A file of a zip. Raises DataError."""
    with sound("zip"):
        content = archive.open(member)
    with content:
        yield content


@contextmanager
def sound(what: str) -> Iterator[None]:
    """Raises DataError where what is read inside is broken."""
    try:
        yield
    except _BROKEN as error:
        raise DataError(f"the {what} is broken: {error}") from error
