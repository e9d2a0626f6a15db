"""The default time model against measured programs, none of which it was fitted to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from studies.bottleneck_errors import (
    median_of_others,
    score_tables,
    shipped,
    time_errors,
    write_errors,
)
from studies.data.activity_tables import ACTIVITY_GPUS, read_activity_table
from wattcast.features.errors import DataError
from wattcast.models.time.calibration import program_errors
from wattcast.training.data.datasets import find_data

if find_data() is None:
    pytest.skip("no data: set WATTCAST_DATA", allow_module_level=True)

# Percent: mean and median at the highest clocks, mean of scaling between clocks.
LIMITS = {
    "tesla-v100": (17.0, 12.5, 8.0),
    "quadro-rtx-8000": (17.0, 12.0, 8.0),
    "gtx-1080-ti": (32.0, 20.0, 8.0),
    "tesla-p100": (32.0, 20.0, 8.0),
}


@pytest.mark.parametrize("gpu", ACTIVITY_GPUS)
def test_errors_stay_within_what_is_promised(gpu: str) -> None:
    found = time_errors(gpu, shipped)
    mean, median, scaling = LIMITS[gpu]
    at_reference = found.percent[found.at_reference]
    print(f"{gpu}: {at_reference.mean():.1f} ({np.median(at_reference):.1f}) %")
    assert at_reference.mean() <= mean
    assert np.median(at_reference) <= median
    assert found.scaling_percent.mean() <= scaling


@pytest.mark.parametrize("gpu", ACTIVITY_GPUS)
def test_it_beats_knowing_nothing(gpu: str) -> None:
    rows = [row for row in read_activity_table(gpu) if row.kind == "real"]
    model = time_errors(gpu, shipped).percent.mean()
    assert model < 0.5 * time_errors(gpu, median_of_others(rows)).percent.mean()


def test_the_intervals_rest_on_these_very_errors(tmp_path: Path) -> None:
    path = tmp_path / "errors.csv"
    write_errors(path)
    stored = [f"{e.gpu},{e.program},{e.log_ratio:.4f}" for e in program_errors()]
    assert set(stored) <= set(path.read_text(encoding="utf-8").splitlines()[1:])


def test_every_table_is_written() -> None:
    text = score_tables()
    for gpu in ACTIVITY_GPUS:
        assert f"| {gpu} | bottleneck |" in text
        assert f"| {gpu} | median of the other programs |" in text


def test_a_missing_table_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"tesla-v100\.csv cannot be read"):
        read_activity_table("tesla-v100", tmp_path)
