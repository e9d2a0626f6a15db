"""The physical power model is fitted and scored on programs it has not seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models.power.physical import WEIGHTS
from training.activity_tables import ACTIVITY_GPUS
from training.datasets import find_data
from training.physical import (
    FitSettings,
    GpuRows,
    all_rows,
    fitted_parameters,
    leave_gpu_out,
    leave_program_out,
    row_folds,
    scaling,
)

if find_data() is None:
    pytest.skip("no data: set WATTCAST_DATA", allow_module_level=True)

SETTINGS = FitSettings()


@pytest.fixture(scope="module")
def tables() -> dict[str, GpuRows]:
    return all_rows()


def percent(table: GpuRows, watts: np.ndarray) -> float:
    error = np.abs(watts / table.watts - 1)[table.real]
    return float(error.mean() * 100)


LIMITS = {"tesla-v100": 17.0, "quadro-rtx-8000": 15.0, "gtx-1080-ti": 12.5, "tesla-p100": 14.5}
"""Percent over all clocks. The medians of the other programs stand at 17.4, 17.2, 14.5, 17.5."""


@pytest.mark.parametrize("gpu", ACTIVITY_GPUS)
def test_programs_left_out_are_met_better_than_by_their_median(
    tables: dict[str, GpuRows], gpu: str
) -> None:
    found = leave_program_out(tables, gpu, SETTINGS)
    model, median = percent(found.table, found.watts), percent(found.table, found.median_watts)
    print(f"{gpu}: {model:.1f} %, per-clock median {median:.1f} %")
    assert model <= LIMITS[gpu]
    assert model <= 0.85 * median


@pytest.mark.parametrize("gpu", ["tesla-v100", "quadro-rtx-8000"])
def test_scaling_with_the_clocks_beats_the_mean_curve(tables: dict[str, GpuRows], gpu: str) -> None:
    found = leave_program_out(tables, gpu, SETTINGS)
    table = found.table
    measured = scaling(table, table.watts)
    predicted = scaling(table, np.where(table.real, found.watts, table.watts))
    below = np.array([row.clocks != table.reference for row in table.rows]) & table.real
    model = float(np.abs(predicted - measured)[below].mean() * 100)
    curve = []
    for at in np.flatnonzero(below):
        row = table.rows[at]
        others = [
            measured[index]
            for index in np.flatnonzero(below)
            if table.rows[index].clocks == row.clocks and table.rows[index].program != row.program
        ]
        curve.append(abs(float(np.mean(others)) - measured[at]) * 100)
    mean = float(np.mean(curve))
    print(f"{gpu}: {model:.2f} points, mean curve {mean:.2f}")
    assert model <= 0.9 * mean


def test_shuffled_watts_teach_nothing(tables: dict[str, GpuRows]) -> None:
    table = tables["tesla-v100"]
    order = np.arange(len(table.rows))
    real = np.flatnonzero(table.real)
    order[real] = np.random.default_rng(3).permutation(real)
    shuffled = replace(table, watts=table.watts[order])
    found = leave_program_out({**tables, "tesla-v100": shuffled}, "tesla-v100", SETTINGS)
    watts = found.watts[table.real]
    truth = shuffled.watts[table.real]
    residual = float(np.sum((watts - truth) ** 2) / np.sum((truth - truth.mean()) ** 2))
    assert 1 - residual <= 0


def test_a_program_left_out_leaves_no_trace(tables: dict[str, GpuRows]) -> None:
    """Whatever its watts are, on whichever GPU: predictions of it do not move."""
    name = "transpose"
    changed = {
        gpu: replace(table, watts=np.where(table.programs == name, table.watts * 3.0, table.watts))
        for gpu, table in tables.items()
    }
    gpu = "tesla-p100"
    chosen = tables[gpu].programs == name
    before = leave_program_out(tables, gpu, SETTINGS).watts[chosen]
    after = leave_program_out(changed, gpu, SETTINGS).watts[chosen]
    assert before == pytest.approx(after)


def test_rows_left_out_at_random_are_easier(tables: dict[str, GpuRows]) -> None:
    table = tables["quadro-rtx-8000"]
    random, _ = row_folds(tables, "quadro-rtx-8000", SETTINGS, seed=0, folds=5)
    grouped = leave_program_out(tables, "quadro-rtx-8000", SETTINGS).watts
    assert percent(table, random) < percent(table, grouped)


def test_an_unseen_gpu_is_predicted_from_the_others_alone(tables: dict[str, GpuRows]) -> None:
    table = tables["tesla-v100"]
    before = leave_gpu_out(tables, "tesla-v100", SETTINGS)
    changed = {**tables, "tesla-v100": replace(table, watts=table.watts * 3.0)}
    assert leave_gpu_out(changed, "tesla-v100", SETTINGS) == pytest.approx(before)


def test_fitted_parameters_are_sound(tables: dict[str, GpuRows]) -> None:
    found = fitted_parameters(tables, "tesla-v100", SETTINGS)
    assert tuple(found.weights) == WEIGHTS
    assert found.reference == tables["tesla-v100"].reference
    assert sum(found.weights.values()) > 0.5
