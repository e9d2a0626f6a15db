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
MOST_HELD = 64
"""Loops whose threads are counted one by one before those that were left are settled."""


class LoopCount:
    """Executions of one loop's header.

    ``current`` counts the present entry, per thread (none once all have left and it is settled).
    """

    def __init__(self, slots: int) -> None:
        self.current = np.zeros(0, dtype=np.int64)
        self.entries = np.zeros(slots, dtype=np.int64)  # thread entries
        self.rounds = np.zeros(slots, dtype=np.int64)  # header executions by threads
        self.lowest, self.highest = _NONE, 0  # of header executions per entry
        self.extrapolated = self.rough = False
        self.frames: list[Frame] = []  # registers at the last two rounds

    def settle(self, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]] | None) -> None:
        """The present entry of the chosen threads (all if ``None``) is over."""
        ended = self.current if chosen is None or not self.current.size else self.current[chosen]
        ended = ended[ended > 0]
        if ended.size:
            self.lowest = min(self.lowest, int(ended.min()))
            self.highest = max(self.highest, int(ended.max()))


class Trips:
    """Counts of all loops of a program; made per loop when it is first entered."""

    def __init__(self, machine: Machine, loops: int) -> None:
        self._machine = machine
        self.counts: list[LoopCount | None] = [None] * loops
        self._held: set[int] = set()  # loops with ``current``
        self._most = MOST_HELD

    def along(self, edge: LoopEdge, group: Group, frame: Frame, key: int) -> None:
        """A group reaches a loop header, going on at ``key``: newly, or by a back edge."""
        machine = self._machine
        count = self.counts[edge.loop]
        if count is None:
            count = self.counts[edge.loop] = LoopCount(machine.slots)
        lanes = group.lanes
        count.rounds += lanes
        count.frames = [] if edge.entering else [*count.frames[-1:], list(frame)]
        if edge.entering:
            count.entries += lanes
            count.settle(None if group.full else group.mask)
        if not count.current.size:
            count.current = np.zeros(machine.count, dtype=np.int64)
            self._hold(edge.loop, key)
        if not edge.entering:
            count.current += group.mask
        elif group.full:
            count.current = group.mask.astype(np.int64)
        else:
            count.current[group.mask] = 1

    def _hold(self, loop: int, key: int) -> None:
        """Settle loops that no thread is in, once twice as many as before are held."""
        self._held.add(loop)
        if len(self._held) <= self._most:
            return
        left = self._held - self._machine.inside(key)
        for number in left:
            count = self.counts[number]
            assert count is not None
            count.settle(None)
            count.current, count.frames = np.zeros(0, dtype=np.int64), []
        self._held -= left
        self._most = max(MOST_HELD, 2 * len(self._held))
