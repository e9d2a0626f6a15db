"""The physical power model is fitted and scored on programs it has not seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from studies.data.activity_tables import served_folder
from studies.fitting.physical.artifacts import POOLED_SETTINGS, leave_gpu_out, served_costs
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
from studies.fitting.physical.products import CHIPS, Energies, carried, fitted, parameters
from studies.fitting.physical.rows import (
    SWEPT,
    UNITS,
    VOLTAGES,
    GpuRows,
    all_rows,
    counter_rows,
    joined,
    prototype_rows,
    scaling,
)
from studies.fitting.trees.pooled import (
    Part,
    as_booster,
    fit_pooled,
    grow,
    left_out,
    pooled_fit,
    save,
)
from wattcast.features.gpus import load_gpu
from wattcast.models.clocks import ClockPair
from wattcast.models.power.activities import UnitActivities
from wattcast.models.power.physical import (
    WEIGHTS,
    PhysicalParameters,
    PhysicalPowerModel,
    VoltageCurve,
    events_per_second,
    predicted_power,
    regressors,
)
from wattcast.models.store import ArtifactStore
from wattcast.training.data.datasets import find_data
from wattcast.training.evaluation.scores import Rows

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


# --- What counts and a few measured launches are worth

if find_data() is None:
    pytest.skip("no data: set WATTCAST_DATA", allow_module_level=True)

ROUTES_SETTINGS = (FitSettings(micro_weight=1.0, ridge=4.0),)


@pytest.fixture(scope="module")
def fits_routes() -> Fits:
    both = joined(prototype_rows("tesla-p100"), counter_rows("wang_tesla_p100"))
    return Fits(
        {
            "tesla-p100": both,
            "gtx-1080-ti": prototype_rows("gtx-1080-ti"),
            "gtx-980": counter_rows("wang_gtx_980_high"),
        }
    )


def p100(fits_routes: Fits) -> GpuRows:
    return fits_routes.tables["tesla-p100"]


def test_a_gpu_left_out_is_predicted_from_the_others_alone(fits_routes: Fits) -> None:
    table = p100(fits_routes)
    before = leave_gpu_out(fits_routes, "tesla-p100", ROUTES_SETTINGS)
    assert np.isfinite(before[table.scored]).all()
    changed = Fits({**fits_routes.tables, "tesla-p100": replace(table, watts=table.watts * 3)})
    after = leave_gpu_out(changed, "tesla-p100", ROUTES_SETTINGS)
    assert after[table.scored] == pytest.approx(before[table.scored])


def test_serving_from_ptx_costs_a_model_fitted_on_counters(fits_routes: Fits) -> None:
    (cost,) = [
        one for one in served_costs(fits_routes, ROUTES_SETTINGS) if one.gpu_id == "tesla-p100"
    ]
    assert 0 < cost.counted_percent < 20
    assert 0 < cost.served_percent < 25
    assert cost.served_width > 0


# --- Pooled extra trees: files that agree, no kernel known from another board, kept predictions


def _part(gpu: str = "tesla-k20", seed: int = 0, kernels: int = 8, shift: float = 0.0) -> Part:
    generator = np.random.default_rng(seed)
    groups = np.repeat([f"k{at:02d}" for at in range(kernels)], 12)
    vectors = np.column_stack(
        [
            np.repeat(np.arange(kernels), 12),
            generator.integers(0, 50, len(groups)),
            generator.normal(0, 1e6, len(groups)),
        ]
    ).astype(np.float32)
    watts = 60 + shift + 5 * vectors[:, 0] + vectors[:, 1]
    return Part(gpu, vectors.astype(float), watts.astype(float), groups)


def test_native_file_and_onnx_answer_what_the_forest_does(tmp_path: Path) -> None:
    import onnxruntime
    import xgboost

    part = _part()
    forest = fit_pooled(part, [])
    save(forest, tmp_path, 3)
    booster = xgboost.Booster(model_file=str(tmp_path / "model.ubj"))
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    for vectors in (part.vectors, _part(seed=5).vectors + 0.5):
        single = vectors.astype(np.float32)
        expected = forest.predict(single)
        native = booster.predict(xgboost.DMatrix(single))
        assert np.abs(native - expected).max() <= 0.001
        assert np.abs(session.run(None, {"features": single})[0].ravel() - native).max() <= 0.001
        parts = booster.predict(xgboost.DMatrix(single), pred_contribs=True)
        assert np.abs(parts.sum(axis=1) - native).max() <= 0.001


def test_thresholds_part_the_very_values_they_were_found_between() -> None:
    # Neighbouring single-precision values: a threshold rounded the wrong way swaps them.
    low = np.float32(1.0)
    values = np.array([low, np.nextafter(low, np.float32(2))], dtype=np.float32)
    vectors = np.repeat(values, 20).reshape(-1, 1)
    log_watts = np.repeat(np.log([50.0, 100.0]), 20)
    settings = {"n_estimators": 5, "random_state": 0}
    forest = grow(vectors, log_watts, np.ones(40), settings)
    import xgboost

    found = as_booster(forest, 1).predict(xgboost.DMatrix(vectors))
    np.testing.assert_allclose(found, forest.predict(vectors), atol=1e-4)


def test_a_kernel_left_out_is_left_out_of_every_gpu() -> None:
    own, peer = _part(), _part("tesla-m60", seed=1)
    rows = Rows.of(own.vectors, own.watts, own.groups)
    # On the other board the last kernel draws most absurdly: who sees it, answers so.
    hot = peer.groups == "k07"
    absurd = Part(peer.gpu, peer.vectors, np.where(hot, 149.0, peer.watts), peer.groups)
    train = np.flatnonzero(own.groups != "k07")
    test = np.flatnonzero(own.groups == "k07")
    nothing = rows.take(np.empty(0, dtype=np.int64))

    def answer(peers: list[Part]) -> np.ndarray:
        return pooled_fit(own, peers)(rows.take(train))(nothing, rows.take(test).hidden())

    np.testing.assert_array_equal(answer([absurd]), answer([peer]))
    assert left_out(np.unique(own.groups), own.groups[train]) == {"k07"}


# --- Energies of code from measured operators: what was put in comes out, and what serves has it

H200 = load_gpu("h200-sxm5")

REFERENCE = ClockPair(H200.max_core_mhz, H200.memory_mhz)

TRUE = Energies(180.0, 1e-12, 60e-12)

SECTOR = 100e-12


def test_energies_are_found_among_readings_after_pauses_and_at_the_limit():
    chance, count = np.random.default_rng(1), 900
    busy = {"sms": np.ones(count), "tensor": chance.uniform(0, 0.7, count),
            "dram": chance.uniform(0, 0.9, count), "l2": chance.uniform(0, 0.5, count)}  # fmt: skip
    activities = np.column_stack([busy.get(name, np.zeros(count)) for name in UNITS])
    most = events_per_second(H200, REFERENCE)
    above = (
        TRUE.clock_watts
        + TRUE.tensor_joules * most["tensor"] * busy["tensor"]
        + TRUE.dram_joules * most["dram"] * busy["dram"]
        + SECTOR * most["l2"] * busy["l2"]
    )
    paused = chance.uniform(size=count) < 0.2
    watts = np.minimum(130 + above * np.where(paused, chance.uniform(0.2, 0.9, count), 1.0), 700.0)
    names = np.full(count, "gemm")
    rows = GpuRows(
        H200, activities, np.tile(np.array(REFERENCE), (count, 1)), watts, names, names, names,
        paused | True, paused | True, 130.0, 700.0, REFERENCE, (),
    )  # fmt: skip
    assert fitted(rows, SECTOR, None) == pytest.approx(TRUE, rel=0.03)
    assert fitted(rows, SECTOR, TRUE.dram_joules) == pytest.approx(TRUE, rel=0.03)


@pytest.mark.parametrize("gpu_id", [name for names in CHIPS.values() for name in names])
def test_what_serves_has_the_energies_of_its_card(gpu_id: str):
    gpu, store = load_gpu(gpu_id), ArtifactStore()
    found = store.find(gpu_id, "power", "physical", "activity1")
    told = found.card.hyperparameters
    served = PhysicalPowerModel(found, gpu)
    donor = next(one for one, names in CHIPS.items() if gpu_id in names)
    assert served.lent_by == ("" if donor == gpu_id else donor)
    resting = dict.fromkeys(UnitActivities._fields, 0.0) | {"sms": 1.0}
    watts = {
        unit: predicted_power(
            served.parameters, UnitActivities(**{**resting, unit: 1.0}), served.parameters.reference
        ).components
        for unit in ("sms", "tensor", "dram")
    }
    most = events_per_second(gpu, served.parameters.reference)
    assert watts["sms"]["clock"] == pytest.approx(told["clock_watts"], abs=0.1)
    expected = 1e-12 * float(told["tensor_picojoules"]) * most["tensor"]
    assert watts["tensor"]["tensor"] == pytest.approx(expected, rel=1e-3)
    expected = 1e-12 * float(told["dram_picojoules_a_byte"]) * most["dram"]
    assert watts["dram"]["dram"] == pytest.approx(expected, rel=1e-3)


def test_another_board_of_the_chip_pays_for_its_own_sms_and_clock():
    pcie = load_gpu("h100-pcie")
    there = carried(TRUE, H200, pcie)
    share = 114 * pcie.max_core_mhz / (132 * 1980)
    assert there == pytest.approx((180 * share, 1e-12, 60e-12))
    pooled = ArtifactStore().find("pooled", "power", "physical", "activity1")
    stored = pooled.parameters(PhysicalParameters)
    found = parameters(pcie, there, 60.0, stored)
    full = UnitActivities(**dict.fromkeys(UnitActivities._fields, 0.0) | {"sms": 1.0})
    told = predicted_power(found, full, found.reference).watts
    assert told == pytest.approx(60 + 180 * share, abs=0.01)
