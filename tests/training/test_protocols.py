"""Folds keep kernels apart, scores are what they say, and nothing leaks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from studies.evaluation import cross_validate, evaluate, nearest_watts
from studies.fitting.nested import EXPONENTS, averaged_folds, calibrated, nested_folds
from studies.fitting.out_of_fold import OutOfFold, cross_conformal, measure_coverage, plain
from wattcast.models.intervals import Residuals
from wattcast.training.evaluation.scores import Floats, Rows, outside_range, point_scores


def make_rows(seed: int = 0, groups: int = 30, per_group: int = 8) -> Rows:
    """Rows whose power follows their kernel (x0) and, a little, their launch (x1)."""
    generator = np.random.default_rng(seed)
    kernel = np.repeat(np.arange(groups), per_group)
    vectors = np.column_stack([kernel.astype(float), generator.random(len(kernel))])
    level = generator.uniform(50, 150, groups)[kernel]
    watts = level + 5 * vectors[:, 1]
    return Rows.of(vectors, watts, [f"kernel{at:03d}" for at in kernel])


def nearest(train: Floats, watts: Floats, test: Floats) -> Floats:
    """Power of the nearest training row: perfect memory and nothing else."""
    distance = ((test[:, None, :] - train[None, :, :]) ** 2).sum(axis=2)
    return np.asarray(watts[distance.argmin(axis=1)])


def test_scores_of_hand_checked_rows() -> None:
    rows = Rows.of(np.zeros((4, 1)), [100.0, 100.0, 100.0, 200.0], ["a", "a", "a", "b"])
    predicted = np.array([110.0, 90.0, 100.0, 160.0])
    found = point_scores(rows.watts, predicted, rows.groups)
    assert found["mae_watts"] == pytest.approx((10 + 10 + 0 + 40) / 4)
    assert found["rmse_watts"] == pytest.approx(np.sqrt((100 + 100 + 1600) / 4))
    assert found["mape_percent"] == pytest.approx((10 + 10 + 0 + 20) / 4)
    assert found["median_ape_percent"] == pytest.approx(10)  # of 0, 10, 10, 20
    assert found["kernel_macro_mape_percent"] == pytest.approx((20 / 3 + 20) / 2)
    assert found["r2"] == pytest.approx(1 - 1800 / 7500)  # mean 125: 3 * 25^2 + 75^2


def test_jobs_change_nothing() -> None:
    rows = make_rows()
    one = cross_validate(rows, nearest, "grouped", range(3), jobs=1)
    four = cross_validate(rows, nearest, "grouped", range(3), jobs=4)
    np.testing.assert_array_equal(one.predicted_watts, four.predicted_watts)
    assert one.scores() == four.scores()


def test_outside_the_training_range() -> None:
    train = np.array([[0.0, 5.0], [10.0, np.nan], [3.0, 6.0]])
    test = np.array([[0.0, 6.0], [11.0, 5.5], [5.0, 4.9], [5.0, np.nan]])
    assert outside_range(train, test).tolist() == [False, True, True, False]


def test_nested_folds_calibrate_without_the_kernels_they_test() -> None:
    rows = make_rows(groups=25)
    folds = nested_folds(rows, plain(nearest), [0])
    assert sorted(np.concatenate([fold.test for fold in folds]).tolist()) == list(range(200))
    for fold in folds:
        assert not set(rows.groups[fold.test]) & set(fold.inner.rows.groups)
    same = averaged_folds([folds, folds])
    for fold, twice in zip(folds, same, strict=True):
        np.testing.assert_allclose(fold.predicted_watts, twice.predicted_watts)


def test_unseen_kernels_are_covered_where_rows_would_promise_too_much() -> None:
    rows = make_rows(groups=60)
    grouped = cross_validate(rows, nearest, "grouped", range(3))
    random = cross_validate(rows, nearest, "random", range(3))
    found = calibrated(grouped, random, nested_folds(rows, plain(nearest), [0]), 40.0)
    assert found.unseen_kernel.coverage is not None
    assert found.seen_kernel.coverage is not None
    assert found.unseen_kernel.coverage.kernels >= 0.85
    assert 0.85 <= found.seen_kernel.coverage.rows <= 0.95
    unseen, seen = (
        np.ptp(width.around(np.array([100.0])))
        for width in (found.unseen_kernel, found.seen_kernel)
    )
    assert unseen > 2 * seen
    assert found.floor_watts == 40.0


# --- Baselines of hand-checked rows, and intervals of out-of-fold predictions


def test_the_nearest_row_of_hand_checked_rows() -> None:
    # The second feature, a thousand times larger, must not drown the first; the third is constant,
    # the fourth missing throughout.
    places = [(1, 0), (2, 3e3), (3, 0), (1, 9), (4, 5), (8, 0)]
    rows = Rows.of([[x, y, 0.1, np.nan] for x, y in places], [10, 20, 30, 0, 0, 0], list("abcxyz"))
    predict = nearest_watts(rows.take(np.arange(3)))
    found = predict(rows.take(np.arange(0)), rows.take(np.arange(3, 6)).hidden())
    np.testing.assert_array_equal(found, [10, 30, 30])


def test_the_width_of_a_fold_comes_from_the_other_folds() -> None:
    measured = np.array([100.0, 100.0, 100.0, 100.0])
    residuals = Residuals(measured, np.array([100.0, 100.0, 80.0, 80.0]), np.arange(4))
    folds = [0, 0, 1, 1]
    low, high = cross_conformal(residuals, folds, 0.9, exponents=(1.0,))
    np.testing.assert_allclose(low, [80, 80, 80, 80])  # 20 W from the others, then 0 W
    np.testing.assert_allclose(high, [120, 120, 80, 80])
    scores = measure_coverage("", measured, low, high, [0, 0, 1, 2], 0.9)
    assert scores.rows == 0.5
    assert scores.kernels == pytest.approx(1 / 3)
    assert scores.mean_width_watts == pytest.approx(20)
    # 2 / 0.1 times the 20 W by which two rows are missed, and the widths.
    assert scores.interval_score_watts == pytest.approx((40 + 40 + 400 + 400) / 4)
    low, high = cross_conformal(residuals, folds, 0.9)
    np.testing.assert_allclose(high, [125, 125, 80, 80])
    np.testing.assert_allclose(low, [80, 80, 80, 80])


def errors(noise: str) -> OutOfFold:
    """Errors in proportion to the power, or of equally many watts, a level for each kernel."""
    generator = np.random.default_rng(3)
    groups = np.repeat(np.arange(80), 6)
    true = np.exp(generator.uniform(3, 6, 80))[groups]
    level = generator.standard_normal(80)[groups]
    measured = true * np.exp(0.1 * level) if noise == "share" else true + 4 * level
    rows = Rows.of(np.column_stack([true]), measured, [f"{at:03d}" for at in groups])
    return evaluate(rows, plain(lambda x, y, test: test[:, 0]), "grouped", range(3))


@pytest.mark.parametrize(("noise", "exponent"), [("share", 0.0), ("watts", 1.0)])
def test_widths_grow_with_the_prediction_as_the_errors_do(noise: str, exponent: float) -> None:
    found = errors(noise)
    assert found.best_exponent(EXPONENTS, 0.0) == exponent
    scores = {}
    for name, each in {"chosen": EXPONENTS, "factor": (0.0,), "equal": (1.0,)}.items():
        (known, folds, groups), *_ = found.by_assignment(found.predicted_watts)
        bounds = cross_conformal(known, folds, 0.9, exponents=each)
        held = measure_coverage("", known.measured_watts, *bounds, groups, 0.9)
        assert 0.86 <= held.rows <= 0.98
        assert 0.86 <= held.kernels <= 0.98
        scores[name] = held.interval_score_watts
    best, other = ("factor", "equal") if noise == "share" else ("equal", "factor")
    assert scores["chosen"] == pytest.approx(scores[best], rel=0.1)
    assert scores[best] < 0.9 * scores[other]
    with pytest.raises(ValueError, match="know the folds"):
        replace(found, folds=None).best_exponent(EXPONENTS, 0.0)
