"""Trips of loops, and steady ones: after a few iterations that repeat, the rest is worked out.

A loop is steady when the same group of threads has gone round the same path (no calls, no
splits) for ``WINDOW`` iterations. What steers it (the *slice*: everything its branches and guards
are computed from) must be free of loads and of talk between threads, and made of sums, multiples
and comparisons of integers. Then all of it advances by constant steps, and the first comparison
that will have another outcome ends what is skipped. Counts of the
skipped iterations are those of the window, so they equal full execution; sectors are the
window's mean. Registers that advance by constant steps are advanced; data that do not keep
their last value (a Diagnostic says so). A loop that threads leave one after another is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from wattcast.features.execution.context import Frame, LoopEdge
from wattcast.features.execution.paths import (
    Compare,
    Path,
    Step,
    Watch,
    analyse,
    keeps_for,
    sides_of,
    step_of,
    walk_on,
)
from wattcast.features.execution.spaces import GLOBAL_SPACES, Offsets
from wattcast.features.execution.values import (
    BOOL,
    Array,
    Counts,
    Group,
)
from wattcast.features.integers import UNSIGNED
from wattcast.features.loops import Loop, deciding
from wattcast.features.memory import KEY_BITS, SECTOR_BYTES, SECTOR_SHIFT, per_slot

if TYPE_CHECKING:
    from wattcast.features.execution.machine import Machine
    from wattcast.features.execution.program import Program


# Loop trips, per thread, as they happen.

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


# The rest of a steady loop, worked out: see ``steady``.

Floats = npt.NDArray[np.float64]

LEAST_SKIP = 8
"""Iterations below which a skip is not worth it."""
MOST_KEYS = 50_000
"""Footprint keys made for skipped iterations of one access."""


class Skip:
    """One skip: how far the slice goes on alike, then what was left out is added up."""

    def __init__(
        self, machine: Machine, edge: LoopEdge, group: Group, frame: Frame, watch: Watch, path: Path
    ) -> None:
        self.machine = machine
        self.edge = edge
        self.group = group
        self.frame = frame
        self.watch = watch
        self.path = path
        self.skipped = 0
        self._start = list(frame)

    def run(self) -> bool:
        """Go on ``skipped`` iterations later, all threads together; whether that is worth it."""
        deltas = self._affine()
        if deltas is None:
            return False
        self.skipped = self._reach()
        if self.skipped < LEAST_SKIP:
            return False
        for slot, step in deltas.items():
            self.frame[slot] = _advanced(self.frame[slot], step, self.skipped)
        self._count(self.skipped)
        return True

    # --- registers ---

    def _affine(self) -> dict[int, Array] | None:
        """Per-iteration steps of the registers the path writes; ``None``: one is needed later
        that does not advance by constant steps."""
        first, second, third = self.watch.frames
        found: dict[int, Array] = {}
        for slot, needed in self.path.written:
            a, b, c = first[slot], second[slot], third[slot]
            if c is b and b is a:
                continue
            step = step_of(a, b, c)
            if step is not None:
                found[slot] = step
            elif needed:
                return None
        return found

    # --- the slice ---

    def _reach(self) -> int:
        """Iterations to come in which every comparison has the outcome of the last one."""
        count = self.machine.count
        safe = float("inf")
        rounds = zip(*(self._compared(list(each)) for each in self.watch.frames[:2]), strict=True)
        for (compare, group, earlier), (_, _, later) in rounds:
            reach = keeps_for(compare, earlier, later, count)
            safe = min(safe, float(reach[group.mask].min()))
        return int(safe) - 1 if np.isfinite(safe) else 0

    def _compared(self, frame: Frame) -> Iterator[tuple[Compare, Group, tuple[Array, ...]]]:
        """Comparisons of an iteration that begins with some registers, by whom, and their sides."""
        for step, handlers in zip(self.watch.steps, self.path.steps, strict=True):
            for handler, compares in handlers:
                for compare in compares:
                    yield compare, step.group, sides_of(compare, frame)
                handler(frame, step.group)

    # --- counting ---

    def _count(self, iterations: int) -> None:
        """Counters of whole iterations, as in the window."""
        machine, group, path, watch = self.machine, self.group, self.path, self.watch
        each = watch.run_stats[-1] - watch.run_stats[0]
        machine.run_stats += iterations * each
        machine.skipped += iterations * each[:, 0]
        machine.guarded += iterations * (watch.guarded[-1] - watch.guarded[0])
        rounds = len(watch.counters) - 1
        if path.walk is not None:
            groups = [step.group for step in watch.steps]
            walk_on(machine, path.walk, path.sites, groups, self._start, iterations)
        for number in path.sites:
            tally = machine.tallies[number]
            contention = tally.contention
            before = 0 if contention is None else contention.operations.copy()
            window = zip(watch.counters[-1][number], watch.counters[0][number], strict=True)
            # The window's pattern repeats: whole windows, then its first iterations again.
            rest = watch.counters[iterations % rounds][number]
            for held, (now, then), part in zip(tally.counters(), window, rest, strict=True):
                held += (now - then) * (iterations // rounds) + (part - then)
            if path.walk is None:
                self._footprint(number, iterations)
            if contention is not None and self._stride(number):
                contention.elsewhere += contention.operations - before
        if path.walk is None:
            self._retrace(iterations)
        for loop, (entries, loop_rounds) in watch.inner[-1].items():
            count, first = machine.trips.counts[loop], watch.inner[0].get(loop)
            if count is not None and first is not None:
                count.entries += (entries - first[0]) * iterations
                count.rounds += (loop_rounds - first[1]) * iterations
        self._trips(iterations * group.lanes, iterations * group.mask)

    def _retrace(self, iterations: int) -> None:
        """Iterations that repeat the window are added to the trace."""
        machine, watch = self.machine, self.watch
        if machine.trace is None:
            return
        rounds = len(watch.counters) - 1
        more = np.zeros(machine.slots)
        for number in self.path.sites:
            if machine.program.sites[number].space in GLOBAL_SPACES:
                now, then = watch.counters[-1][number][0], watch.counters[0][number][0]
                more += (now - then) / rounds * iterations
        machine.trace.repeat(watch.marks[0], iterations / rounds, np.rint(more).astype(np.int64))

    def _trips(self, lanes: Counts, per_thread: Counts) -> None:
        trips = self.machine.trips.counts[self.edge.loop]
        if trips is not None:
            trips.rounds += lanes
            trips.current += per_thread
            trips.extrapolated = True
        self.machine.complain(
            "loop_extrapolated",
            "a loop repeats itself: after some iterations only what steers it was run on; "
            "what it computes keeps its last values",
            self.machine.program.loop_line(self.edge.loop),
        )

    def _footprint(self, number: int, iterations: int) -> None:
        """Sectors of the skipped iterations of an access that moves by one constant stride."""
        tally, stride = self.machine.tallies[number], self._stride(number)
        (before, _), (mark, extra) = (seen[number] for seen in self.watch.seen[-3:-1])
        keys, both = tally.log.since(mark), tally.log.since(before)
        if keys is None or both is None:  # a round of hundreds of thousands of sectors
            keys = both = tally.last_keys()
        if stride == 0 or keys is None or both is None or not keys.size:
            return
        tally.extra += iterations * (tally.extra - extra)
        held = self.machine.trips.counts[self.edge.loop]
        far = stride is not None and abs(stride) > SECTOR_BYTES and stride % SECTOR_BYTES != 0
        if held is not None and (stride is None or far or stride != self._stride(number, 1)):
            held.rough = True
        if stride is None:  # lanes go different ways: as many new sectors as in the last round
            if self.watch.addresses[-1][number] is not None:
                tally.extra += iterations * per_slot(
                    np.setdiff1d(both, keys, assume_unique=True), tally.extra.size
                )
            return
        every = max(1, 32 // abs(stride))
        moves = iterations // every
        base = keys & ((1 << KEY_BITS) - 1)
        slots = keys - base

        def after(times: Offsets) -> Offsets:
            moved = ((base << SECTOR_SHIFT) + (times * stride * every)[:, None]) >> SECTOR_SHIFT
            shifted: Offsets = slots + moved
            return shifted

        listed = min(moves, max(1, MOST_KEYS // keys.size))
        tally.log.add(after(np.arange(1, listed + 1, dtype=np.int64)).reshape(-1))
        # One by one up to here; from here on every move adds what one move adds, unless an earlier
        # pass over the same went as far.
        reached = tally.passes.get((hash(keys.tobytes()), stride), listed)
        if moves > reached:
            tally.passes[hash(keys.tobytes()), stride] = moves
            two = after(np.array([moves - 1, moves], dtype=np.int64))
            tally.log.add(two[1])
            fresh = per_slot(two[1][~np.isin(two[1], two[0])], tally.extra.size)
            last = per_slot(slots, tally.extra.size) if reached == listed else 0
            tally.extra += np.maximum(0, fresh * (moves - reached) - last)

    def _stride(self, number: int, at: int = 2) -> int | None:
        """By how many bytes all lanes' addresses moved in the last (2) or an earlier iteration."""
        earlier, later = (a[number] for a in self.watch.addresses[at - 1 : at + 1])
        if earlier is None or later is None or earlier.shape != later.shape:
            return None
        moved = later - earlier
        if moved.ndim == 1 and moved.size == self.machine.count:
            last = self.machine.tallies[number].last_group
            moved = moved[last.index] if last is not None else moved
        step = int(moved.reshape(-1)[0])
        return step if (moved == step).all() else None


def _advanced(value: Array, step: Array, times: int) -> Array:
    raw = UNSIGNED[value.dtype.itemsize]
    count = np.array([times], dtype=np.int64).astype(raw)
    advanced: Array = (value.view(raw) + step * count).view(value.dtype)
    return advanced


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
