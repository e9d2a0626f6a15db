"""Steady loops: after a few iterations that repeat, the rest is worked out, not run.

A loop is steady when the same group of threads has gone round the same path (no calls, no
inner loops, no splits) for ``WINDOW`` iterations. What steers it (the *slice*: everything its
branches and guards are computed from) must be free of loads and of talk between threads. Then
only the slice is run on, iteration after iteration, until a branch decides otherwise; where
the slice advances by constant steps and the branch compares integers, it jumps. Counts of the
skipped iterations are those of the window, so they equal full execution; sectors are the
window's mean. Registers that advance by constant steps are advanced; data that do not keep
their last value (a Diagnostic says so). Where threads leave a loop one after another, the
simulation goes on to the end of the loop and sectors are taken at sampled iterations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from features.dataflow import reads, writes
from features.execution.groups import Counts, Group
from features.execution.operands import Frame, Handler
from features.execution.spaces import Offsets
from features.execution.values import BOOL, S64, UNSIGNED, Array, as_type, constant, spread
from features.memory import KEY_BITS, SECTOR_SHIFT
from features.ptx import ir

if TYPE_CHECKING:
    from features.execution.machine import Machine
    from features.execution.program import Linked, LoopEdge, Program, Run

WINDOW = 8
"""Iterations observed: sectors of unit-stride walks repeat after 32 / 4 of them."""
LEAST_WORK = 400
"""Instructions a loop must have executed before anything is skipped."""
LEAST_SKIP = 8
"""Iterations below which a skip is not worth it."""
MOST_SIMULATED = 300_000
MOST_KEYS = 2_000_000
"""Footprint keys made for skipped iterations of one access."""
SAMPLES = 12
"""Iterations at which sectors are computed while threads leave a loop one by one."""

_PURE_LOADS = frozenset({"param"})
_IMPURE = frozenset(
    {"ld", "ldu", "atom", "red", "shfl", "vote", "match", "redux", "activemask", "elect", "tex",
     "tld4", "suld", "call", "mma", "wmma", "ldmatrix", "bar", "barrier", "mbarrier", "sured"}
)  # fmt: skip


class Compare(NamedTuple):
    """An integer comparison of slots or constants."""

    name: str
    sides: tuple[int | Array, int | Array]
    signed: bool


class Branch(NamedTuple):
    """A conditional branch on the path: how it must go for the path to be taken."""

    place: int  # of its run on the path
    slot: int
    stay: bool  # the predicate's value that stays on the path
    row: int  # of the machine's guard counters
    taken_stays: bool
    leaves_to: int | None  # global number where those who deviate go, if outside the loop
    edge: LoopEdge | None
    compare: Compare | None


class Guard(NamedTuple):
    """A predicated instruction on the path."""

    slot: int
    negated: bool


class Path(NamedTuple):
    """One way round a loop, analysed: ``None`` fields never occur; see ``analyse``."""

    runs: tuple[Run, ...]
    steps: tuple[tuple[Handler, ...], ...]  # the slice's handlers, by run
    carried: tuple[int, ...]  # slots the slice writes
    branches: tuple[Branch, ...]
    guards: tuple[Guard, ...]
    sites: tuple[int, ...]
    written: tuple[tuple[int, int, bool], ...]  # slot, place of its last write, needed outside
    instructions: int
    barriers: bool


def _linked_of(program: Program, run: Run) -> Linked:
    return program.functions[run.function]


def analyse(program: Program, runs: tuple[Run, ...]) -> Path | None:
    """What steers a path and what it writes; ``None`` if it cannot be simulated."""
    linked = _linked_of(program, runs[0])
    if any(run.function != runs[0].function for run in runs):
        return None
    again = len({run.index for run in runs}) != len(runs)  # an inner loop went round
    body = linked.body.instructions
    chains = [body[run.start - linked.base : run.end - linked.base] for run in runs]
    slots = linked.slots
    members = {run.start for run in runs}
    wanted: set[str] = set()
    branches: list[tuple[int, ir.Instruction]] = []
    guards: list[Guard] = []
    definitions: dict[str, list[ir.Instruction]] = {}
    barriers = False
    for place, chain in enumerate(chains):
        for one in chain:
            if one.base in ("call", "brx", "ret", "exit"):
                if one.base != "exit" and one.base != "ret":
                    return None
                if one.predicate is None:
                    return None
            barriers |= one.base in ("bar", "barrier")
            for name in writes(one):
                known = definitions.setdefault(name, [])
                if one not in known:
                    known.append(one)
            if one.predicate is None:
                continue
            wanted.add(one.predicate)
            if one.base == "bra":
                branches.append((place, one))
            elif one.base in ("ret", "exit") or one is chain[-1] and one.base in ("bar", "barrier"):
                return None
            else:
                guards.append(Guard(slots.register(one.predicate, BOOL), one.negated))
    waiting = list(wanted)
    while waiting:
        for one in definitions.get(waiting.pop(), ()):
            pure_load = one.opcode.startswith("ld.param")
            if one.base in _IMPURE and not pure_load:
                return None
            if "%clock" in str(one.operands):
                return None
            for name in reads(one):
                if name not in wanted:
                    wanted.add(name)
                    waiting.append(name)
    steps = []
    carried: set[int] = set()
    last_write: dict[int, int] = {}
    instructions = 0
    for place, (run, chain) in enumerate(zip(runs, chains, strict=True)):
        chosen = []
        for one in chain:
            instructions += 1
            names = writes(one)
            for name in names:
                last_write[slots.register(name)] = place
            if wanted.intersection(names):
                handler = run.by_position.get(linked.base + one.position)
                if handler is None:
                    return None
                chosen.append(handler)
                carried.update(slots.register(name) for name in names)
        steps.append(tuple(chosen))
    found = []
    for place, one in branches:
        branch = _branch(program, linked, runs, place, one, members, definitions)
        if branch is None:
            return None
        found.append(branch)
    if again and guards:
        return None
    outside = program.critical(linked, frozenset(p for c in chains for p in (o.position for o in c)))
    written = tuple(
        (slot, place, slot in outside) for slot, place in last_write.items() if slot not in carried
    )
    positions = {p for run in runs for p in range(run.start, run.end)}
    sites = tuple(site.number for site in program.sites if site.position in positions)
    return Path(
        runs, tuple(steps), tuple(sorted(carried)), tuple(found), tuple(guards), sites, written,
        instructions, barriers,
    )  # fmt: skip


def _branch(
    program: Program, linked: Linked, runs: tuple[Run, ...], place: int, one: ir.Instruction,
    members: set[int], definitions: dict[str, list[ir.Instruction]],
) -> Branch | None:  # fmt: skip
    assert one.predicate is not None
    target = program.label(linked, one)
    if target is None:
        return None
    following = runs[(place + 1) % len(runs)].start
    taken, fallen = linked.base + target, linked.base + one.position + 1
    if taken == fallen:
        return None
    taken_stays = taken == following
    if not taken_stays and fallen != following:
        return None
    other = fallen if taken_stays else taken
    header = linked.cfg.block_of[runs[0].start - linked.base]
    loop = next((lp for lp in linked.loops.loops if lp.header == header), None)
    inside = (
        loop is not None
        and other - linked.base < len(linked.body.instructions)
        and linked.cfg.block_of[other - linked.base] in loop.blocks
    )
    return Branch(
        place,
        linked.slots.register(one.predicate, BOOL),
        taken_stays != one.negated,
        program.guarded[linked.base + one.position],
        taken_stays,
        None if inside or other in members else other,
        program.edge(linked, one.position, other - linked.base),
        _comparison(program, linked, one.predicate, definitions),
    )


_ORDERS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"})


def _comparison(
    program: Program, linked: Linked, predicate: str, definitions: dict[str, list[ir.Instruction]]
) -> Compare | None:
    """The integer comparison that alone decides a predicate, if that is how it is made."""
    made = definitions.get(predicate, [])
    if len(made) != 1 or made[0].base != "setp" or made[0].predicate is not None:
        return None
    one = made[0]
    modifiers = one.modifiers
    kind = modifiers[-1]
    if len(one.operands) != 3 or kind[0] not in "usb" or kind[1:] not in ("32", "64"):
        return None
    if modifiers[0] not in _ORDERS or not isinstance(one.operands[0], ir.Register):
        return None
    sides: list[int | Array] = []
    for operand in one.operands[1:3]:
        if isinstance(operand, ir.Register):
            sides.append(linked.slots.register(operand.name))
        elif isinstance(operand, ir.Immediate):
            sides.append(constant(int(operand.value), UNSIGNED[int(kind[1:]) // 8]))
        else:
            return None
    return Compare(modifiers[0], (sides[0], sides[1]), kind[0] == "s")


# --- watching ----------------------------------------------------------------------------------


class Watch:
    """The recent rounds of one loop by one group."""

    __slots__ = ("addresses", "counters", "frames", "group", "inner", "path", "rounds", "runs")

    def __init__(self, group: Group, runs: tuple[Run, ...]) -> None:
        self.group = group
        self.runs = runs
        self.rounds = 0
        self.path: Path | None = None
        self.frames: list[Frame] = []
        self.counters: list[dict[int, list[Counts]]] = []
        self.addresses: list[dict[int, Offsets | None]] = []
        self.inner: list[dict[int, tuple[Counts, Counts]]] = []


class Steady:
    """Watches back edges and skips what repeats."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._watched: dict[int, Watch] = {}
        self._paths: dict[tuple[int, ...], Path | None] = machine.program.paths

    def round(
        self, edge: LoopEdge, group: Group, frame: Frame, key: int, trace: list[Run]
    ) -> int:
        """A group comes round; the key where it goes on (the header, or behind the loop)."""
        runs = tuple(trace)
        watch = self._watched.get(edge.loop)
        if watch is None or watch.group is not group or watch.runs != runs:
            self._watched[edge.loop] = Watch(group, runs)
            return key
        watch.rounds += 1
        if watch.rounds == 1:
            name = tuple(run.index for run in runs)
            if name not in self._paths:
                self._paths[name] = analyse(self._machine.program, runs)
            watch.path = self._paths[name]
        path = watch.path
        if path is None:
            return key
        tallies = self._machine.tallies
        watch.frames = [*watch.frames[-2:], list(frame)]
        watch.counters = [
            *watch.counters[-WINDOW:],
            {n: [c.copy() for c in tallies[n].counters()] for n in path.sites},
        ]
        watch.inner = [*watch.inner[-WINDOW:], self._inner(edge.loop)]
        watch.addresses = [*watch.addresses[-2:], {n: tallies[n].last for n in path.sites}]
        if watch.rounds * path.instructions < LEAST_WORK or not self._settled(watch, path):
            return key
        following = _Skip(self._machine, edge, group, frame, key, watch, path).run()
        if following is None:
            # Not worth it or not possible now: look again after another window.
            watch.rounds = 1
            return key
        del self._watched[edge.loop]
        self._machine.forget_trace()
        return following


    def _inner(self, own: int) -> dict[int, tuple[Counts, Counts]]:
        """Entries and rounds of the other loops so far."""
        return {
            loop: (count.entries.copy(), count.rounds.copy())
            for loop, count in enumerate(self._machine.trips.counts)
            if count is not None and loop != own
        }

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
            if (np.bitwise_or.reduce(after - before, axis=None) & 31) != 0:
                return False
        watch.counters = watch.counters[-4:]
        watch.inner = watch.inner[-4:]
        return True


class _Skip:
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

    def run(self) -> int | None:
        """The key to go on at; ``None`` if nothing was skipped."""
        deltas = self._affine()
        if deltas is None:
            return None
        simulated = self._simulate()
        if simulated is None:
            return None
        return self._leave(deltas) if self.leaving else self._resume(deltas)

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
            step = _step(a, b, c)
            if step is not None:
                found[slot] = step
            elif needed:
                return None
        return found

    # --- the slice ---

    def _simulate(self) -> bool | None:
        """Run the slice on. ``skipped`` whole iterations; ``leaving`` if threads leave apart."""
        path, group = self.path, self.group
        frame = list(self.frame)
        self.skipped = 0
        self.leaving = False
        state = [frame[s] for s in path.carried]
        guards = [self._guard(frame, g) for g in path.guards]
        budget = MOST_SIMULATED
        history: list[list[Array]] = []
        while budget:
            budget -= 1
            before = [frame[s] for s in path.carried]
            deviation = self._iterate(frame, group)
            if deviation is not None:
                self._decide(deviation, before)
                break
            if guards and any(
                not np.array_equal(self._guard(frame, g), held)
                for g, held in zip(path.guards, guards, strict=True)
            ):
                frame = self._with(before)
                break
            self.skipped += 1
            if self.skipped % 64 == 0 and self._late():
                break
            history = [*history[-1:], before]
            if self.skipped % 32 == 16 and len(history) == 2:
                jump = self._jump(history, frame)
                if jump:
                    self.skipped += jump
                    history = []
        else:
            before = [frame[s] for s in path.carried]
        if self.leaving:
            return True
        if self.skipped < LEAST_SKIP:
            return None
        self.state = before if budget and not self._late_break else [frame[s] for s in path.carried]
        del state
        return True

    _late_break = False

    def _late(self) -> bool:
        from time import perf_counter

        self._late_break = perf_counter() > self.machine.deadline
        return self._late_break

    def _with(self, carried: list[Array]) -> Frame:
        frame = list(self.frame)
        for slot, value in zip(self.path.carried, carried, strict=True):
            frame[slot] = value
        return frame

    def _guard(self, frame: Frame, guard: Guard) -> Array:
        value = as_type(frame[guard.slot], BOOL)
        if value.shape[0] == 1:
            return value
        return (value & self.group.mask) if not guard.negated else (~value & self.group.mask)

    def _iterate(self, frame: Frame, group: Group) -> tuple[Branch, Array] | None:
        """One iteration of the slice; the branch where some thread deviates, and who stays."""
        for place, handlers in enumerate(self.path.steps):
            for handler in handlers:
                handler(frame, group)
            for branch in self.path.branches:
                if branch.place != place:
                    continue
                value = as_type(frame[branch.slot], BOOL)
                if value.shape[0] == 1:
                    if bool(value[0]) != branch.stay:
                        return branch, np.zeros(1, dtype=np.bool_)
                    continue
                stays = value if branch.stay else ~value
                if not (stays | ~group.mask).all():
                    return branch, stays
        return None

    def _decide(self, deviation: tuple[Branch, Array], before: list[Array]) -> None:
        """Whether the loop can be simulated to its end, now that threads start to leave."""
        branch, stays = deviation
        path = self.path
        exits = [b for b in path.branches if b.leaves_to is not None]
        behind = path.runs[-1].end
        self.leaving = (
            stays.shape[0] > 1
            and bool((stays & self.group.mask).any())
            and len(path.branches) == 1
            and len(exits) == 1
            and branch.leaves_to is not None
            and branch.leaves_to >= behind
            and not path.guards
            and not path.barriers
            and all(run.gather is None for run in path.runs)
        )
        self.start = before

    def _jump(self, history: list[list[Array]], frame: Frame) -> int:
        """Iterations that can be leapt because everything advances by constant steps."""
        path = self.path
        now = [frame[s] for s in path.carried]
        steps = []
        for a, b, c in zip(history[0], history[1], now, strict=True):
            step = _step(a, b, c)
            if step is None and c.dtype is not BOOL:
                return 0
            steps.append(step)
        safe: float = float("inf")
        advance = {s: d for s, d in zip(path.carried, steps, strict=True) if d is not None}
        for branch in path.branches:
            if branch.compare is None:
                return 0
            safe = min(safe, self._safe(branch.compare, advance, frame))
        if path.guards or not np.isfinite(safe) or safe < 64:
            return 0
        jump = int(safe) - 2
        for slot, step in advance.items():
            frame[slot] = _advanced(frame[slot], step, jump)
        return jump

    def _safe(
        self, compare: Compare, advance: dict[int, Array], frame: Frame
    ) -> float:
        """For how many iterations a comparison keeps its outcome in every thread."""
        sides = []
        limit = np.inf
        signed = compare.signed
        for slot in compare.sides:
            value = frame[slot] if isinstance(slot, int) else slot
            size = value.dtype.itemsize
            if size == 8 and not signed and bool((value.view(S64) < 0).any()):
                return 0.0
            kind = np.dtype(f"{'i' if signed else 'u'}{size}")
            whole = value.view(kind).astype(np.float64)
            step = advance.get(slot) if isinstance(slot, int) else None
            rate = np.zeros(1) if step is None else step.view(np.dtype(f"i{size}")).astype(float)
            bound = np.iinfo(kind)
            room = np.where(rate > 0, bound.max - whole, whole - bound.min)
            active = spread(np.where(rate != 0, room / np.maximum(np.abs(rate), 1), np.inf),
                            self.machine.count)  # fmt: skip
            limit = min(limit, float(active[self.group.mask].min()))
            sides.append((whole, rate))
        gap = sides[0][0] - sides[1][0]
        rate = sides[0][1] - sides[1][1]
        with np.errstate(all="ignore"):
            zero = -gap / rate
        reach = np.where((rate != 0) & (zero >= 0), np.floor(zero), np.inf)
        if compare.name in ("eq", "ne"):  # only where the two become exactly equal
            reach = np.where(reach == zero, reach, np.inf)
        spread_reach = spread(reach, self.machine.count)
        return min(limit, float(spread_reach[self.group.mask].min()))

    # --- counting ---

    def _count(self, iterations: int) -> None:
        """Counters of whole iterations by the whole group."""
        machine, group, path = self.machine, self.group, self.path
        for run in path.runs:
            machine.run_stats[run.index] += iterations * group.stat
        for branch in path.branches:
            if branch.taken_stays:
                machine.guarded[branch.row] += iterations * group.lanes
        for row, lanes in self._guard_rows():
            machine.guarded[row] += iterations * lanes
        earlier = self.watch.counters[0]
        rounds = len(self.watch.counters) - 1
        for number in path.sites:
            tally = machine.tallies[number]
            for now, then in zip(tally.counters(), earlier[number], strict=True):
                now += (now - then) * iterations // rounds
            self._footprint(number, iterations)
        for loop, (entries, loop_rounds) in self.watch.inner[-1].items():
            count = machine.trips.counts[loop]
            first = self.watch.inner[0].get(loop)
            if count is not None and first is not None:
                count.entries += (entries - first[0]) * iterations // rounds
                count.rounds += (loop_rounds - first[1]) * iterations // rounds
        trips = machine.trips.counts[self.edge.loop]
        assert trips is not None
        trips.rounds += iterations * group.lanes
        trips.current += iterations * group.mask
        trips.extrapolated = True
        machine.complain(
            "loop_extrapolated",
            f"a loop repeats itself: after {WINDOW} or more iterations only what steers it was "
            "run on; its data keep their last values",
            machine.program.loop_line(self.edge.loop),
        )

    def _guard_rows(self) -> list[tuple[int, Counts]]:
        machine, linked = self.machine, _linked_of(self.machine.program, self.path.runs[0])
        found = []
        for run in self.path.runs:
            for position in range(run.start, run.end):
                row = machine.program.guarded.get(position)
                one = linked.body.instructions[position - linked.base]
                if row is None or one.base == "bra" or one.predicate is None:
                    continue
                slot = linked.slots.register(one.predicate, BOOL)
                part = self.group.narrowed(as_type(self.frame[slot], BOOL), one.negated)
                if part is not None:
                    found.append((row, part.lanes))
        return found

    def _footprint(self, number: int, iterations: int) -> None:
        """Sectors of the skipped iterations of an access that moves by one constant stride."""
        tally = self.machine.tallies[number]
        stride, keys = self._stride(number), tally.last_keys(self.group)
        if keys is None:
            return
        tally.log.total += int(keys.size) * iterations
        if not stride:
            return
        every = max(1, 32 // abs(stride))
        times = np.arange(every, iterations + 1, every, dtype=np.int64)
        if times.size * keys.size > MOST_KEYS:
            times = times[:: -(-times.size * keys.size // MOST_KEYS)]
        base = keys & ((1 << KEY_BITS) - 1)
        slots = keys - base
        moved = ((base << SECTOR_SHIFT) + (times * stride)[:, None]) >> SECTOR_SHIFT
        tally.log.note((slots + moved).reshape(-1))

    def _stride(self, number: int) -> int | None:
        """By how many bytes all lanes' addresses moved in the last iteration."""
        _, earlier, later = (a[number] for a in self.watch.addresses)
        if earlier is None or later is None or earlier.shape != later.shape:
            return None
        moved = later - earlier
        if moved.ndim > 1 or moved.shape[0] == 1:
            step = int(moved.reshape(-1)[0])
            return step if (moved == step).all() else None
        mine = moved[self.group.index]
        return int(mine[0]) if (mine == mine[0]).all() else None

    # --- going on ---

    def _resume(self, deltas: dict[int, Array]) -> int:
        """All threads go on together at the header, ``skipped`` iterations later."""
        for slot, value in zip(self.path.carried, self.state, strict=True):
            self.frame[slot] = value
        for slot, step in deltas.items():
            self.frame[slot] = _advanced(self.frame[slot], step, self.skipped)
        self._count(self.skipped)
        return self.key

    def _leave(self, deltas: dict[int, Array]) -> int | None:
        """Threads leave one after another: on to the end of the loop for all of them."""
        path, machine = self.path, self.machine
        branch = path.branches[0]
        exit_place = branch.place
        frame = self._with(self.start)
        whole = self.skipped
        if whole:
            self._count(whole)
        group = self.group
        rounds = np.zeros(machine.count, dtype=np.int64)  # whole iterations, per thread
        rounds += whole * group.mask
        iteration = whole
        marks: list[tuple[int, Group]] = [(iteration, group)]
        upto = np.zeros_like(group.stat)  # executions of runs up to the branch
        after = np.zeros_like(group.stat)
        stayed = np.zeros_like(group.lanes)
        budget = MOST_SIMULATED
        while group is not None and budget:
            budget -= 1
            if budget % 64 == 0 and self._late():
                break
            deviation = self._iterate(frame, group)
            upto += group.stat
            iteration += 1
            if deviation is not None:
                left = group.narrowed(deviation[1], negated=False)
                if left is None:
                    break
                group = left
                marks.append((iteration, group))
                # What stands behind the branch on the path is run by those who stay.
                for handlers in path.steps[exit_place + 1 :]:
                    for handler in handlers:
                        handler(frame, group)
            rounds += group.mask
            after += group.stat
            stayed += group.lanes
        for place, run in enumerate(path.runs):
            machine.run_stats[run.index] += upto if place <= exit_place else after
        machine.guarded[branch.row] += stayed if branch.taken_stays else upto[1] - stayed
        self._partial(marks, iteration, upto, whole)
        for slot in path.carried:
            self.frame[slot] = frame[slot]
        for slot, place, _ in path.written:
            step = deltas.get(slot)
            if step is not None:
                times = rounds + (self.group.mask if place <= exit_place else 0)
                self.frame[slot] = _advanced(self.frame[slot], step, times)
        trips = machine.trips.counts[self.edge.loop]
        assert trips is not None
        trips.rounds += stayed
        trips.current += rounds - whole * self.group.mask
        trips.extrapolated = True
        assert branch.leaves_to is not None
        shift = path.runs[0].start - self.key
        return machine.move(branch.leaves_to - shift, self.group, branch.edge)

    def _partial(
        self, marks: list[tuple[int, Group]], end: int, executed: Counts, whole: int
    ) -> None:
        """Accesses of iterations run by fewer and fewer threads: sampled, then added up."""
        machine, path = self.machine, self.path
        times = np.array([t for t, _ in marks])
        chosen = np.unique(np.linspace(whole, max(whole, end - 1), SAMPLES).astype(np.int64))
        earlier = self.watch.counters[0]
        rounds = len(self.watch.counters) - 1
        full = np.maximum(self.group.stat, 1)
        for number in path.sites:
            tally = machine.tallies[number]
            now, then = tally.counters(), earlier[number]
            share = executed / full  # in units of one iteration by the whole group
            step = self._moves(number)
            for index, (held, old) in enumerate(zip(now, then, strict=True)):
                per_round = (held - old) / rounds
                by = 1 if tally.counts_lanes(index) else 0
                if index == tally.SECTORS and step is not None and per_round.any():
                    at = []
                    for time in chosen:
                        active = marks[int(np.searchsorted(times, time, side="right")) - 1][1]
                        where = step[0] + step[1] * (time - whole + 1)
                        at.append(tally.measure(where, active))
                    table = np.array(at, dtype=np.float64)
                    steps = np.arange(whole, end)
                    total = [np.interp(steps, chosen, table[:, s]).sum() for s in range(table.shape[1])]
                    held += np.rint(total).astype(np.int64)
                    continue
                held += np.rint(per_round * share[by]).astype(np.int64)

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


def _step(a: Array, b: Array, c: Array) -> Array | None:
    """The constant step of an integer over three rounds, in its own unsigned width."""
    if c.dtype is BOOL or c.dtype.kind == "f":
        return None
    size = c.dtype.itemsize
    if a.dtype.itemsize != size or b.dtype.itemsize != size:
        return None
    raw = UNSIGNED[size]
    later = c.view(raw) - b.view(raw)
    earlier = b.view(raw) - a.view(raw)
    if later.shape != earlier.shape and later.size > 1 and earlier.size > 1:
        return None
    return later if (later == earlier).all() else None


def _advanced(value: Array, step: Array, times: int | Offsets) -> Array:
    raw = UNSIGNED[value.dtype.itemsize]
    if isinstance(times, int):
        count = np.array([times], dtype=np.int64).astype(raw)
    else:
        count = times.astype(raw)
    return (value.view(raw) + step * count).view(value.dtype)
