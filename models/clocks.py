"""Core and memory clock of a GPU, as a pair: what time and power are predicted at."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Literal, NamedTuple

import numpy as np

from wattcast.features.errors import ClockError
from wattcast.features.gpus import GpuProfile

CodeModel = Literal["sequence", "tokens"]
"""Families that scale over clocks from code alone (``models/papers/scaling/code.py``)."""


class ClockPair(NamedTuple):
    """Clocks in MHz; ``memory_mhz`` as NVML reports it (docs/gpus.md)."""

    core_mhz: float
    memory_mhz: float

    @property
    def core_hz(self) -> float:
        """Core cycles per second."""
        return self.core_mhz * 1e6


def together(each: Sequence[Any]) -> Any:
    """Several pairs as one whose clocks are arrays ``[n]``, or times as one array; what rests on
    them is ``[n]`` too. One is itself: numbers are faster than arrays of one."""
    if len(each) == 1:
        return each[0]
    return ClockPair(*np.transpose(each)) if isinstance(each[0], ClockPair) else np.array(each)


def largest(parts: Sequence[Any]) -> Any:
    """The largest of numbers, or of arrays ``[n]`` pair by pair."""
    several = any(isinstance(part, np.ndarray) for part in parts)
    return reduce(np.maximum, parts) if several else max(parts)


def smallest(parts: Sequence[Any]) -> Any:
    """The smallest, likewise."""
    several = any(isinstance(part, np.ndarray) for part in parts)
    return reduce(np.minimum, parts) if several else min(parts)


def rows(count: int, *columns: Any) -> Iterator[tuple[float, ...]]:
    """What is told of several pairs, pair by pair; each column is ``[count]`` or one for all."""
    each = (c.tolist() if isinstance(c, np.ndarray) else (c,) * count for c in columns)
    return zip(*each, strict=True)


def clock_distance(one: ClockPair, other: ClockPair) -> float:
    """How far two pairs lie apart: the sum of both clocks' absolute log ratios."""
    ratios = zip(one, other, strict=True)
    return sum(abs(math.log(mine / theirs)) for mine, theirs in ratios)


def default_clocks(gpu: GpuProfile) -> ClockPair:
    """What a prediction uses that names no clocks."""
    return ClockPair(gpu.core_mhz, gpu.memory_mhz)


def bandwidth_bytes_per_second(gpu: GpuProfile, memory_mhz: float) -> float:
    """Peak device memory bandwidth at a memory clock: the profile's, in proportion."""
    return gpu.bandwidth_bytes_per_second * memory_mhz / gpu.memory_mhz


TYPICAL_STREAMING_SHARE = 0.86
"""Share of peak bandwidth a stream reaches where nobody published it for a kind of memory: the
median of what the built-in profiles hold, 0.67 to 0.94, each once (0.80 over the boards measured
themselves, most of them old; docs/gpus.md)."""


SHARES_OF_KIND: Mapping[str, tuple[float, float, float]] = {
    "GDDR5": (0.665, 0.782, 0.872), "GDDR5X": (0.797, 0.807, 0.817), "GDDR6": (0.749, 0.889, 0.938),
    "GDDR6X": (0.915, 0.918, 0.920), "HBM2": (0.754, 0.875, 0.904), "HBM2e": (0.863, 0.881, 0.898),
}  # fmt: skip
"""Least, median and most of the shares in the profiles by kind of memory, each measurement once: of
a board that has none (a test reads the profiles again)."""
FEWEST_SPREAD = 0.05
"""Spread either way of a share that nobody measured, at least: kinds with one or two boards. The
half-range of HBM2e, GDDR5X and GDDR6X is 0.3 to 2 %, of the others 9 to 13; a judgement."""

ONE_WAY: Mapping[str, tuple[float, float]] = {"HBM": (1.06, 1.097), "GDDR": (1.024, 1.024)}
"""What reads alone and writes alone reach over a mix of both. Medians of V100 (1.06, 1.10), A100 40
and 80 GB (1.10, 1.11; 1.01, 1.07) and H100 PCIe (1.06, 1.10); A40 (Ernst, gpu-benches, gpu-stream:
one load, or one store, over the triad at full occupancy). Boards before 7.0: none was measured."""
ONE_WAY_SINCE = 7.0
MIXED = 2 / 9
"""Share of reads times share of writes from which a stream turns as often as streams do that
profiles quote: of a triad, which writes a third. How often it turns goes with that product."""


def streaming_shares(gpu: GpuProfile) -> tuple[float, float, float]:
    """Share of the peak that a stream reaches: at least, likely and at most. One figure where it
    was measured, else the spread of the memory's kind."""
    own = gpu.streaming_share
    if own is not None:
        return own, own, own
    typical = TYPICAL_STREAMING_SHARE
    least, likely, most = SHARES_OF_KIND.get(gpu.memory_kind or "", (typical, typical, typical))
    spread = FEWEST_SPREAD
    return min(least, likely * (1 - spread)), likely, min(1.0, max(most, likely * (1 + spread)))


def streaming_bytes_per_second(
    gpu: GpuProfile, memory_mhz: float, write_share: float = 0.5
) -> float:
    """Device memory bandwidth that streaming kernels reach at a memory clock, with so much of
    their bytes written: the bus loses time whenever it turns (``ONE_WAY``)."""
    mixed = streaming_shares(gpu)[1]
    peak = bandwidth_bytes_per_second(gpu, memory_mhz)
    kind = next((k for k in ONE_WAY if (gpu.memory_kind or "").startswith(k)), None)
    if kind is None or float(gpu.compute_capability) < ONE_WAY_SINCE:
        return mixed * peak
    read, written = ONE_WAY[kind]
    turning = min(1.0, write_share * (1.0 - write_share) / MIXED)
    straight = (1.0 - write_share) / read + write_share / written
    return min(mixed / (turning + (1.0 - turning) * straight), 1.0) * peak


def checked(clocks: ClockPair) -> ClockPair:
    """The pair itself. Raises ClockError naming the clock that is not above 0."""
    for name, value in zip(ClockPair._fields, clocks, strict=True):
        if not value > 0:
            raise ClockError(f"{name} is {value}; it must be above 0", field=name)
    return clocks


# --- which clock pairs are asked for, and which of them a GPU supports ------------------------
# A pair outside what a GPU supports is extrapolation while it stays near its range, and an error
# beyond that: nothing is known of a board at half its lowest or well above its highest clock.


BELOW, ABOVE = 0.5, 1.2
"""Least and most share of the supported range that is extrapolated to (docs/frequency.md)."""


def supported_pairs(gpu: GpuProfile) -> tuple[ClockPair, ...]:
    """Pairs the profile lists, sorted; its default pair where it lists none."""
    known = tuple(ClockPair(*pair) for pair in gpu.supported_pairs)
    return known or (default_clocks(gpu),)


def highest_pair(gpu: GpuProfile) -> ClockPair:
    """The pair scaling factors refer to unless a request says otherwise: the highest memory
    clock, and the highest core clock beside it, of those supported."""
    return max(supported_pairs(gpu), key=lambda pair: (pair.memory_mhz, pair.core_mhz))


def one_memory_clock(gpu: GpuProfile) -> bool:
    """Whether only the core clock of this GPU can be chosen, as far as its profile knows."""
    return len({pair.memory_mhz for pair in supported_pairs(gpu)}) == 1


def is_supported(pair: ClockPair, gpu: GpuProfile) -> bool:
    """Whether a profile lists the pair, or it is the default one."""
    return pair in gpu.supported_pairs or pair == default_clocks(gpu)


def admitted(pairs: Iterable[ClockPair], gpu: GpuProfile) -> tuple[ClockPair, ...]:
    """The distinct pairs, sorted. Raises ClockError for a clock that is not above 0, or beyond
    0.5 to 1.2 times what the GPU supports."""
    known = zip(*(*supported_pairs(gpu), default_clocks(gpu)), strict=True)
    ends = [(BELOW * min(values), ABOVE * max(values)) for values in known]
    for pair in (found := sorted(set(pairs))):
        checked(pair)
        for name, value, (low, high) in zip(ClockPair._fields, pair, ends, strict=True):
            if not low <= value <= high:
                raise ClockError(
                    f"{name} is {value:g}; {gpu.id} is predicted from {low:g} to {high:g} MHz",
                    field=name,
                )
    return tuple(found)


def stepped(low: float, high: float, step: float, name: str) -> tuple[float, ...]:
    """``low``, ``low + step``, ... up to ``high``. Raises ClockError for an empty range."""
    if not (0 < low <= high and step > 0):
        raise ClockError(
            f"{name}: from {low:g} to {high:g} in steps of {step:g} is no range", field=name
        )
    count = int((high - low) / step * (1 + 1e-12)) + 1
    return tuple(low + step * index for index in range(count))


def crossed(core_mhz: Sequence[float], memory_mhz: Sequence[float]) -> tuple[ClockPair, ...]:
    """Every core clock with every memory clock."""
    return tuple(ClockPair(core, memory) for core in core_mhz for memory in memory_mhz)


# A board at its power limit: the core clock falls along the voltage curve until the power fits.
#
# The driver lowers the core clock step by step while the board draws more than its limit; the
# memory clock stays (NVIDIA, nvidia-smi manual, "SW Power Cap"). Power here never falls with the
# core clock: work per second does not, and the voltage does not. So the highest clock that fits is
# found by bisection, and a lower limit never means a higher clock. Where not even the lowest clock
# fits, the board holds its clock back for part of the time (the manual's "HW Slowdown").

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
    listed = {core for core, _ in gpu.supported_pairs} or {gpu.core_mhz}
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
