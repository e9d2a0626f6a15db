"""The way round a loop, analysed: what steers it, what it writes, how it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.dataflow import reads, writes
from wattcast.features.errors import checkpoint
from wattcast.features.execution.barriers import always_true
from wattcast.features.execution.context import Frame, Handler, Linked, Run
from wattcast.features.execution.loads import addresses
from wattcast.features.execution.spaces import GLOBAL_SPACES, Offsets
from wattcast.features.execution.tally import Tally
from wattcast.features.execution.values import (
    ACCESS_UNITS,
    BOOL,
    ISSUE_UNITS,
    S64,
    SLICE_UNITS,
    Array,
    Counts,
    Group,
    as_type,
    constant,
)
from wattcast.features.integers import UNSIGNED
from wattcast.features.isa import classify
from wattcast.features.memory import SECTOR_SHIFT
from wattcast.features.ptx import ir

if TYPE_CHECKING:
    from wattcast.features.execution.machine import Machine
    from wattcast.features.execution.program import Program


# What skipped iterations of a loop touch where their addresses do more than advance steadily.
#
# Addresses that wrap, fold or are chosen from others are computed for some of the iterations, and
# nothing else is.

MOST_WALKED, MOST_WALK_UNITS = 64, 8_000_000
"""Skipped iterations whose addresses are computed one by one, and units of work they may cost."""
_PURE = frozenset({"fma", "fp32", "fp64", "fp16", "int", "sfu"})
_LINEAR = frozenset({"mov", "add", "sub", "mul", "mad", "shl", "cvt", "cvta", "selp"})


class Touch(NamedTuple):
    """A step of the walk: a handler, or the access of ``site`` at ``slot`` plus ``offset`` by the
    lanes whose ``guard`` (slot, negated) holds."""

    handler: Handler | None
    site: int = 0
    slot: int = 0
    offset: int = 0
    guard: tuple[int, bool] | None = None


Walk = tuple[tuple[Touch, ...], ...]
"""What to do at each place of a path."""


def plan_walk(
    program: Program, linked: Linked, runs: tuple[Run, ...],
    chains: list[tuple[ir.Instruction, ...]], definitions: dict[str, list[ir.Instruction]],
) -> Walk | None:  # fmt: skip
    """How to go on walking through global memory (``Path.walk``)."""
    inside = {linked.base + one.position: one for chain in chains for one in chain}
    touches: dict[int, Touch] = {}
    wanted: set[str] = set()
    for site in program.sites:
        if site.space not in GLOBAL_SPACES or site.position not in inside:
            continue
        one = inside[site.position]
        operands = [o for o in one.operands if isinstance(o, ir.Address)]
        if one.base not in ("ld", "st", "atom", "red") or len(operands) != 1:
            return None
        base, guard = operands[0].base, None
        if not isinstance(base, ir.Register):
            return None
        wanted.add(base.name)
        if one.predicate is not None:
            wanted.add(one.predicate)
            guard = linked.slots.register(one.predicate, BOOL), one.negated
        slot = linked.slots.register(base.name)
        touches[site.position] = Touch(None, site.number, slot, operands[0].offset, guard)
    if not gather_slice(wanted, definitions):
        return None
    if _advances(wanted - _decided(wanted, definitions), definitions):
        return None
    steps = []
    for run, chain in zip(runs, chains, strict=True):
        chosen = []
        for one in chain:
            position = linked.base + one.position
            handler = run.by_position.get(position)
            if position in touches:
                chosen.append(touches[position])
            elif wanted.intersection(writes(one)) and handler is not None:
                chosen.append(Touch(handler))
        steps.append(tuple(chosen))
    return tuple(steps)


def _advances(wanted: set[str], definitions: dict[str, list[ir.Instruction]]) -> bool:
    """Whether all of some registers are sums of others, or multiples by what does not change;
    predicates among these stay what they are."""
    changing = {name for name in wanted if name in definitions}
    fixed = {""}
    while fixed:
        fixed = {
            name
            for name in changing
            if len(definitions[name]) == 1
            and definitions[name][0].predicate not in changing
            and changing.isdisjoint(reads(definitions[name][0]))
        }
        changing -= fixed
    for name in changing:
        for one in definitions[name]:
            factors = {"mul": 2, "mad": 2, "shl": 2}.get(one.base, 0)
            varying = [
                isinstance(o, ir.Register) and o.name in changing
                for o in one.operands[1 : 1 + factors]
            ]
            shift = one.base == "shl" and varying[1]
            if one.predicate in changing or shift or sum(varying) > 1:
                return False
            if one.base not in _LINEAR and not changing.isdisjoint(reads(one)):
                return False
    return True


def gather_slice(wanted: set[str], definitions: dict[str, list[ir.Instruction]]) -> bool:
    """Complete the registers that steer the path; whether all of it can be simulated."""
    waiting = list(wanted)
    while waiting:
        for one in definitions.get(waiting.pop(), ()):
            facts = classify(one.opcode)
            # The simulated slice cannot know memory, other threads and time.
            if always_true(one):
                continue
            pure = facts.category in ("compute", "move", "convert") and facts.pipe in _PURE
            if not pure and facts.space != "param":
                return False
            if any(isinstance(o, ir.Special) and "clock" in o.name for o in one.operands):
                return False
            for name in reads(one):
                if name not in wanted:
                    wanted.add(name)
                    waiting.append(name)
    return True


class Walked(NamedTuple):
    """Where a walk stands after ``end`` iterations: of the trace, the last addresses, and how many
    sectors of each slot are listed."""

    end: int
    mark: int
    addresses: list[Offsets]
    listed: list[Counts]


def walk_on(
    machine: Machine, walk: Walk, sites: tuple[int, ...], groups: list[Group], frame: Frame,
    iterations: int,
) -> None:  # fmt: skip
    """Footprint and trace of skipped iterations, each place gone through by its group.

    Some iterations are gone through until the addresses come round again, or enough were; the
    later half of them stands for what follows. No buffer has more sectors than it has.
    """
    tallies = [machine.tallies[n] for n in sites if machine.program.sites[n].space in GLOBAL_SPACES]
    counted = [
        (each, each.requests.copy(), each.sectors.copy(), each.l1_millicycles.copy())
        for each in tallies
    ]
    marks = [_walked(machine, 0, tallies)]
    end, limit = 0, machine.effort.spent + MOST_WALK_UNITS
    while end < min(iterations, MOST_WALKED) and machine.effort.spent < limit:
        _go_round(machine, walk, groups, frame)
        end += 1
        if machine.effort.gone:
            break
        if end & (end - 1) == 0:
            marks.append(_walked(machine, end, tallies))
            pairs = zip(marks[-2].addresses, marks[-1].addresses, strict=True)
            if all(np.array_equal(before, now) for before, now in pairs):
                break
    for tally, requests, sectors, millicycles in counted:
        if machine.trace is not None:
            machine.trace.clock += (tally.requests - requests) // end * (iterations - end)
        np.copyto(tally.requests, requests)
        np.copyto(tally.sectors, sectors)
        np.copyto(tally.l1_millicycles, millicycles)
    since = next(mark for mark in reversed(marks) if 2 * mark.end <= end)
    more = (iterations - end) / (end - since.end)
    if not more:
        return
    if machine.trace is not None:
        machine.trace.repeat(since.mark, more, np.zeros(machine.slots, dtype=np.int64))
    for tally, earlier in zip(tallies, since.listed, strict=True):
        listed = tally.log.per_slot(machine.slots)
        last, group = tally.last, tally.last_group
        first = 0 if last is None or group is None else int(last[group.index[0] % last.size])
        region = machine.memory.find(first)
        most = region.size >> SECTOR_SHIFT if region else 0
        room = np.maximum(0, most - listed - tally.extra)
        tally.extra += np.minimum(room, np.rint((listed - earlier) * more).astype(np.int64))


def _walked(machine: Machine, end: int, tallies: list[Tally]) -> Walked:
    trace = machine.trace
    return Walked(
        end,
        0 if trace is None else trace.mark,
        [np.empty(0, np.int64) if tally.last is None else tally.last for tally in tallies],
        [tally.log.per_slot(machine.slots) for tally in tallies],
    )


def _go_round(machine: Machine, walk: Walk, groups: list[Group], frame: Frame) -> None:
    """Touch what one more iteration touches."""
    for group, touches in zip(groups, walk, strict=True):
        for touch in touches:
            if touch.handler is not None:
                touch.handler(frame, group)
                machine.effort.spent += SLICE_UNITS + group.count
                continue
            part: Group | None = group
            if touch.guard is not None:
                slot, negated = touch.guard
                part = group.narrowed(as_type(frame[slot], BOOL), negated)
            if part is not None:
                where = addresses(frame, touch.slot, touch.offset)
                site = machine.program.sites[touch.site]
                tally = machine.tallies[touch.site]
                tally.count_global(where, part, site.width if site.loads else 0)
                machine.effort.spent += ISSUE_UNITS + ACCESS_UNITS * part.count
    checkpoint()


_ORDERS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"})


class Compare(NamedTuple):
    """An integer comparison of slots or constants; ``same``: of a slot with its value before."""

    name: str
    sides: tuple[int | Array, int | Array]
    signed: bool


class Path(NamedTuple):
    """One way round a loop: runs in the order executed (an inner loop's run appears again).

    ``steps`` are the handlers of the slice at each place, with what each compares. ``written`` are
    the slots it writes whose steps are to be known (so are the slice's own), or are followed only
    where they are constant. ``walk`` computes at each place
    the addresses in global memory, where they may do anything but advance by constant steps and
    nothing that was loaded decides them.
    """

    runs: tuple[Run, ...]
    steps: tuple[tuple[tuple[Handler, tuple[Compare, ...]], ...], ...]
    written: tuple[tuple[int, bool], ...]
    sites: tuple[int, ...]
    instructions: int
    walk: Walk | None


def analyse(program: Program, runs: tuple[Run, ...]) -> Path | None:
    """What steers a path and what it writes; ``None`` if that does not advance by constant steps,
    as long as every comparison keeps its outcome."""
    linked = program.functions[runs[0].function]
    if any(run.function != runs[0].function for run in runs):
        return None
    body, slots = linked.body.instructions, linked.slots
    chains = [body[run.start - linked.base : run.end - linked.base] for run in runs]
    definitions: dict[str, list[ir.Instruction]] = {}
    wanted: set[str] = set()
    for chain in dict(zip(runs, chains, strict=True)).values():
        for one in chain:
            base = one.base
            if base in ("call", "brx") or (base in ("ret", "exit", "trap") and not one.predicate):
                return None
            for name in writes(one):
                definitions.setdefault(name, []).append(one)
            if one.predicate is not None:
                wanted.add(one.predicate)
                ends = base in ("ret", "exit", "trap", "bar", "barrier")
                if ends and one is chain[-1]:
                    return None
    if not gather_slice(wanted, definitions):
        return None
    decided = _decided(wanted, definitions)
    steps: list[tuple[tuple[Handler, tuple[Compare, ...]], ...]] = []
    written: dict[int, bool] = {}
    outside = program.critical(linked, frozenset(one.position for chain in chains for one in chain))
    for run, chain in zip(runs, chains, strict=True):
        chosen = []
        for one in chain:
            names = writes(one)
            for name in set(names) - decided:
                slot = slots.register(name)
                written[slot] = name in wanted or slot in outside
            if wanted.isdisjoint(names):
                continue
            handler = run.by_position.get(linked.base + one.position)
            if handler is None:
                return None
            chosen.append((handler, _kept(linked, one, definitions)))
        steps.append(tuple(chosen))
    positions = {p for run in runs for p in range(run.start, run.end)}
    return Path(
        runs,
        tuple(steps),
        tuple(written.items()),
        tuple(site.number for site in program.sites if site.position in positions),
        sum(map(len, chains)),
        plan_walk(program, linked, runs, chains, definitions),
    )


def _decided(wanted: set[str], definitions: dict[str, list[ir.Instruction]]) -> set[str]:
    """Predicates: what comparisons tell, or other predicates."""
    return {
        name
        for name in wanted
        if all(o.base == "setp" or "pred" in o.modifiers[-1:] for o in definitions.get(name, ()))
    }


def _kept(
    linked: Linked, one: ir.Instruction, definitions: dict[str, list[ir.Instruction]]
) -> tuple[Compare, ...]:
    """What must stay so that the result of an instruction of the slice goes on in equal steps."""
    compare = comparison(linked, one)
    if compare is not None or always_true(one):
        return () if compare is None else (compare,)
    bent: tuple[ir.Operand, ...] = ()
    if one.base in ("mul", "mad", "shl"):
        bent = one.operands[2 if one.base == "shl" else 1 : 3]
    elif one.modifiers[-1:] != ("pred",) and (
        one.base not in _LINEAR or (one.base == "cvt" and one.modifiers[-1][1:] in ("8", "16"))
    ):
        bent = one.operands[1:]
    changing = [o.name for o in bent if isinstance(o, ir.Register) and o.name in definitions]
    if one.base in ("mul", "mad") and "hi" not in one.modifiers and len(changing) < 2:
        return ()  # a multiple by what stands still
    slots = map(linked.slots.register, changing)
    return tuple(Compare("same", (slot, slot), False) for slot in slots)


def comparison(linked: Linked, one: ir.Instruction) -> Compare | None:
    """What an instruction compares, if these are integers: least and greatest ones too."""
    modifiers = one.modifiers
    name = modifiers[0] if one.base == "setp" else "lt" if one.base in ("min", "max") else ""
    kind = modifiers[-1] if modifiers else ""
    if name not in _ORDERS or kind[0] not in "usb" or kind[1:] not in ("32", "64"):
        return None
    sides: list[int | Array] = []
    for operand in one.operands[1:3]:
        if isinstance(operand, ir.Register):
            sides.append(linked.slots.register(operand.name))
        elif isinstance(operand, ir.Immediate):
            sides.append(constant(int(operand.value), UNSIGNED[int(kind[1:]) // 8]))
        else:
            return None
    return Compare(name, (sides[0], sides[1]), kind[0] == "s")


def sides_of(compare: Compare, frame: Frame) -> tuple[Array, Array]:
    """The values that are compared."""
    left, right = (frame[side] if isinstance(side, int) else side for side in compare.sides)
    return left, right


def keeps_for(
    compare: Compare, earlier: tuple[Array, ...], later: tuple[Array, ...], count: int
) -> npt.NDArray[np.float64]:
    """For how many more iterations a comparison keeps its outcome, per thread (inf: for ever),
    whose sides were these in the last two.

    Never beyond where a register would wrap around.
    """
    if compare.name == "same":
        return np.where(np.broadcast_to(earlier[0] == later[0], count), np.inf, 0.0)
    sides = []
    limit: Array = np.full(count, np.inf)
    signed = compare.signed
    for before, value in zip(earlier, later, strict=True):
        size = value.dtype.itemsize
        if value.dtype.kind == "f" or before.dtype.itemsize != size:
            return np.zeros(count)
        if size == 8 and not signed and bool((value.view(S64) < 0).any()):
            return np.zeros(count)
        kind = np.dtype(f"{'i' if signed else 'u'}{size}")
        whole = value.view(kind).astype(np.float64)
        raw = UNSIGNED[size]
        rate = (value.view(raw) - before.view(raw)).view(np.dtype(f"i{size}")).astype(np.float64)
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
