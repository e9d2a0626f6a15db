"""A data table is checked cell by cell: a defect names file, row and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.tables import rows
from wattcast.features.errors import DataError
from wattcast.training.data.datasets import number, read_table, text

COLUMNS = {
    "kind": text(choices=("real", "micro")),
    "note": text(nullable=True),
    "watts": number(positive=True),
    "share": number(high=1.0, nullable=True),
    "flags": text(nullable=True, pattern=r"^(ok;|odd;)*$"),
}


def write(folder: Path, *rows: str, header: str = "kind,note,watts,share,flags,extra") -> Path:
    path = folder / "table.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def test_a_sound_table_is_read_with_types_and_further_columns(tmp_path: Path) -> None:
    frame = read_table(write(tmp_path, "real,,70.5,0.5,ok;odd;,7", "micro,x,1,,,8"), COLUMNS)
    assert frame["watts"].tolist() == [70.5, 1.0]
    assert frame["share"].isna().tolist() == [False, True]
    assert frame["note"].isna().tolist() == [True, False]
    assert frame["extra"].tolist() == [7, 8]


@pytest.mark.parametrize(
    ("row", "column", "why"),
    rows("mistakes", "cells"),
)
def test_a_defect_names_its_place(tmp_path: Path, row: str, column: str, why: str) -> None:
    path = write(tmp_path, "real,,70,0.5,,7", row)
    with pytest.raises(DataError, match=rf"table\.csv, row 3, column '{column}'") as caught:
        read_table(path, COLUMNS)
    assert why in caught.value.detail
    assert caught.value.context == {"file": "table.csv", "row": 3, "column": column}


def test_missing_columns_rows_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"table\.csv has no column share, flags"):
        read_table(write(tmp_path, "real,,70", header="kind,note,watts"), COLUMNS)
    with pytest.raises(DataError, match=r"table\.csv has no rows"):
        read_table(write(tmp_path), COLUMNS)
    with pytest.raises(DataError, match=r"none\.csv cannot be read"):
        read_table(tmp_path / "none.csv", COLUMNS)
