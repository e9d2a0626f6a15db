"""Which clock pairs are asked for, and which of them a GPU supports.

A pair outside what a GPU supports is extrapolation while it stays near its range, and an error
beyond that: nothing is known of a board at half its lowest or well above its highest clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wattcast.features.errors import ClockError
from wattcast.features.gpus import GpuProfile
from wattcast.models.clocks import ClockPair, checked, default_clocks

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
    return pair in supported_pairs(gpu) or pair == default_clocks(gpu)


def admitted(pairs: Iterable[ClockPair], gpu: GpuProfile) -> tuple[ClockPair, ...]:
    """The distinct pairs, sorted. Raises ClockError for a clock that is not above 0, or beyond
    0.5 to 1.2 times what the GPU supports."""
    known = (*supported_pairs(gpu), default_clocks(gpu))
    for pair in (found := sorted(set(pairs))):
        checked(pair)
        for name in ClockPair._fields:
            values = [getattr(each, name) for each in known]
            low, high = BELOW * min(values), ABOVE * max(values)
            if not low <= getattr(pair, name) <= high:
                raise ClockError(
                    f"{name} is {getattr(pair, name):g}; {gpu.id} is predicted from {low:g} to "
                    f"{high:g} MHz",
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
