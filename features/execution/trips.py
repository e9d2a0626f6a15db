"""Loop trips, per thread, as they happen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from wattcast.features.execution.context import Frame, LoopEdge
from wattcast.features.execution.values import BOOL, Array, Group
from wattcast.features.loops import Loop, deciding

if TYPE_CHECKING:
    from wattcast.features.execution.machine import Machine
    from wattcast.features.execution.program import Program


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


# Loops whose trips are told rather than found: their tests are overruled.
#
# Where made-up data would decide whether a loop is entered and when it is left, the number that the
# user gives (or that is assumed) decides instead: branches on data that lead past the loop lead
# into it, and its exits count.

MOST_FORCED = 16
"""Trips carried out; counts of more are those of these, scaled (``activity.cases``)."""

Override = Callable[["Machine"], Array]
"""Whether a branch is taken, by thread (or one value for all)."""


def overrides(program: Program, trips: Mapping[int, float]) -> dict[int, Override]:
    """By global position of a branch, what decides it; ``trips`` by loop of the kernel."""
    linked = program.by_name[program.kernel.name]
    known = deciding(program.kernel)
    found: dict[int, Override] = {}
    for index, count in sorted(trips.items(), key=lambda item: item[1]):
        loop = known.forest.loops[index]
        for guard in known.guards[index]:
            found[linked.base + guard.position] = _always(guard.enters == (count > 0))
        latches = {latch for latch, _ in loop.back_edges}
        exits = known.exits(loop)
        deciders = [e for e in exits if known.cfg.block_of[e.position] in latches]
        first = not deciders and any(known.cfg.block_of[e.position] == loop.header for e in exits)
        if first:
            deciders = [e for e in exits if known.cfg.block_of[e.position] == loop.header]
        wanted = min(MOST_FORCED, ceil(count)) + first
        for one in exits:
            stays_by_jump = _jumps_inside(program, loop, one.position)
            if one in (deciders or exits):
                number = linked.first_loop + index
                found[linked.base + one.position] = _counting(number, wanted, stays_by_jump)
            else:
                found[linked.base + one.position] = _always(stays_by_jump)
    return found


def _jumps_inside(program: Program, loop: Loop, position: int) -> bool:
    linked = program.by_name[program.kernel.name]
    target = program.label(linked, linked.body.instructions[position])
    inside = target is not None and target < len(linked.body.instructions)
    return inside and linked.cfg.block_of[target] in loop.blocks  # type: ignore[index]


def _always(taken: bool) -> Override:
    value = np.array([taken], dtype=BOOL)
    return lambda machine: value


def _counting(loop: int, wanted: int, stays_by_jump: bool) -> Override:
    def decide(machine: Machine) -> Array:
        count = machine.trips.counts[loop]
        if count is None:
            return np.array([not stays_by_jump], dtype=BOOL)
        stays: Array = count.current < wanted
        return stays if stays_by_jump else ~stays

    return decide
