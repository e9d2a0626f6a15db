"""Loops whose trips are told rather than found: their tests are overruled.

Where made-up data would decide whether a loop is entered and when it is left, the number that the
user gives (or that is assumed) decides instead: branches on data that lead past the loop lead into
it, and its exits count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from wattcast.features.deciding import deciding
from wattcast.features.execution.values import BOOL, Array
from wattcast.features.loops import Loop

if TYPE_CHECKING:
    from wattcast.features.execution.machine import Machine
    from wattcast.features.execution.program import Program

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
