"""Handlers of bulk and tensor copies (PTX ISA 9.0, cp.async.bulk and cp.async.bulk.tensor).

One thread asks, an engine beside the multiprocessor's pipes moves the bytes past L1: sectors of
global memory as the lines touch them, shared memory 128 bytes at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from wattcast.features.attached import attached
from wattcast.features.execution import access, atomics, barriers, loads
from wattcast.features.execution import spaces as tensor_maps
from wattcast.features.execution.context import (
    Context,
    Frame,
    Handler,
    Items,
    UnsupportedError,
    elements,
    pure,
)
from wattcast.features.execution.integer import Operation
from wattcast.features.execution.loads import addresses
from wattcast.features.execution.spaces import PARAMETER_BASE, Lines, TensorMap
from wattcast.features.execution.tally import Tally
from wattcast.features.execution.values import (
    BOOL,
    S32,
    S64,
    TYPES,
    U8,
    U16,
    U32,
    U64,
    Array,
    Group,
    as_type,
    spread,
)
from wattcast.features.execution.warp import Builder
from wattcast.features.isa import isa
from wattcast.features.launch import WARP_SIZE
from wattcast.features.memory import KEY_BITS, SECTOR_SHIFT
from wattcast.features.ptx import ir

if TYPE_CHECKING:
    from wattcast.features.execution.machine import Machine


Integers = npt.NDArray[np.int64]

PASS_BYTES = 128
"""Bytes that shared memory moves in one pass (CUDA C++ Programming Guide: 32 banks of 4 bytes)."""


def build(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler | None:
    """cp.async.bulk and cp.reduce.async.bulk, tensors included; prefetches do nothing."""
    if "prefetch" in modifiers or "commit_group" in modifiers or "wait_group" in modifiers:
        return None
    spaces = [m.partition("::")[0] for m in modifiers]
    order = [space for space in spaces if space in ("global", "shared")]
    if order == ["shared", "shared"]:
        return _between_blocks(context, modifiers, items)
    if len(order) != 2 or order[0] == order[1]:
        raise UnsupportedError("copy form")
    loads, tensor = order[0] == "shared", "tensor" in modifiers
    memory = items[1] if loads else items[0]
    copy = _Copy(context, loads=loads)
    if loads:
        at = 2 if tensor else 3
        copy.announces(items[at])
        if "multicast::cluster" in modifiers:
            copy.mask = context.operands.source(items[at + 1], U16)
    if not tensor:
        slot, offset = context.operands.address(memory)
        size = context.operands.source(items[2], U32)

        def in_a_row(frame: Frame, group: Group) -> None:
            starts = _of(addresses(frame, slot, offset), group)
            lengths = _of(as_type(frame[size], U32).astype(S64), group)
            lengths = np.minimum(lengths, group.machine.shared.size)  # it holds no more
            copy.carry_out(frame, group, Lines(starts[:, None], lengths[:, None]), lengths)

        return in_a_row
    if not isinstance(memory, ir.Address):
        raise UnsupportedError("tensor copy form")
    map_slot, map_offset = context.operands.address(ir.Address(memory.base, memory.offset))
    held = [part for item in memory.coordinates for part in elements(item)]
    coordinates = [context.operands.source(each, S32) for each in held]
    if len(coordinates) not in tensor_maps.PITCHES:
        raise UnsupportedError(f"tensor of {len(coordinates)} dimensions")
    element_bytes, line = multiplied_bytes(context.body), context.instruction.line
    share = copies_announced(context.body).get(context.instruction.position, 1)

    def a_box(frame: Frame, group: Group) -> None:
        machine = group.machine
        at = _of(addresses(frame, map_slot, map_offset), group)
        places = [_of(as_type(frame[each], S32).astype(S64), group) for each in coordinates]
        for address in np.unique(at):
            mine = at == address
            part = group if mine.all() else _chosen(group, mine)
            found = _assumed(
                machine, int(address), len(places), copy.bytes_told(frame, part) // share,
                element_bytes, line,
            )  # fmt: skip
            lines = tensor_maps.lines(found, [place[mine] for place in places])
            whole = np.full(int(mine.sum()), found.box_bytes, dtype=np.int64)
            copy.carry_out(frame, part, lines, whole)

    return a_box


def _chosen(group: Group, mine: npt.NDArray[np.bool_]) -> Group:
    mask = np.zeros_like(group.mask)
    mask[group.index[mine]] = True
    return Group(group.machine, mask, int(mine.sum()))


def _of(value: Array, group: Group) -> Integers:
    """The values of a group's threads, in order."""
    found: Integers = spread(value, group.machine.count)[group.index]
    return found


class _Copy:
    """One copy instruction: its sites and the barrier it tells."""

    def __init__(self, context: Context, *, loads: bool) -> None:
        self.site = context.site("global", 16, loads=loads, stores=not loads)
        self.inside = context.site("shared", 16, loads=not loads, stores=loads)
        self._context = context
        self.barrier: tuple[int, int] | None = None
        self.mask: int | None = None

    def announces(self, operand: ir.Operand) -> None:
        """The barrier at which the bytes arrive."""
        self.barrier = self._context.operands.address(operand)

    def bytes_told(self, frame: Frame, group: Group) -> int:
        """Bytes last announced at the copy's barrier; 0 if none were."""
        if self.barrier is None:
            return 0
        address, _ = next(barriers.places(frame, *self.barrier, group))
        return group.machine.announced.get(address, 0)

    def carry_out(self, frame: Frame, group: Group, lines: Lines, whole: Integers) -> None:
        """Count it; nothing is moved. ``whole``: bytes by thread."""
        machine = group.machine
        count_lines(machine.tallies[self.site.number], lines, group)
        passes = np.zeros(machine.slots, dtype=np.int64)
        each = -(-whole // PASS_BYTES)
        if self.mask is not None:  # as many blocks of the cluster get it as bits are set
            each = each * np.bitwise_count(_of(as_type(frame[self.mask], U16), group))
        np.add.at(passes, group.index // machine.per_block, each)
        tally = machine.tallies[self.inside.number]
        tally.shared_requests += group.warps
        tally.transactions += passes


def _between_blocks(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """From shared memory to that of another block of the cluster: both are counted here, as blocks
    of a cluster do alike."""
    inside = context.site("shared", 16, loads=True, stores=True)
    size = context.operands.source(items[2], U32)

    def handler(frame: Frame, group: Group) -> None:
        machine = group.machine
        lengths = _of(as_type(frame[size], U32).astype(S64), group)
        tally = machine.tallies[inside.number]
        tally.shared_requests += group.warps
        passes = 2 * -(-np.minimum(lengths, machine.shared.size) // PASS_BYTES)
        np.add.at(tally.transactions, group.index // machine.per_block, passes)

    return handler


MOST_LISTED = 1 << 21
"""Sectors of one execution that are listed one by one; beyond, each is taken to be new."""


def count_lines(tally: Tally, lines: Lines, group: Group) -> None:
    """Requests, sectors and footprint of copies; ``lines`` has a row for each thread."""
    machine = group.machine
    tally.requests += group.warps
    rows, _, owner = group.layout
    first = (lines.starts >> SECTOR_SHIFT).reshape(-1)
    last = (lines.starts + np.maximum(lines.lengths, 1) - 1 >> SECTOR_SHIFT).reshape(-1)
    many = np.where(lines.lengths.reshape(-1) > 0, last - first + 1, 0)
    ends = np.cumsum(many)
    beyond = np.where(ends > MOST_LISTED, many, 0)
    if beyond.any():
        owners = np.repeat(group.index // machine.per_block, lines.starts.shape[1])
        more = np.bincount(owners, beyond, machine.slots).astype(np.int64)
        tally.sectors += more
        tally.extra += more
        many = many - beyond
        ends = np.cumsum(many)
    sectors = np.repeat(first - (ends - many), many) + np.arange(int(ends[-1]) if ends.size else 0)
    warp = np.repeat(group.index // WARP_SIZE, lines.starts.shape[1])
    if rows is not None:
        warp = np.searchsorted(rows, warp)
    found = np.unique((np.repeat(warp, many) << KEY_BITS) | sectors)
    row = found >> KEY_BITS
    per_row = np.bincount(row, minlength=owner.size)
    keys = (owner[row] << KEY_BITS) | (found & ((1 << KEY_BITS) - 1))
    tally.sectors += machine.per_slot(per_row, owner)
    tally.log.add(keys)
    if machine.trace is not None:
        machine.trace.note(tally.number, keys, machine.trace.pick(group, per_row), group.warps)


# --- maps that nobody told of -----------------------------------------------------------------


def _assumed(
    machine: Machine, address: int, dimensions: int, box_bytes: int, element_bytes: int,
    line: int,
) -> TensorMap:  # fmt: skip
    """A map whose tensor lies in the buffer made for it (``arguments.bind``)."""
    base = address
    if address >> 40 == PARAMETER_BASE >> 40:
        region = machine.memory.find(address)
        if region is not None:
            held = region.read(np.array([address - region.base]), U64, "index")
            base = int(held[0])
    buffer = machine.memory.find(base)
    hint = getattr(getattr(buffer, "hint", None), "elements", None)
    name = buffer.name if buffer is not None else "a tensor map"
    if hint:
        box_bytes, how = hint * element_bytes, f"{hint} elements, as its hint says"
    elif box_bytes:
        how = f"{box_bytes} bytes, as announced at its memory barrier"
    else:
        box_bytes = tensor_maps.ASSUMED_BOX_BYTES
        how = f"{box_bytes} bytes, as nothing tells its size"
    box_bytes = min(box_bytes, machine.shared.size)  # it holds no more
    made = tensor_maps.assumed(base, dimensions, max(box_bytes, element_bytes), element_bytes)
    if made in machine.assumed_maps:
        return made
    machine.assumed_maps.add(made)
    machine.complain(
        "tensor_map_assumed",
        f"{name} is a tensor map whose contents are unknown: a box of {how}, in lines of "
        f"{tensor_maps.LINE_BYTES} bytes of elements of {element_bytes}, is assumed",
        line,
    )
    return made


@attached
def multiplied_bytes(body: ir.Body) -> int:
    """Bytes of an element of the first factors in a body's matrix instructions, else 2."""
    kinds = isa().type_bits
    for one in body.instructions:
        if one.base in ("wgmma", "mma", "tcgen05"):
            types = [part for part in one.modifiers if part in kinds]
            if len(types) > 1:
                return max(1, kinds[types[1]] // 8)
            if any("f8f6f4" in part for part in one.modifiers):
                return 1
    return 2


@attached
def copies_announced(body: ir.Body) -> dict[int, int]:
    """Positions of tensor loads: how many share the bytes of one announcement.

    Those between one ``expect_tx`` and the next in the text; in a body where the text does not
    tell, all of them over all of those.
    """
    found: dict[int, int] = {}
    current: list[int] = []
    loads: list[int] = []
    announced = 0
    for one in body.instructions:
        if one.base == "mbarrier" and "expect_tx" in one.opcode:
            announced += 1
            found.update(dict.fromkeys(current, len(current)))
            current = []
        elif one.opcode.startswith("cp.async.bulk.tensor") and "mbarrier" in one.opcode:
            loads.append(one.position)
            if announced:
                current.append(one.position)
    found.update(dict.fromkeys(current, len(current)))
    missing = [position for position in loads if position not in found]
    found.update(dict.fromkeys(missing, max(1, len(loads) // max(1, announced))))
    return found


# Handlers of what blocks of a cluster do to each other, and of multimem (PTX ISA 9.0).
#
# Blocks of a cluster do alike, so what others do to a block is taken to be what it does to them: an
# address in another block's shared memory is the block's own.


def other_block(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """mapa: the same address."""
    kind = TYPES[modifiers[-1]]
    return pure(Operation(lambda a: a, (kind,), kind), context.operands, items)


def own_rank(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """getctarank: of an address that is the block's own."""
    rank = ir.Special("%cluster_ctarank")
    return pure(Operation(lambda a: a, (U32,), U32), context.operands, (items[0], rank))


def asynchronous(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler | None:
    """st.async and red.async, without the barrier that they tell; st.bulk writes zeros."""
    if modifiers[0] == "bulk":
        return _fill(context, items)
    kept = tuple(m for m in modifiers if "mbarrier" not in m and m not in ("async", "bytes"))
    make = atomics.build if context.instruction.base == "red" else loads.save
    return make(context, kept, items[:2])


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
        np.add.at(tally.transactions, owner, -(-lengths // PASS_BYTES))
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
        return None
    kind = BOOL if "is_canceled" in modifiers else U32
    outs = elements(items[0])
    nothing: Array = np.zeros(1, dtype=kind)
    answers = Operation(lambda: [nothing] * len(outs), (), kind, (kind,) * (len(outs) - 1))
    return pure(answers, operands, (ir.Vector(outs),))


def multimem(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler | None:
    """multimem: as if the address were of one GPU's memory, which a warning says."""
    kept = tuple(m for m in modifiers[1:] if not m.startswith("acc::"))
    inner: Handler | None
    if modifiers[0] == "ld_reduce":
        inner = loads.load(context, kept, items)
    elif modifiers[0] == "st":
        inner = loads.save(context, kept, items)
    elif modifiers[0] == "red":
        inner = atomics.build(context, kept, items)
    else:
        inner = build(context, modifiers, items)
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
