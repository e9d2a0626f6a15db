"""Reuse distances of the traced blocks, by buffer.

The distance of a repeated touch is told in requests of its block since the line was touched
last. How many distinct lines lie in between follows from all of these times together: a window
of w requests touches, on average, one line for every touch whose line was not touched within the w
before it, summed up over window lengths (Xiang, Ding, Luo, Bao, HOTL: a Higher Order Theory of
Locality, ASPLOS 2013, equation 2 for long traces).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.counts import ReuseCurve
from wattcast.features.execution.access import Site
from wattcast.features.execution.trace import MOST_TOUCHES, Trace
from wattcast.features.memory import KEY_BITS, SECTORS_PER_LINE_SHIFT, changes

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_NUMBER_BITS = MOST_TOUCHES.bit_length()
_NUMBER_MASK = (1 << _NUMBER_BITS) - 1
MOST_STEPS_BACK = 64
"""Touches of a line looked through for the longest pause between two of the same sector."""
DIRECT = frozenset({"cg", "cv", "volatile", "relaxed", "acquire", "mmio"})


def kept_by_l1(site: Site) -> bool:
    """Whether L1 may hold what an instruction loads (PTX ISA, cache operators and ld.volatile)."""
    return site.loads and not site.atomic and DIRECT.isdisjoint(site.opcode.split("."))


class ReuseTable(NamedTuple):
    """By buffer number: the curve of loads that L1 may hold and that of every access, and the
    share of the sectors loaded that were not stored to before."""

    kept: tuple[ReuseCurve, ...]
    all: tuple[ReuseCurve, ...]
    read_first: Floats


class _Sorted:
    """Touches by slot and unit (sector or line), then time."""

    def __init__(self, units: Integers, slots: Integers, size: int) -> None:
        packed = np.sort((slots << 60) | (units << _NUMBER_BITS) | np.arange(size), kind="stable")
        self.order = packed & _NUMBER_MASK
        self.group = packed >> _NUMBER_BITS

    def first(self, chosen: Flags) -> Flags:
        """For each touch: whether it is the first of those chosen in its unit."""
        sub = np.flatnonzero(chosen[self.order])
        group = self.group[sub]
        found = np.zeros(chosen.shape, dtype=np.bool_)
        found[self.order[sub[changes(group)]]] = True
        return found

    def gaps(self, chosen: Flags, times: Integers) -> Integers:
        """For each touch chosen: the time since the chosen one before it; -1 for the first."""
        sub = np.flatnonzero(chosen[self.order])
        group, order = self.group[sub], self.order[sub]
        gaps = np.full(chosen.shape, -1, dtype=np.int64)
        again = group[1:] == group[:-1]
        gaps[order[1:][again]] = np.diff(times[order])[again]
        return gaps


def reuse_table(
    trace: Trace, slot_weights: Floats, sites: list[Site],
    buffer_of: Callable[[Integers], Integers], kept_lines: Floats, all_lines: Floats,
) -> ReuseTable:  # fmt: skip
    """Reuse by buffer; ``buffer_of`` gives the number of each sector.

    ``slot_weights`` tells how many blocks each slot stands for.
    ``kept_lines`` and ``all_lines`` are the distinct lines of a block in each buffer, touched by
    loads that L1 may hold and by any access: the footprints know them better than the trace.
    """
    buffers = all_lines.size
    touches = trace.touches()
    owners = np.clip(touches.keys >> KEY_BITS, 0, trace.traced.size - 1)
    weights = touches.weights * slot_weights[owners]
    loads = np.array([site.loads for site in sites], dtype=np.bool_)[touches.sites]
    kept = np.array([kept_by_l1(site) for site in sites], dtype=np.bool_)[touches.sites]
    stores = np.array([(site.stores and not site.loads) or site.atomic for site in sites],
                      dtype=np.bool_)[touches.sites]  # fmt: skip
    number = np.cumsum(trace.traced) - 1
    slots = number[owners]
    sectors = touches.keys & ((1 << KEY_BITS) - 1)
    buffer = buffer_of(sectors)
    size = sectors.size
    by_sector = _Sorted(sectors, slots, size)
    by_line = _Sorted(sectors >> SECTORS_PER_LINE_SHIFT, slots, size)
    everything = np.ones(size, dtype=np.bool_)
    gaps = by_line.gaps(everything, touches.times)
    kept_gaps = by_line.gaps(kept, touches.times)
    clock, stands_for = trace.clock[trace.traced], slot_weights[trace.traced]
    longest = float(max(1, clock.max(initial=1)))
    windows = np.r_[0.0, np.exp2(np.arange(0.0, 2 * np.ceil(np.log2(longest)) + 2) / 2)]
    total = max(1.0, float(clock @ stands_for))
    mean = max(1.0, total / max(1e-300, float(stands_for[clock > 0].sum())))

    def summed(chosen: Flags, values: Floats) -> Floats:
        found = np.bincount(buffer[chosen], values[chosen], minlength=buffers)
        return found.astype(np.float64)

    def lines(chosen: Flags, since: Integers, distinct: Floats) -> Floats:
        again = chosen & (since > 0)
        counts, reach = _binned(buffer, again, since, weights, windows, buffers)
        beyond = counts.sum(axis=1, keepdims=True) - np.cumsum(counts, axis=1)
        area = (np.cumsum(reach, axis=1) + windows * beyond) / total
        area += distinct[:, None] * windows / mean
        found: Floats = np.minimum(area, distinct[:, None])
        return found

    def beyond(chosen: Flags, since: Integers) -> Floats:
        counts, _ = _binned(buffer, chosen, since, weights, windows, buffers)
        all_of_them = counts.sum(axis=1, keepdims=True)
        found: Floats = 1.0 - np.cumsum(counts, axis=1) / np.maximum(all_of_them, 1e-300)
        return np.where(all_of_them > 0, np.maximum(found, 0.0), 0.0)

    since, kept_since = (
        _since_kept(by_line, by_sector, everything, gaps),
        _since_kept(by_line, by_sector, kept, kept_gaps),
    )
    again = kept & (kept_since >= 0)
    of_kept = (
        lines(kept, kept_gaps, kept_lines),
        beyond(again, kept_since),
        np.zeros((buffers, windows.size)),
    )
    first_loads = by_sector.first(loads)
    of_all = (
        lines(everything, gaps, all_lines),
        beyond(loads & ~first_loads, since),
        beyond(stores & ~by_sector.first(stores), since),
    )
    first_of_all = by_sector.first(everything)

    def curves(parts: tuple[Floats, ...]) -> tuple[ReuseCurve, ...]:
        steps = tuple(windows.tolist())
        return tuple(
            ReuseCurve(steps, *(tuple(part[b].tolist()) for part in parts)) for b in range(buffers)
        )

    return ReuseTable(
        curves(of_kept),
        curves(of_all),
        summed(first_of_all & loads, weights) / np.maximum(summed(first_loads, weights), 1e-300),
    )


def _since_kept(by_line: _Sorted, by_sector: _Sorted, chosen: Flags, gaps: Integers) -> Integers:
    """The longest time that a sector's line lay untouched since the sector was touched last.

    A line that is replaced loses all its sectors, and each of them is fetched again on its own.
    -1 for the first touch of a sector.
    """
    order = by_line.order[chosen[by_line.order]]
    place = np.empty(chosen.shape, dtype=np.int64)  # in the order of lines
    place[order] = np.arange(order.size)
    last = by_sector.gaps(chosen, place)  # how many places back the sector was touched
    found = np.where(last < 0, -1, gaps)
    gap = gaps[order]
    left = np.flatnonzero(last > 1)
    for back in range(1, MOST_STEPS_BACK):
        if not left.size:
            break
        found[left] = np.maximum(found[left], gap[place[left] - back])
        left = left[last[left] > back + 1]
    return found


def _binned(
    buffer: Integers, chosen: Flags, since: Integers, weights: Floats, windows: Floats, buffers: int
) -> tuple[Floats, Floats]:
    """Weights, and weights times gaps, by buffer and shortest window that holds the gap."""
    index = np.searchsorted(windows, since[chosen])
    cell = buffer[chosen] * windows.size + np.minimum(index, windows.size - 1)
    shape = buffers, windows.size
    counts = np.bincount(cell, weights[chosen], minlength=shape[0] * shape[1])
    reach = np.bincount(cell, weights[chosen] * since[chosen], minlength=shape[0] * shape[1])
    return counts.astype(np.float64).reshape(shape), reach.astype(np.float64).reshape(shape)
