"""The physical power model is fitted and scored on programs it has not seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from studies.data.activity_tables import served_folder
from studies.fitting.physical.artifacts import POOLED_SETTINGS, leave_gpu_out
from studies.fitting.physical.fit import (
    Fits,
    FitSettings,
    choose,
    error_percent,
    fitted_parameters,
    leave_program_out,
    pooled_parameters,
    predict,
    row_folds,
    solved,
    unit_moments,
)
from studies.fitting.physical.rows import (
    SWEPT,
    VOLTAGES,
    GpuRows,
    all_rows,
    counter_rows,
    joined,
    prototype_rows,
    scaling,
)
from wattcast.models.clocks import ClockPair
from wattcast.models.power.activities import UnitActivities
from wattcast.models.power.physical import WEIGHTS, VoltageCurve, regressors
from wattcast.training.data.datasets import find_data

if find_data() is None:
    pytest.skip("no data: set WATTCAST_DATA", allow_module_level=True)

SETTINGS = (
    FitSettings(micro_weight=0.3, counter_weight=0.5, ridge=4.0),
    FitSettings(micro_weight=1.0, counter_weight=0.5, ridge=2.0),
    FitSettings(micro_weight=1.0, counter_weight=0.5, ridge=4.0),
)
"""Some of those the nested choice averages; the choice itself takes a minute
(``python -m studies physical``)."""

SERVED = ("gtx-1080-ti", "quadro-rtx-8000", "tesla-p100", "tesla-v100")


@pytest.fixture(scope="module")
def fits() -> Fits:
    return Fits(all_rows())


@pytest.fixture(scope="module")
def small() -> Fits:
    """Two GPUs that load at once."""
    both = joined(prototype_rows("tesla-p100"), counter_rows("wang_tesla_p100"))
    return Fits({"tesla-p100": both, "gtx-1080-ti": prototype_rows("gtx-1080-ti")})


LIMITS = {
    "tesla-v100": 15.0,
    "quadro-rtx-8000": 14.0,
    "gtx-titan-x": 9.0,
    "gtx-980": 11.4,
}
"""Percent over all clocks; the medians of the other programs stand at 17.4, 17.2, 19.0, 11.4."""


@pytest.mark.parametrize("gpu", [*SERVED, "gtx-980", "gtx-titan-x"])
def test_programs_left_out_are_met_better_than_by_their_median(fits: Fits, gpu: str) -> None:
    found = leave_program_out(fits, gpu, SETTINGS)
    print(f"{gpu}: {found.error_percent:.1f} %, median {found.median_error_percent:.1f} %")
    assert found.error_percent <= LIMITS.get(gpu, 100.0)
    if gpu == "gtx-1080-ti" and served_folder() is not None:
        # As served, cfd and BlackScholes are far off there (docs/physical.md).
        assert found.error_percent < 1.1 * found.median_error_percent
        return
    assert found.error_percent < found.median_error_percent
    if gpu != "gtx-980":
        assert found.error_percent <= 0.88 * found.median_error_percent


@pytest.mark.parametrize("gpu", ["tesla-v100", "quadro-rtx-8000"])
def test_scaling_with_the_clocks_beats_the_mean_curve(fits: Fits, gpu: str) -> None:
    found = leave_program_out(fits, gpu, SETTINGS)
    table = found.table
    watts = np.where(table.scored, found.watts, table.watts)
    measured, predicted = scaling(table, table.watts), scaling(table, watts)
    below = table.scored & (table.at_reference != np.arange(len(watts)))
    curve = []
    for at in np.flatnonzero(below):
        same = below & (table.clock_numbers == table.clock_numbers[at])
        others = same & (table.programs != table.programs[at])
        curve.append(abs(float(measured[others].mean()) - measured[at]))
    model, mean = float(np.abs(predicted - measured)[below].mean()), float(np.mean(curve))
    print(f"{gpu}: {100 * model:.2f} points, mean curve {100 * mean:.2f}")
    assert model <= 0.9 * mean


def test_a_program_left_out_leaves_no_trace(small: Fits) -> None:
    """Whatever its watts are, on whichever GPU and by whichever counters."""
    changed = Fits(
        {
            gpu: replace(
                table, watts=np.where(table.programs == "transpose", 3.0, 1.0) * table.watts
            )
            for gpu, table in small.tables.items()
        }
    )
    chosen = small.tables["tesla-p100"].scored & (
        small.tables["tesla-p100"].programs == "transpose"
    )
    before = leave_program_out(small, "tesla-p100", SETTINGS).watts[chosen]
    after = leave_program_out(changed, "tesla-p100", SETTINGS).watts[chosen]
    assert len(before) == 5
    assert before == pytest.approx(after)


def test_settings_for_a_program_are_chosen_without_it(small: Fits) -> None:
    candidates = [FitSettings(micro_weight=1.0, ridge=ridge) for ridge in (0.5, 2.0, 4.0)]
    before = choose(small, candidates)
    changed = Fits(
        {
            gpu: replace(table, watts=np.where(table.programs == "cfd", 5.0, 1.0) * table.watts)
            for gpu, table in small.tables.items()
        }
    )
    assert choose(changed, candidates).settings("cfd") == before.settings("cfd")


def test_a_reading_is_never_on_both_sides_of_a_random_fold(small: Fits) -> None:
    """Counted rows share their reading with served ones: they leave together."""
    table = small.tables["tesla-p100"]
    assert len(set(table.measurements)) < len(table.measurements)
    watts, median = row_folds(small, "tesla-p100", SETTINGS, seed=0, folds=5)
    assert np.isfinite(watts[table.scored]).all()
    assert np.isnan(watts[~table.scored]).all()
    assert error_percent(table, watts) < error_percent(table, median)
    one = table.measurements == table.measurements[0]
    moved = replace(table, watts=np.where(one, 2.0, 1.0) * table.watts)
    again, _ = row_folds(Fits({**small.tables, "tesla-p100": moved}), "tesla-p100", SETTINGS, 0, 5)
    # Voltage and prior are those of all rows; the reading itself teaches its own row nothing.
    assert again[0] == pytest.approx(watts[0], rel=0.05)


def test_regressors_of_arrays_are_those_of_the_model(small: Fits) -> None:
    table, voltage = small.tables["gtx-1080-ti"], VoltageCurve(floor=0.7, slope=0.5)
    design = table.design(voltage)
    for row in (0, 57, 200):
        activities = UnitActivities(*table.activities[row])
        clocks = ClockPair(*table.clocks_mhz[row])
        terms = regressors(activities, clocks, table.reference, voltage)
        assert design[row] == pytest.approx([terms[name] for name in WEIGHTS])


def test_the_fit_finds_weights_that_made_the_watts(small: Fits) -> None:
    """Exact watts of known weights: predictions of programs left out come out right."""
    table = small.tables["gtx-1080-ti"]
    voltage = VoltageCurve(floor=0.5, slope=0.3)
    weights = np.linspace(0.02, 0.3, len(WEIGHTS))
    exact = replace(table, watts=predict(table, weights, voltage))
    found = leave_program_out(
        Fits({"gtx-1080-ti": exact}), "gtx-1080-ti", (FitSettings(ridge=0.02),)
    )
    # Nothing but convolution uses texture: its weight cannot be known without it.
    others = exact.scored & (exact.programs != "convolution")
    assert (np.abs(found.watts / exact.watts - 1)[others] < 0.01).mean() > 0.9


def test_a_sweep_is_what_was_measured(fits: Fits) -> None:
    table = fits.tables["a100-sxm4-40gb"]
    full = table.activities[np.char.endswith(table.labels, " 512")]
    fma, dram = (UnitActivities._fields.index(name) for name in ("fma", "dram"))
    assert full[:, fma].mean() == pytest.approx(19050 / 19492, abs=0.01)  # GFLOP/s over the peak
    assert full[:, dram].mean() == pytest.approx(149 / 1555, abs=0.002)  # GB/s over the peak
    # Boards at their limit run at lower clocks: an A40 from some 96 multiply-adds on.
    assert {label.split()[-1] for label in fits.tables["a40"].labels} < set(map(str, range(0, 105)))


def test_a_family_lies_between_its_boards_and_all(fits: Fits) -> None:
    found = pooled_parameters(fits, SETTINGS)
    assert set(found.families) == {"5.2", "6.0", "6.1", "7.0", "7.5", "8.0", "8.6"}
    table = fits.tables["a40"]

    def error(weights: dict[str, float]) -> float:
        shares = table.conversion * np.array(list(weights.values()))
        watts = table.idle_watts + table.scale_watts * table.design(found.voltage) @ shares
        return float(np.abs(watts / table.watts - 1).mean())

    assert error(found.families["8.6"]) < error(found.weights) < 0.15


def test_microbenchmarks_of_the_same_chip_tell_units_apart(fits: Fits) -> None:
    """V100's fifteen programs do not say what integer work draws; a Titan V's full pipe does,
    whatever a Titan V draws for running at all."""
    table = fits.relatives["titan-v"]
    weights = np.linspace(1.0, 3.0, len(WEIGHTS)) * [0.01, 0.01, 0.05, *(10.0,) * 10]
    for floor in (1.0, 3.0):
        shares = weights * [floor, floor, floor, *(1.0,) * 10] * table.conversion
        exact = replace(table, watts=predict(table, shares, VOLTAGES[0]))
        found = solved(unit_moments(exact) + 1e-12 * np.eye(len(WEIGHTS) + 1))
        told = [WEIGHTS.index(name) for name in ("fma", "alu", "fp64", "load_store", "l2")]
        assert found[told] == pytest.approx(weights[told], rel=0.02)
    alone = Fits({**fits.tables})
    integer, full = (WEIGHTS.index(name) for name in ("alu", "issue"))

    def watts(known: Fits) -> float:  # of a chip full of integer work
        shares, _ = known.fit("tesla-v100", SETTINGS)
        return float(fits.tables["tesla-v100"].scale_watts * (shares[integer] + shares[full] / 2))

    assert watts(fits) > 40.0 > watts(alone)
    with_it, without = (
        error_percent(fits.tables["tesla-v100"], leave_gpu_out(each, "tesla-v100", POOLED_SETTINGS))
        for each in (fits, alone)
    )
    assert with_it < without


def test_fitted_parameters_are_sound(fits: Fits) -> None:
    for gpu, table in fits.varied.items():
        found = fitted_parameters(fits, gpu, SETTINGS)
        assert tuple(found.weights) == WEIGHTS
        assert found.reference == table.reference
        assert 0.3 < sum(found.weights.values()) < 4


def test_all_rows_are_of_eight_gpus(fits: Fits) -> None:
    kinds: dict[str, GpuRows] = dict(fits.tables)
    counted = ("gtx-980", "gtx-titan-x", *SWEPT)
    assert list(kinds) == sorted([*SERVED, *counted])
    assert list(fits.varied) == [gpu for gpu in kinds if gpu not in SWEPT]
    for gpu, table in kinds.items():
        assert ((table.activities >= 0) & (table.activities <= 1)).all()
        assert table.counted[table.scored].any() == (gpu in counted)
