"""Rows of an uploaded table, one after another: CSV, JSON lines, Parquet."""

from __future__ import annotations

import csv
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pydantic_core import from_json

from wattcast.app.services.measurements.unpack import Unpacked
from wattcast.features.cuda.isolation import Limited
from wattcast.features.errors import DataError, ServiceError

MOST_LINE_BYTES = 1 << 20
"""Longest line of CSV or JSON lines."""

_CHILD = Path(__file__).with_name("parquet_rows.py")


@dataclass(frozen=True, slots=True)
class RawRow:
    """A row as it was read: its cells by column, or what is wrong with the row as a whole.
    ``number`` counts the rows from 1; a CSV's header is none. Blank cells and NaN are left out."""

    number: int
    cells: dict[str, Any]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class TableLimits:
    """Most rows; for Parquet also bytes of memory and of output, and when to stop (monotonic)."""

    rows: int
    memory_bytes: int
    output_bytes: int
    until: float


def read_rows(source: Unpacked, limits: TableLimits) -> Iterator[RawRow]:
    """The rows of a table.

    Raises DataError where the table cannot be read on (naming the row), and ServiceError
    ``too-large`` or ``time-limit``.
    """
    if source.kind == "csv":
        rows = _csv_rows(source.table)
    elif source.kind == "jsonl":
        rows = _json_rows(_lines(source.table))
    else:
        rows = _parquet_rows(source.table, limits)
    for row in rows:
        if row.number > limits.rows:
            raise ServiceError(
                "too-large",
                f"the upload has more than {limits.rows} rows (WATTCAST_MAX_UPLOAD_ROWS)",
            )
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
        if len(set(header)) < len(header) or not all(header):
            raise DataError("two columns of the CSV have the same name, or one has none")
        for cells in reader:
            if not cells:
                continue  # a blank line
            number += 1
            if len(cells) != len(header):
                said = f"has {len(cells)} cells; the header has {len(header)}"
                yield RawRow(number, {}, said)
                continue
            stripped = (cell.strip() for cell in cells)
            found = {name: cell for name, cell in zip(header, stripped, strict=True) if cell}
            yield RawRow(number, found)
    except csv.Error as error:
        raise DataError(f"row {number + 1} is not CSV: {error}", row=number + 1) from error


def _json_rows(lines: Iterator[str]) -> Iterator[RawRow]:
    number = 0
    for line in lines:
        if not line.strip():
            continue
        number += 1
        try:
            found = from_json(line)
        except ValueError as error:
            yield RawRow(number, {}, f"is not JSON: {error}")
            continue
        if not isinstance(found, dict):
            yield RawRow(number, {}, "is no JSON object")
            continue
        yield RawRow(number, {k: v for k, v in found.items() if not _is_missing(v)})


def _is_missing(value: object) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _parquet_rows(table: IO[bytes], limits: TableLimits) -> Iterator[RawRow]:
    seconds = math.ceil(limits.until - time.monotonic())
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
            [sys.executable, "-I", str(_CHILD), str(limits.rows)],
            {"seconds": seconds, "memory_bytes": limits.memory_bytes},
            stdin=table,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
        ) as child,
    ):
        assert child.stdout is not None
        yield from _json_rows(_lines(_Counted(child.stdout, limits)))  # type: ignore[arg-type]
        if code := child.wait():
            errors.seek(0)
            said = errors.read(4096).decode("utf-8", "replace").strip()
            why = said if code == 3 and said else "reading it takes too much memory or time"
            raise DataError(f"the Parquet file cannot be read: {why}")


class _Counted:
    """A pipe whose bytes and time are limited."""

    def __init__(self, pipe: IO[bytes], limits: TableLimits) -> None:
        self._pipe = pipe
        self._limits = limits
        self._seen = 0

    def readline(self, size: int) -> bytes:
        line = self._pipe.readline(size)
        self._seen += len(line)
        if self._seen > self._limits.output_bytes:
            raise ServiceError(
                "too-large",
                f"the rows of the Parquet file take more than {self._limits.output_bytes} bytes "
                "(WATTCAST_MAX_UNPACKED_BYTES)",
            )
        in_time(self._limits.until)
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
