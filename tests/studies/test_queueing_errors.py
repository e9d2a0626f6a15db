"""Wang and Chu's model against measured times; the published claims hold where the data are."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from studies.papers.wang_chu import errors as queueing
from studies.papers.wang_chu.errors import (
    DATA_SETS,
    FAMILIES,
    FORMS,
    DataSet,
    accuracy_table,
    interval_factors,
    predict,
    static_errors,
    write_factors,
)
from studies.papers.wang_chu.forms import counters_to_inputs
from tests.needs import needs_data
from wattcast.features.errors import DataError
from wattcast.features.gpus import load_gpu
from wattcast.models.clocks import ClockPair
from wattcast.models.papers.wang_chu.inputs import gpu_parameters
from wattcast.models.time.calibration import ANY_GPU, SPREAD_FILE, Factors

BY_NAME = {data.name: data for data in DATA_SETS}
NETWORK = FAMILIES["queueing"]


# --- on a table of our own -------------------------------------------------------------------

OWN = DataSet("own", "own.csv", "gtx-980")
COLUMNS = (
    "benchmark", "args", "kernel", "core_mhz", "mem_mhz", "ref_core_mhz", "ref_mem_mhz", "time_ms",
    "blocks", "inst_per_warp", "achieved_occupancy", "l2_read_transactions",
    "l2_write_transactions", "dram_read_transactions", "dram_write_transactions",
)  # fmt: skip


def own_table(folder: Path, factor: float = 1.0, reference: float = 1000) -> Path:
    """One kernel at nine pairs of clocks, ``factor`` times as long as the network form says."""
    counters: dict[str, object] = dict(
        zip(COLUMNS[8:], ("(1024 1 1) (256 1 1)", 60, 1.0, 32768, 16384, 24576, 12288), strict=True)
    )
    gpu = load_gpu("gtx-980")
    launch = counters_to_inputs(counters, gpu)
    path = folder / "dvfs" / OWN.file
    path.parent.mkdir()
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for core in (400, 700, 1000):
            for memory in (400, 700, 1000):
                pair = ClockPair(core, memory)
                seconds = NETWORK.seconds(launch, gpu_parameters(gpu), pair) * factor
                row = ("copy", "", "k", core, memory, reference, 1000, seconds * 1e3)
                writer.writerow((*row, *counters.values()))
    return folder


def test_a_kernel_twice_as_slow_at_all_clocks_scales_without_error(tmp_path: Path) -> None:
    found = predict(OWN, NETWORK, own_table(tmp_path, factor=2))
    assert found.absolute() == pytest.approx(np.full(9, 0.5))
    assert found.scaling(found.reference) == pytest.approx(np.zeros(9), abs=1e-9)
    assert set(found.reference) == {8}  # 1000 / 1000, sorted by clocks
    assert set(found.middle) == {4}


def test_missing_data_and_references_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"own\.csv cannot be read"):
        predict(OWN, NETWORK, tmp_path)
    with pytest.raises(DataError, match="no row at its reference"):
        predict(OWN, NETWORK, own_table(tmp_path, reference=1234))


def test_factors_are_written_as_the_models_read_them(tmp_path: Path) -> None:
    path = tmp_path / "spread.csv"
    write_factors([Factors("gtx-980", "queueing", 0.5, 2.25, 3, 40)], path)
    assert path.read_text(encoding="utf-8") == (
        "gpu,family,low_factor,high_factor,groups,rows\ngtx-980,queueing,0.500,2.250,3,40\n"
    )
    other = "any,delay,0.25,4.0,2,3\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(other)
    write_factors([Factors("gtx-980", "queueing", 0.25, 2.0, 3, 40)], path)
    assert path.read_text(encoding="utf-8").splitlines()[1:] == [
        "gtx-980,queueing,0.250,2.000,3,40",
        other.strip(),
    ]


# --- on the published measurements -----------------------------------------------------------


@needs_data
@pytest.mark.parametrize(
    ("name", "from_highest", "from_middle"),
    [
        ("GTX 980, 49 pairs", 0.060, 0.060),
        ("GTX 980 low", 0.037, 0.032),
        ("GTX 980 high", 0.052, 0.052),
        ("GTX 1080 Ti", 0.023, 0.020),
        ("Titan X Pascal", 0.025, 0.023),
    ],
)
def test_the_network_form_scales(name: str, from_highest: float, from_middle: float) -> None:
    found = predict(BY_NAME[name], NETWORK)
    assert found.scaling(found.reference).mean() <= from_highest
    assert found.scaling(found.middle).mean() <= from_middle


@needs_data
@pytest.mark.parametrize("data", DATA_SETS, ids=lambda data: str(data.file))
def test_the_network_form_beats_the_cases(data: DataSet) -> None:
    """In absolute error the corrected ones, in scaling even the printed ones."""
    printed, corrected = (predict(data, form) for form in (FORMS[0], FAMILIES["queueing-cases"]))
    best = predict(data, NETWORK)
    assert best.absolute().mean() < corrected.absolute().mean()
    assert best.scaling(best.middle).mean() < printed.scaling(printed.middle).mean()


@needs_data
def test_estimated_activities_do_nearly_as_well_as_counters() -> None:
    for gpu, least in (("tesla-v100", 0.35), ("quadro-rtx-8000", 0.30), ("gtx-1080-ti", 0.25)):
        errors = static_errors(gpu, "queueing")
        assert errors.percent[errors.at_reference].mean() < 100 * least


@needs_data
def test_the_shipped_factors_are_those_of_the_data() -> None:
    with SPREAD_FILE.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["family"] in queueing.FAMILIES]
    shipped = {(row["gpu"], row["family"]): row for row in rows}
    found = interval_factors()
    assert {(each.gpu, each.family) for each in found} == set(shipped)
    assert (ANY_GPU, "queueing") in shipped
    for each in found:
        row = shipped[each.gpu, each.family]
        assert each.low_factor == pytest.approx(float(row["low_factor"]), rel=0.02)
        assert each.high_factor == pytest.approx(float(row["high_factor"]), rel=0.02)


@pytest.mark.slow
@needs_data
def test_the_table_names_every_data_set_and_form() -> None:
    accuracy = accuracy_table()
    assert all(data.name in accuracy for data in DATA_SETS)
    assert all(f"| {form.name} |" in accuracy for form in FORMS)
