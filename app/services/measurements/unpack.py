"""What lies in an uploaded file: one table, and PTX texts by their names in the zip."""

from __future__ import annotations

import re
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Literal

from wattcast.app.services.archives import (
    Budget,
    Limits,
    copy,
    gunzip,
    opened,
    opened_zip,
    sound,
)
from wattcast.features.errors import DataError, ServiceError

Kind = Literal["csv", "jsonl", "parquet"]

_TABLE = re.compile(r"\.(csv|jsonl|ndjson|parquet)(\.gz)?$", re.IGNORECASE)


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
    budget = Budget(limits.unpacked_bytes)
    with tempfile.TemporaryFile() as table:
        ptx: dict[str, str] = {}
        file.seek(0)
        start = file.read(4)
        file.seek(0)
        if start.startswith(b"PK"):
            ptx = _unzip(file, table, budget, limits)
        elif start.startswith(b"\x1f\x8b"):
            gunzip(file, table, budget)
        else:
            copy(file, table, budget)
        yield Unpacked(table, _kind(table), ptx)


def _unzip(file: IO[bytes], table: IO[bytes], budget: Budget, limits: Limits) -> dict[str, str]:
    with opened_zip(file, limits) as (archive, found):
        tables = [name for name, _ in found if _TABLE.search(name)]
        if len(tables) != 1:
            raise DataError(
                f"the zip holds {len(tables)} tables; it takes exactly one "
                "(.csv, .jsonl or .parquet, each also .gz)"
            )
        ptx: dict[str, str] = {}
        for name, member in found:
            if name == tables[0]:
                with opened(archive, member) as content:
                    if name.lower().endswith(".gz"):
                        gunzip(content, table, budget)
                    else:
                        copy(content, table, budget)
            elif name.lower().endswith(".ptx"):
                ptx[name] = _text(archive, member, budget, limits)
            else:
                raise DataError(f"{name[:100]!r} in the zip is neither PTX nor a table")
        return ptx


def _text(archive: zipfile.ZipFile, member: zipfile.ZipInfo, budget: Budget, limits: Limits) -> str:
    with opened(archive, member) as source, sound("zip"):
        content = source.read(limits.ptx_bytes + 1)
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
