"""Handlers of wgmma and tcgen05 (PTX ISA 9.0, Asynchronous Warpgroup Level Matrix Instructions and
TensorCore 5th Generation Family Instructions).

wgmma: four warps multiply together: each has 16 of the 64 rows of A and of the result, all read B.
A and B lie in shared memory, where 64-bit descriptors tell; A may also come from registers. Results
are there at once: nothing may read them before the wait anyway.

tcgen05: one thread asks for a product whose shape a 32-bit descriptor tells. The result lies in
tensor memory, 128 lanes of 512 words, where all warps read it, each its 32 lanes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from wattcast.features.execution import access, fragments, mbarriers
from wattcast.features.execution.bulk import PASS_BYTES
from wattcast.features.execution.context import Context
from wattcast.features.execution.fragments import Places
from wattcast.features.execution.groups import Group
from wattcast.features.execution.loads import addresses
from wattcast.features.execution.matrix import (
    gathered,
    product,
    scatter_part,
    taking_part,
    unfollowed,
)
from wattcast.features.execution.operands import (
    Frame,
    Handler,
    Items,
    UnsupportedError,
    elements,
)
from wattcast.features.execution.tensor_maps import swizzled
from wattcast.features.execution.values import (
    BOOL,
    U8,
    U32,
    U64,
    Array,
    DType,
    as_type,
    spread,
)
from wattcast.features.fifth import DEPTHS, descriptor_place, descriptor_shape, product_shape
from wattcast.features.integers import UNSIGNED
from wattcast.features.launch import WARP_SIZE
from wattcast.features.ptx import ir

Integers = npt.NDArray[np.int64]

WARPS = 4
ROWS = 16
"""Warps of a warpgroup and rows that each has of 64."""
LINE_BYTES = 32
"""Bytes along k of a row of A, or a column of B, in one tcgen05.mma of any kind that is not sparse
(PTX ISA, tcgen05.mma, supported shapes: k is 16 of f16, 8 of tf32, 32 of 8 bits, 64 of 4)."""
_SPANS = np.array([16, 128, 64, 32])
"""Bytes of a line by the swizzle code of a descriptor (PTX ISA, Matrix-descriptor layout)."""


def build(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler | None:
    """wgmma.mma_async; its fence, commit and wait do nothing."""
    if modifiers[0] != "mma_async":
        return None
    shape = fragments.parse_shape(modifiers)
    kinds = [m for m in modifiers if m in fragments.ELEMENTS]
    if shape.m != ROWS * WARPS or len(kinds) != 3:
        raise UnsupportedError("wgmma type")
    kind = fragments.ELEMENTS[kinds[1]]
    sparse = "sp" in modifiers
    from_registers = isinstance(items[1], ir.Vector)
    depth_bytes = shape.k * kind.bits // 8
    # Of a sparse A every second element is stored.
    own = 0 if from_registers else ROWS * depth_bytes // (2 if sparse else 1) // PASS_BYTES
    every = shape.n * depth_bytes // PASS_BYTES
    site = context.site("shared", 16, loads=True, role="half2")

    def count(frame: Frame, group: Group) -> None:
        machine = group.machine
        rows, _, owner = group.layout
        warps = np.arange(owner.size) if rows is None else rows
        first = warps % (machine.per_block // WARP_SIZE) % WARPS == 0
        tally = machine.tallies[site.number]
        tally.shared_requests += group.warps
        tally.transactions += machine.per_slot(own + every * first.astype(np.int64), owner)

    if context.idle:
        return count
    multiply = _Multiply(context, shape, tuple(kinds), items, site, sparse=sparse)

    def handler(frame: Frame, group: Group) -> None:
        count(frame, group)
        multiply(frame, group)

    return handler


class _Multiply:
    """The values of one instruction."""

    def __init__(
        self, context: Context, shape: fragments.Shape, kinds: tuple[str, ...], items: Items,
        site: access.Site, *, sparse: bool,
    ) -> None:  # fmt: skip
        operands = context.operands
        self.shape, self.site, self.precise = shape, site, context.precise
        self.metadata, self.selector = -1, 0
        if sparse:
            self.metadata = operands.source(items[3], U32)
            if not isinstance(items[4], ir.Immediate):
                raise UnsupportedError("a selector that is computed")
            self.selector = int(items[4].value)
            items = (*items[:3], *items[5:])
        self.a_depth = shape.k // 2 if sparse else shape.k
        self.result, self.kind = (fragments.ELEMENTS[name] for name in kinds[:2])
        self.outs = [operands.target(o, U32) for o in elements(items[0])]
        self.in_registers = isinstance(items[1], ir.Vector)
        self.a = [operands.source(o, U32 if self.in_registers else U64) for o in elements(items[1])]
        self.b = operands.source(items[2], U64)
        self.keeps, self.negated = operands.predicate(items[3])
        held = [int(o.value) for o in items[4:] if isinstance(o, ir.Immediate)]
        self.sign = int(np.prod(held[:2]))
        crossed = [flag != 0 for flag in held[2:]]
        self.crossed = [False, *crossed] if self.in_registers else crossed
        self.crossed += [False] * (2 - len(self.crossed))
        self.places = _result_places(shape.n)
        per = self.kind.per_register
        tile = fragments.Shape(ROWS, 8, self.a_depth)
        self.a_places = (
            fragments.mma_places(tile, "a", per, len(self.a)) if self.in_registers else None
        )

    def __call__(self, frame: Frame, group: Group) -> None:
        shape, machine = self.shape, group.machine
        rows = group.layout.rows
        warps = np.arange(machine.count // WARP_SIZE) if rows is None else rows
        warp = warps % (machine.per_block // WARP_SIZE) % WARPS
        if self.a_places is not None:
            bits = taking_part(group, gathered(frame, group, self.a, 4))
            held = fragments.numbers(bits, self.kind)
            a = fragments.assemble(held, self.a_places, ROWS, self.a_depth)
        else:
            line = warp[:, None] * ROWS + np.arange(ROWS)
            a = self._read(frame, group, self.a[0], line, self.a_depth, self.crossed[0])
        if self.metadata >= 0:
            told = taking_part(group, gathered(frame, group, [self.metadata], 4))[..., 0]
            a = fragments.spread_out(a, told, self.selector, self.kind)
        line = np.broadcast_to(np.arange(shape.n), (warps.size, shape.n))
        b = self._read(frame, group, self.b, line, shape.k, self.crossed[1])
        flag = as_type(frame[self.keeps], BOOL)
        kept = spread(~flag if self.negated else flag, machine.count).reshape(-1, WARP_SIZE)[:, 0]
        bits = taking_part(group, gathered(frame, group, self.outs, 4))
        c = fragments.assemble(fragments.numbers(bits, self.result), self.places, ROWS, shape.n)
        c = np.where(taking_part(group, kept)[:, None, None], c, c.dtype.type(0))
        total = product(self.sign * a, b.swapaxes(1, 2), c, self.precise)
        found = fragments.registers_of(total[:, self.places[0], self.places[1]], self.result)
        scatter_part(frame, group, self.outs, found)

    def _read(self, frame: Frame, group: Group, slot: int, line: Integers, depth: int,
              across: bool) -> Array:  # fmt: skip
        """Rows of A or columns of B, ``line[warps, lines]``, as numbers ``[warps, lines, k]``."""
        held = spread(as_type(frame[slot], U64), group.machine.count).reshape(-1, WARP_SIZE)

        def read(where: Integers, dtype: DType) -> Array:
            return access.read_flat(self.site, group.machine, where, True, group, dtype)

        return _matrix(taking_part(group, held)[:, 0], line, depth, self.kind, across, read)


def _matrix(descriptors: Array, line: Integers, depth: int, kind: fragments.Element, across: bool,
            read: Callable[[Integers, DType], Array]) -> Array:  # fmt: skip
    """Lines of a matrix in shared memory as numbers ``[descriptors, lines, depth]``."""
    size = max(1, kind.bits // 8)
    stored = depth * kind.bits // 8 // size
    where = cells(descriptors, line, stored, size, by_k=not across)
    raw = read(where.reshape(where.shape[0], -1), UNSIGNED[size])
    numbers = fragments.numbers(np.ascontiguousarray(raw).view(U32), kind)
    return numbers.reshape(*line.shape, depth)


def _result_places(columns: int) -> tuple[Places, Places]:
    """Row and column of every element of a warp's part of the result (PTX ISA, Register Fragments
    for wgmma.mma_async.m64nNk16: D)."""
    lane, index = np.arange(WARP_SIZE)[:, None], np.arange(columns // 2)
    row = (lane >> 2) + 8 * (index >> 1 & 1)
    column = (index >> 2) * 8 + (lane & 3) * 2 + (index & 1)
    return row, column


def cells(descriptors: Array, line: Integers, depth: int, size: int, *, by_k: bool) -> Integers:
    """Byte addresses in shared memory of lines of A or B, ``[warps, lines, depth]``.

    The canonical layouts of the PTX ISA (Strides, Matrix-descriptor): ``by_k`` elements along k
    lie side by side, else those of neighbouring lines.
    """
    fields = [((descriptors >> np.uint64(at)) & np.uint64(0x3FFF)).astype(np.int64) * 16
              for at in (0, 16, 32)]  # fmt: skip
    start, leading, stride = (each[:, None, None] for each in fields)
    k, rows = np.arange(depth), line[:, :, None]
    found = np.zeros((*line.shape, depth), dtype=np.int64)
    code = (descriptors >> np.uint64(62)).astype(np.int64)
    for number, span in enumerate(_SPANS.tolist()):
        if not (code == number).any():
            continue
        if by_k:
            at = rows // 8 * stride + rows % 8 * span + k * size
            if span == 16:
                at = rows // 8 * stride + rows % 8 * 16 + k * size // 16 * leading + k * size % 16
        else:
            first, second = (stride, leading) if span == 16 else (leading, stride)
            at = rows * size // span * first + k // 8 * second + k % 8 * span + rows * size % span
        at = swizzled(start + at, span)
        found = np.where((code == number)[:, None, None], at, found)
    return found


# --- tcgen05 --------------------------------------------------------------------------------------

LANES, COLUMNS = 128, 512
"""Of tensor memory, words of 32 bits (PTX ISA, Tensor Memory)."""
_FORMATS = {
    "kind::f16": {0: "f16", 1: "bf16"}, "kind::tf32": {2: "tf32"},
    "kind::f8f6f4": {0: "e4m3", 1: "e5m2"}, "kind::i8": {0: "u8", 1: "s8"},
}  # fmt: skip
"""Types of factors by their codes in an instruction descriptor; those whose values are followed."""


class TensorMemory:
    """The tensor memory of a machine's blocks, made when first written."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._words: Array | None = None
        self.next = np.zeros(slots, dtype=np.int64)  # free column

    @property
    def words(self) -> Array:
        """``uint32[slots, lanes, columns]``."""
        if self._words is None:
            self._words = np.zeros((self._slots, LANES, COLUMNS), dtype=U32)
        return self._words


def build_fifth(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler | None:
    """tcgen05: products count what they read of shared memory, commits arrive at their barrier.

    Not followed are the values of products that are sparse, scaled, of a pair of blocks or with
    factors of 4 or 6 bits: where something rests on them, a warning says so.
    """
    kind = modifiers[0]
    if kind == "commit":
        return mbarriers.arrives_once(context, items[0])
    if kind == "alloc":
        return _allocate(context, items)
    if kind in ("ld", "st"):
        return None if context.idle else _move(context, modifiers, items)
    if kind == "cp":
        return None if context.idle else _copy(context, modifiers, items)
    if kind == "shift":
        if not context.idle:
            raise UnsupportedError("values in tensor memory")
        return None
    return _product(context, modifiers, items) if kind == "mma" else None


def _allocate(context: Context, items: Items) -> Handler:
    """The first of the columns goes to shared memory; those of a block follow each other."""
    operands = context.operands
    slot, offset = operands.address(items[0])
    wanted = operands.source(items[1], U32)
    site = context.site("shared", 4, stores=True)

    def handler(frame: Frame, group: Group) -> None:
        machine = group.machine
        free = machine.tensor_memory.next
        owner = np.arange(machine.count) // machine.per_block
        columns = spread(as_type(frame[wanted], U32).astype(np.int64), machine.count)
        first = np.where(free[owner] + columns > COLUMNS, 0, free[owner])
        where = access.in_window(addresses(frame, slot, offset))
        access.write_private(site, machine.shared, where, group, [first.astype(U32)])
        free[owner[group.index]] = (first + columns)[group.index]

    return handler


def _places(shape: str, registers: int, second: int) -> tuple[Places, Places]:
    """Lane and column of tensor memory of each register, ``[32, registers]`` (PTX ISA, tcgen05.ld
    and st; CUTLASS, copy_traits_sm100.hpp). ``second``: columns of the other half of 16x32bx2."""
    t, r = np.arange(WARP_SIZE)[:, None], np.arange(registers)[None]
    lane, column = {
        "32x32b": (t, r),
        "16x64b": (t // 4 + 8 * (t % 2), t // 2 % 2 + 2 * r),
        "16x128b": (t // 4 + 8 * (r % 2), t % 4 + 4 * (r // 2)),
        "16x256b": (t // 4 + 8 * (r // 2 % 2), 2 * (t % 4) + r % 2 + 8 * (r // 4)),
        "16x32bx2": (t % 16, r + second * (t // 16)),
    }[shape]
    size = (WARP_SIZE, registers)
    return np.broadcast_to(lane, size), np.broadcast_to(column, size)


def _move(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """tcgen05.ld and st, each warp of its lanes."""
    operands, loads = context.operands, modifiers[0] == "ld"
    shape = next((m for m in modifiers if m[:2] in ("16", "32")), "")
    if "pack::16b" in modifiers or "unpack::16b" in modifiers or "red" in modifiers:
        raise UnsupportedError("values in tensor memory that are packed or reduced")
    listed = elements(items[0 if loads else 1 + ("bx2" in shape)])
    second = items[2 if loads else 1] if "bx2" in shape else None
    apart = int(second.value) if isinstance(second, ir.Immediate) else 0
    lane, column = _places(shape, len(listed), apart)
    slots = [(operands.target if loads else operands.source)(o, U32) for o in listed]
    slot, offset = operands.address(items[1 if loads else 0])

    def handler(frame: Frame, group: Group) -> None:
        machine = group.machine
        at = spread(as_type(frame[slot], U32), machine.count).reshape(-1, WARP_SIZE)
        first = (taking_part(group, at)[:, 0].astype(np.int64) + offset)[:, None, None]
        where = (
            group.layout.owners[:, None, None],
            (lane + (first >> 16)) % LANES,
            (column + (first & 0xFFFF)) % COLUMNS,
        )
        words = machine.tensor_memory.words
        if loads:
            scatter_part(frame, group, slots, words[where])
        else:
            words[where] = taking_part(group, gathered(frame, group, slots, 4))

    return handler


def _asked(frame: Frame, slot: int, dtype: DType, group: Group) -> Array:
    """What each thread gives that asks for something."""
    return spread(as_type(frame[slot], dtype), group.machine.count)[group.index]


def _shared_reader(group: Group) -> Callable[[Integers, DType], Array]:
    """Reads the shared memory of the blocks whose threads ask, a row each."""
    shared = group.machine.shared
    base = (group.index // group.machine.per_block)[:, None] * shared.size

    def read(where: Integers, dtype: DType) -> Array:
        return shared.read(base + np.clip(where, 0, shared.size - dtype.itemsize), dtype)

    return read


def _copy(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """tcgen05.cp: lines of shared memory to lanes, to one or several groups of warps."""
    shape = next((m for m in modifiers if m.endswith("b") and "x" in m), "")
    if shape not in ("128x256b", "128x128b", "32x128b") or any("p64" in m or "p32" in m
                                                              for m in modifiers):  # fmt: skip
        raise UnsupportedError("values of this copy to tensor memory")
    rows, bits = (int(part) for part in shape[:-1].split("x"))
    slot, offset = context.operands.address(items[0])
    descriptor = context.operands.source(items[1], U64)
    copies = LANES // rows

    def handler(frame: Frame, group: Group) -> None:
        told = _asked(frame, descriptor, U64, group)
        line = np.broadcast_to(np.arange(rows), (told.size, rows))
        raw = _shared_reader(group)(
            cells(told, line, bits // 8, 1, by_k=True).reshape(told.size, -1), U8
        )
        words = np.ascontiguousarray(raw).view(U32).reshape(told.size, rows, -1)
        at = _asked(frame, slot, U32, group).astype(np.int64) + offset
        column = ((at & 0xFFFF)[:, None, None] + np.arange(bits // 32)) % COLUMNS
        owner = (group.index // group.machine.per_block)[:, None, None]
        for copy in range(copies):
            lane = np.arange(rows)[:, None] + copy * rows
            group.machine.tensor_memory.words[owner, lane, column] = words

    return handler


def _product(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    operands = context.operands
    told = operands.source(items[descriptor_place(modifiers)], U32)
    shape = product_shape(context.body, context.instruction)
    depth = next((DEPTHS[part] for part in modifiers if part in DEPTHS), 0)
    from_memory = isinstance(items[1], ir.Address)  # A may lie in tensor memory
    site = context.site("shared", 16, loads=True, role="half2")

    def count(frame: Frame, group: Group) -> None:
        m, n = shape[:2] if shape else descriptor_shape(int(_asked(frame, told, U32, group)[0]))
        tally = group.machine.tallies[site.number]
        tally.shared_requests += group.warps
        lines = n if from_memory else m + n
        tally.transactions += group.lanes * (lines * LINE_BYTES // PASS_BYTES)

    if context.idle:
        return count
    followed = {"sp", "ws", "block_scale", "cta_group::2"}.isdisjoint(modifiers)
    formats = next((_FORMATS[part] for part in modifiers if part in _FORMATS), {})
    if not (followed and formats):
        if context.precise:
            raise UnsupportedError("values of sparse, scaled or paired products")
        return _untold(count, context.instruction)
    slot, offset = operands.address(items[0])
    a_slot, a_offset = operands.address(items[1])
    b_slot = operands.source(items[2], U64)
    flag = next(item for item in items[4:] if not isinstance(item, ir.Vector))
    keeps, negated = operands.predicate(flag)
    precise, one = context.precise, context.instruction

    def multiply(frame: Frame, group: Group) -> None:
        count(frame, group)
        machine, asked = group.machine, group.count
        descriptor = int(_asked(frame, told, U32, group)[0])
        m, n = descriptor_shape(descriptor)
        lane = np.arange(m) if m == LANES else np.arange(m) // 16 * 32 + np.arange(m) % 16
        names = [formats.get(descriptor >> at & 7, "") for at in (7, 10)]
        result = {1: "f32", 2: "s32"}.get(descriptor >> 4 & 3, "")
        if not (result and all(names) and 0 < m <= LANES):
            machine.complain(*unfollowed(one))
            return
        kind_a, kind_b = (fragments.ELEMENTS[name] for name in names)
        element = fragments.ELEMENTS[result]
        words = machine.tensor_memory.words
        owner = (group.index // machine.per_block)[:, None, None]
        read = _shared_reader(group)
        if from_memory:
            column = _columns(frame, a_slot, a_offset, group, depth * kind_a.bits // 32)
            a = fragments.numbers(words[owner, lane[:, None], column], kind_a)
        else:
            line = np.broadcast_to(np.arange(m), (asked, m))
            a = _matrix(_asked(frame, a_slot, U64, group), line, depth, kind_a,
                        bool(descriptor >> 15 & 1), read)  # fmt: skip
        line = np.broadcast_to(np.arange(n), (asked, n))
        b = _matrix(_asked(frame, b_slot, U64, group), line, depth, kind_b,
                    bool(descriptor >> 16 & 1), read)  # fmt: skip
        sign = -1 if (descriptor >> 13 ^ descriptor >> 14) & 1 else 1
        where = owner, lane[:, None], _columns(frame, slot, offset, group, n)
        c = fragments.numbers(words[where], element)
        kept = _asked(frame, keeps, BOOL, group) != negated
        c = np.where(kept[:, None, None], c, c.dtype.type(0))
        total = product(sign * a, b.swapaxes(1, 2), c, precise)
        words[where] = fragments.registers_of(total, element)

    return multiply


def _columns(frame: Frame, slot: int, offset: int, group: Group, count: int) -> Integers:
    first = _asked(frame, slot, U32, group).astype(np.int64) + offset
    found: Integers = ((first & 0xFFFF)[:, None, None] + np.arange(count)) % COLUMNS
    return found


def _untold(count: Handler, one: ir.Instruction) -> Handler:
    def handler(frame: Frame, group: Group) -> None:
        count(frame, group)
        group.machine.complain(*unfollowed(one))

    return handler
