"""Instructions at which the lanes of a warp meet: shuffle, vote, match, redux, activemask.

A compiled collective has two functions: ``members(thread)``, the lanes it waits for (None: it
waits for nobody), and ``run(threads)``, the joint execution of the lanes whose guard is true,
which returns ``(sectors, shared transactions)``.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.reference.asynchronous import compile_wgmma
from tests.reference.integers import reader
from tests.reference.matrix import compile_matrix
from tests.reference.parse import Instruction, Operand
from tests.reference.slots import Slots

Lanes = list[Any]
Result = tuple[int, int]
NOTHING: Result = (0, 0)


class Collective(NamedTuple):
    members: Callable[[Any], int] | None
    run: Callable[[Lanes], Result]


def compile_collective(ins: Instruction, slots: Slots) -> Collective | None:
    words = ins.opcode.split(".")
    base = words[0]
    if base in ("ldmatrix", "stmatrix", "mma", "wmma"):
        return Collective(lambda t: 0xFFFFFFFF, compile_matrix(ins, slots))
    if base == "wgmma":
        return Collective(lambda t: 0xFFFFFFFF, compile_wgmma(ins, slots))
    builders = {"shfl": _shuffle, "vote": _vote, "match": _match, "redux": _redux,
                "activemask": _active, "elect": _elect}  # fmt: skip
    if ins.opcode == "bar.warp.sync":
        return Collective(_member_mask(ins.operands[0], slots), lambda lanes: NOTHING)
    if base not in builders:
        return None
    members = None
    if "sync" in words:
        members = _member_mask(ins.operands[-1], slots)
    return Collective(members, builders[base](ins, slots, members))


def _member_mask(operand: Operand, slots: Slots) -> Callable[[Any], int]:
    mask = slots.source(operand, "b32")
    return lambda t: t.regs[mask]


def _peers(lanes: Lanes, thread: Any, members: Callable[[Any], int] | None) -> Lanes:
    """The executing lanes that are members for ``thread``."""
    if members is None:
        return lanes
    mask = members(thread)
    return [other for other in lanes if mask >> other.lane & 1]


def _outputs(operand: Operand, slots: Slots) -> tuple[int, int]:
    if operand.kind == "pair":
        return slots.dest(operand.parts[0]), slots.dest(operand.parts[1])
    return slots.dest(operand), Slots.SINK


def _shuffle(ins: Instruction, slots: Slots, members: Any) -> Callable[[Lanes], Result]:
    mode = next(w for w in ins.opcode.split(".") if w in ("up", "down", "bfly", "idx"))
    d, p = _outputs(ins.operands[0], slots)
    a, b, c = (slots.source(o, "b32") for o in ins.operands[1:4])

    def run(lanes: Lanes) -> Result:
        values = {t.lane: t.regs[a] for t in lanes}
        for t in lanes:
            by, bound = t.regs[b] & 31, t.regs[c]
            segment = bound >> 8 & 31
            low = t.lane & segment
            high = low | (bound & 31 & ~segment)
            if mode == "up":
                source = t.lane - by
                inside = source >= high
            else:
                source = {"down": t.lane + by, "bfly": t.lane ^ by,
                          "idx": low | (by & ~segment)}[mode]  # fmt: skip
                inside = source <= high
            if not inside:
                source = t.lane
            # Reading a lane that does not take part is undefined; here it gives one's own value.
            t.regs[d] = values.get(source, values[t.lane])
            t.regs[p] = int(inside)
        return NOTHING

    return run


def _vote(ins: Instruction, slots: Slots, members: Any) -> Callable[[Lanes], Result]:
    mode = next(w for w in ins.opcode.split(".") if w in ("all", "any", "uni", "ballot"))
    d = slots.dest(ins.operands[0])
    a, flip = slots.predicate(ins.operands[1])

    def run(lanes: Lanes) -> Result:
        answers = []
        for t in lanes:
            votes = {u.lane: u.regs[a] ^ flip for u in _peers(lanes, t, members)}
            if mode == "ballot":
                answers.append(sum(vote << lane for lane, vote in votes.items()))
            else:
                every, some = all(votes.values()), any(votes.values())
                answers.append(int({"all": every, "any": some, "uni": every or not some}[mode]))
        for t, answer in zip(lanes, answers, strict=True):
            t.regs[d] = answer
        return NOTHING

    return run


def _match(ins: Instruction, slots: Slots, members: Any) -> Callable[[Lanes], Result]:
    d, p = _outputs(ins.operands[0], slots)
    a = slots.source(ins.operands[1], ins.opcode.split(".")[-1])
    need_all = ".all." in ins.opcode

    def run(lanes: Lanes) -> Result:
        values = {t.lane: t.regs[a] for t in lanes}
        for t in lanes:
            peers = [u.lane for u in _peers(lanes, t, members)]
            equal = [lane for lane in peers if values[lane] == values[t.lane]]
            agreed = len(equal) == len(peers)
            t.regs[d] = sum(1 << lane for lane in equal) if agreed or not need_all else 0
            t.regs[p] = int(agreed)
        return NOTHING

    return run


def _redux(ins: Instruction, slots: Slots, members: Any) -> Callable[[Lanes], Result]:
    words = ins.opcode.split(".")
    operation, kind = words[2], words[-1]
    d, a = slots.dest(ins.operands[0]), slots.source(ins.operands[1], kind)
    value = reader(kind)
    fold = {"add": operator.add, "min": min, "max": max, "and": operator.and_,
            "or": operator.or_, "xor": operator.xor}[operation]  # fmt: skip

    def run(lanes: Lanes) -> Result:
        values = {t.lane: value(t.regs[a]) for t in lanes}
        for t in lanes:
            mine = [values[u.lane] for u in _peers(lanes, t, members)]
            t.regs[d] = functools.reduce(fold, mine) & 0xFFFFFFFF
        return NOTHING

    return run


def _active(ins: Instruction, slots: Slots, members: Any) -> Callable[[Lanes], Result]:
    d = slots.dest(ins.operands[0])

    def run(lanes: Lanes) -> Result:
        mask = sum(1 << t.lane for t in lanes)
        for t in lanes:
            t.regs[d] = mask
        return NOTHING

    return run


def _elect(ins: Instruction, slots: Slots, members: Any) -> Callable[[Lanes], Result]:
    d, p = _outputs(ins.operands[0], slots)

    def run(lanes: Lanes) -> Result:
        for t in lanes:
            leader = min(u.lane for u in _peers(lanes, t, members))
            t.regs[d] = leader
            t.regs[p] = int(t.lane == leader)
        return NOTHING

    return run
