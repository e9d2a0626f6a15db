"""The way round a loop, analysed: what steers it, what it writes, how it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.dataflow import writes
from wattcast.features.execution.context import Frame, Handler, Linked, Run
from wattcast.features.execution.spaces import Offsets
from wattcast.features.execution.values import BOOL, S64, Array, Counts, Group, constant
from wattcast.features.execution.walks import Walk, gather_slice, plan_walk
from wattcast.features.integers import UNSIGNED
from wattcast.features.ptx import ir

if TYPE_CHECKING:
    from wattcast.features.execution.program import Program


_ORDERS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"})


class Compare(NamedTuple):
    """An integer comparison of slots or constants."""

    name: str
    sides: tuple[int | Array, int | Array]
    signed: bool


class Branch(NamedTuple):
    """A conditional branch on the path."""

    place: int
    slot: int
    negated: bool
    compare: Compare | None


class Guard(NamedTuple):
    """A predicated instruction on the path."""

    place: int
    slot: int
    negated: bool
    row: int


class Path(NamedTuple):
    """One way round a loop: runs in the order executed (an inner loop's run appears again).

    ``steps`` are the handlers of the slice at each place, ``carried`` the slots they write;
    ``written`` every other slot written, with the place of its last write and whether anything
    outside that steers or addresses reads it. ``blocks`` are the loop's instructions
    ``[low, high)`` by global number, if the loop is contiguous. ``walk`` computes at each place
    the addresses in global memory, where they may do anything but advance by constant steps and
    nothing that was loaded decides them.
    """

    runs: tuple[Run, ...]
    steps: tuple[tuple[Handler, ...], ...]
    carried: tuple[int, ...]
    branches: tuple[Branch, ...]
    guards: tuple[Guard, ...]
    sites: tuple[int, ...]
    written: tuple[tuple[int, int, bool], ...]
    instructions: int
    walk: Walk | None


def analyse(program: Program, runs: tuple[Run, ...]) -> Path | None:
    """What steers a path and what it writes; ``None`` if it cannot be simulated."""
    linked = program.functions[runs[0].function]
    if any(run.function != runs[0].function for run in runs):
        return None
    body, slots = linked.body.instructions, linked.slots
    chains = [body[run.start - linked.base : run.end - linked.base] for run in runs]
    branching: list[tuple[int, ir.Instruction]] = []
    guards: list[Guard] = []
    definitions: dict[str, list[ir.Instruction]] = {}
    wanted: set[str] = set()
    seen: set[int] = set()
    for place, (run, chain) in enumerate(zip(runs, chains, strict=True)):
        for one in chain:
            base = one.base
            if base == "mbarrier" or "mbarrier" in one.opcode:
                return None  # phases count the rounds
            if base in ("call", "brx") or (base in ("ret", "exit", "trap") and not one.predicate):
                return None
            if run.index not in seen:
                for name in writes(one):
                    definitions.setdefault(name, []).append(one)
            if one.predicate is None:
                continue
            wanted.add(one.predicate)
            if base == "bra":
                branching.append((place, one))
            elif one is chain[-1] and base in ("ret", "exit", "trap", "bar", "barrier"):
                return None
            else:
                slot = slots.register(one.predicate, BOOL)
                row = program.guarded[linked.base + one.position]
                guards.append(Guard(place, slot, one.negated, row))
        seen.add(run.index)
    if not gather_slice(wanted, definitions):
        return None
    steps: list[tuple[Handler, ...]] = []
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
    branches = tuple(
        Branch(
            place,
            slots.register(one.predicate or "", BOOL),
            one.negated,
            comparison(linked, one.predicate or "", definitions),
        )
        for place, one in branching
    )
    inside = frozenset(one.position for chain in chains for one in chain)
    outside = program.critical(linked, inside)
    positions = {p for run in runs for p in range(run.start, run.end)}
    return Path(
        runs,
        tuple(steps),
        tuple(sorted(carried)),
        branches,
        tuple(guards),
        tuple(site.number for site in program.sites if site.position in positions),
        tuple((s, p, s in outside) for s, p in last_write.items() if s not in carried),
        instructions,
        plan_walk(program, linked, runs, chains, definitions),
    )


def comparison(
    linked: Linked, predicate: str, definitions: dict[str, list[ir.Instruction]]
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


def keeps_for(
    compare: Compare, steps: dict[int, Array], frame: Frame, count: int
) -> npt.NDArray[np.float64]:
    """For how many more iterations a comparison keeps its outcome, per thread (inf: for ever).

    ``steps`` holds what the compared registers advance by in every iteration; a register that
    is not in it stands still. Never beyond where a register would wrap around.
    """
    sides = []
    limit: Array = np.full(count, np.inf)
    signed = compare.signed
    for side in compare.sides:
        value = frame[side] if isinstance(side, int) else side
        size = value.dtype.itemsize
        if size == 8 and not signed and bool((value.view(S64) < 0).any()):
            return np.zeros(count)
        kind = np.dtype(f"{'i' if signed else 'u'}{size}")
        whole = value.view(kind).astype(np.float64)
        step = steps.get(side) if isinstance(side, int) else None
        rate = np.zeros(1) if step is None else step.view(np.dtype(f"i{size}")).astype(float)
        bound = np.iinfo(kind)
        room = np.where(rate > 0, bound.max - whole, whole - bound.min)
        limit = np.minimum(limit, np.where(rate != 0, room / np.maximum(np.abs(rate), 1), np.inf))
        sides.append((whole, rate))
    gap = sides[0][0] - sides[1][0]
    rate = sides[0][1] - sides[1][1]
    with np.errstate(all="ignore"):
        zero = -gap / rate
    reach = np.where((rate != 0) & (zero >= 0), np.floor(zero), np.inf)
    if compare.name in ("eq", "ne"):  # only where the two become exactly equal
        reach = np.where(reach == zero, reach, np.inf)
    return np.minimum(limit, reach)


def step_of(a: Array, b: Array, c: Array) -> Array | None:
    """The constant step of an integer over three rounds, in its own unsigned width."""
    if c.dtype is BOOL or c.dtype.kind == "f":
        return None
    size = c.dtype.itemsize
    if a.dtype.itemsize != size or b.dtype.itemsize != size:
        return None
    raw = UNSIGNED[size]
    later = c.view(raw) - b.view(raw)
    earlier = b.view(raw) - a.view(raw)
    return later if bool((later == earlier).all()) else None


# --- rounds of a loop as they were watched: who ran what, and what was counted meanwhile ----------


@dataclass(slots=True, eq=False)
class Step:
    """One execution of a run: by whom, and which of them took its branch."""

    run: Run
    group: Group
    taken: Group | None = None

    def alike(self, other: Step) -> bool:
        """The same run by the same threads, with the same threads branching."""
        return (
            self.run is other.run
            and same(self.group, other.group)
            and same(self.taken, other.taken)
        )


def same(one: Group | None, other: Group | None) -> bool:
    if one is other:
        return True
    if one is None or other is None or one.count != other.count:
        return False
    return np.array_equal(one.mask, other.mask)


Counters = dict[int, list[Counts]]


@dataclass(slots=True, eq=False)
class Watch:
    """The recent rounds of one loop by one group."""

    group: Group
    steps: list[Step]
    rounds: int = 0
    path: Path | None = None
    frames: list[Frame] = field(default_factory=list)
    counters: list[Counters] = field(default_factory=list)
    run_stats: list[Counts] = field(default_factory=list)
    guarded: list[Counts] = field(default_factory=list)
    addresses: list[dict[int, Offsets | None]] = field(default_factory=list)
    inner: list[dict[int, tuple[Counts, Counts]]] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    seen: list[dict[int, tuple[tuple[int, int], Counts]]] = field(default_factory=list)
    """Footprint mark and extra sectors of each access."""

    def matches(self, group: Group, steps: list[Step]) -> bool:
        """Whether the loop was gone round as before."""
        return (
            len(steps) == len(self.steps)
            and same(self.group, group)
            and all(a.alike(b) for a, b in zip(steps, self.steps, strict=True))
        )
