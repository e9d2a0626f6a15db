"""Intervals: conformal factors count kernels, not rows, and hold what they promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from studies.fitting.out_of_fold import measure_coverage
from wattcast.features.errors import ModelError
from wattcast.models.intervals import (
    ALARM_CHANCE,
    BOARD_SPREAD,
    EXTRAPOLATED_WIDENING,
    Estimate,
    IntervalCalibration,
    IntervalWidth,
    Residuals,
    ScaledWidth,
    at_other_clocks,
    calibrate,
    conformal_factors,
    evidence,
    interval_bounds,
    joined,
    less_sure,
    miss_score,
    observed_coverage,
    parted,
)
from wattcast.models.time.calibration import TimeWidth


def calibration(floor_watts: float = 40.0) -> IntervalCalibration:
    return IntervalCalibration(
        level=0.9,
        kernel_groups=20,
        floor_watts=floor_watts,
        seen_kernel=IntervalWidth(low_factor=0.9, high_factor=1.1),
        unseen_kernel=IntervalWidth(low_factor=0.7, high_factor=1.5),
        extrapolated=IntervalWidth(low_factor=0.5, high_factor=2.0),
    )


def test_symmetric_factors_of_hand_checked_residuals() -> None:
    # 9 groups of one row, |residual| 0.1 ... 0.9: mass 1/10 each, 0.9 is reached at the ninth.
    residuals = np.arange(1, 10) / 10 * np.array([1, -1, 1, -1, 1, -1, 1, -1, 1])
    low, high = conformal_factors(residuals, np.arange(9), 0.9, symmetric=True)
    assert high == pytest.approx(np.exp(0.9))
    assert low == pytest.approx(np.exp(-0.9))
    # At level 0.5 the fifth suffices.
    assert conformal_factors(residuals, np.arange(9), 0.5, symmetric=True)[1] == pytest.approx(
        np.exp(0.5)
    )


def test_tails_of_hand_checked_residuals() -> None:
    # 19 groups: mass 1/20 each; the upper tail needs .95, the largest; so does the lower.
    residuals = np.arange(-9, 10) / 10
    low, high = conformal_factors(residuals, np.arange(19), 0.9)
    assert (low, high) == pytest.approx((np.exp(-0.9), np.exp(0.9)))
    # All residuals above zero: the interval still holds the prediction itself.
    assert conformal_factors(residuals + 2, np.arange(19), 0.9)[0] == 1.0


def test_a_kernel_with_many_rows_counts_once() -> None:
    # One kernel with 1000 tiny residuals does not outvote nine kernels with large ones.
    residuals = np.concatenate([np.full(1000, 0.01), np.full(9, 0.5)])
    groups = np.concatenate([np.zeros(1000), np.arange(1, 10)])
    assert conformal_factors(residuals, groups, 0.8, symmetric=True)[1] == pytest.approx(
        np.exp(0.5)
    )
    per_row = conformal_factors(residuals, np.arange(1009), 0.8, symmetric=True)
    assert per_row[1] == pytest.approx(np.exp(0.01))


@given(st.integers(0, 2**31), st.booleans())
def test_factors_enclose_one_and_grow_with_the_level(seed: int, symmetric: bool) -> None:
    generator = np.random.default_rng(seed)
    residuals = generator.normal(0.1, 0.3, 60)
    groups = generator.integers(0, 25, 60)
    narrow = conformal_factors(residuals, groups, 0.6, symmetric=symmetric)
    wide = conformal_factors(residuals, groups, 0.9, symmetric=symmetric)
    assert wide[0] <= narrow[0] <= 1 <= narrow[1] <= wide[1]


def test_new_groups_are_covered_as_promised() -> None:
    # Kernels with an error of their own and little noise inside: exchangeable groups.
    generator = np.random.default_rng(3)
    held = []
    for _ in range(300):
        shift = generator.normal(0, 0.3, 31)
        rows = shift[:, None] + generator.normal(0, 0.02, (31, 8))
        known, new = rows[:30], rows[30]
        low, high = conformal_factors(
            known.ravel(), np.repeat(np.arange(30), 8), 0.9, symmetric=True
        )
        held.append(np.mean((np.exp(new) >= low) & (np.exp(new) <= high)))
    assert 0.87 <= np.mean(held) <= 0.96  # guaranteed: at least .9 but for the sampling of 300


def test_an_estimate_scales_and_stops_at_the_floor() -> None:
    wide = calibration().estimate(100.0, "unseen_kernel")
    assert (wide.low, wide.value, wide.high) == pytest.approx((70.0, 100.0, 150.0))
    assert wide.basis == "unseen_kernel"
    assert wide.level == 0.9
    assert calibration().estimate(50.0, "unseen_kernel").low == 40.0  # not 35
    below = calibration().estimate(30.0, "extrapolated")
    assert below.low == below.value == 30.0  # a prediction under the floor holds itself


def test_bases_are_ordered_by_width() -> None:
    seen, unseen, beyond = (
        calibration(0.0).estimate(80.0, basis)
        for basis in ("seen_kernel", "unseen_kernel", "extrapolated")
    )
    assert beyond.low < unseen.low < seen.low < seen.high < unseen.high < beyond.high
    with pytest.raises(ModelError, match="uncalibrated"):
        calibration().estimate(80.0, "uncalibrated")


def test_a_narrower_extrapolated_interval_is_refused() -> None:
    with pytest.raises(ValidationError, match="extrapolated interval must hold"):
        IntervalCalibration.model_validate(
            calibration().model_dump() | {"extrapolated": {"low_factor": 0.8, "high_factor": 1.6}}
        )


def test_calibration_from_out_of_fold_predictions() -> None:
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(40), 5)
    predicted = np.full(200, 60.0)
    shift = np.repeat(generator.normal(0, 0.2, 40), 5)
    grouped = Residuals(predicted * np.exp(shift), predicted, groups)
    noise = Residuals(predicted * np.exp(generator.normal(0, 0.02, 200)), predicted, groups)
    outside = np.zeros(200, dtype=np.bool_)
    made = calibrate(grouped=grouped, random=noise, outside=outside, floor_watts=20.0)
    assert made.kernel_groups == 40
    assert made.seen_kernel.high_factor < made.unseen_kernel.high_factor
    # Nothing was measured outside the range: the convention alone widens.
    assert made.extrapolated.high_factor == pytest.approx(
        made.unseen_kernel.high_factor**EXTRAPOLATED_WIDENING
    )
    # Rows outside the range that err twofold widen it further.
    outside[:50] = True
    far = Residuals(np.where(outside, 240.0, grouped.measured_watts), predicted, groups)
    wider = calibrate(grouped=far, random=noise, outside=outside, floor_watts=20.0)
    assert wider.extrapolated.high_factor >= 4.0 * (1 - 1e-12)


def test_residuals_need_positive_power() -> None:
    with pytest.raises(ModelError, match="positive"):
        _ = Residuals(np.array([1.0]), np.array([-1.0]), np.array([0])).logarithms


def test_coverage_of_hand_checked_rows() -> None:
    measured = np.array([10.0, 20.0, 30.0])
    low, high = np.array([9.0, 22.0, 20.0]), np.array([12.0, 30.0, 29.0])
    found = measure_coverage("p", measured, low, high, np.array([0, 0, 1]), 0.9)
    assert found.rows == pytest.approx(1 / 3)
    assert found.kernels == pytest.approx((0.5 + 0.0) / 2)
    assert found.mean_width_watts == pytest.approx((3 + 8 + 9) / 3)
    # 2 / .1 = 20 per watt missed: 2 W and 1 W.
    assert found.interval_score_watts == pytest.approx((20 + 60) / 3)


def test_scaled_widths_by_hand() -> None:
    watts = np.array([4.0, 100.0, 400.0])
    equal = ScaledWidth(exponent=1.0, half_width=30.0)
    np.testing.assert_allclose(equal.around(watts), [[0, 70, 370], [34, 130, 430]])
    root = ScaledWidth(exponent=0.5, half_width=3.0)
    np.testing.assert_allclose(root.around(watts), [[0, 49, 289], [25, 169, 529]])
    low, high = interval_bounds(watts, root, floor_watts=60.0)
    np.testing.assert_allclose(low, [4, 60, 289])  # the prediction itself may lie below the floor
    np.testing.assert_allclose(high, [25, 169, 529])
    assert root.widened(1.5) == ScaledWidth(exponent=0.5, half_width=4.5)
    assert root.widened(1.5).holds(root)
    assert not root.holds(root.widened(1.5))
    assert not root.holds(equal)
    assert (str(equal), str(root)) == ("±30.00 W", "±3.00 W^0.5")


@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_calibration_at_an_exponent(exponent: float) -> None:
    generator = np.random.default_rng(2)
    groups = np.repeat(np.arange(40), 10)
    predicted = generator.uniform(30, 200, 400)
    errors = generator.uniform(-1, 1, 40)[groups]
    measured = (predicted**exponent + errors) ** (1 / exponent)
    residuals = Residuals(measured, predicted, groups)
    outside = groups == 7
    made = calibrate(
        grouped=residuals, random=residuals, outside=outside, floor_watts=25, exponent=exponent
    )
    assert made.method == "hierarchical-conformal-power-residual"
    assert isinstance(made.unseen_kernel, ScaledWidth)
    assert made.unseen_kernel.exponent == exponent
    # 40 levels in [0, 1]: the quantile is about 0.9 of the largest.
    assert 0.7 <= made.unseen_kernel.half_width <= 1
    assert made.extrapolated.holds(made.unseen_kernel.widened(EXTRAPOLATED_WIDENING))
    assert IntervalCalibration.model_validate_json(made.model_dump_json()) == made
    narrow = made.estimate(100.0, "unseen_kernel")
    wide = made.estimate(100.0, "extrapolated")
    assert 25 <= wide.low < narrow.low < 100 < narrow.high < wide.high
    # Seen kernels keep a factor; an interval of another kind cannot hold the unseen one.
    with pytest.raises(ValidationError, match="must hold"):
        IntervalCalibration.model_validate(
            {**made.model_dump(), "extrapolated": {"low_factor": 0.1, "high_factor": 9.0}}
        )
    with pytest.raises(ModelError, match="must be a factor"):
        TimeWidth.of(made.unseen_kernel)


def test_another_board_of_the_kind_widens_an_interval_a_little() -> None:
    wide = less_sure(Estimate(100, 80, 125, 0.9, "unseen_kernel"), BOARD_SPREAD)
    assert (wide.value, wide.basis) == (100, "unseen_kernel")
    # ln 1.25 and 1.645 x 0.03 in quadrature.
    assert wide.high == pytest.approx(100 * np.exp(np.hypot(np.log(1.25), 0.04935)))
    assert wide.low == pytest.approx(1e4 / wide.high)
    far = at_other_clocks(Estimate(100, 100, 100, 0.9, "seen_kernel"), 0.25)
    assert np.log(far.high / 100) == pytest.approx(1.645 * 0.21 * 0.5)  # by the root of it
    sure = less_sure(Estimate(100, 100, 100, 0.9, "seen_kernel"), BOARD_SPREAD)
    assert sure.high / sure.value == pytest.approx(np.exp(0.04935))


def test_evidence_is_the_mean_likelihood_ratio() -> None:
    # One kernel, missed: the mean of p / 0.1 over p from 0.1 to 1 is 5.5.
    assert evidence(1, 1, 0.9) == pytest.approx(5.5)
    # Of 20 kernels 6, by integrating (p / 0.1)^6 ((1 - p) / 0.9)^14 over p from 0.1 to 1.
    shares = np.linspace(0.1, 1.0, 200_001)
    ratios = (shares / 0.1) ** 6 * ((1 - shares) / 0.9) ** 14
    assert evidence(20, 6, 0.9) == pytest.approx(ratios.mean(), rel=1e-4)
    assert evidence(100_000, 10_000, 0.9) < 1  # no overflow, and no reason for an alarm


def test_intervals_that_keep_their_promise_are_hardly_ever_widened() -> None:
    """However often one looks: after each of 300 kernels, in 1,000 histories."""
    generator = np.random.default_rng(0)
    missed = np.cumsum(generator.random((1000, 300)) < 0.1, axis=1)
    most = 1 / ALARM_CHANCE
    ever = [any(evidence(n + 1, int(m), 0.9) >= most for n, m in enumerate(row)) for row in missed]
    assert np.mean(ever) <= ALARM_CHANCE
    broken = np.cumsum(generator.random((200, 100)) < 0.4, axis=1)
    assert np.mean([evidence(100, int(row[-1]), 0.9) >= most for row in broken]) > 0.95


def test_observed_kernels_count_once_and_widen_to_what_was_needed() -> None:
    scores = [2.0, 0.1, 2.5, 3.0, 0.2, 0.2, 0.2]
    kernels = ["a", "a", "b", "c", "d", "d", "d"]
    found = observed_coverage(scores, kernels, 0.9)
    assert (found.kernels, found.inside) == (4, 1)
    assert found.widening == 1.0  # three of four: not unlikely enough
    found = observed_coverage([*scores, 2.0], [*kernels, "e"], 0.9)
    assert (found.kernels, found.inside) == (5, 1)
    assert found.widening == 3.0  # 0.9 of six shares, one of them unknown: the largest
    wide = found.widen(Estimate(100.0, 50.0, 200.0, 0.9, "unseen_kernel"))
    assert (wide.low, wide.high) == (pytest.approx(12.5), pytest.approx(800.0))
    assert (wide.level, wide.widened) == (0.83, 3.0)
    # What lies at its end was three calibrated half widths off.
    assert miss_score(wide, 800.0) == pytest.approx(3.0)
    assert miss_score(wide, 12.5) == pytest.approx(3.0)


@given(st.floats(1, 1e3), st.floats(1, 10))
def test_doubts_that_know_nothing_of_each_other_add_up_as_squares(one: float, two: float) -> None:
    both = joined(one, two)
    assert max(one, two) <= both * (1 + 1e-9) <= one * two * (1 + 2e-9)
    assert joined(1 / one, 1 / two) == pytest.approx(1 / both)
    assert parted(both, two) == pytest.approx(one, rel=1e-6, abs=1e-6)
    assert parted(1 / both, 1 / two) == pytest.approx(1 / one, rel=1e-6, abs=1e-6)
