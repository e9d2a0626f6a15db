"""Footprints and reuse of global memory, from what the sampled blocks touched."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.counts import Sharing, Stream, Traffic, patch
from wattcast.features.execution.machine import Machine
from wattcast.features.execution.program import Program
from wattcast.features.execution.reuse import kept_by_l1, reuse_table
from wattcast.features.execution.sampling import SamplingPlan
from wattcast.features.execution.sharing import Listed, measure_sharing, relations
from wattcast.features.execution.spaces import GLOBAL_SPACES
from wattcast.features.execution.trace import Trace
from wattcast.features.launch import Launch
from wattcast.features.memory import (
    KEY_BITS,
    SECTOR_BYTES,
    SECTORS_PER_LINE_SHIFT,
    changes,
    distinct,
    unite,
)

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_SECTOR_MASK = (1 << KEY_BITS) - 1

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


def places(machine: Machine) -> Places:
    """Where the buffers of a launch lie."""
    regions = machine.memory.regions
    return Places(
        ("(elsewhere)", *(region.name for region in regions)),
        np.array([0, *(region.base // SECTOR_BYTES for region in regions)], dtype=np.int64),
        np.array(
            [0, *(-(-(region.base + region.size) // SECTOR_BYTES) for region in regions)],
            dtype=np.int64,
        ),
    )


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

    def united(self, numbers: list[int]) -> Counts:
        """Sorted distinct footprint keys of some sites."""
        return unite([self.keys(number) for number in numbers])

    def keys(self, number: int) -> Counts:
        """Footprint keys of a site."""
        return self.machine.tallies[number].log.keys

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

    def by_buffer(self, per_site: Floats, numbers: list[int]) -> Floats:
        """Launch totals of some sites, shared out among the buffers that each touches."""
        totals = np.zeros(len(self.places.names))
        for number in numbers:
            if per_site[number]:
                totals += per_site[number] * self.shares(number)
        return totals

    def shares(self, number: int) -> Floats:
        """The share of a site's footprint that lies in each buffer."""
        found = np.zeros(len(self.places.names))
        keys = self.keys(number) & _SECTOR_MASK
        if not keys.size:
            found[0] = 1.0
            return found
        ends = self.places.of(np.array([keys.min(), keys.max()]))
        if ends[0] == ends[1] and ends[0]:
            found[ends[0]] = 1.0
            return found
        return np.bincount(self.places.of(keys), minlength=found.size) / keys.size

    def uniques(self, keys: Counts, numbers: list[int]) -> Floats:
        """By buffer: distinct sectors of a block, summed over the launch's blocks."""
        where = self.places.of(keys & _SECTOR_MASK)
        count = len(self.places.names)
        slots = np.clip(keys >> KEY_BITS, 0, self.blocks - 1)
        each = np.bincount(slots * count + where, minlength=self.blocks * count)
        listed = self.plan.estimate(each.reshape(self.blocks, count))
        return listed + self.by_buffer(self.unlisted, numbers) * self.apart(numbers)

    def apart(self, numbers: list[int]) -> Floats:
        """By buffer: of the sectors of skipped iterations that sites do not list, counted for each
        site, the share left where several touch the same, as among those that they list."""
        count = len(self.places.names)
        several = [n for n in numbers if self.unlisted[n]]
        if len(several) < 2:
            return np.ones(count)
        parts = [self.keys(number) for number in several]
        together, each = (
            np.bincount(self.places.of(keys & _SECTOR_MASK), minlength=count)
            for keys in (unite(parts), np.concatenate(parts))
        )
        return np.where(each > 0, together / np.maximum(each, 1), 1.0)

    def lines(self, keys: Counts, sectors: Floats) -> Floats:
        """By buffer: distinct 128-byte lines of a block on average, from those of the keys."""
        first = changes(keys >> SECTORS_PER_LINE_SHIFT)
        where = self.places.of(keys & _SECTOR_MASK)
        count = len(self.places.names)
        listed = np.bincount(where, minlength=count)
        density = np.bincount(where[first], minlength=count) / np.maximum(listed, 1)
        return sectors * density / self.busy

    def streams(self, loads: Counts, stores: Counts) -> tuple[Stream, ...]:
        """What is known of each buffer touched."""
        kinds, plan, launch = self.kinds, self.plan, self.launch
        sectors = plan.estimate(self.sites["sectors"])
        kept, direct, atomics, stored = (self.by_buffer(sectors, numbers) for numbers in kinds)
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
            self.machine.trace or Trace(self.blocks, ()), plan.weights(),
            self.program.sites, self.places.of, self.lines(keys_kept, unique_kept), lines,
        )  # fmt: skip
        pairs, partly = relations(plan, launch), self.partly()
        where = self.places.of(both & _SECTOR_MASK)
        streams = []
        for number, name in enumerate(self.places.names):
            keys = both[where == number]
            if not keys.size:
                continue
            each = float(unique[number]) / self.busy
            beyond = self.beyond(number)
            sharing, of_lines = measure_sharing(
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
        slots = np.clip(keys >> KEY_BITS, 0, self.blocks - 1)  # addresses may go beyond all
        sizes = np.bincount(slots, minlength=self.blocks)
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
            keys = self.keys(number)
            if unlisted and keys.size:
                found.append(Listed(distinct(keys & _SECTOR_MASK), 1.0 + unlisted / keys.size))
        return sorted(found, key=lambda listed: listed.factor)
