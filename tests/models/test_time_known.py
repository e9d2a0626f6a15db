"""Measured launches of a kernel correct the prediction of another."""

from __future__ import annotations

from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattcast.features.errors import LaunchError
from wattcast.models.intervals import Estimate
from wattcast.models.time.known import REPEAT_FACTOR, SHRINKAGE, KnownLaunch, corrected, distance

MODEL = Estimate(1e-3, 0.25e-3, 4e-3, 0.9, "unseen_kernel")
HERE = log(65536)


def known(ratio: float, predicted: float = 1e-3, log_threads: float = HERE) -> KnownLaunch:
    return KnownLaunch(predicted, predicted * ratio, log_threads)


def test_without_known_launches_nothing_changes() -> None:
    assert corrected(MODEL, HERE, []) is MODEL


def test_the_same_launch_again() -> None:
    found = corrected(MODEL, HERE, [known(2.0)])
    assert found.value == pytest.approx(1e-3 * 2 ** (1 / (1 + SHRINKAGE)))
    assert found.low == pytest.approx(found.value / REPEAT_FACTOR)
    assert found.high == pytest.approx(found.value * REPEAT_FACTOR)
    assert (found.level, found.basis) == (0.9, "seen_kernel")


def test_a_launch_half_an_e_fold_larger() -> None:
    weight = 0.60036  # exp(-(0.5 / 0.7)^2)
    found = corrected(MODEL, HERE, [known(2.0, log_threads=HERE + 0.5)])
    assert found.value == pytest.approx(1e-3 * 2 ** (weight / (weight + SHRINKAGE)), rel=1e-4)
    assert found.high / found.value == pytest.approx(REPEAT_FACTOR * 1.6487213)  # exp(0.5)


def test_a_launch_of_quite_another_size_tells_next_to_nothing() -> None:
    found = corrected(MODEL, HERE, [known(2.0, log_threads=HERE + 4)])
    assert found.value == pytest.approx(1e-3, rel=1e-3)
    assert (found.low, found.high) == pytest.approx((0.25e-3, 4e-3), rel=1e-3)
    assert found.basis == "seen_kernel"


def test_a_launch_beyond_all_bounds_tells_nothing() -> None:
    found = corrected(MODEL, HERE, [known(2.0, log_threads=1e200)])
    assert (found.value, found.low, found.high) == (MODEL.value, MODEL.low, MODEL.high)


def test_the_more_alike_launch_counts_more() -> None:
    near, far = known(2.0), known(0.5, log_threads=HERE + 3)
    assert corrected(MODEL, HERE, [near, far]).value > 1.5e-3
    assert corrected(MODEL, HERE + 3, [near, far]).value < 1e-3


def test_the_prediction_itself_is_a_coordinate() -> None:
    assert distance(1e-3, HERE, known(2.0)) == 0
    assert distance(1e-3, HERE, known(2.0, predicted=4e-3)) == pytest.approx(log(4))
    both = known(2.0, predicted=1e-3 * 2.718281828**3, log_threads=HERE + 4)
    assert distance(1e-3, HERE, both) == pytest.approx(5)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_times_must_be_times(value: float) -> None:
    with pytest.raises(LaunchError, match="measured_seconds") as caught:
        KnownLaunch(1e-3, value, HERE)
    assert caught.value.field == "measured_seconds"
    with pytest.raises(LaunchError, match="predicted_seconds"):
        KnownLaunch(value, 1e-3, HERE)


def test_an_estimate_of_nothing_cannot_be_corrected() -> None:
    with pytest.raises(LaunchError, match="above 0"):
        corrected(Estimate(0.0, 0.0, 1.0, 0.9, "unseen_kernel"), HERE, [known(2.0)])


ratios = st.floats(min_value=0.01, max_value=100)
places = st.floats(min_value=0, max_value=20)


@given(st.lists(st.tuples(ratios, places), min_size=1, max_size=5))
def test_the_correction_stays_within_what_was_measured(launches) -> None:
    measured = [known(ratio, log_threads=place) for ratio, place in launches]
    found = corrected(MODEL, HERE, measured)
    shift = found.value / MODEL.value
    assert min(1, *(ratio for ratio, _ in launches)) * (1 - 1e-9) <= shift
    assert shift <= max(1, *(ratio for ratio, _ in launches)) * (1 + 1e-9)
    # It never promises less than the model's own width, nor more than a repetition.
    assert found.high / found.value <= 4 * (1 + 1e-9)
    assert found.high / found.value >= REPEAT_FACTOR * (1 - 1e-9)
