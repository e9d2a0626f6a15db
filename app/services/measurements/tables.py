"""An uploaded file: the table in it (and PTX texts by their names in a zip), and the rows of the
table one after another: CSV, JSON lines, Parquet."""

from __future__ import annotations

import csv
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from pydantic_core import from_json

from wattcast.app.services import archives
from wattcast.app.settings import Settings
from wattcast.features.cuda.isolation import Limited
from wattcast.features.errors import DataError, ServiceError

Kind = Literal["csv", "jsonl", "parquet"]

MOST_LINE_BYTES = 1 << 20
"""Longest line of CSV or JSON lines."""

MOST_COLUMNS = 1000
"""Of a CSV, as of Parquet: half a million of one line held the interpreter for a second."""

PARQUET_MEMORY_BYTES = 2 << 30
"""Memory limit of the process that reads a Parquet file, PyArrow's own 0.5 GiB included."""

_TABLE = re.compile(r"\.(csv|jsonl|ndjson|parquet)(\.gz)?$", re.IGNORECASE)
_PARQUET_READER = Path(__file__).with_name("parquet_rows.py")


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A table in a temporary file, at its start, and by name the texts of PTX and of logs."""

    table: IO[bytes]
    kind: Kind
    ptx: Mapping[str, str]


@contextmanager
def unpacked(file: IO[bytes], limits: archives.Limits) -> Iterator[Unpacked]:
    """What is in ``file``, told by its content and not by its name.

    Raises DataError for an archive that is broken or holds what it should not, and ServiceError
    ``too-large``.
    """
    budget = archives.Budget(limits.unpacked_bytes)
    with tempfile.TemporaryFile() as table:
        ptx: dict[str, str] = {}
        file.seek(0)
        start = file.read(4)
        file.seek(0)
        if start.startswith(b"PK"):
            ptx = _unzip(file, table, budget, limits)
        elif start.startswith(b"\x1f\x8b"):
            archives.gunzip(file, table, budget)
        else:
            archives.copy(file, table, budget)
        yield Unpacked(table, _kind(table), ptx)


def _unzip(
    file: IO[bytes], table: IO[bytes], budget: archives.Budget, limits: archives.Limits
) -> dict[str, str]:
    with archives.opened_zip(file, limits) as (archive, members):
        tables = [name for name, _ in members if _TABLE.search(name)]
        if len(tables) != 1:
            raise DataError(
                f"the zip holds {len(tables)} tables; it takes exactly one "
                "(.csv, .jsonl or .parquet, each also .gz)"
            )
        ptx: dict[str, str] = {}
        for name, member in members:
            if name == tables[0]:
                with archives.opened(archive, member) as content:
                    if name.lower().endswith(".gz"):
                        archives.gunzip(content, table, budget)
                    else:
                        archives.copy(content, table, budget)
            elif name.lower().endswith((".ptx", ".log", ".txt")):
                ptx[name] = _text(archive, member, budget, limits)
            else:
                raise DataError(
                    f"{name[:100]!r} in the zip is neither PTX, a log (.log, .txt) nor a table"
                )
        return ptx


def _text(
    archive: zipfile.ZipFile,
    member: zipfile.ZipInfo,
    budget: archives.Budget,
    limits: archives.Limits,
) -> str:
    with archives.opened(archive, member) as source, archives.sound("zip"):
        content = source.read(limits.ptx_bytes + 1)
    if len(content) > limits.ptx_bytes:
        what = f"{member.filename!r} may have at most {limits.ptx_bytes} bytes"
        raise archives.too_large(what, "MAX_PTX_BYTES")
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


# --- rows of the table ---------------------------------------------------------------------------


class RawRow(NamedTuple):
    """A row as it was read: its cells by column, or what is wrong with the row as a whole.
    ``number`` counts the rows from 1; a CSV's header is none. Blank cells and NaN are left out."""

    number: int
    cells: dict[str, Any]
    problem: str | None = None


def read_rows(source: Unpacked, settings: Settings, until: float) -> Iterator[RawRow]:
    """The rows of a table, within the limits of the settings and ``until`` (monotonic).

    Raises DataError where the table cannot be read on (naming the row), and ServiceError
    ``too-large`` or ``time-limit``.
    """
    if source.kind == "csv":
        rows = _csv_rows(source.table)
    elif source.kind == "jsonl":
        rows = _json_rows(_lines(source.table))
    else:
        rows = _parquet_rows(source.table, settings, until)
    for row in rows:
        if row.number > settings.max_upload_rows:
            what = f"the upload has more than {settings.max_upload_rows} rows"
            raise archives.too_large(what, "MAX_UPLOAD_ROWS")
        yield row


def _lines(table: IO[bytes]) -> Iterator[str]:
    """Lines of UTF-8 text, each of a bounded length, blank ones too."""
    number = 0
    while line := table.readline(MOST_LINE_BYTES + 1):
        number += 1
        if len(line) > MOST_LINE_BYTES:
            raise DataError(f"line {number} has more than {MOST_LINE_BYTES} bytes", row=number)
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"line {number} is not UTF-8", row=number) from error


def _csv_rows(table: IO[bytes]) -> Iterator[RawRow]:
    reader = csv.reader(_lines(table), strict=True)
    number = 0
    try:
        header = [name.strip() for name in next(reader, [])]
        if not any(header):
            raise DataError("the table is empty: a CSV begins with the names of its columns")
        if len(header) > MOST_COLUMNS:
            raise DataError(f"the CSV has more than {MOST_COLUMNS:,} columns")
        if len(set(header)) < len(header) or not all(header):
            raise DataError("two columns of the CSV have the same name, or one has none")
        for cells in reader:
            if not cells:
                continue  # a blank line
            number += 1
            if len(cells) != len(header):
                problem = f"has {len(cells)} cells; the header has {len(header)}"
                yield RawRow(number, {}, problem)
                continue
            stripped = (cell.strip() for cell in cells)
            row = {name: cell for name, cell in zip(header, stripped, strict=True) if cell}
            yield RawRow(number, row)
    except csv.Error as error:
        raise DataError(f"row {number + 1} is not CSV: {error}", row=number + 1) from error


def _json_rows(lines: Iterator[str]) -> Iterator[RawRow]:
    number = 0
    for line in lines:
        if not line.strip():
            continue
        number += 1
        try:
            row = from_json(line)
        except ValueError as error:
            yield RawRow(number, {}, f"is not JSON: {error}")
            continue
        if not isinstance(row, dict):
            yield RawRow(number, {}, "is no JSON object")
            continue
        yield RawRow(number, {k: v for k, v in row.items() if not _is_missing(v)})


def _is_missing(value: object) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _parquet_rows(table: IO[bytes], settings: Settings, until: float) -> Iterator[RawRow]:
    seconds = math.ceil(until - time.monotonic())
    if seconds < 1:
        raise late()
    environment = {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        # Memory that is reserved and not used would count against the limit.
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    table.flush()
    with (
        tempfile.TemporaryFile() as errors,
        Limited(
            [sys.executable, "-I", str(_PARQUET_READER), str(settings.max_upload_rows)],
            {"seconds": seconds, "memory_bytes": PARQUET_MEMORY_BYTES},
            stdin=table,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
        ) as child,
    ):
        assert child.stdout is not None
        pipe = _Counted(child.stdout, settings.max_unpacked_bytes, until)
        yield from _json_rows(_lines(pipe))  # type: ignore[arg-type]
        if code := child.wait():
            errors.seek(0)
            message = errors.read(4096).decode("utf-8", "replace").strip()
            why = message if code == 3 and message else "reading it takes too much memory or time"
            raise DataError(f"the Parquet file cannot be read: {why}")


@dataclass
class _Counted:
    """A pipe whose bytes and time are limited."""

    pipe: IO[bytes]
    most_bytes: int
    until: float
    seen: int = 0

    def readline(self, size: int) -> bytes:
        line = self.pipe.readline(size)
        self.seen += len(line)
        if self.seen > self.most_bytes:
            what = f"the rows of the Parquet file take more than {self.most_bytes} bytes"
            raise archives.too_large(what, "MAX_UNPACKED_BYTES")
        in_time(self.until)
        return line


def in_time(until: float) -> None:
    """Raises ServiceError ``time-limit`` once the clock (monotonic) shows ``until``."""
    if time.monotonic() > until:
        raise late()


def late() -> ServiceError:
    """The error of an upload that takes too long."""
    return ServiceError(
        "time-limit",
        "the upload was not read in time (WATTCAST_UPLOAD_SECONDS); send it in several parts",
    )
