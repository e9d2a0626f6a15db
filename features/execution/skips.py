"""The rest of a steady loop, worked out: see ``steady``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from wattcast.features.errors import checkpoint
from wattcast.features.execution.context import Frame, LoopEdge
from wattcast.features.execution.paths import Branch, Guard, Path, Watch, keeps_for, same, step_of
from wattcast.features.execution.spaces import GLOBAL_SPACES, Offsets
from wattcast.features.execution.values import (
    BOOL,
    SLICE_UNITS,
    Array,
    Counts,
    CutShortError,
    Group,
    as_type,
)
from wattcast.features.execution.walks import walk_on
from wattcast.features.integers import UNSIGNED
from wattcast.features.memory import KEY_BITS, SECTOR_BYTES, SECTOR_SHIFT, changes, per_slot

if TYPE_CHECKING:
    from wattcast.features.execution.machine import Machine

Floats = npt.NDArray[np.float64]

LEAST_SKIP = 8
"""Iterations below which a skip is not worth it."""
MOST_SIMULATED = 300_000
MOST_KEYS = 50_000
"""Footprint keys made for skipped iterations of one access."""
SAMPLES = 8
"""Iterations at which sectors are computed while threads leave a loop one by one."""


class Skip:
    """One skip: simulate the slice, then add up what was left out."""

    def __init__(
        self, machine: Machine, edge: LoopEdge, group: Group, frame: Frame, key: int,
        watch: Watch, path: Path,
    ) -> None:  # fmt: skip
        self.machine = machine
        self.edge = edge
        self.group = group
        self.frame = frame
        self.key = key
        self.watch = watch
        self.path = path
        self.skipped = 0
        self.retraced = 0.0  # windows added to the trace
        self._start = list(frame)
        self._instructions = 1 + sum(len(handlers) for handlers in path.steps)
        self._branches: list[list[Branch]] = [[] for _ in path.runs]
        for branch in path.branches:
            self._branches[branch.place].append(branch)
        self._guards: list[list[Guard]] = [[] for _ in path.runs]
        for guard in path.guards:
            self._guards[guard.place].append(guard)

    def run(self) -> int | None:
        """The key to go on at; ``None`` if nothing was skipped."""
        deltas = self._affine()
        if deltas is None:
            return None
        state, leaving = self._simulate()
        if leaving is not None:
            return self._leave(deltas, state, leaving)
        if self.skipped < LEAST_SKIP:
            return None
        return self._resume(deltas, state)

    # --- registers ---

    def _affine(self) -> dict[int, Array] | None:
        """Per-iteration steps of the registers the path writes; ``None``: one is needed later
        that does not advance by constant steps."""
        first, second, third = self.watch.frames
        found: dict[int, Array] = {}
        for slot, _, needed in self.path.written:
            a, b, c = first[slot], second[slot], third[slot]
            if c is b and b is a:
                continue
            step = step_of(a, b, c)
            if step is not None:
                found[slot] = step
            elif needed:
                return None
        return found

    def _carried(self, frame: Frame) -> list[Array]:
        return [frame[slot] for slot in self.path.carried]

    def _with(self, carried: list[Array]) -> Frame:
        frame = list(self.frame)
        for slot, value in zip(self.path.carried, carried, strict=True):
            frame[slot] = value
        return frame

    # --- the slice ---

    def _simulate(self) -> tuple[list[Array], Branch | None]:
        """Run the slice on for ``skipped`` whole iterations.

        Returns the slice's registers after them, and the branch at which threads start to
        leave the loop one after another, if the loop can be simulated to its end.
        """
        frame = list(self.frame)
        history: list[list[Array]] = []
        first = True
        for _ in range(MOST_SIMULATED):
            before = self._carried(frame)
            deviation = self._iterate(frame, first)
            if deviation is not None:
                return before, deviation if self._can_leave(deviation, frame) else None
            first = False
            self.skipped += 1
            if self._spend(SLICE_UNITS):
                break
            history = [*history[-1:], before]
            if self.skipped % 32 == 16 and len(history) == 2:
                jump = self._jump(history, frame)
                if jump:
                    self.skipped += jump
                    history = []
        return self._carried(frame), None

    def _spend(self, units: int) -> bool:
        """Count an iteration of the slice; whether the budget is spent."""
        checkpoint()
        self.machine.effort.spent += self._instructions * units
        return self.machine.effort.gone

    def _iterate(self, frame: Frame, first: bool) -> Branch | None:
        """One iteration of the slice by everyone; the branch where some thread deviates.

        A guard that changes its mind deviates too; it counts as the first branch.
        """
        for place, (step, handlers) in enumerate(
            zip(self.watch.steps, self.path.steps, strict=True)
        ):
            group = step.group
            for handler in handlers:
                handler(frame, group)
            for guard in self._guards[place]:
                if not self._keeps(frame, guard, group, first):
                    return self.path.branches[0]
            for branch in self._branches[place]:
                value = as_type(frame[branch.slot], BOOL)
                if value.shape[0] == 1:
                    wanted = group if bool(value[0]) != branch.negated else None
                    if step.taken is not wanted and not same(step.taken, wanted):
                        return branch
                    continue
                taken = group.mask & (~value if branch.negated else value)
                if step.taken is None:
                    if taken.any():
                        return branch
                elif not np.array_equal(taken, step.taken.mask):
                    return branch
        return None

    def _keeps(self, frame: Frame, guard: Guard, group: Group, first: bool) -> bool:
        """Whether as many lanes as in the last real iteration pass a guard."""
        part = group.narrowed(as_type(frame[guard.slot], BOOL), guard.negated)
        lanes = np.zeros_like(group.lanes) if part is None else part.lanes
        rows = self.watch.guarded
        return np.array_equal(lanes, rows[-1][guard.row] - rows[0][guard.row])

    def _can_leave(self, branch: Branch, frame: Frame) -> bool:
        """Whether some threads stay and the others go behind the loop, once and for all."""
        path = self.path
        if not path.simple or len(path.branches) != 1 or path.guards:
            return False
        if any(step.group is not self.group for step in self.watch.steps):
            return False
        value = as_type(frame[branch.slot], BOOL)
        by_jump = self._stays_by_jump(branch)
        if value.shape[0] == 1 or self.group.narrowed(value, branch.negated == by_jump) is None:
            return False  # all leave at once: the last iteration is run for real
        out = branch.after if by_jump else branch.target
        return out >= max(run.end for run in path.runs)

    def _stays_by_jump(self, branch: Branch) -> bool:
        following = self.path.runs[(branch.place + 1) % len(self.path.runs)].start
        return branch.target == following

    def _jump(self, history: list[list[Array]], frame: Frame) -> int:
        """Iterations that can be leapt because everything advances by constant steps."""
        path = self.path
        if path.guards:
            return 0
        steps: dict[int, Array] = {}
        for slot, a, b in zip(path.carried, history[0], history[1], strict=True):
            value = frame[slot]
            if value.dtype is BOOL:
                continue
            step = step_of(a, b, value)
            if step is None:
                return 0
            steps[slot] = step
        safe = float("inf")
        for branch in path.branches:
            if branch.compare is None:
                # A branch on something that never changes is safe.
                if branch.slot in steps or branch.slot in path.carried:
                    return 0
                continue
            reach = keeps_for(branch.compare, steps, frame, self.machine.count)
            safe = min(safe, float(reach[self.group.mask].min()))
        if not np.isfinite(safe) or safe < 64:
            return 0
        jump = int(safe) - 2
        for slot, step in steps.items():
            frame[slot] = _advanced(frame[slot], step, jump)
        return jump

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
            self._retrace(np.full(machine.slots, float(iterations)))
        for loop, (entries, loop_rounds) in watch.inner[-1].items():
            count, first = machine.trips.counts[loop], watch.inner[0].get(loop)
            if count is not None and first is not None:
                count.entries += (entries - first[0]) * iterations
                count.rounds += (loop_rounds - first[1]) * iterations
        self._trips(iterations * group.lanes, iterations * group.mask)

    def _retrace(self, iterations: Floats) -> None:
        """Iterations (by slot) that repeat the window are added to the trace."""
        machine, watch = self.machine, self.watch
        if machine.trace is None:
            return
        rounds = len(watch.counters) - 1
        more = np.zeros(machine.slots)
        for number in self.path.sites:
            if machine.program.sites[number].space in GLOBAL_SPACES:
                now, then = watch.counters[-1][number][0], watch.counters[0][number][0]
                more += (now - then) / rounds * iterations
        done = self.retraced
        self.retraced += float(iterations[machine.trace.traced].mean()) / rounds
        factor = (1.0 + self.retraced) / (1.0 + done) - 1.0
        machine.trace.repeat(watch.marks[0], factor, np.rint(more).astype(np.int64))

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

    # --- going on ---

    def _resume(self, deltas: dict[int, Array], state: list[Array]) -> int:
        """All threads go on together at the header, ``skipped`` iterations later."""
        for slot, value in zip(self.path.carried, state, strict=True):
            self.frame[slot] = value
        for slot, step in deltas.items():
            self.frame[slot] = _advanced(self.frame[slot], step, self.skipped)
        self._count(self.skipped)
        return self.key

    def _leave(self, deltas: dict[int, Array], state: list[Array], branch: Branch) -> int:
        """Threads leave one after another: on to the end of the loop for all of them."""
        path, machine = self.path, self.machine
        whole = self.skipped
        if whole:
            self._count(whole)
        frame = self._with(state)
        by_jump = self._stays_by_jump(branch)
        group: Group | None = self.group
        rounds = whole * self.group.mask.astype(np.int64)  # whole iterations, per thread
        iteration = whole
        marks: list[tuple[int, Group]] = [(iteration, self.group)]
        late = False
        upto = np.zeros_like(self.group.stat)  # executions of runs up to the branch
        beyond = np.zeros_like(self.group.stat)
        for _ in range(MOST_SIMULATED):
            assert group is not None
            for handlers in path.steps[: branch.place + 1]:
                for handler in handlers:
                    handler(frame, group)
            upto += group.stat
            iteration += 1
            stays = as_type(frame[branch.slot], BOOL)
            kept = group.narrowed(stays, negated=branch.negated == by_jump)
            if kept is None:
                break
            if kept is not group:
                group = kept
                marks.append((iteration, group))
            for handlers in path.steps[branch.place + 1 :]:
                for handler in handlers:
                    handler(frame, group)
            rounds += group.mask
            beyond += group.stat
            if self._spend(SLICE_UNITS + group.count):
                late = True
                break
        for place, run in enumerate(path.runs):
            added = upto if place <= branch.place else beyond
            machine.run_stats[run.index] += added
            machine.skipped[run.index] += added[0]
        machine.guarded[branch.row] += beyond[1] if by_jump else upto[1] - beyond[1]
        self._partial(marks, whole, iteration, upto)
        for slot in path.carried:
            self.frame[slot] = frame[slot]
        for slot, place, _needed in path.written:
            step = deltas.get(slot)
            if step is not None:
                times = rounds + (self.group.mask if place <= branch.place else 0)
                self.frame[slot] = _advanced(self.frame[slot], step, times)
        self._trips(beyond[1], rounds - whole * self.group.mask)
        out, edge = (
            (branch.after, branch.after_edge) if by_jump else (branch.target, branch.target_edge)
        )
        machine.forget_path()
        if late:
            raise CutShortError("effort")
        shift = path.runs[0].start - self.key
        return machine.move(out - shift, self.group, edge)

    def _partial(
        self, marks: list[tuple[int, Group]], whole: int, end: int, executed: Counts
    ) -> None:
        """Accesses of iterations run by fewer and fewer threads: sampled, then added up."""
        machine, path = self.machine, self.path
        times = np.array([t for t, _ in marks])
        chosen = np.linspace(whole, max(whole, end - 1), SAMPLES).astype(np.int64)
        chosen = chosen[changes(chosen)]
        rounds = len(self.watch.counters) - 1
        share = executed / np.maximum(self.group.stat, 1)  # in iterations by the whole group
        self._retrace(share[0])
        for number in path.sites:
            tally = machine.tallies[number]
            window = zip(
                self.watch.counters[-1][number], self.watch.counters[0][number], strict=True
            )
            moves = self._moves(number)
            for index, (held, (now, then)) in enumerate(zip(tally.counters(), window, strict=True)):
                per_round = (now - then) / rounds
                if index != tally.SECTORS or moves is None or not per_round.any():
                    held += np.rint(per_round * share[0]).astype(np.int64)
                    continue
                measured = []
                for time in chosen:
                    active = marks[int(np.searchsorted(times, time, side="right")) - 1][1]
                    where = moves[0] + moves[1] * (time + 1)
                    measured.append(tally.measure(where, active))
                table = np.array(measured, dtype=np.float64)
                steps = np.arange(whole, end)
                total = np.array(
                    [np.interp(steps, chosen, table[:, s]).sum() for s in range(table.shape[1])]
                )
                held += np.rint(total).astype(np.int64)
                stride = float(np.abs(moves[1][self.group.index]).mean())
                missing = total * min(1.0, stride / 32) - table.sum(axis=0)
                tally.extra += np.maximum(0, np.rint(missing)).astype(np.int64)

    def _moves(self, number: int) -> tuple[Offsets, Offsets] | None:
        """The last addresses and their step per iteration, if it was the same twice."""
        first, second, third = (a[number] for a in self.watch.addresses)
        if first is None or second is None or third is None:
            return None
        if not first.shape == second.shape == third.shape or third.size != self.machine.count:
            return None
        step = third - second
        if not ((second - first == step) | ~self.group.mask).all():
            return None
        return third, step


def _advanced(value: Array, step: Array, times: int | Offsets) -> Array:
    raw = UNSIGNED[value.dtype.itemsize]
    if isinstance(times, int):
        count = np.array([times], dtype=np.int64).astype(raw)
    else:
        count = times.astype(raw)
    advanced: Array = (value.view(raw) + step * count).view(value.dtype)
    return advanced
