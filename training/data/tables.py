"""Reads a data table and checks every cell: a defect names file, row and column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pandera.pandas as pa
from pandera.errors import SchemaErrors

from wattcast.features.errors import DataError

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
    where = f", row {line}" if line is not None else ""
    cell = first["failure_case"]
    value = "nothing" if pd.isna(cell) else repr(getattr(cell, "item", lambda: cell)())
    return DataError(
        f"{path.name}{where}, column {first['column']!r}: {value} does not fit ({first['check']})",
        file=path.name,
        row=line,
        column=first["column"],
    )
