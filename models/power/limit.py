"""A board at its power limit: the core clock falls along the voltage curve until the power fits.

The driver lowers the core clock step by step while the board draws more than its limit; the memory
clock stays (NVIDIA, nvidia-smi manual, "SW Power Cap"). Power here never falls with the core clock:
work per second does not, and the voltage does not. So the highest clock that fits is found by
bisection, and a lower limit never means a higher clock. Where not even the lowest clock fits, the
board holds its clock back for part of the time (the manual's "HW Slowdown").
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from wattcast.features.errors import ClockError
from wattcast.features.gpus import GpuProfile
from wattcast.models.clocks import BELOW, ClockPair, supported_pairs

STEP_MHZ = 15.0
"""Between the core clocks of a board whose list nobody published: the step of every list of Volta
and later that was seen (the notes of the profiles' ``supported_grids``)."""

HELD_BACK = "power_limit"
"""Part of a time: seconds in which the board holds its clock back."""


def checked_limit(watts: float | None, gpu: GpuProfile) -> float | None:
    """The limit asked for. Raises ClockError for one that the board cannot be set to."""
    low, high = gpu.limit_range_watts or (0.0, float("inf"))
    if watts is not None and not low <= watts <= high:
        raise ClockError(
            f"power_limit_watts is {watts:g}; {gpu.id} can be set to {low:g} to {high:g} W",
            field="power_limit_watts",
        )
    return watts


def lower_clocks(gpu: GpuProfile, asked: ClockPair) -> tuple[ClockPair, ...]:
    """``asked``, and the pairs below it that the board steps down to, the highest first."""
    listed = {core for core, _ in supported_pairs(gpu)}
    if len(listed) == 1:
        low = BELOW * min(listed)
        listed = {asked.core_mhz - STEP_MHZ * n for n in range(int(asked.core_mhz / STEP_MHZ))}
        listed = {core for core in listed if core >= low}
    cores = sorted((core for core in listed if core < asked.core_mhz), reverse=True)
    return tuple(ClockPair(core, asked.memory_mhz) for core in (asked.core_mhz, *cores))


def clocks_within(
    limit_watts: float, watts_at: Callable[[ClockPair], float], gpu: GpuProfile, asked: ClockPair
) -> ClockPair:
    """The highest pair at which ``watts_at`` keeps to the limit; the lowest where none does."""
    steps = lower_clocks(gpu, asked)
    fits = bisect_left(steps, True, key=lambda pair: watts_at(pair) <= limit_watts)
    return steps[min(fits, len(steps) - 1)]


def held_back(limit_watts: float, watts: float, idle_watts: float) -> float:
    """Share of the time that a board which draws ``watts`` may run to keep to the limit, 0 to 1.

    It idles for the rest. Raises ClockError for a limit that idling alone exceeds.
    """
    if watts <= limit_watts:
        return 1.0
    if idle_watts >= limit_watts:
        raise ClockError(
            f"power_limit_watts is {limit_watts:g}; the board draws {idle_watts:g} W idle",
            field="power_limit_watts",
        )
    return (limit_watts - idle_watts) / (watts - idle_watts)
