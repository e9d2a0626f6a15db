"""Finds and reads the published power files, with their defects, as text.

The files lie outside the repository (their licence forbids handing them on), in a folder with
``power/raw``, ``power/clean`` and ``power/kernel_names.csv``: ``$WATTCAST_DATA``, else
``../shared/data`` beside the repository, else ``fetched_data()``. What they mean is
``wattcast.training.data.cleaning``'s.
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pandera.pandas as pa
from pandera.errors import SchemaErrors

from wattcast.features.checked import Strict, checked, read_toml
from wattcast.features.errors import DataError
from wattcast.models.cards import sha256_of

# Reads a data table and checks every cell: a defect names file, row and column.

FIRST_ROW = 2
"""Line of a CSV file that holds its first row: the names stand on line 1."""


def wrong(path: Path, what: str, row: int | None = None, column: str | None = None) -> DataError:
    """The error of a file that is not as it should be; its text names the row, if there is one."""
    place = {"row": row, "column": column}
    where = "" if row is None else f", row {row}:"
    told = {name: value for name, value in place.items() if value is not None}
    return DataError(f"{path.name}{where} {what}", file=path.name, **told)


def text(*, nullable: bool = False, choices: tuple[str, ...] = (), pattern: str = "") -> pa.Column:
    """A text column; ``choices`` are all it may hold, ``pattern`` what each cell must match."""
    checks = [pa.Check.isin(choices)] if choices else []
    if pattern:
        checks.append(pa.Check.str_matches(pattern))
    return pa.Column(str, checks, nullable=nullable, coerce=True)


def number(
    *,
    positive: bool = False,
    nullable: bool = False,
    low: float | None = 0.0,
    high: float | None = None,
    required: bool = True,
) -> pa.Column:
    """A finite number, not negative unless ``low`` says so; ``positive`` excludes 0."""
    checks = []
    if positive:
        checks.append(pa.Check.gt(0))
    elif low is not None:
        checks.append(pa.Check.ge(low))
    if high is not None:
        checks.append(pa.Check.le(high))
    checks.append(pa.Check.lt(float("inf")))
    return pa.Column(float, checks, nullable=nullable, coerce=True, required=required)


def read_table(path: Path, columns: dict[str, pa.Column]) -> pd.DataFrame:
    """A CSV file with at least ``columns``; further ones come along unchecked.

    Raises DataError for a file that cannot be read, a missing column, and the first cell that
    does not fit, naming file, row (line of the file) and column.
    """
    try:
        frame = pd.read_csv(path, dtype=dict.fromkeys(columns, str), keep_default_na=False)
    except (OSError, ValueError) as error:
        raise wrong(path, f"cannot be read: {error}") from error
    if frame.empty:
        raise wrong(path, "has no rows")
    for name in columns:
        if name in frame:
            frame[name] = frame[name].mask(frame[name] == "")
    return validated(frame, columns, path, FIRST_ROW)


def validated(
    frame: pd.DataFrame, columns: dict[str, pa.Column], path: Path, first_row: int
) -> pd.DataFrame:
    """``frame`` with at least ``columns``; the row of a file is its index plus ``first_row``.
    Raises DataError as ``read_table`` does."""
    try:
        return pa.DataFrameSchema(columns).validate(frame, lazy=True)
    except SchemaErrors as error:
        raise _defect(path, error.failure_cases, first_row) from error


def _defect(path: Path, cases: pd.DataFrame, first_row: int) -> DataError:
    missing = cases[cases["check"] == "column_in_dataframe"]
    if len(missing):
        names = ", ".join(str(name) for name in missing["failure_case"])
        return wrong(path, f"has no column {names}", column=names)
    first: Any = cases.sort_values("index", na_position="last").iloc[0]
    line = None if pd.isna(first["index"]) else int(first["index"]) + first_row
    cell = first["failure_case"]
    value = "nothing" if pd.isna(cell) else repr(getattr(cell, "item", lambda: cell)())
    return wrong_cell(path, line, first["column"], f"{value} does not fit ({first['check']})")


def wrong_cell(path: Path, row: int | None, column: str, what: str) -> DataError:
    """The same of a cell; its text names the column too."""
    where = f", row {row}" if row is not None else ""
    said = f"{path.name}{where}, column {column!r}: {what}"
    return DataError(said, file=path.name, row=row, column=column)


SOURCES_FILE = Path(__file__).parents[1] / "sources.toml"
SPREADSHEET_ERRORS = frozenset({"#DIV/0!", "#REF!", "#VALUE!"})
"""Failed spreadsheet formulas, kept in the published files as text."""


class SourceFile(Strict):
    """One entry of ``sources.toml``."""

    id: str
    gpu: str
    layout: Literal["thesis", "powerquant"]
    names: str
    path: str
    commit: str
    sha256: str
    unused: tuple[str, ...]
    reference_only: bool = False

    @property
    def name(self) -> str:
        """The file's own name, upstream and below ``power/raw``."""
        return Path(self.path).name


class Collection(Strict):
    """Tables of one origin that have no single upstream file; ``files`` are glob patterns."""

    id: str
    repository: str
    commit: str = ""
    licence: str
    files: tuple[str, ...]


class Sources(Strict):
    """``sources.toml``: what is trained on, where it comes from, under which licence."""

    licence: str
    repository: str
    raw_address: str
    file: tuple[SourceFile, ...]
    collection: tuple[Collection, ...]

    def get(self, source_id: str) -> SourceFile:
        """Entry by id. Raises DataError for an unknown one."""
        for source in self.file:
            if source.id == source_id:
                return source
        known = ", ".join(source.id for source in self.file)
        raise DataError(f"unknown data source {source_id!r}; known: {known}")


@dataclass(frozen=True, slots=True)
class RawTable:
    """A published file as text, cells stripped; the index of ``text`` is the line of the file on
    which a row ends (1-based)."""

    source: SourceFile
    path: Path
    sha256: str
    text: pd.DataFrame

    @property
    def complete(self) -> bool:
        """Whether this is the whole upstream file, and not a copy with fewer rows."""
        return self.sha256 == self.source.sha256


_SPELLING = ("source_file_stem", "benchmark", "kernel")
_CANONICAL = ("kernel_id", "kernel_group", "family")


@dataclass(frozen=True, slots=True)
class KernelName:
    """Canonical names of a kernel; near-twins share a ``group``."""

    kernel_id: str
    group: str
    family: str


@cache
def sources() -> Sources:
    """``sources.toml``, validated. Raises DataError if it is not as it should be."""
    return checked(Sources, read_toml(SOURCES_FILE), SOURCES_FILE.name)


def fetched_data() -> Path:
    """Where ``wattcast data fetch`` writes unless told otherwise: ``data`` in WATTCAST_HOME."""
    return Path(os.environ.get("WATTCAST_HOME") or Path.home() / ".wattcast") / "data"


def find_data() -> Path | None:
    """Folder of the data sets, or ``None`` where there is none."""
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    given = os.environ.get("WATTCAST_DATA")
    looked = (Path(given),) if given else (beside, fetched_data())
    return next((folder for folder in looked if (folder / "power" / "raw").is_dir()), None)


def data_root() -> Path:
    """As ``find_data``. Raises DataError saying what is missing and where it was looked for."""
    folder = find_data()
    if folder is None:
        raise DataError(
            "no training data: set WATTCAST_DATA to a folder that holds power/raw and "
            "power/kernel_names.csv (training/sources.toml says what they are)"
        )
    return folder


def read_raw(source_id: str, root: Path | None = None) -> RawTable:
    """Read one published file. Raises DataError if it is absent or a row is not rectangular."""
    source = sources().get(source_id)
    path = (root or data_root()) / "power" / "raw" / source.name
    cells = _read_csv(path)
    return RawTable(source, path, sha256_of(path), cells)


def read_kernel_names(root: Path | None = None) -> dict[tuple[str, str, str], KernelName]:
    """(source key, benchmark, kernel) as the files spell them -> canonical names.
    Without the file, which goes with the copies and not with what is fetched, no spelling has a
    name. Raises DataError for a missing column or cell, or a spelling named twice."""
    path = (root or data_root()) / "power" / "kernel_names.csv"
    if not path.exists():
        return {}
    frame = read_table(path, {name: text() for name in (*_SPELLING, *_CANONICAL)})
    names: dict[tuple[str, str, str], KernelName] = {}
    rows = frame[[*_SPELLING, *_CANONICAL]].itertuples(index=False, name=None)
    for line, (stem, benchmark, kernel, *named) in enumerate(rows, start=FIRST_ROW):
        key = (stem, benchmark.strip(), kernel.strip())
        name = KernelName(*named)
        if names.setdefault(key, name) != name:
            raise wrong(path, f"{key} has two names", line, "kernel_id")
    return names


def _read_csv(path: Path) -> pd.DataFrame:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            columns = next(reader, [])
            rows: dict[int, list[str]] = {}
            for row in reader:
                if len(row) != len(columns):
                    said = f"{len(row)} cells under {len(columns)} columns"
                    raise wrong(path, said, reader.line_num)
                rows[reader.line_num] = [cell.strip() for cell in row]
    except (OSError, UnicodeDecodeError) as error:
        raise wrong(path, f"cannot be read: {error}") from error
    if not rows:
        raise wrong(path, "has no rows")
    frame = pd.DataFrame(rows.values(), list(rows), columns, dtype=object)
    return frame.loc[:, ~frame.columns.duplicated()]
