"""What counts and a few measured launches are worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from studies.fitting.physical.artifacts import leave_gpu_out, served_costs
from studies.fitting.physical.fit import Fits, FitSettings
from studies.fitting.physical.rows import GpuRows, counter_rows, joined, prototype_rows
from wattcast.training.data.datasets import find_data

if find_data() is None:
    pytest.skip("no data: set WATTCAST_DATA", allow_module_level=True)

SETTINGS = (FitSettings(micro_weight=1.0, ridge=4.0),)


@pytest.fixture(scope="module")
def fits() -> Fits:
    both = joined(prototype_rows("tesla-p100"), counter_rows("wang_tesla_p100"))
    return Fits(
        {
            "tesla-p100": both,
            "gtx-1080-ti": prototype_rows("gtx-1080-ti"),
            "gtx-980": counter_rows("wang_gtx_980_high"),
        }
    )


def p100(fits: Fits) -> GpuRows:
    return fits.tables["tesla-p100"]


def test_a_gpu_left_out_is_predicted_from_the_others_alone(fits: Fits) -> None:
    table = p100(fits)
    before = leave_gpu_out(fits, "tesla-p100", SETTINGS)
    assert np.isfinite(before[table.scored]).all()
    changed = Fits({**fits.tables, "tesla-p100": replace(table, watts=table.watts * 3)})
    after = leave_gpu_out(changed, "tesla-p100", SETTINGS)
    assert after[table.scored] == pytest.approx(before[table.scored])


def test_serving_from_ptx_costs_a_model_fitted_on_counters(fits: Fits) -> None:
    (cost,) = [one for one in served_costs(fits, SETTINGS) if one.gpu_id == "tesla-p100"]
    assert 0 < cost.counted_percent < 20
    assert 0 < cost.served_percent < 25
    assert cost.served_width > 0
