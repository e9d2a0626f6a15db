"""Handlers of what blocks of a cluster do to each other, and of multimem (PTX ISA 9.0).

Blocks of a cluster do alike, so what others do to a block is taken to be what it does to them: an
address in another block's shared memory is the block's own.
"""

from __future__ import annotations

import numpy as np

from wattcast.features.execution import access, atomics, bulk, loads, mbarriers
from wattcast.features.execution.context import Context
from wattcast.features.execution.groups import Group
from wattcast.features.execution.integer import Operation
from wattcast.features.execution.operands import (
    Frame,
    Handler,
    Items,
    elements,
    pure,
    store,
)
from wattcast.features.execution.values import (
    BOOL,
    S64,
    TYPES,
    U8,
    U32,
    U64,
    Array,
    as_type,
    spread,
)
from wattcast.features.execution.warp import Builder
from wattcast.features.ptx import ir


def other_block(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """mapa: the same address."""
    kind = TYPES[modifiers[-1]]
    return pure(Operation(lambda a: a, (kind,), kind), context.operands, items)


def own_rank(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """getctarank: of an address that is the block's own."""
    target = context.operands.target(items[0], U32)
    rank = context.operands.slots.special("%cluster_ctarank")

    def handler(frame: Frame, group: Group) -> None:
        store(frame, group, target, as_type(frame[rank], U32))

    return handler


def asynchronous(
    context: Context, base: str, modifiers: tuple[str, ...], items: Items
) -> Handler | None:
    """st.async and red.async tell a barrier of their bytes; st.bulk writes zeros."""
    if modifiers[0] == "bulk":
        return _fill(context, items)
    kept = tuple(m for m in modifiers if "mbarrier" not in m and m not in ("async", "bytes"))
    if base == "red":
        inner: Handler = atomics.build(context, base, kept, items[:2])
    else:
        inner = loads.save(context, kept, items[:2])
    if len(items) < 3:  # to global memory: no barrier
        return inner
    slot, offset = context.operands.address(items[2])

    def handler(frame: Frame, group: Group) -> None:
        inner(frame, group)
        for address, _ in mbarriers.places(frame, slot, offset, group):
            group.machine.mbarriers.at(address)

    return handler


def _fill(context: Context, items: Items) -> Handler:
    """st.bulk: zeros, 128 bytes at a time."""
    slot, offset = context.operands.address(items[0])
    size = context.operands.source(items[1], U64)
    site = context.site("shared", 16, stores=True)

    def handler(frame: Frame, group: Group) -> None:
        machine = group.machine
        lengths = spread(as_type(frame[size], U64).astype(S64), machine.count)[group.index]
        lengths = np.clip(lengths, 0, machine.shared.size)
        owner = group.index // machine.per_block
        tally = machine.tallies[site.number]
        tally.shared_requests += group.warps
        np.add.at(tally.transactions, owner, -(-lengths // bulk.PASS_BYTES))
        where = access.in_window(loads.addresses(frame, slot, offset))
        where = spread(where, machine.count)[group.index]
        for first, length, block in zip(where, lengths, owner, strict=True):
            last = min(int(first) + int(length), machine.shared.size)
            inside = np.arange(max(0, int(first)), last) + int(block) * machine.shared.size
            machine.shared.write(inside, np.zeros(inside.size, dtype=U8))

    return handler


def launch_control(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler | None:
    """clusterlaunchcontrol: all blocks of the grid run, so none is left to be cancelled.

    The answer is the bytes of no block; who asks whether one was cancelled hears no.
    """
    operands = context.operands
    if modifiers[0] == "try_cancel":
        slot, offset = operands.address(items[1])

        def answer(frame: Frame, group: Group) -> None:
            for address, _ in mbarriers.places(frame, slot, offset, group):
                group.machine.mbarriers.at(address)

        return answer
    kind = BOOL if "is_canceled" in modifiers else U32
    named = [o for o in elements(items[0]) if not (isinstance(o, ir.Symbol) and o.name == "_")]
    outs = [operands.target(o, kind) for o in named]

    def handler(frame: Frame, group: Group) -> None:
        nothing: Array = np.zeros(1, dtype=kind)
        for out in outs:
            store(frame, group, out, nothing)

    return handler


def multimem(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler | None:
    """multimem: as if the address were of one GPU's memory, which a warning says."""
    kept = tuple(m for m in modifiers[1:] if not m.startswith("acc::"))
    inner: Handler | None
    if modifiers[0] == "ld_reduce":
        inner = loads.load(context, kept, items)
    elif modifiers[0] == "st":
        inner = loads.save(context, kept, items)
    elif modifiers[0] == "red":
        inner = atomics.build(context, "red", kept, items)
    else:
        inner = bulk.build(context, modifiers, items)
    opcode, line = context.instruction.opcode, context.instruction.line

    def handler(frame: Frame, group: Group) -> None:
        group.machine.complain(
            "multimem_one_gpu",
            f"{opcode} is counted as an access of one GPU's memory; traffic to others is not known",
            line,
        )
        if inner is not None:
            inner(frame, group)

    return handler


BUILDERS: dict[str, Builder] = {
    "mapa": other_block,
    "getctarank": own_rank,
    "clusterlaunchcontrol": launch_control,
    "multimem": multimem,
}
