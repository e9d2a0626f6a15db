"""Groups of threads that execute together, and the state of all threads of sampled blocks."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.execution.values import BOOL, Array
from wattcast.features.launch import WARP_SIZE

if TYPE_CHECKING:
    from wattcast.features.execution.machine import Machine

Mask = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]


class CutShortError(Exception):
    """The budget of work or of steps is spent."""


ISSUE_UNITS = 2048
"""Units of work (``features.effort.Effort``) that carrying out an instruction costs, however few
lanes do: numpy's 5 us per call over its 2 ns per lane, measured over the fixture kernels."""
SLICE_UNITS = 512
"""The same where only what steers a loop is run on, and nothing is counted (1.4 us)."""
ACCESS_UNITS, ATOMIC_UNITS = 16, 64
"""Further units per lane of an access to memory, of an atomic one, and of a matrix product."""


class Layout(NamedTuple):
    """Warps of a group: their numbers (``None``: all), their lanes (``None``: all 32) as
    ``bool[rows, 32]``, and the block slot of each."""

    rows: npt.NDArray[np.intp] | None
    lanes: Mask | None
    owners: npt.NDArray[np.int64]


class Group:
    """Threads at the same instruction. ``mask`` has one element per thread of all slots.

    ``full`` tells that no other thread lives, so registers may be written without a mask.
    """

    def __init__(self, machine: Machine, mask: Mask, count: int) -> None:
        self.machine = machine
        self.mask = mask
        self.count = count
        self.full = count == machine.live_count
        self._whole: tuple[Mask, bool] | None = None

    @cached_property
    def warps(self) -> Counts:
        """Warps with an active lane, by slot."""
        rows = self.mask.reshape(-1, WARP_SIZE).any(axis=1)
        found: Counts = rows.reshape(self.machine.slots, -1).sum(axis=1)
        return found

    @cached_property
    def lanes(self) -> Counts:
        """Active lanes, by slot."""
        words = np.bitwise_count(self.mask.view(np.uint64)).reshape(self.machine.slots, -1)
        found: Counts = words.sum(axis=1, dtype=np.int64)
        return found

    @cached_property
    def stat(self) -> Counts:
        """``int64[2, slots]``: warps, lanes."""
        return np.stack([self.warps, self.lanes])

    @property
    def whole_warps(self) -> bool:
        """Whether all living lanes of its warps take part."""
        live = self.machine.live
        if self._whole is None or self._whole[0] is not live:
            words = self.mask.view(np.uint64).reshape(-1, WARP_SIZE // 8)
            others = (live & ~self.mask).view(np.uint64).reshape(-1, WARP_SIZE // 8)
            self._whole = live, not (words.any(axis=1) & others.any(axis=1)).any()
        return self._whole[1]

    @cached_property
    def everyone(self) -> bool:
        """Every lane of every slot takes part: no mask is needed at all."""
        return self.count == self.machine.count

    @cached_property
    def index(self) -> npt.NDArray[np.intp]:
        """The active threads' numbers."""
        return np.flatnonzero(self.mask)

    @cached_property
    def layout(self) -> Layout:
        """Which warps take part and with which lanes."""
        if self.everyone:
            return Layout(None, None, self.machine.owners)
        table = self.mask.reshape(-1, WARP_SIZE)
        rows = np.flatnonzero(table.any(axis=1))
        lanes = None if rows.size * WARP_SIZE == self.count else table[rows]
        chosen = rows if rows.size < table.shape[0] else None
        return Layout(chosen, lanes, self.machine.owners[rows])

    @cached_property
    def traced(self) -> tuple[Mask, Counts]:
        """For each warp of the layout: whether its block is traced, and its rank in its block."""
        owners, trace = self.layout.owners, self.machine.trace
        assert trace is not None
        rank = np.arange(owners.size) - np.searchsorted(owners, owners)
        return trace.traced[owners], rank

    def narrowed(self, predicate: Array, negated: bool) -> Group | None:
        """The threads of the group whose predicate holds; ``None`` if there are none."""
        if predicate.shape[0] == 1:
            return self if bool(predicate[0]) != negated else None
        if negated:
            mask = self.mask & ~predicate
        else:
            mask = self.mask & predicate if not self.everyone else predicate
        count = int(np.count_nonzero(mask))
        if count == self.count:
            return self
        return Group(self.machine, mask, count) if count else None

    def split(self, predicate: Array, negated: bool) -> tuple[Group | None, Group | None]:
        """The threads whose predicate holds, and the others."""
        if predicate.dtype is not BOOL:
            predicate = predicate != 0
        first = self.narrowed(predicate, negated)
        if first is None:
            return None, self
        if first is self:
            return self, None
        mask = self.mask & ~first.mask
        return first, Group(self.machine, mask, self.count - first.count)


def merge(group: Group, new: Array, old: Array) -> Array:
    """``new`` for the group's threads, ``old`` for the others (bits reinterpreted)."""
    dtype = new.dtype
    held = old.dtype
    if held is not dtype:
        if held.itemsize == dtype.itemsize and held is not BOOL and dtype is not BOOL:
            old = old.view(dtype)
        else:
            old = old.astype(dtype)
    return np.where(group.mask, new, old)
