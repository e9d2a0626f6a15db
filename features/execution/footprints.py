"""Footprints and reuse of global memory, from what the sampled blocks touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.counts import ReuseCurve, Sharing, Stream, Traffic, patch
from wattcast.features.execution.access import Site
from wattcast.features.execution.machine import Machine
from wattcast.features.execution.program import Program
from wattcast.features.execution.sampling import SamplingPlan
from wattcast.features.execution.sharing import Listed, measure_sharing, relations
from wattcast.features.execution.spaces import GLOBAL_SPACES
from wattcast.features.execution.tally import MOST_TOUCHES, Touches, Trace
from wattcast.features.launch import Launch
from wattcast.features.memory import (
    KEY_BITS,
    SECTOR_BYTES,
    SECTORS_PER_LINE_SHIFT,
    changes,
    distinct,
    per_slot,
    unite,
)

# Reuse distances of the traced blocks, by buffer.
#
# The distance of a repeated touch is told in requests of its block since the line was touched last.
# How many distinct lines lie in between follows from all of these times together: a window of w
# requests touches, on average, one line for every touch whose line was not touched within the w
# before it, summed up over window lengths (Xiang, Ding, Luo, Bao, HOTL: a Higher Order Theory of
# Locality, ASPLOS 2013, equation 2 for long traces).

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
    first_loads, first_of_all = by_sector.first(loads), by_sector.first(everything)
    of_all = (
        lines(everything, gaps, all_lines),
        beyond(loads & ~first_of_all, since),
        beyond(stores & ~by_sector.first(stores), since),
    )

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


Counts = npt.NDArray[np.int64]

_END = 1 << KEY_BITS
_SECTOR_MASK = _END - 1

NESTED = 0.05
"""Of a block's footprint: so little that others along an axis do not touch too, and the smaller of
two lies within the larger."""


class Places(NamedTuple):
    """Buffers: names and first sectors, ascending; the first is no buffer but what lies below and
    between them all."""

    names: tuple[str, ...]
    starts: Counts
    ends: Counts

    def of(self, sectors: Counts) -> Counts:
        """The number of the buffer of each sector, 0 if it is in none."""
        number = np.searchsorted(self.starts, sectors, side="right") - 1
        inside = (number > 0) & (sectors < self.ends[number])
        found: Counts = np.where(inside, number, 0)
        return found

    def bounds(self, keys: Counts, slots: int) -> tuple[Counts, Counts]:
        """Where each slot's part of each buffer but the first begins and ends in sorted footprint
        keys ``[slots, buffers - 1]``."""
        slot = np.arange(slots)[:, None] << KEY_BITS
        return keys.searchsorted(slot | self.starts[1:]), keys.searchsorted(slot | self.ends[1:])

    def counted(self, keys: Counts, slots: int) -> Counts:
        """Of sorted footprint keys, how many of each slot lie in each buffer ``[slots, buffers]``.
        Addresses beyond 48 bits lie in none of the first or the last slot."""
        begins, ends = self.bounds(keys, slots)
        inside = ends - begins
        return np.column_stack([per_slot(keys, slots) - inside.sum(axis=1), inside])

    def within(self, number: int, keys: Counts, slots: int) -> Counts:
        """Those of sorted footprint keys that lie in a buffer."""
        begins, ends = self.bounds(keys, slots)
        if number:
            parts = zip(begins[:, number - 1], ends[:, number - 1], strict=True)
        else:
            parts = zip([0, *ends.flat], [*begins.flat, keys.size], strict=True)
        return np.concatenate([keys[begin:end] for begin, end in parts])


def places(machine: Machine) -> Places:
    """Where the buffers of a launch lie."""
    regions = machine.memory.regions
    starts = np.array([0, *(each.base // SECTOR_BYTES for each in regions)], dtype=np.int64)
    ends = [0, *(-(-(each.base + each.size) // SECTOR_BYTES) for each in regions)]
    names = "(elsewhere)", *(each.name for each in regions)
    return Places(names, starts, np.minimum(ends, np.append(starts[1:], _END)))


class Kinds(NamedTuple):
    """Numbers of the program's global sites by what they do."""

    kept: list[int]
    direct: list[int]
    atomics: list[int]
    stores: list[int]

    @property
    def loads(self) -> list[int]:
        """All that reads."""
        return [*self.kept, *self.direct, *self.atomics]

    @property
    def writes(self) -> list[int]:
        """All that writes."""
        return [*self.stores, *self.atomics]


def kinds(program: Program) -> Kinds:
    """Sort the global sites. A copy to shared memory stores nothing to global memory."""
    found = Kinds([], [], [], [])
    for site in program.sites:
        if site.space not in GLOBAL_SPACES:
            continue
        if site.atomic:
            found.atomics.append(site.number)
        elif site.loads:
            (found.kept if kept_by_l1(site) else found.direct).append(site.number)
        elif site.stores:
            found.stores.append(site.number)
    return found


def memory_facts(
    program: Program, launch: Launch, plan: SamplingPlan, machine: Machine,
    sites: dict[str, Counts], extra: Counts,
) -> Traffic:  # fmt: skip
    """What the sampled blocks say about global memory.

    ``sites`` holds counters ``int64[blocks, sites]`` by name, ``extra`` the distinct sectors of
    skipped iterations that no footprint lists.
    """
    return _Footprints(program, launch, plan, machine, sites, extra).facts()


class _Footprints:
    def __init__(
        self, program: Program, launch: Launch, plan: SamplingPlan, machine: Machine,
        sites: dict[str, Counts], extra: Counts,
    ) -> None:  # fmt: skip
        self.program, self.launch, self.plan = program, plan.numbered(launch), plan
        self.machine, self.sites, self.extra = machine, sites, extra
        self.blocks = len(plan.blocks)
        self.kinds = kinds(program)
        self.places = places(machine)
        self.unlisted = plan.estimate(extra)
        numbers = [*self.kinds.loads, *self.kinds.stores]
        self.requests: Counts = sites["requests"][:, numbers].sum(axis=1)
        self.busy = max(1.0, plan.total((self.requests > 0).astype(np.int64)))
        self.logs = [tally.log for tally in machine.tallies]
        self._united: dict[tuple[int, ...], Counts] = {}

    def united(self, numbers: list[int]) -> Counts:
        """Sorted distinct footprint keys of some sites, each set of them united once."""
        several = [number for number in numbers if self.unlisted[number]]
        if several and len(several) < len(numbers):
            others = [number for number in numbers if not self.unlisted[number]]
            return unite([self.united(several), self.united(others)])
        key = tuple(numbers)
        if key not in self._united:
            self._united[key] = unite([self.logs[number].keys for number in numbers])
        return self._united[key]

    def listed(self, keys: Counts) -> Counts:
        """Footprint keys by buffer."""
        return np.asarray(self.places.counted(keys, self.blocks).sum(axis=0))

    def total(self, numbers: list[int], name: str) -> float:
        """A launch total of some sites."""
        return self.plan.total(self.sites[name][:, numbers].sum(axis=1)) if numbers else 0.0

    def not_textures(self, numbers: list[int]) -> list[int]:
        """Sites whose sectors the load/store unit asks for."""
        return [n for n in numbers if self.program.sites[n].space != "texture"]

    def facts(self) -> Traffic:
        plan = self.plan
        loads, stores = self.united(self.kinds.loads), self.united(self.kinds.writes)
        streams = self.streams(loads, stores)
        return Traffic(
            load_sectors=self.total(self.not_textures(self.kinds.loads), "sectors"),
            store_sectors=self.total(self.not_textures(self.kinds.writes), "sectors"),
            footprint_sectors=sum(stream.distinct_sectors for stream in streams),
            busy_blocks=self.busy,
            requests_per_block=plan.total(self.requests) / self.busy,
            streams=streams,
            grid=self.launch.grid,
        )

    def by_buffer(
        self, per_site: Floats, numbers: list[int], touches: Touches | None = None
    ) -> Floats:
        """Launch totals of some sites, shared out among the buffers that each touches: by sectors
        that are distinct or, with ``touches``, by how often these are touched too."""
        totals = np.zeros(len(self.places.names))
        for number in numbers:
            if per_site[number]:
                shares = self.shares(number)
                if touches is not None and np.count_nonzero(shares) > 1:
                    shares *= self.again(touches, number)
                    shares /= shares.sum()
                totals += per_site[number] * shares
        return totals

    def again(self, touches: Touches, number: int) -> Floats:
        """By buffer: how often a traced block touches a sector of a site; 1 where none does."""
        keys, count = touches.keys[touches.sites == number], len(self.places.names)
        every, once = (
            np.bincount(self.places.of(found & _SECTOR_MASK), minlength=count)
            for found in (keys, np.unique(keys))
        )
        return np.where(once > 0, every / np.maximum(once, 1), 1.0)

    def shares(self, number: int) -> Floats:
        """The share of a site's footprint that lies in each buffer."""
        found = self.listed(self.logs[number].keys)
        return np.asarray(found / found.sum() if found.any() else np.eye(found.size)[0])

    def uniques(self, keys: Counts, numbers: list[int]) -> Floats:
        """By buffer: distinct sectors of a block, summed over the launch's blocks."""
        listed = self.plan.estimate(self.places.counted(keys, self.blocks))
        return listed + self.by_buffer(self.unlisted, numbers) * self.apart(numbers)

    def apart(self, numbers: list[int]) -> Floats:
        """By buffer: of the sectors of skipped iterations that sites do not list, counted for each
        site, the share left where several touch the same, as among those that they list."""
        count = len(self.places.names)
        several = [n for n in numbers if self.unlisted[n]]
        if len(several) < 2:
            return np.ones(count)
        together = self.listed(self.united(several))
        each = np.sum([self.listed(self.logs[number].keys) for number in several], axis=0)
        return np.where(each > 0, together / np.maximum(each, 1), 1.0)

    def lines(self, keys: Counts, sectors: Floats) -> Floats:
        """By buffer: distinct 128-byte lines of a block on average, from those of the keys."""
        first = keys[changes(keys >> SECTORS_PER_LINE_SHIFT)]
        listed, begun = map(self.listed, (keys, first))
        return np.asarray(sectors * (begun / np.maximum(listed, 1)) / self.busy)

    def streams(self, loads: Counts, stores: Counts) -> tuple[Stream, ...]:
        """What is known of each buffer touched."""
        kinds, plan, launch = self.kinds, self.plan, self.launch
        sectors = plan.estimate(self.sites["sectors"])
        trace = self.machine.trace or Trace(self.blocks, ())
        touches = trace.touches()
        kept, direct, atomics, stored = (
            self.by_buffer(sectors, numbers, touches) for numbers in kinds
        )
        unique_loads = self.uniques(loads, kinds.loads)
        unique_stores = self.uniques(stores, kinds.writes)
        keys_kept, unique_kept = loads, unique_loads
        if kinds.direct or kinds.atomics:
            keys_kept = self.united(kinds.kept)
            unique_kept = self.uniques(keys_kept, kinds.kept)
        both = unite([loads, stores])
        unique = self.uniques(both, [*kinds.loads, *kinds.stores])
        lines = self.lines(both, unique)
        table = reuse_table(
            trace, plan.weights(),
            self.program.sites, self.places.of, self.lines(keys_kept, unique_kept), lines,
        )  # fmt: skip
        pairs, partly = relations(plan, launch), self.partly()
        streams = []
        for number, name in enumerate(self.places.names):
            keys = self.places.within(number, both, self.blocks)
            if not keys.size:
                continue
            each = float(unique[number]) / self.busy
            beyond = self.beyond(number)
            sharing, of_lines, run = measure_sharing(
                keys, partly, pairs, launch, each, float(lines[number]), self.busy, beyond
            )
            seen = distinct(keys & _SECTOR_MASK)
            larger = self.larger(keys)
            distinct_sectors = self.of_launch(seen, sharing, each, beyond, larger)
            distinct_lines = self.of_launch(
                distinct(seen >> SECTORS_PER_LINE_SHIFT), of_lines, float(lines[number]),
                beyond >> SECTORS_PER_LINE_SHIFT, larger,
            )  # fmt: skip
            streams.append(
                Stream(
                    name, float(kept[number]), float(direct[number]), float(stored[number]),
                    float(atomics[number]), float(unique_kept[number]),
                    float(unique_loads[number]),
                    float(unique_loads[number] * table.read_first[number]),
                    float(unique_stores[number]), distinct_sectors, distinct_lines, sharing,
                    of_lines, table.kept[number], table.all[number],
                    run,
                )
            )  # fmt: skip
        return tuple(streams)

    def beyond(self, number: int) -> int:
        """Sectors of a buffer where what is listed does not bound what is touched, as the budget
        ended, else 0."""
        if not number or self.machine.finished:
            return 0
        return int(self.places.ends[number] - self.places.starts[number])

    def larger(self, keys: Counts) -> float:
        """By how much the largest of the blocks' footprints exceeds their mean."""
        sizes = self.places.counted(keys, self.blocks).sum(axis=1)
        weights = np.where(sizes > 0, self.plan.weights(), 0.0)
        mean = float(weights @ sizes) / max(float(weights.sum()), 1e-9)
        return max(1.0, float(sizes.max()) / mean) if mean else 1.0

    def of_launch(
        self, seen: Counts, sharing: Sharing, each: float, beyond: int, larger: float
    ) -> float:
        """Distinct units of the launch: never below what was seen (sorted), never above what lies
        between the bounds of that, or ``beyond``. Of blocks each of which touches what a smaller
        one does, as in a causal product, the largest touch all."""
        if self.plan.complete and not beyond and not self.unlisted.any():
            return float(seen.size)
        alone = (1.0 - sharing.everyone) * (1.0 - max(sharing.row, sharing.column))
        if sharing.population == float("inf") and alone < NESTED:
            each *= larger
        whole = sharing.union(patch(self.busy, 1, self.launch.grid), each)
        return max(float(seen.size), min(max(float(seen[-1] - seen[0] + 1), float(beyond)), whole))

    def partly(self) -> list[Listed]:
        """Sectors of sites whose skipped iterations are not listed one by one."""
        found = []
        for number in (*self.kinds.loads, *self.kinds.stores):
            unlisted = float(self.extra[:, number].sum())
            keys = self.logs[number].keys
            if unlisted and keys.size:
                found.append(Listed(distinct(keys & _SECTOR_MASK), 1.0 + unlisted / keys.size))
        return sorted(found, key=lambda listed: listed.factor)
