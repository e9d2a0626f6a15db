"""What one memory instruction did in the sampled blocks: counters and a footprint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features import memory
from wattcast.features.execution.spaces import Offsets, Region
from wattcast.features.execution.values import Counts, Group, Mask, spread
from wattcast.features.launch import WARP_SIZE
from wattcast.features.memory import KEY_BITS, SECTORS_PER_LINE_SHIFT, changes, sampled

# When the sectors of some sampled blocks are touched: the ground of reuse distances.
#
# A few of the sampled blocks are traced. A block's clock counts its own requests to global memory,
# those of skipped iterations too. Every traced access notes which sectors it touches when; of
# longer traces only lines with a certain hash are kept, which leaves the times between two uses of
# a line as they are (spatial sampling: Waldspurger et al., Efficient MRC Construction with SHARDS,
# FAST 2015).

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MOST_TOUCHES = 1 << 16
"""Touches of sectors kept; beyond, every other line is dropped (sorting these takes 2 ms)."""


class Picked(NamedTuple):
    """The traced part of an access: places among its keys, their slots, and by how many requests
    of the block each comes after the first of them."""

    where: npt.NDArray[np.intp]
    slots: Integers
    later: Integers


class Touches(NamedTuple):
    """Touches in the order of time within each slot. ``keys`` are footprint keys, ``weights``
    how many touches each stands for."""

    sites: Integers
    keys: Integers
    times: Integers
    weights: Floats


class Trace:
    """The touches of the traced slots of a machine."""

    def __init__(self, slots: int, traced: Sequence[int]) -> None:
        self.traced = np.zeros(slots, dtype=np.bool_)
        self.traced[list(traced)] = True
        self.clock: Integers = np.zeros(slots, dtype=np.int64)
        self._chunks: list[tuple[int, Integers, Integers]] = []
        self._weights: list[float] = []
        self._size = 0
        self._dropped = 0  # a mask: lines with any of these bits in their hash are not kept

    def pick(self, group: Group, per_row: Integers) -> Picked | None:
        """What to note of an access whose warps touch ``per_row`` sectors each."""
        rows, later = group.traced
        where = np.flatnonzero(np.repeat(rows, per_row))
        if not where.size:
            return None
        return Picked(
            where,
            np.repeat(group.layout.owners, per_row)[where],
            np.repeat(later, per_row)[where],
        )

    def note(self, site: int, keys: Integers, picked: Picked | None, warps: Integers) -> None:
        """One request of ``warps`` (by slot) that touches ``keys``."""
        if picked is not None:
            self._add(site, keys[picked.where], self.clock[picked.slots] + picked.later)
        self.clock += warps

    def note_one(self, site: int, sector: int, warps: Integers) -> None:
        """The same sector for every warp."""
        slots = np.flatnonzero(np.where(self.traced, warps, 0))
        if slots.size:
            times = np.repeat(slots, warps[slots])
            later = np.arange(times.size) - np.repeat(np.cumsum(warps[slots]) - warps[slots],
                                                      warps[slots])  # fmt: skip
            self._add(site, (times << KEY_BITS) | sector, self.clock[times] + later)
        self.clock += warps

    def _add(self, site: int, keys: Integers, times: Integers) -> None:
        if self._dropped:
            kept = self._kept(keys)
            keys, times = keys[kept], times[kept]
        self._chunks.append((site, keys, times))
        self._weights.append(1.0)
        self._size += keys.size
        while self._size > MOST_TOUCHES:
            self._dropped = self._dropped * 2 + 1
            self._chunks = [(s, k[self._kept(k)], t[self._kept(k)]) for s, k, t in self._chunks]
            self._size = sum(k.size for _, k, _ in self._chunks)

    def _kept(self, keys: Integers) -> npt.NDArray[np.bool_]:
        return sampled(keys >> SECTORS_PER_LINE_SHIFT, self._dropped)

    @property
    def mark(self) -> int:
        """Where the next access will be noted."""
        return len(self._chunks)

    def repeat(self, start: int, times: float, requests: Integers) -> None:
        """What was noted from a mark on happened ``times`` more; ``requests`` more by slot."""
        for index in range(start, len(self._weights)):
            self._weights[index] *= 1.0 + times
        self.clock += requests

    def touches(self) -> Touches:
        """Everything noted, in order."""
        sizes = [keys.size for _, keys, _ in self._chunks]
        sites = np.array([site for site, _, _ in self._chunks], dtype=np.int64)
        return Touches(
            np.repeat(sites, sizes),
            _joined(keys for _, keys, _ in self._chunks),
            _joined(times for _, _, times in self._chunks),
            np.repeat(np.array(self._weights, dtype=np.float64), sizes) * (1.0 + self._dropped),
        )


def _joined(parts: Iterable[Integers]) -> Integers:
    found = list(parts)
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


# Atomics that meet at one address: within a warp, and over the launch.
#
# Lanes of a warp that act on the same address are served one after the other. So are all operations
# of a launch on one address in global memory (``summary`` finds the hottest one).


ADDRESS_MASK = (1 << 48) - 1
MOST_PENDING = 200_000
"""Entries of the log after which it is compacted."""
MOST_ENTRIES = 300_000
"""Entries of the log beyond which the addresses hit least are dropped, half of the entries."""
_NOBODY = np.iinfo(np.int64).min + np.arange(WARP_SIZE, dtype=np.int64)
"""Addresses of lanes that do not take part: each its own."""


class Hits(NamedTuple):
    """What happened at addresses of global memory: one entry for an address and a slot.

    ``operations`` by lanes, ``requests`` by warps.
    """

    addresses: Integers
    slots: Integers
    operations: Floats
    requests: Floats


class Contention:
    """What the lanes of an atomic instruction do to each other. Arrays ``int64[slots]``.

    ``passes`` and ``shared_passes`` sum, over warp executions, the largest number of lanes at one
    address, in global and in shared memory; ``operations`` and ``shared_operations`` count lanes.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self.passes: Integers = np.zeros(slots, dtype=np.int64)
        self.shared_passes: Integers = np.zeros(slots, dtype=np.int64)
        self.operations: Integers = np.zeros(slots, dtype=np.int64)
        self.shared_operations: Integers = np.zeros(slots, dtype=np.int64)
        # Operations at addresses that the log does not hold.
        self.elsewhere: Integers = np.zeros(slots, dtype=np.int64)
        self._keys: Integers = np.empty(0, dtype=np.int64)
        self._operations: Integers = np.empty(0, dtype=np.int64)
        self._requests: Integers = np.empty(0, dtype=np.int64)
        self._waiting: list[tuple[Integers, Integers, Integers]] = []
        self._waiting_size = 0

    def counters(self) -> tuple[Counts, ...]:
        """The counters that skipped iterations add to."""
        return self.passes, self.shared_passes, self.operations, self.shared_operations

    def count(self, addresses: Integers, group: Group, *, shared: bool) -> None:
        """One execution by the lanes of a group."""
        passes = self.shared_passes if shared else self.passes
        machine = group.machine
        operations = self.shared_operations if shared else self.operations
        operations += group.lanes
        if addresses.shape[0] == 1:
            passes += group.lanes
            if not shared:
                slots = np.flatnonzero(group.warps)
                where = np.full(slots.size, int(addresses[0]) & ADDRESS_MASK, dtype=np.int64)
                self._log(where, slots, group.lanes[slots], group.warps[slots])
            return
        table, lanes, owner = group.by_warp(addresses)
        ordered = np.sort(table if lanes is None else np.where(lanes, table, _NOBODY), axis=1)
        first = np.ones(ordered.shape, dtype=np.bool_)
        np.not_equal(ordered[:, 1:], ordered[:, :-1], out=first[:, 1:])
        starts = np.flatnonzero(first)
        lengths = np.diff(starts, append=ordered.size)
        most = np.maximum.reduceat(lengths, np.flatnonzero(starts % WARP_SIZE == 0))
        passes += machine.per_slot(most, owner)
        if not shared:
            values = ordered.reshape(-1)[starts]
            acting = values > _NOBODY[-1]
            self._log(
                values[acting] & ADDRESS_MASK,
                owner[starts[acting] // WARP_SIZE],
                lengths[acting],
                np.ones(int(np.count_nonzero(acting)), dtype=np.int64),
            )

    def _log(
        self, addresses: Integers, slots: Integers, operations: Integers, requests: Integers
    ) -> None:
        self._waiting.append((addresses * self._slots + slots, operations, requests))
        self._waiting_size += addresses.size
        if self._waiting_size > MOST_PENDING:
            self._compact()

    def _compact(self) -> None:
        if not self._waiting:
            return
        keys = np.concatenate([self._keys, *(k for k, _, _ in self._waiting)])
        operations = np.concatenate([self._operations, *(o for _, o, _ in self._waiting)])
        requests = np.concatenate([self._requests, *(r for _, _, r in self._waiting)])
        self._waiting.clear()
        self._waiting_size = 0
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        starts = np.flatnonzero(changes(keys))
        self._keys = keys[starts]
        self._operations = np.add.reduceat(operations[order], starts)
        self._requests = np.add.reduceat(requests[order], starts)
        if self._keys.size > MOST_ENTRIES:
            self._drop()

    def _drop(self) -> None:
        """Forget the addresses hit least (by all slots together)."""
        address = self._keys // self._slots
        starts = np.flatnonzero(changes(address))
        sizes = np.diff(starts, append=address.size)
        hit = np.repeat(np.add.reduceat(self._operations, starts), sizes)
        kept = np.zeros(hit.size, dtype=np.bool_)
        kept[np.argsort(-hit, kind="stable")[: MOST_ENTRIES // 2]] = True
        np.add.at(self.elsewhere, self._keys[~kept] % self._slots, self._operations[~kept])
        self._keys, self._operations, self._requests = (
            part[kept] for part in (self._keys, self._operations, self._requests)
        )

    def hits(self) -> Hits:
        """What is logged, skipped iterations included.

        Skipped iterations whose addresses do not move, or move as data say, hit what the others
        hit; those that walk on hit addresses of their own.
        """
        self._compact()
        slots = self._keys % self._slots
        logged = np.bincount(slots, self._operations, minlength=self._slots)
        known = np.maximum(self.operations - self.elsewhere, logged)
        scale = (known / np.maximum(logged, 1))[slots]
        return Hits(
            self._keys // self._slots, slots, self._operations * scale, self._requests * scale
        )


ROUND_OF_BANKS = 128
"""Bytes after which the banks of shared memory come round again (CUDA C++ Programming Guide)."""

COUNTED = (
    "requests", "sectors", "local_sectors", "shared_requests", "shared_transactions",
    "constant_transactions", "l1_millicycles", "extra",
)  # fmt: skip
"""What a ``Tally`` counts, in the order of its table."""


class Tally:
    """What a site did in the sampled blocks: arrays ``int64[slots]`` and a footprint."""

    def __init__(
        self, table: Counts, number: int = 0, *, atomic: bool = False,
        most_keys: int = memory.MOST_KEYS, repeats: bool = True,
    ) -> None:  # fmt: skip
        """``table``: ``int64[len(COUNTED), slots]``, the counters. ``repeats``: the site may be
        executed again, so its last execution is kept to compare with."""
        self.repeats = repeats
        self.number = number
        # ``extra``: distinct sectors of skipped iterations that the log does not hold one by one.
        (
            self.requests, self.sectors, self.local_sectors, self.shared_requests,
            self.transactions, self.constants, self.l1_millicycles, self.extra,
        ) = tuple[Counts, ...](table)  # fmt: skip
        slots = table.shape[1]
        self.contention = Contention(slots) if atomic else None
        self.log = memory.SectorLog(most_keys)
        # How far walks from the same sectors by the same stride went.
        self.passes: dict[tuple[int, int], int] = {}
        self.region: Region | None = None
        self._last: tuple[Group, Offsets] | None = None
        self._keys: Offsets | None = None
        self._memo: Counts | None = None
        # Row addresses of each warp the last time, and the conflicts counted then.
        self._matrices: tuple[Offsets, Counts] | None = None
        self._same: tuple[Offsets, Group] | None = None

    def counters(self) -> tuple[Counts, ...]:
        """All counters, ``sectors`` at index 1."""
        own = (
            self.requests, self.sectors, self.shared_requests, self.transactions,
            self.local_sectors, self.constants, self.l1_millicycles,
        )  # fmt: skip
        return own if self.contention is None else (*own, *self.contention.counters())

    @property
    def unlisted(self) -> Counts:
        """Distinct sectors that the log does not hold one by one."""
        return self.extra + self.log.beyond(self.extra.size)

    @property
    def last(self) -> Offsets | None:
        """The addresses of the last execution."""
        return None if self._last is None else self._last[1]

    @property
    def last_group(self) -> Group | None:
        """Who executed it last."""
        return None if self._last is None else self._last[0]

    def last_keys(self) -> Offsets | None:
        """The footprint keys of the last execution of a global access."""
        if self._last is None:
            return None
        group = self._last[0]
        if self._keys is not None:
            return self._keys
        if self._last[1].shape[0] == 1 and not self.shared_requests.any():
            slots = np.flatnonzero(group.warps)
            return (slots << memory.KEY_BITS) | (int(self._last[1][0]) >> memory.SECTOR_SHIFT)
        return None

    def count_global(self, addresses: Offsets, group: Group, width: int | None = None) -> None:
        """Sectors and footprint of one global access (local memory too, once mapped).

        Loads say their ``width`` in bytes a lane, stores 0: ``l1_millicycles``.
        """
        self.requests += group.warps
        machine = group.machine
        if addresses.shape[0] == 1:
            warps = group.warps
            self.sectors += warps
            if width is not None:
                self.l1_millicycles += 1000 * warps
            slots = np.flatnonzero(warps)
            sector = int(addresses[0]) >> memory.SECTOR_SHIFT
            self.log.add((slots << memory.KEY_BITS) | sector)
            if self.repeats:
                self._last, self._keys = (group, addresses), None
            if machine.trace is not None:
                machine.trace.note_one(self.number, sector, warps)
            return
        self._list(addresses, *group.by_warp(addresses), group, width)

    def _list(
        self, addresses: Offsets, table: Offsets, lanes: Mask | None, owner: Counts, group: Group,
        width: int | None = None,
    ) -> None:  # fmt: skip
        machine = group.machine
        per_row, values = memory.sectors(table, lanes)
        keys = (np.repeat(owner, per_row) << memory.KEY_BITS) | values
        self.sectors += machine.per_slot(per_row, owner)
        if width is not None:
            cycles = memory.l1_millicycles(table, width, lanes, per_row, values)
            self.l1_millicycles += machine.per_slot(cycles, owner)
        self.log.add(keys)
        if machine.trace is not None:
            picked = machine.trace.pick(group, per_row)
            machine.trace.note(self.number, keys, picked, group.warps)
        if self.repeats:
            self._last, self._keys = (group, addresses), keys

    def count_shared(self, addresses: Offsets, width: int, group: Group) -> None:
        """Transactions of one shared access."""
        warps = group.warps
        self.shared_requests += warps
        machine = group.machine
        self._last = group, addresses
        if addresses.shape[0] == 1:
            if width <= 4:
                self.transactions += warps
                return
            addresses = spread(addresses, machine.count)
        table, lanes, owner = group.by_warp(addresses)
        counts = memory.shared_transactions(table, width, lanes)
        self.transactions += machine.per_slot(counts, owner)

    def count_tile(self, addresses: Offsets, size: int, shared: bool, group: Group) -> None:
        """A wmma tile ``(warps, elements)``: sectors, or the conflict degree of all of it."""
        machine = group.machine
        owner = group.layout.owners
        if shared:
            self._last = group, addresses
            self.shared_requests += group.warps
            self.transactions += machine.per_slot(memory.bank_conflicts(addresses), owner)
            return
        self.requests += group.warps
        self._list(addresses, addresses, None, owner, group)

    def count_again(self, held: Offsets, group: Group) -> bool:
        """Count matrices whose addresses are the very array of the last time, if they are."""
        same = self._same is not None and self._same[0] is held and self._same[1] is group
        self._same = (held, group)
        if not same or self._memo is None:
            return False
        self.shared_requests += group.warps
        self.transactions += self._memo
        return True

    def count_matrices(self, starts: Offsets, group: Group) -> None:
        """8 x 8 matrices: row addresses ``(warps, 8 * matrices)``; eight rows are one part."""
        self.shared_requests += group.warps
        last, memo = self._last, self._memo
        self._last = (group, starts)
        if memo is not None and last is not None and last[0] is group:
            step = starts - last[1]
            if not step[0, 0] % ROUND_OF_BANKS and (step == step[0, 0]).all():
                self.transactions += memo
                return
        rows, _, owners = group.layout
        warps = slice(None) if rows is None else rows
        if self._matrices is None:
            shape = group.machine.count // WARP_SIZE, starts.shape[1]
            self._matrices = np.full(shape, -1, dtype=np.int64), np.zeros(shape[0], dtype=np.int64)
        before, conflicts = self._matrices
        moved = starts - before[warps]
        known = bool((before[warps, 0] >= 0).all() and (moved == moved[:, :1]).all())
        if not known or (moved[:, 0] % ROUND_OF_BANKS).any():
            matrices = starts.shape[1] // 8
            words = (starts.reshape(-1, 8)[:, :, None] + 4 * np.arange(4)).reshape(-1, 32)
            before[warps] = starts
            conflicts[warps] = memory.bank_conflicts(words).reshape(-1, matrices).sum(axis=1)
        counts = group.machine.per_slot(conflicts[warps], owners)
        self._memo = counts
        self.transactions += counts

    def count_constant(self, addresses: Offsets, group: Group) -> None:
        """Constant accesses: one transaction per distinct 4-byte word of a warp."""
        self.requests += group.warps
        if addresses.shape[0] == 1:
            self.constants += group.warps
            return
        machine = group.machine
        table, lanes, owner = group.by_warp(addresses)
        per_row, _ = memory.distinct_per_row(table >> 2, lanes)
        self.constants += machine.per_slot(per_row, owner)

    def count_long_ways(self, long: Mask, group: Group) -> None:
        """Warps of which a lane takes the long way of a division, among the constant accesses:
        no division is one."""
        if long.shape[0] == 1:
            self.constants += group.warps if long[0] else 0
            return
        machine = group.machine
        warps = (long & group.mask).reshape(-1, WARP_SIZE).any(axis=1)
        self.constants += warps.reshape(machine.slots, -1).sum(axis=1)

    def count_local(self, addresses: Offsets, width: int, group: Group) -> None:
        """Local accesses: word ``w`` of the warp's lanes lies in 128 adjacent bytes.

        Local memory is interleaved by 4-byte words so that lanes that read the same variable
        are coalesced (CUDA C++ Programming Guide, local memory).
        """
        self.requests += group.warps
        machine = group.machine
        table, lanes, owner = group.by_warp(addresses)
        lane = np.arange(WARP_SIZE, dtype=np.int64) >> 3
        total = np.zeros(table.shape[0], dtype=np.int64)
        for word in range(0, max(4, width), 4):
            per_row, _ = memory.distinct_per_row((((table + word) >> 2) << 2) | lane, lanes)
            total += per_row
        self.local_sectors += machine.per_slot(total, owner)
