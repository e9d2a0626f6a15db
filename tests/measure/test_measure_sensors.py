"""Update period, lag and windows of power sensors of known behaviour."""

from __future__ import annotations

from math import exp

import numpy as np
import pytest

from wattcast.measure.device import Reading
from wattcast.measure.sensors import (
    corrected,
    counter_watts,
    half_width,
    lag_seconds,
    sampled_watts,
    update_period,
)


def step(
    period: float, lag: float, *, noise: float = 0.0, end: float = 5.0, poll: float = 0.002
) -> list[Reading]:
    """A sensor's view of a board at 50 W that draws 250 W from 1 s on."""
    random = np.random.default_rng(3)
    readings, shown, due = [], 50.0, 0.0
    for at in np.arange(0, end, poll):
        if at >= due:
            late = at - 1.0
            power = 50.0 if late < 0 else 250.0 - 200.0 * (exp(-late / lag) if lag else 0.0)
            shown = power * (1 + noise * float(random.standard_normal()))
            due += period
        readings.append(Reading(float(at), shown))
    return readings


@pytest.mark.parametrize("period", [0.02, 0.1, 0.5])
def test_the_update_period_is_found(period: float) -> None:
    assert update_period(step(period, 0.2, noise=0.01)) == pytest.approx(period, rel=0.1)


def test_too_few_new_values_tell_no_period() -> None:
    assert update_period(step(0.1, 0.0)) is None


@pytest.mark.parametrize("lag", [0.1, 0.25, 0.6])
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_the_lag_is_found(lag: float, noise: float) -> None:
    readings = step(0.05, lag, noise=noise, end=9.0)
    assert lag_seconds(readings, 1.0) == pytest.approx(lag, rel=0.1)


def test_a_small_step_tells_no_lag() -> None:
    readings = [
        one._replace(power_watts=50 + 1e-2 * (one.power_watts or 0)) for one in step(0.1, 0.2)
    ]
    assert lag_seconds(readings, 1.0) is None


def test_the_correction_gives_the_power_back() -> None:
    times = np.arange(0, 2, 0.01)
    shown = 250 - 200 * np.exp(-times / 0.3)
    assert corrected(times, shown, 0.3)[5:-5] == pytest.approx(np.full(190, 250.0), rel=1e-3)
    assert corrected(times, shown, 0.0) is shown


def test_a_window_right_after_the_step_needs_the_correction() -> None:
    readings = step(0.02, 0.3)
    plain, _ = sampled_watts(readings, 1.1, 2.0, 0.0)
    behind, updates = sampled_watts(readings, 1.1, 2.0, 0.3)
    assert plain is not None
    assert plain < 210
    assert behind == pytest.approx(250, rel=0.01)
    assert updates == 45


def test_the_counter_is_read_between_its_own_updates() -> None:
    readings = [Reading(at / 100, energy_joules=100.0 * (at // 10) / 10) for at in range(200)]
    assert counter_watts(readings, 0.55, 1.55) == (pytest.approx(100.0), 10)
    assert counter_watts(readings, 0.55, 0.58) == (None, 0)


def test_half_width_of_a_mean() -> None:
    assert half_width([1.0]) is None
    # t(0.975, 2) = 4.3027 (tables of Student's distribution), s = 1, n = 3
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.3027 / 3**0.5, rel=1e-4)
