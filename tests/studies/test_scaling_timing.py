"""Relative time from counters: worked by hand, and what must hold for any kernel and clocks."""

from __future__ import annotations

import numpy as np
import pytest

from wattcast.models.clocks import ClockPair
from wattcast.models.papers.scaling.physical import TimeParameters, relative_time, time_bounds
from wattcast.models.papers.scaling.use import UseTable

SUM = TimeParameters(
    capacities={"sp": 1.0, "l2": 1.0},
    dram_capacity=1.0,
    order=1.0,
    fill=0.0,
    fixed_share=0.0,
    latency_bias=0.0,
    latency_slope=0.0,
)
"""Order 1 adds the parts, and half of the latency is the core's: easy to work by hand."""


def table(dram: float, *core: float, units: tuple[str, ...] = ("sp", "l2")) -> UseTable:
    return UseTable(units, np.array([core]), np.array([dram]), np.array([1e-3]))


def time(parameters: TimeParameters, use: UseTable, core: float, memory: float) -> float:
    return float(relative_time(parameters, use, np.array([core]), np.array([memory]))[0])


@pytest.mark.parametrize(
    ("core", "memory", "expected"),
    [
        # memory 0.5, core 0.2 + 0.1, latency the remaining 0.2, half on each clock
        (1.0, 1.0, 1.0),
        (0.5, 1.0, 0.5 + 0.6 + 0.2 * (0.5 * 2 + 0.5)),
        (1.0, 0.5, 1.0 + 0.3 + 0.2 * (0.5 + 0.5 * 2)),
        (0.5, 0.5, 2.0),
        (2.0, 1.0, 0.5 + 0.15 + 0.2 * (0.5 / 2 + 0.5)),
    ],
)
def test_parts_add_up_at_order_1(core: float, memory: float, expected: float) -> None:
    assert time(SUM, table(0.5, 0.2, 0.1), core, memory) == pytest.approx(expected, rel=1e-12)


def test_the_path_into_l2_runs_on_the_core_clock() -> None:
    # fill 1: memory and path count alike, so that half the core clock makes 0.5 (1 + 2) / 2
    filled = SUM.model_copy(update={"fill": 1.0})
    assert time(filled, table(0.5, 0.2, 0.1), 0.5, 1.0) == pytest.approx(0.75 + 0.6 + 0.3)


def test_a_fixed_share_of_core_time_stays() -> None:
    # core time at half the clock: 0.9 * 2 + 0.1 = 1.9
    fixed = SUM.model_copy(update={"fixed_share": 0.1})
    expected = 0.5 + 0.3 * 1.9 + 0.2 * (0.5 * 1.9 + 0.5)
    assert time(fixed, table(0.5, 0.2, 0.1), 0.5, 1.0) == pytest.approx(expected)


def test_bounds_are_1_and_the_larger_ratio_below_the_reference() -> None:
    assert time_bounds(ClockPair(500, 2000), ClockPair(1000, 3000)) == (1.0, 2.0)
    assert time_bounds(ClockPair(1000, 3000), ClockPair(1000, 3000)) == (1.0, 1.0)
    assert time_bounds(ClockPair(2000, 1500), ClockPair(1000, 3000)) == (0.5, 2.0)
