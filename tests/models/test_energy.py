"""Energy has an interval of its own: what power and time miss is not missed together."""

from __future__ import annotations

from dataclasses import replace
from math import exp, hypot, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattcast.features.activity import Activity
from wattcast.features.gpus import list_gpus, load_gpu
from wattcast.models.clocks import default_clocks
from wattcast.models.energy import JOINT, energy
from wattcast.models.intervals import Basis, Estimate, between
from wattcast.models.time.base import TimePrediction
from wattcast.models.time.calibration import LEAST_LAUNCH_SECONDS, interval_of, least_seconds

GPU = load_gpu("tesla-v100")
WIDTH = interval_of(GPU)[0].high_factor


def estimate(value: float, factor: float, basis: Basis = "unseen_kernel") -> Estimate:
    return Estimate(value, value / factor, value * factor, 0.9, basis)


def timed(
    factor: float, basis: Basis = "unseen_kernel", family: str = "bottleneck"
) -> TimePrediction:
    return TimePrediction(
        family, estimate(1e-3, factor, basis), default_clocks(GPU), {"dram": 1e-3}
    )


def half(found: Estimate) -> float:
    assert log(found.high / found.value) == pytest.approx(log(found.value / found.low))
    return log(found.high / found.value)


def test_the_models_own_errors_are_calibrated_together() -> None:
    found = energy(estimate(100, 1.3), timed(WIDTH), GPU)
    assert found.value == pytest.approx(0.1)
    assert half(found) == pytest.approx(JOINT * hypot(log(1.3), log(WIDTH)))


def test_what_was_measured_otherwise_joins_as_independent_errors() -> None:
    joined = hypot(log(1.3), log(1.2))
    known = energy(estimate(100, 1.3, "seen_kernel"), timed(1.2), GPU)
    assert half(known) == pytest.approx(joined)
    assert half(energy(estimate(100, 1.3), timed(1.2, family="delay"), GPU)) == pytest.approx(
        joined
    )


def test_uncertain_trips_are_not_narrowed() -> None:
    wide = energy(estimate(100, 1.3), timed(1000 * WIDTH), GPU)
    assert half(wide) > log(1000)


@given(st.floats(1, 50), st.floats(1, 1e4), st.booleans())
def test_it_lies_within_the_product_of_the_ends(power: float, time: float, seen: bool) -> None:
    watts, duration = estimate(80, power, "seen_kernel" if seen else "extrapolated"), timed(time)
    found = energy(watts, duration, GPU)
    assert watts.low * duration.estimate.low <= found.low * (1 + 1e-12)
    assert found.low <= found.value <= found.high
    assert found.high <= watts.high * duration.estimate.high * (1 + 1e-12)


def test_an_end_of_zero_watts_is_an_end() -> None:
    found = energy(Estimate(50, 0, 60, 0.9, "unseen_kernel"), timed(WIDTH), GPU)
    assert 0 <= found.low < 1e-3 * found.value


def test_an_estimate_between_what_can_be() -> None:
    assert between(Estimate(20, 5, 90, 0.9, "unseen_kernel"), 30, 60) == Estimate(
        30, 30, 60, 0.9, "unseen_kernel"
    )


def test_no_launch_is_shorter_than_its_operations_and_bytes() -> None:
    fields = dict.fromkeys(Activity.__dataclass_fields__, 0.0)
    nothing = Activity(**{**fields, "kernel_launches": 1.0})
    clocks = default_clocks(GPU)
    assert least_seconds([nothing], GPU, clocks) == LEAST_LAUNCH_SECONDS
    assert least_seconds([], GPU, clocks) == LEAST_LAUNCH_SECONDS
    moved = replace(nothing, footprint_bytes=9e9 + GPU.l2_bytes)
    assert least_seconds([moved], GPU, clocks) == pytest.approx(0.01, rel=0.01)
    flops = replace(nothing, fp32_instructions=1e12 / 64)
    peak = 2 * GPU.fp32_lanes * GPU.sm_count * GPU.max_core_mhz * 1e6
    assert least_seconds([flops], GPU, clocks) == pytest.approx(1e12 / peak, rel=0.01)
    # What may be either is as short as the shorter.
    each = [least_seconds([one], GPU, clocks) for one in (moved, flops)]
    assert least_seconds([moved, flops], GPU, clocks) == min(each) < max(each)


def test_an_interval_of_another_gpu_narrows_alike() -> None:
    for gpu in list_gpus()[::25]:
        factor = interval_of(gpu)[0].high_factor
        watts = estimate(100, 1.4, "uncalibrated")
        found = energy(watts, timed(factor, "uncalibrated"), gpu)
        assert found.high / found.value <= exp(log(1.4) + log(factor))
        assert found.basis == "uncalibrated"
