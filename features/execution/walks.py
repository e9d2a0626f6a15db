"""What skipped iterations of a loop touch where their addresses do more than advance steadily.

Addresses that wrap, fold or are chosen from others are computed for some of the iterations, and
nothing else is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wattcast.features.dataflow import reads, writes
from wattcast.features.errors import checkpoint
from wattcast.features.execution.context import Frame, Handler, Linked, Run
from wattcast.features.execution.loads import addresses
from wattcast.features.execution.spaces import GLOBAL_SPACES, Offsets
from wattcast.features.execution.tally import Tally
from wattcast.features.execution.values import (
    ACCESS_UNITS,
    BOOL,
    ISSUE_UNITS,
    SLICE_UNITS,
    Counts,
    Group,
    as_type,
)
from wattcast.features.isa import classify
from wattcast.features.memory import SECTOR_SHIFT
from wattcast.features.ptx import ir

if TYPE_CHECKING:
    from wattcast.features.execution.machine import Machine
    from wattcast.features.execution.program import Program

MOST_WALKED, MOST_WALK_UNITS = 64, 8_000_000
"""Skipped iterations whose addresses are computed one by one, and units of work they may cost."""
_PURE = frozenset({"fma", "fp32", "fp64", "fp16", "int", "sfu"})
_LINEAR = frozenset({"mov", "add", "sub", "mul", "mad", "shl", "cvt", "cvta"})


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
    if not gather_slice(wanted, definitions) or _advances(wanted, definitions):
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
    """Whether all of some registers are sums of others, or multiples by what does not change."""
    changing = {name for name in wanted if name in definitions}
    fixed = {""}
    while fixed:
        fixed = {
            name
            for name in changing
            if len(definitions[name]) == 1
            and definitions[name][0].predicate is None
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
            if one.predicate is not None or shift or sum(varying) > 1:
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
