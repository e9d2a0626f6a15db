"""Baselines of hand-checked rows, and intervals of out-of-fold predictions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from studies.evaluation import evaluate, nearest_watts
from studies.fitting.nested import EXPONENTS
from studies.fitting.out_of_fold import OutOfFold, cross_conformal, measure_coverage, plain
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
