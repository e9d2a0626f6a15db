"""A board at its power limit: which clock it falls to, and what it holds back below the lowest."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattcast.features.errors import ClockError
from wattcast.features.gpus import load_gpu
from wattcast.models.clocks import (
    ClockPair,
    checked_limit,
    clocks_within,
    default_clocks,
    held_back,
    lower_clocks,
)

GPUS = ("a40", "a100-sxm4-40gb", "gtx-titan-x", "jetson-agx-thor", "tesla-v100")


def cubic(pair: ClockPair) -> float:
    """A board of 50 W idle, and 250 W at 1500 MHz."""
    return 50 + 200 * (pair.core_mhz / 1500) ** 3


@given(st.sampled_from(GPUS), st.floats(60, 600))
def test_the_highest_clock_that_fits(gpu_id: str, limit: float) -> None:
    gpu = load_gpu(gpu_id)
    asked = default_clocks(gpu)
    steps = lower_clocks(gpu, asked)
    found = clocks_within(limit, cubic, gpu, asked)
    assert steps[0] == asked
    assert found in steps
    above = steps[: steps.index(found)]
    assert all(cubic(pair) > limit for pair in above)
    assert cubic(found) <= limit or found == steps[-1]


@pytest.mark.parametrize("gpu_id", GPUS)
def test_steps_fall_and_keep_the_memory_clock(gpu_id: str) -> None:
    gpu = load_gpu(gpu_id)
    steps = lower_clocks(gpu, default_clocks(gpu))
    assert len(steps) > 1
    assert {pair.memory_mhz for pair in steps} == {gpu.memory_mhz}
    assert all(one.core_mhz > other.core_mhz for one, other in pairwise(steps))


def test_a_limit_outside_the_range_of_the_board_is_refused() -> None:
    gpu = load_gpu("a40")
    assert checked_limit(None, gpu) is None
    assert checked_limit(250, gpu) == 250
    for watts in (99, 301):
        with pytest.raises(ClockError, match="100 to 300 W") as error:
            checked_limit(watts, gpu)
        assert error.value.field == "power_limit_watts"


@given(st.floats(61, 300), st.floats(61, 400))
def test_held_back_the_mean_power_is_the_limit(limit: float, watts: float) -> None:
    runs = held_back(limit, watts, 60)
    assert 0 < runs <= 1
    assert 60 + (watts - 60) * runs == pytest.approx(min(watts, limit))


def test_idling_alone_above_the_limit_is_refused() -> None:
    with pytest.raises(ClockError, match="60 W idle"):
        held_back(50, 100, 60)
