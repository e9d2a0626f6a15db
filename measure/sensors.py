"""How a power sensor behaves, and what its readings mean: update period, lag, windows.

A sensor holds a value for its update period and follows the power with a lag. Both are found out
from readings. Lag: first order, P = S + tau dS/dt with S the sensor's value (thesis Eq. 5.5; the
form of Burtscher, Zecena and Zong, "Measuring GPU power with the K20 built-in sensor", 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import trapezoid
from scipy.stats import t as student

from wattcast.measure.device import Reading

Floats = NDArray[np.float64]

MIN_CHANGES = 6
"""New values that a period is told from at least."""

SETTLED_SHARE = 0.4
"""Last part of a step response that counts as settled."""

LEAST_STEP_WATTS = 20.0
"""A step below it tells no lag: sensors resolve about a watt."""

LAG_REST = 0.1
"""Share of a step that may be missing where its area is cut: beyond it noise outweighs."""


def updates(readings: Sequence[Reading]) -> tuple[Floats, Floats]:
    """Times and watts at which the power reading became another, each ``[n]``.
    The first reading counts: nobody knows how old its value is."""
    times: list[float] = []
    watts: list[float] = []
    for one in readings:
        if one.power_watts is not None and (not watts or one.power_watts != watts[-1]):
            times.append(one.at_seconds)
            watts.append(one.power_watts)
    return np.array(times), np.array(watts)


def update_period(readings: Sequence[Reading]) -> float | None:
    """Seconds between updates of the power value; ``None`` where too few were seen.

    A value that happens to repeat hides an update: the gaps are multiples of the period, and the
    shortest ones tell it.
    """
    times, _ = updates(readings)
    gaps = np.diff(times[1:])
    if len(gaps) < MIN_CHANGES:
        return None
    shortest = float(np.quantile(gaps, 0.1))
    return float(np.mean(gaps[gaps < 1.5 * shortest]))


def lag_seconds(readings: Sequence[Reading], load_from: float) -> float | None:
    """Time constant of the sensor from readings before and after a load starts at ``load_from``.

    The area between the settled value and the response, over the step, up to where only
    ``LAG_REST`` of it is missing: of a first-order lag that is tau (1 - what is missing there).
    0 where the first new value is that far, ``None`` where the step is too small to tell.
    """
    times, watts = updates(readings)
    before = watts[times < load_from]
    after = times >= load_from
    if not len(before) or after.sum() < 2:
        return None
    rise_times, rise = times[after] - load_from, watts[after]
    end = readings[-1].at_seconds - load_from
    late = rise[rise_times > end * (1 - SETTLED_SHARE)]
    settled = float(np.mean(late)) if len(late) else float(rise[-1])
    start = float(before[-1])
    step = settled - start
    if abs(step) < LEAST_STEP_WATTS:
        return None
    missing = 1 - (rise - start) / step
    (reached,) = np.nonzero(missing < LAG_REST)
    if not len(reached):
        return None
    last = int(reached[0])
    if last == 0:
        return 0.0
    area = trapezoid(
        np.concatenate([[1.0], missing[: last + 1]]),
        np.concatenate([[0.0], rise_times[: last + 1]]),
    )
    return max(0.0, float(area / (1 - missing[last])))


def corrected(times: Floats, watts: Floats, lag: float) -> Floats:
    """Power behind a sensor's values, ``[n]``: P_i = S_i + lag (S_i+1 - S_i-1)/(t_i+1 - t_i-1).
    One-sided differences at the ends."""
    if len(watts) < 2 or not lag:
        return watts
    return np.asarray(watts + lag * np.gradient(watts, times))


def counter_watts(
    readings: Sequence[Reading], start: float, end: float
) -> tuple[float | None, int]:
    """Mean power from the energy counter between its first and last update in a window, and
    the number of updates."""
    edges: list[tuple[float, float]] = []
    last: float | None = None
    for one in readings:
        if one.energy_joules is None:
            continue
        if last is not None and one.energy_joules != last and start <= one.at_seconds <= end:
            edges.append((one.at_seconds, one.energy_joules))
        last = one.energy_joules
    if len(edges) < 2:
        return None, len(edges)
    (t0, e0), (t1, e1) = edges[0], edges[-1]
    return (e1 - e0) / (t1 - t0), len(edges)


def sampled_watts(
    readings: Sequence[Reading], start: float, end: float, lag: float
) -> tuple[float | None, int]:
    """Mean power of the updates in a window, corrected for lag, and their number."""
    times, watts = updates(readings)
    power = corrected(times, watts, lag)
    inside = (times >= start) & (times <= end)
    count = int(inside.sum())
    return (float(np.mean(power[inside])), count) if count else (None, 0)


def half_width(values: Sequence[float], level: float = 0.95) -> float | None:
    """Half-width of the confidence interval of the mean (Student); ``None`` for one value."""
    count = len(values)
    if count < 2:
        return None
    spread = float(np.std(values, ddof=1))
    return float(student.ppf((1 + level) / 2, count - 1)) * spread / sqrt(count)
