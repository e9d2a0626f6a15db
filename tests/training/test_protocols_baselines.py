"""Baselines of hand-checked rows, and intervals of out-of-fold predictions."""

from __future__ import annotations

import numpy as np
import pytest

from studies.evaluation import (
    CONSTANT,
    BesideBaselines,
    IntervalScoreName,
    evaluate,
    interval_scores,
    nearest_watts,
)
from studies.fitting.nested import EXPONENTS
from studies.fitting.out_of_fold import cross_conformal, plain
from wattcast.models.intervals import Residuals
from wattcast.training.evaluation.scores import Rows


def test_the_nearest_row_of_hand_checked_rows() -> None:
    # The second feature, a thousand times larger, must not drown the first; the third is constant,
    # the fourth missing throughout.
    places = [(1, 0), (2, 3e3), (3, 0), (1, 9), (4, 5), (8, 0)]
    rows = Rows.of([[x, y, 0.1, np.nan] for x, y in places], [10, 20, 30, 0, 0, 0], list("abcxyz"))
    predict = nearest_watts(rows.take(np.arange(3)))
    found = predict(rows.take(np.arange(0)), rows.take(np.arange(3, 6)).hidden())
    np.testing.assert_array_equal(found, [10, 30, 30])


def test_intervals_hold_what_they_say_and_a_factor_beats_equal_watts() -> None:
    # Errors in proportion to the power, each group with a level of its own.
    generator = np.random.default_rng(3)
    groups = np.repeat(np.arange(80), 6)
    true = np.exp(generator.uniform(3, 6, 80))[groups]
    measured = true * np.exp(0.1 * generator.standard_normal(80))[groups]
    rows = Rows.of(np.column_stack([true]), measured, [f"{at:03d}" for at in groups])
    found = evaluate(rows, plain(lambda x, y, test: test[:, 0]), "grouped", range(3))
    factor, equal = found.interval_scores(), found.interval_scores(CONSTANT)
    assert 0.86 <= factor["coverage"].mean <= 0.98
    assert 0.86 <= factor["kernel_macro_coverage"].mean <= 0.98
    assert factor["interval_score_watts"].mean < 0.9 * equal["interval_score_watts"].mean
    # The errors being in proportion, that is what other folds choose, and the card.
    assert found.best_exponent(EXPONENTS, 0.0) == 0.0
    chosen = found.interval_scores(EXPONENTS)["interval_score_watts"].mean
    assert chosen == pytest.approx(factor["interval_score_watts"].mean, rel=0.1)
    with pytest.raises(ValueError, match="know the folds"):
        BesideBaselines(
            rows, found.predicted_watts, found.baseline_watts, found.outside
        ).interval_scores()


def test_the_width_of_a_fold_comes_from_the_other_folds() -> None:
    measured = np.array([100.0, 100.0, 100.0, 100.0])
    residuals = Residuals(measured, np.array([100.0, 100.0, 80.0, 80.0]), np.arange(4))
    folds = [0, 0, 1, 1]
    low, high = cross_conformal(residuals, folds, 0.9, exponents=CONSTANT)
    np.testing.assert_allclose(low, [80, 80, 80, 80])  # 20 W from the others, then 0 W
    np.testing.assert_allclose(high, [120, 120, 80, 80])
    scores = interval_scores(measured, low, high, [0, 0, 1, 2], 0.9)
    assert scores["coverage"] == 0.5
    assert scores["kernel_macro_coverage"] == pytest.approx(1 / 3)
    assert scores["mean_width_watts"] == pytest.approx(20)
    # 2 / 0.1 times the 20 W by which two rows are missed, and the widths.
    assert scores["interval_score_watts"] == pytest.approx((40 + 40 + 400 + 400) / 4)
    low, high = cross_conformal(residuals, folds, 0.9)
    np.testing.assert_allclose(high, [125, 125, 80, 80])
    np.testing.assert_allclose(low, [80, 80, 80, 80])


def test_widths_grow_with_the_prediction_as_the_errors_do() -> None:
    # Ten kernels, errors of equally many watts: a factor that holds the small ones is far too wide
    # for the large ones.
    generator = np.random.default_rng(5)
    groups = np.repeat(np.arange(10), 20)
    true = np.linspace(15, 200, 10)[groups]
    measured = true + generator.uniform(-9, 9, 10)[groups]
    rows = Rows.of(np.column_stack([true]), measured, [f"{at:03d}" for at in groups])
    found = evaluate(rows, plain(lambda x, y, test: test[:, 0]), "grouped", range(3))
    assert found.best_exponent(EXPONENTS, 0.0) == 1.0
    name: IntervalScoreName = "interval_score_watts"
    scores = [found.interval_scores(each)[name].mean for each in (EXPONENTS, CONSTANT, (0.0,))]
    assert scores[0] == pytest.approx(scores[1], rel=0.1)
    assert scores[0] < 0.7 * scores[2]
    # A floor that no launch lies below costs nothing and saves width.
    floored = found.interval_scores(CONSTANT, floor_watts=measured.min())
    assert floored[name].mean <= scores[1]
    assert floored["coverage"] == found.interval_scores(CONSTANT)["coverage"]
