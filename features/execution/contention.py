"""Atomics that meet at one address: within a warp, and over the launch.

Lanes of a warp that act on the same address are served one after the other. So are all operations
of a launch on one address in global memory (``summary`` finds the hottest one).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.launch import WARP_SIZE
from wattcast.features.memory import changes

if TYPE_CHECKING:
    from wattcast.features.execution.groups import Counts, Group

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

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
        rows, lanes, owner = group.layout
        table = addresses.reshape(-1, WARP_SIZE)
        table = table if rows is None else table[rows]
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
