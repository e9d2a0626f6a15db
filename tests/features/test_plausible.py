"""Measured values: what is taken, what is told, what is refused."""

from __future__ import annotations

from math import inf, nan

import pytest

from wattcast.features.checked import MOST_POWER_WATTS, check_measured
from wattcast.features.errors import DataError
from wattcast.features.gpus import load_gpu

K20 = load_gpu("tesla-k20")
IDLING = load_gpu("titan-v")


def test_the_bounds_themselves_are_taken() -> None:
    assert not check_measured(K20, power_watts=1.5 * K20.tdp_watts, time_seconds=1e-7)
    assert not check_measured(None, power_watts=MOST_POWER_WATTS, time_seconds=86_400)
    assert not check_measured(K20)


@pytest.mark.parametrize("watts", [0.0, -1.0, 1e-300, 1.5 * K20.tdp_watts * 1.001, inf, nan])
def test_power_beyond_the_board(watts: float) -> None:
    with pytest.raises(DataError, match=r"^known\[2\]\.power_watts: .* W is") as caught:
        check_measured(K20, power_watts=watts, where="known[2]")
    assert caught.value.context["field"] == "known[2].power_watts"
    if watts > 1 and watts != inf:
        assert f"{1.5 * K20.tdp_watts:g} W, 1.5 times the limit of tesla-k20" in str(caught.value)


def test_power_of_an_unknown_board() -> None:
    with pytest.raises(DataError, match="milliwatts"):
        check_measured(None, power_watts=95_000)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e-30, 0.9e-7, 86_401.0, inf, nan])
def test_time_outside_100_ns_to_a_day(seconds: float) -> None:
    with pytest.raises(DataError, match=r"^time_seconds: .* 1e-07 s \(100 ns\) and 86400 s"):
        check_measured(None, time_seconds=seconds)


def test_less_than_a_tenth_of_idle_is_told() -> None:
    idle = IDLING.idle_watts
    assert idle is not None
    (note,) = check_measured(IDLING, power_watts=0.09 * idle)
    assert (note.code, "a tenth of the idle" in note.detail) == ("power_below_idle", True)
    assert not check_measured(IDLING, power_watts=0.11 * idle)
