"""Steady loops: after a few iterations that repeat, the rest is worked out, not run.

A loop is steady when the same group of threads has gone round the same path (no calls, no
inner loops, no splits) for ``WINDOW`` iterations. What steers it (the *slice*: everything its
branches and guards are computed from) must be free of loads and of talk between threads. Then
only the slice is run on, iteration after iteration, until a branch decides otherwise; where
the slice advances by constant steps and the branch compares integers, it jumps. Counts of the
skipped iterations are those of the window, so they equal full execution; sectors are the
window's mean. Registers that advance by constant steps are advanced; data that do not keep
their last value (a Diagnostic says so). A loop that threads leave one after another is run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wattcast.features.execution.context import Frame, LoopEdge
from wattcast.features.execution.paths import Path, Step, Watch, analyse
from wattcast.features.execution.skips import Skip
from wattcast.features.execution.values import Group

if TYPE_CHECKING:
    from wattcast.features.execution.machine import Machine

WINDOW = 8
"""Iterations observed: sectors of unit-stride walks repeat after 32 / 4 of them."""
WATCHED_BYTES = 32 * 2**20
"""Counts held of loops that are watched, before those that were left are forgotten."""
LEAST_WORK = 400
"""Instructions a loop must have executed before anything is skipped."""


class Steady:
    """Watches back edges and skips what repeats."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._watched: dict[int, Watch] = {}
        loops = 2 * 8 * machine.slots * len(machine.program.loops)  # ``Watch.inner``
        each = 2 * (machine.run_stats.nbytes + machine.guarded.nbytes + loops)
        self._least = self._most = max(1, WATCHED_BYTES // each)

    def entered(self, edge: LoopEdge) -> None:
        """A loop is entered anew: what was seen of it before does not count."""
        self._watched.pop(edge.loop, None)

    def round(
        self, edge: LoopEdge, group: Group, frame: Frame, key: int, steps: list[Step]
    ) -> None:
        """A group comes round to the header, where it goes on."""
        watch = self._watched.get(edge.loop)
        if watch is None or not watch.matches(group, steps):
            self._watched[edge.loop] = Watch(group, steps)
            if len(self._watched) > self._most:
                inside = self._machine.inside(key)
                self._watched = {n: w for n, w in self._watched.items() if n in inside}
                self._most = max(self._least, 2 * len(self._watched))
            return
        watch.group = group
        watch.steps = steps
        watch.rounds += 1
        if watch.rounds == 1:
            watch.path = self._path(steps)
        path = watch.path
        if path is None:
            return
        self._record(watch, path, frame, edge)
        if watch.rounds * path.instructions < LEAST_WORK or not self._settled(watch, path):
            return
        skip = Skip(self._machine, edge, group, frame, watch, path)
        if skip.run():  # everybody goes on together: outer loops may repeat this too
            self._machine.extend_path(edge.loop, steps, skip.skipped)
        self._watched.pop(edge.loop, None)  # look again after another window

    def _path(self, steps: list[Step]) -> Path | None:
        overrides = self._machine.overrides
        if overrides and any(step.run.end - 1 in overrides for step in steps):
            return None  # what is told decides there, not what the slice computes
        paths = self._machine.program.paths
        name = tuple(step.run.index for step in steps)
        if name not in paths:
            paths[name] = analyse(self._machine.program, tuple(step.run for step in steps))
        return paths[name]

    def _record(self, watch: Watch, path: Path, frame: Frame, edge: LoopEdge) -> None:
        machine = self._machine
        tallies = machine.tallies
        watch.frames = [*watch.frames[-2:], list(frame)]
        watch.addresses = [*watch.addresses[-2:], {n: tallies[n].last for n in path.sites}]
        counters = {n: [c.copy() for c in tallies[n].counters()] for n in path.sites}
        watch.counters = [*watch.counters[-WINDOW:], counters]
        seen = {n: (tallies[n].log.mark, tallies[n].extra.copy()) for n in path.sites}
        watch.seen = [*watch.seen[-2:], seen]
        mark = 0 if machine.trace is None else machine.trace.mark
        watch.marks = [*watch.marks[-WINDOW:], mark]
        watch.run_stats = [*watch.run_stats[-1:], machine.run_stats.copy()]
        watch.guarded = [*watch.guarded[-1:], machine.guarded.copy()]
        inner = {
            loop: (count.entries.copy(), count.rounds.copy())
            for loop, count in enumerate(machine.trips.counts)
            if count is not None and loop != edge.loop
        }
        watch.inner = [*watch.inner[-1:], inner]

    def _settled(self, watch: Watch, path: Path) -> bool:
        """Enough rounds: 3 alike if every access moves by whole sectors, else ``WINDOW``."""
        if watch.rounds > WINDOW:
            return True
        if watch.rounds < 4:
            return False
        for number in path.sites:
            one, two, three, four = (c[number] for c in watch.counters[-4:])
            for a, b, c, d in zip(one, two, three, four, strict=True):
                if not (np.array_equal(b - a, c - b) and np.array_equal(c - b, d - c)):
                    return False
            before, after = (a[number] for a in watch.addresses[-2:])
            if before is None or after is None or before.shape != after.shape:
                return False
            if int(np.bitwise_or.reduce(after - before, axis=None)) & 31:
                return False
        watch.counters = watch.counters[-4:]
        watch.marks = watch.marks[-4:]
        return True
