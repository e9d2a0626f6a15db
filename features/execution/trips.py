"""Loop trips, per thread, as they happen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wattcast.features.execution.context import LoopEdge
from wattcast.features.execution.groups import Group
from wattcast.features.execution.operands import Frame

if TYPE_CHECKING:
    from wattcast.features.execution.machine import Machine

_NONE = np.iinfo(np.int64).max


class LoopCount:
    """Executions of one loop's header. ``current`` counts the present entry, per thread."""

    __slots__ = ("current", "entries", "extrapolated", "frames", "highest", "lowest", "rounds")

    def __init__(self, threads: int, slots: int) -> None:
        self.current = np.zeros(threads, dtype=np.int64)
        self.entries = np.zeros(slots, dtype=np.int64)  # thread entries
        self.rounds = np.zeros(slots, dtype=np.int64)  # header executions by threads
        self.lowest = _NONE
        self.highest = 0
        self.extrapolated = False
        self.frames: list[Frame] = []  # registers at the last two rounds

    def settle(self, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]] | None) -> None:
        """The present entry of the chosen threads (all if ``None``) is over."""
        held = self.current if chosen is None else self.current[chosen]
        held = held[held > 0]
        if held.size:
            self.lowest = min(self.lowest, int(held.min()))
            self.highest = max(self.highest, int(held.max()))


class Trips:
    """Counts of all loops of a program; made per loop when it is first entered."""

    def __init__(self, machine: Machine, loops: int) -> None:
        self._machine = machine
        self.counts: list[LoopCount | None] = [None] * loops

    def along(self, edge: LoopEdge, group: Group, frame: Frame) -> None:
        """A group reaches a loop header: newly, or by a back edge."""
        count = self.counts[edge.loop]
        if count is None:
            count = LoopCount(self._machine.count, self._machine.slots)
            self.counts[edge.loop] = count
        lanes = group.lanes
        count.rounds += lanes
        count.frames = [] if edge.entering else [*count.frames[-1:], list(frame)]
        if edge.entering:
            count.entries += lanes
            if group.full:
                count.settle(None)
                count.current = group.mask.astype(np.int64)
            else:
                count.settle(group.mask)
                count.current[group.mask] = 1
        else:
            count.current += group.mask
