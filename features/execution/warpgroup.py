"""Handlers of wgmma and tcgen05 (PTX ISA 9.0, Asynchronous Warpgroup Level Matrix Instructions and
TensorCore 5th Generation Family Instructions).

wgmma: four warps multiply together: each has 16 of the 64 rows of A and of the result, all read B.
A and B lie in shared memory, where 64-bit descriptors tell; A may also come from registers. Results
are there at once: nothing may read them before the wait anyway.

tcgen05: one thread asks for a product whose shape a 32-bit descriptor tells. Its operands are
counted; what tensor memory holds is not followed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wattcast.features.execution import access, fragments, mbarriers
from wattcast.features.execution.bulk import PASS_BYTES
from wattcast.features.execution.context import Context
from wattcast.features.execution.fragments import Places
from wattcast.features.execution.groups import Group
from wattcast.features.execution.matrix import gathered, product, scatter_part, taking_part
from wattcast.features.execution.operands import (
    Frame,
    Handler,
    Items,
    UnsupportedError,
    elements,
)
from wattcast.features.execution.tensor_maps import swizzled
from wattcast.features.execution.values import BOOL, U32, U64, Array, as_type, spread
from wattcast.features.fifth import product_shape
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
    if sparse:
        raise UnsupportedError("values of sparse wgmma")
    multiply = _Multiply(context, shape, tuple(kinds), items, site)

    def handler(frame: Frame, group: Group) -> None:
        count(frame, group)
        multiply(frame, group)

    return handler


def build_fifth(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler | None:
    """tcgen05: products count what they read of shared memory, commits arrive at their barrier.

    Raises UnsupportedError where values are wanted that come from tensor memory.
    """
    kind = modifiers[0]
    if kind == "commit":
        return mbarriers.arrives_once(context, items[0])
    if kind in ("mma", "ld", "st", "cp", "shift") and not context.idle:
        raise UnsupportedError("values in tensor memory")
    if kind != "mma":
        return None
    shape = product_shape(context.body, context.instruction)
    if shape is None:
        raise UnsupportedError("its shape is computed")
    m, n, _ = shape
    lines = n if isinstance(items[1], ir.Address) else m + n  # A may lie in tensor memory
    site = context.site("shared", 16, loads=True, role="half2")

    def count(frame: Frame, group: Group) -> None:
        tally = group.machine.tallies[site.number]
        tally.shared_requests += group.warps
        tally.transactions += group.lanes * (lines * LINE_BYTES // PASS_BYTES)

    return count


class _Multiply:
    """The values of one instruction."""

    def __init__(
        self, context: Context, shape: fragments.Shape, kinds: tuple[str, ...], items: Items,
        site: access.Site,
    ) -> None:  # fmt: skip
        operands = context.operands
        self.shape, self.site, self.precise = shape, site, context.precise
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
        tile = fragments.Shape(ROWS, 8, shape.k)
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
            a = fragments.assemble(held, self.a_places, ROWS, shape.k)
        else:
            line = warp[:, None] * ROWS + np.arange(ROWS)
            a = self._read(frame, group, self.a[0], line, self.crossed[0])
        line = np.broadcast_to(np.arange(shape.n), (warps.size, shape.n))
        b = self._read(frame, group, self.b, line, self.crossed[1])
        flag = as_type(frame[self.keeps], BOOL)
        kept = spread(~flag if self.negated else flag, machine.count).reshape(-1, WARP_SIZE)[:, 0]
        bits = taking_part(group, gathered(frame, group, self.outs, 4))
        c = fragments.assemble(fragments.numbers(bits, self.result), self.places, ROWS, shape.n)
        c = np.where(taking_part(group, kept)[:, None, None], c, c.dtype.type(0))
        total = product(self.sign * a, b.swapaxes(1, 2), c, self.precise)
        found = fragments.registers_of(total[:, self.places[0], self.places[1]], self.result)
        scatter_part(frame, group, self.outs, found)

    def _read(self, frame: Frame, group: Group, slot: int, line: Integers, across: bool) -> Array:
        """Rows of A or columns of B, ``line[warps, lines]``, as numbers ``[warps, lines, k]``."""
        held = spread(as_type(frame[slot], U64), group.machine.count).reshape(-1, WARP_SIZE)
        size = self.kind.bits // 8
        where = cells(taking_part(group, held)[:, 0], line, self.shape.k, size, by_k=not across)
        raw = access.read_flat(
            self.site, group.machine, where.reshape(where.shape[0], -1), True, group, UNSIGNED[size]
        )
        numbers = fragments.numbers(np.ascontiguousarray(raw).view(U32), self.kind)
        return numbers.reshape(where.shape)


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
