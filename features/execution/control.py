"""How runs end: branches, calls, returns, exits, barriers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wattcast.features.execution.context import (
    PARAMETERS,
    CallSite,
    Context,
    Finish,
    Frame,
    Items,
    Linked,
    LoopEdge,
    UnsupportedError,
    is_barrier,
    store,
)
from wattcast.features.execution.loads import put_parameter
from wattcast.features.execution.spaces import CODE_BASE
from wattcast.features.execution.values import (
    BOOL,
    U32,
    U64,
    Array,
    Group,
    as_type,
    constant,
    spread,
)
from wattcast.features.memory import distinct
from wattcast.features.ptx import ir

if TYPE_CHECKING:
    from wattcast.features.execution.machine import Machine
    from wattcast.features.execution.program import Program


def finish(
    program: Program, linked: Linked, context: Context, one: ir.Instruction, end: int
) -> Finish:
    """The end of a run whose last instruction is ``one``."""
    context.position = linked.base + one.position
    context.instruction = one
    falls = program.edge(linked, one.position, end)
    after = linked.base + end
    base = one.base
    try:
        if base == "bra":
            target = _label(linked, one)
            edge = program.edge(linked, one.position, target)
            taken = _jump(linked.base + target, edge)
            if one.predicate is not None:
                return _branch(program, context, one, linked.base + target, edge, after, falls)
            return taken
        if base == "brx":
            inner = _indexed(program, linked, context, one)
        elif base == "call":
            inner = _call(program, linked, context, one, after, falls)
        elif base == "ret":
            inner = leave
        elif base in ("exit", "trap"):
            inner = _exit
        elif is_barrier(one):
            inner = _barrier(context, one, after, falls)
        else:
            return _jump(after, falls)
    except (LookupError, ValueError) as error:
        inner = _unknown(one, str(error), after, falls)
    if one.predicate is None:
        return inner
    return _conditional(program, context, one, inner, after, falls)


def _label(linked: Linked, one: ir.Instruction) -> int:
    target = one.operands[0]
    if not isinstance(target, ir.Symbol):
        raise UnsupportedError("branch target")
    if target.name in linked.labels:
        return linked.labels[target.name]
    raise UnsupportedError(f"no label {target.name}")


def _unknown(one: ir.Instruction, why: str, after: int, edge: LoopEdge | None) -> Finish:
    def apply(machine: Machine, frame: Frame, group: Group, shift: int) -> int | None:
        machine.complain(
            "unsupported_instruction",
            f"{one.opcode} is counted but not executed ({why}); threads go on behind it",
            one.line,
        )
        return machine.move(after - shift, group, edge)

    return apply


def _jump(target: int, edge: LoopEdge | None) -> Finish:
    if edge is None:
        return lambda machine, frame, group, shift: target - shift
    return lambda machine, frame, group, shift: machine.move(target - shift, group, edge)


def _branch(
    program: Program, context: Context, one: ir.Instruction, target: int,
    edge: LoopEdge | None, after: int, falls: LoopEdge | None,
) -> Finish:  # fmt: skip
    assert one.predicate is not None
    slot = context.operands.slots.register(one.predicate, BOOL)
    negated = one.negated
    position = context.position
    row = program._guard_row(position)

    def apply(machine: Machine, frame: Frame, group: Group, shift: int) -> int | None:
        if position in machine.overrides:
            taken, rest = group.split(machine.overrides[position](machine), False)
        else:
            taken, rest = group.split(frame[slot], negated)
        if taken is not None:
            machine.path[-1].taken = taken
            machine.guarded[row] += taken.lanes
            if rest is None:
                key = target - shift
                return key if edge is None else machine.move(key, taken, edge)
            machine.put(machine.move(target - shift, taken, edge), taken)
        assert rest is not None
        key = machine.move(after - shift, rest, falls)
        if taken is None:
            return key
        machine.put(key, rest)
        return None

    return apply


def _conditional(
    program: Program, context: Context, one: ir.Instruction, inner: Finish,
    after: int, falls: LoopEdge | None,
) -> Finish:  # fmt: skip
    """A guarded ret, exit, call, barrier or brx."""
    assert one.predicate is not None
    slot = context.operands.slots.register(one.predicate, BOOL)
    negated = one.negated
    row = program._guard_row(context.position)

    def apply(machine: Machine, frame: Frame, group: Group, shift: int) -> int | None:
        taken, rest = group.split(frame[slot], negated)
        if taken is None:
            return machine.move(after - shift, group, falls)
        machine.guarded[row] += taken.lanes
        if rest is None:
            return inner(machine, frame, taken, shift)
        machine.put(machine.move(after - shift, rest, falls), rest)
        key = inner(machine, frame, taken, shift)
        if key is not None:
            machine.put(key, taken)
        return None

    return apply


def leave(machine: Machine, frame: Frame, group: Group, shift: int) -> int | None:
    """ret, and what stands behind the last instruction."""
    return machine.leave(frame, group, shift)


def _exit(machine: Machine, frame: Frame, group: Group, shift: int) -> int | None:
    machine.kill(group)
    return None


# --- brx.idx ---------------------------------------------------------------------------------


def _indexed(program: Program, linked: Linked, context: Context, one: ir.Instruction) -> Finish:
    index = context.operands.source(one.operands[0], U32)
    table = one.operands[1]
    if not isinstance(table, ir.Symbol):
        raise UnsupportedError("branch table")
    targets = [linked.labels[name] for name in linked.body.branch_tables[table.name]]
    edges = [program.edge(linked, one.position, t) for t in targets]

    def apply(machine: Machine, frame: Frame, group: Group, shift: int) -> int | None:
        chosen = np.minimum(as_type(frame[index], U32), len(targets) - 1)
        if chosen.shape[0] == 1:
            k = int(chosen[0])
            return machine.move(linked.base + targets[k] - shift, group, edges[k])
        for k in distinct(chosen if group.everyone else chosen[group.index]):
            part = group.narrowed(chosen == k, negated=False)
            if part is not None:
                key = machine.move(linked.base + targets[k] - shift, part, edges[k])
                machine.put(key, part)
        return None

    return apply


# --- calls -----------------------------------------------------------------------------------


def _call(
    program: Program, linked: Linked, context: Context, one: ir.Instruction,
    after: int, edge: LoopEdge | None,
) -> Finish:  # fmt: skip
    operands = list(one.operands)
    results: Items = ()
    if isinstance(operands[0], ir.Group):
        results = operands.pop(0).elements  # type: ignore[union-attr]
    callee = operands.pop(0)
    arguments: Items = ()
    if operands and isinstance(operands[0], ir.Group):
        arguments = operands[0].elements
    site = len(program.call_sites)
    program.call_sites.append(CallSite(after, results, linked.index, edge))
    # Arguments are parameter variables, registers or immediates.
    slots = [
        None
        if isinstance(a, ir.Symbol) and not context.operands.slots.is_declared(a.name)
        else context.operands.source(a, U64)
        for a in arguments
    ]
    for result in results:
        if isinstance(result, ir.Register):
            context.operands.target(result, U64)

    def enter(machine: Machine, frame: Frame, group: Group, shift: int, target: Linked) -> None:
        depth = machine.depth_of(shift) + 1
        if depth > machine.most_frames:
            machine.complain(
                "recursion_cut", f"call depth {depth} at {one.opcode}: threads stopped", one.line
            )
            machine.kill(group)
            return
        below = machine.frame(depth, target.index)
        for formal, actual, slot in zip(target.function.parameters, arguments, slots, strict=False):
            if slot is not None:
                value = frame[slot]
                if target.slots.is_declared(formal.name):
                    store(below, group, target.slots.register(formal.name), value)
                else:
                    stored = below[PARAMETERS].setdefault(formal.name, {})
                    put_parameter(stored, 0, value, group)
            else:
                assert isinstance(actual, ir.Symbol)
                pieces = frame[PARAMETERS].get(actual.name, {})
                _hand_over(pieces, below, formal.name, group)
        machine.remember(depth, site, group)
        machine.put(machine.key(target.base, depth), group)

    def missing(machine: Machine, group: Group, shift: int, name: str) -> int | None:
        machine.complain(
            "external_call", f"{name} has no body here; the call returns nothing", one.line
        )
        return machine.move(after - shift, group, edge)

    if isinstance(callee, ir.Symbol):
        target = program.by_name.get(callee.name)
        name = callee.name

        def direct(machine: Machine, frame: Frame, group: Group, shift: int) -> int | None:
            if target is None:
                return missing(machine, group, shift, name)
            enter(machine, frame, group, shift, target)
            return None

        return direct
    pointer = context.operands.source(callee, U64)

    def indirect(machine: Machine, frame: Frame, group: Group, shift: int) -> int | None:
        number = (as_type(frame[pointer], U64).astype(np.int64) - CODE_BASE) // 256
        values = number if number.shape[0] == 1 else number[group.index]
        for k in distinct(values):
            part = group if number.shape[0] == 1 else group.narrowed(number == k, negated=False)
            if part is None:
                continue
            if 0 <= k < len(program.functions):
                enter(machine, frame, part, shift, program.functions[int(k)])
            else:
                key = missing(machine, part, shift, "a function pointer")
                if key is not None:
                    machine.put(key, part)
        return None

    return indirect


def _hand_over(pieces: dict[int, Array], frame: Frame, name: str, group: Group) -> None:
    """Copy a parameter variable into another frame for the group's threads."""
    if group.full:
        frame[PARAMETERS][name] = dict(pieces)
        return
    stored = frame[PARAMETERS].setdefault(name, {})
    for offset, value in pieces.items():
        put_parameter(stored, offset, value, group)


def give_back(
    program: Program, machine: Machine, site_number: int, below: Frame, callee: Linked,
    group: Group, depth: int,
) -> int:  # fmt: skip
    """Copy a function's results into its caller's frame; the key where the group goes on."""
    site = program.call_sites[site_number]
    caller = program.functions[site.caller]
    frame = machine.frame(depth - 1, site.caller)
    for formal, result in zip(callee.function.returns, site.results, strict=False):
        if isinstance(result, ir.Register):
            slot = caller.slots.register(result.name)
            size = caller.slots.sizes[slot]
            if callee.slots.is_declared(formal.name):
                value = below[callee.slots.register(formal.name)]
            else:
                stored = below[PARAMETERS].get(formal.name, {})
                value = stored.get(0, np.zeros(1, dtype=U32))
            if size and value.dtype.itemsize != size:
                value = as_type(value, np.dtype(f"u{size}"))
            store(frame, group, slot, value)
        elif isinstance(result, ir.Symbol):
            if callee.slots.is_declared(formal.name):
                pieces = {0: below[callee.slots.register(formal.name)]}
            else:
                pieces = below[PARAMETERS].get(formal.name, {})
            _hand_over(pieces, frame, result.name, group)
    key = machine.key(site.after, depth - 1)
    if site.edge is not None:
        machine.move(key, group, site.edge)
    return key


# --- barriers --------------------------------------------------------------------------------


CLUSTER_BARRIER = 16
"""The number under which threads wait for a cluster: one more than blocks have (PTX ISA, bar)."""


def _barrier(context: Context, one: ir.Instruction, after: int, edge: LoopEdge | None) -> Finish:
    items = one.operands
    operands = context.operands
    if "red" in one.opcode.split("."):
        return _reducing(context, one, after, edge)
    number = operands.source(items[0], U32) if items else None
    if "cluster" in one.modifiers:
        number = operands.slots.constant(constant(CLUSTER_BARRIER, U32))
    count = operands.source(items[1], U32) if len(items) > 1 else None

    def apply(machine: Machine, frame: Frame, group: Group, shift: int) -> int | None:
        key = machine.move(after - shift, group, edge)
        if count is None and group.full and not machine.barriers.waiting:
            return key  # everyone alive is here
        name = 0 if number is None else int(spread(as_type(frame[number], U32), machine.count)
                                            [group.index[0]])  # fmt: skip
        wanted = None
        if count is not None:
            wanted = int(spread(as_type(frame[count], U32), machine.count)[group.index[0]])
        machine.barriers.wait(name, key, group, wanted)
        return None

    return apply


def _reducing(context: Context, one: ir.Instruction, after: int, edge: LoopEdge | None) -> Finish:
    """bar.red: the predicate of all threads of the block is reduced when the last arrives."""
    operands = context.operands
    mode = next(m for m in one.opcode.split(".") if m in ("popc", "and", "or"))
    target_type = U32 if mode == "popc" else BOOL
    target = operands.target(one.operands[0], target_type)
    predicate, negated = operands.predicate(one.operands[-1])

    def apply(machine: Machine, frame: Frame, group: Group, shift: int) -> int | None:
        key = machine.move(after - shift, group, edge)
        value = as_type(frame[predicate], BOOL)
        value = spread(~value if negated else value, machine.count) & group.mask

        def deliver(together: Group, values: Array) -> None:
            per_slot = (values & together.mask).reshape(machine.slots, -1)
            members = together.mask.reshape(machine.slots, -1)
            if mode == "popc":
                reduced = per_slot.sum(axis=1).astype(U32)
            elif mode == "or":
                reduced = per_slot.any(axis=1)
            else:
                reduced = (per_slot | ~members).all(axis=1)
            result = np.repeat(reduced, machine.per_block)
            store(frame, together, target, result)

        if group.full and not machine.barriers.waiting:
            deliver(group, value)
            return key
        machine.barriers.wait(0, key, group, None, (deliver, value))
        return None

    return apply
