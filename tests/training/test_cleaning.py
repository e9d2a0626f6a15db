"""Cleaning gives the reference files row for row, and names every defect it meets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.fixtures.tables import rows
from tests.needs import needs_data
from wattcast.features.errors import DataError
from wattcast.training.data.cleaning import MODEL_INPUTS, NUMERIC_COLUMNS, clean
from wattcast.training.data.datasets import data_root, read_raw, sources

FILES = ("K20", "M60", "V100", "K80", "PQ_V100", "PQ_Ampere84", "PQ_Ada24")


@needs_data
@pytest.mark.parametrize("source_id", FILES)
def test_cleaning_equals_the_reference_row_for_row(source_id: str) -> None:
    ours = clean(source_id).frame
    reference = pd.read_csv(
        data_root() / "power" / "clean" / f"{source_id}.csv", dtype=str, keep_default_na=False
    )
    assert len(ours) == len(reference)
    shared = [name for name in reference.columns if name in ours and name != "src_row"]
    assert set(shared) == set(reference.columns) - {"src_row"}
    for name in shared:
        if name in NUMERIC_COLUMNS:
            expected = pd.to_numeric(reference[name].replace("", None)).to_numpy(float)
            np.testing.assert_array_equal(ours[name].to_numpy(float), expected, err_msg=name)
        else:
            assert ours[name].tolist() == reference[name].tolist(), name


@needs_data
def test_every_raw_row_is_kept_or_counted() -> None:
    for source_id in FILES:
        table = clean(source_id)
        kept, dropped = len(table.frame), sum(table.dropped.values())
        assert kept + dropped == len(read_raw(source_id).text), source_id


def test_sources_name_repository_licence_and_checksum() -> None:
    assert {source.id for source in sources().file} >= set(FILES)
    assert "none stated" in sources().licence
    assert all(len(source.sha256) == 64 for source in sources().file)
    with pytest.raises(DataError, match="unknown data source 'K40'"):
        sources().get("K40")


NAMES = "source_file_stem,benchmark,kernel,kernel_id,kernel_group,family\nV100_data,b,k,b/k,b/k,b\n"


def _write(folder: Path, cells: dict[str, str], *, names: str = NAMES, rows: int = 2) -> Path:
    """A data folder whose V100 file has ``rows`` equal rows but for their grid size."""
    columns = {"Benchmark": "b", "Kernel Name": "k", "grid_size": "64", "Power": "70.5"}
    columns |= dict.fromkeys(MODEL_INPUTS, "1") | cells
    raw = folder / "power" / "raw"
    raw.mkdir(parents=True)
    lines = [",".join(["Sr No.", *columns])]
    lines += [",".join([str(at), *columns.values()]) for at in range(rows)]
    (raw / "Power Model Inputs - V100_data.csv").write_text("\n".join(lines) + "\n")
    (folder / "power" / "kernel_names.csv").write_text(names)
    return folder


def test_rows_equal_but_for_their_number_are_one(tmp_path: Path) -> None:
    table = clean("V100", _write(tmp_path, {}, rows=3))
    assert len(table.frame) == 1
    assert table.dropped["2 exact duplicates"] == 2


@pytest.mark.parametrize("cell", ["#DIV/0!", "#REF!", "#VALUE!", "", " "])
def test_a_failed_formula_in_a_model_input_drops_the_row(tmp_path: Path, cell: str) -> None:
    table = clean("V100", _write(tmp_path, {"avg_comp_lat": cell}))
    assert len(table.frame) == 0
    assert table.dropped["2 failed formula or blank in a model input"] == 2


@pytest.mark.parametrize(
    ("cells", "message", "column"),
    rows("mistakes", "cleaning"),
)
def test_a_defect_names_file_row_and_column(
    tmp_path: Path, cells: dict[str, str], message: str, column: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        clean("V100", _write(tmp_path, cells))
    assert caught.value.context["file"] == "Power Model Inputs - V100_data.csv"
    assert caught.value.context["column"] == column


def test_a_spelling_with_two_names_is_refused(tmp_path: Path) -> None:
    names = NAMES + "V100_data,b,k,other/k,other/k,other\n"
    with pytest.raises(DataError, match="has two names") as caught:
        clean("V100", _write(tmp_path, {}, names=names))
    assert caught.value.context["row"] == 3


def test_without_data_the_error_says_where_to_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATTCAST_DATA", str(tmp_path))
    with pytest.raises(DataError, match="WATTCAST_DATA"):
        data_root()
