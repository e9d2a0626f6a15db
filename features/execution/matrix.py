"""Matrix units: mma, wmma, ldmatrix, stmatrix, movmatrix, wgmma and tcgen05 (PTX ISA 9.0, from Warp
Level Matrix Instructions on).

What they read and write of memory is counted; products are not computed. Where something that is
counted rests on their values, a warning says that these are not followed. Whole warps take part.

wgmma: four warps multiply together, each has 16 of the 64 rows of A and of the result, all read B.
tcgen05: one thread asks for a product whose shape a 32-bit descriptor tells.
"""

from __future__ import annotations

import re

import numpy as np

from wattcast.features.execution import access
from wattcast.features.execution.bulk import PASS_BYTES
from wattcast.features.execution.context import (
    Context,
    Frame,
    Handler,
    Items,
    UnsupportedError,
    elements,
    space_of,
)
from wattcast.features.execution.loads import addresses
from wattcast.features.execution.spaces import Offsets
from wattcast.features.execution.values import U32, Group, as_type, spread
from wattcast.features.execution.warp import Builder
from wattcast.features.fifth import descriptor_place, descriptor_shape, product_shape
from wattcast.features.isa import isa
from wattcast.features.launch import WARP_SIZE
from wattcast.features.ptx import ir

WARPS = 4
ROWS = 16
"""Warps of a warpgroup and rows that each has of 64."""
LINE_BYTES = 32
"""Bytes along k of a row of A, or a column of B, in one tcgen05.mma of any kind that is not sparse
(PTX ISA, tcgen05.mma, supported shapes: k is 16 of f16, 8 of tf32, 32 of 8 bits, 64 of 4)."""

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")


def unfollowed(context: Context) -> Handler:
    """Says that values are not followed, if something that is counted rests on them."""
    one = context.instruction
    text = f"{one.opcode} is counted, but its values are not followed: its results keep old ones"

    def told(frame: Frame, group: Group) -> None:
        group.machine.complain("unsupported_instruction", text, one.line)

    def silent(frame: Frame, group: Group) -> None:
        """Nothing counted rests on it."""

    return told if context.decides else silent


def _product_shape(modifiers: tuple[str, ...]) -> tuple[int, int, int]:
    """``m16n8k16`` among the modifiers. Raises UnsupportedError."""
    for modifier in modifiers:
        found = _SHAPE.fullmatch(modifier)
        if found is not None:
            m, n, k = (int(part) for part in found.groups())
            return m, n, k
    raise UnsupportedError("matrix shape")


def _between_registers(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """mma, wmma.mma and movmatrix."""
    return unfollowed(context)


# --- wmma --------------------------------------------------------------------------------------


class _Tiles:
    """A wmma fragment in memory: the tile's elements, each once, one request per warp."""

    def __init__(
        self, context: Context, modifiers: tuple[str, ...], memory: ir.Operand,
        stride: ir.Operand | None, registers: int, which: str, *, stores: bool,
    ) -> None:  # fmt: skip
        known = isa().type_bits
        bits = next((known[m] for m in reversed(modifiers) if m in known), 0)
        if bits < 8:
            raise UnsupportedError("wmma type")
        space = space_of(modifiers)
        m, n, k = _product_shape(modifiers)
        rows, columns = {"a": (m, k), "b": (k, n)}.get(which, (m, n))
        self.by_row = "row" in modifiers
        self.size = bits // 8
        self.lead = columns if self.by_row else rows
        # How a fragment lies in registers is not told: it runs over the tile in row-major order.
        count = registers * max(1, 32 // bits)
        flat = np.arange(min(rows * columns, WARP_SIZE * count))
        self.places = flat // columns, flat % columns
        self.slot, self.offset = context.operands.address(memory)
        self.stride = None if stride is None else context.operands.source(stride, U32)
        self.site = context.site(
            space, self.size * count, loads=not stores, stores=stores, role="float"
        )
        self.end = unfollowed(context)

    def locate(self, frame: Frame, group: Group) -> tuple[Offsets, bool]:
        """Element addresses of the warps that take part, and whether they are shared."""
        first = group.by_warp(addresses(frame, self.slot, self.offset))[0][:, 0]
        lead = np.full(1, self.lead, dtype=np.int64)
        if self.stride is not None:
            held = as_type(frame[self.stride], U32)
            lead = group.by_warp(held)[0][:, 0].astype(np.int64)
        row, column = self.places
        along, across = (row, column) if self.by_row else (column, row)
        element = along * lead[:, None] + across
        where = first[:, None] + element * self.size
        shared = self.site.space == "shared"
        if self.site.space == "generic":
            shared = bool((access.windows(where) == access.SHARED_WINDOW).all())
            where = access.in_window(where)
        return where, shared

    def __call__(self, frame: Frame, group: Group) -> None:
        where, shared = self.locate(frame, group)
        group.machine.tallies[self.site.number].count_tile(where, self.size, shared, group)
        self.end(frame, group)


def _wmma(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    kind, modifiers = modifiers[0], modifiers[1:]
    if kind == "mma":
        return unfollowed(context)
    stores = kind == "store"
    memory, fragment = items[:2] if stores else (items[1], items[0])
    stride = items[2] if len(items) > 2 else None
    which = next(m for m in modifiers if m in ("a", "b", "c", "d"))
    registers = len(elements(fragment))
    return _Tiles(context, modifiers, memory, stride, registers, which, stores=stores)


# --- ldmatrix, stmatrix --------------------------------------------------------------------------


def _matrix_count(modifiers: tuple[str, ...]) -> int:
    """Matrices of eight rows of 16 bytes. Those of narrower elements (from 10.0 on) have as many
    bytes in a row, and ``m16n16`` has twice the rows."""
    count = next((n for m, n in (("x1", 1), ("x2", 2), ("x4", 4)) if m in modifiers), 1)
    return 2 * count if "m16n16" in modifiers else count


def _matrices(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """ldmatrix and stmatrix: lanes 8i to 8i+7 give the rows of matrix i (16 bytes each)."""
    loads = context.instruction.base == "ldmatrix"
    count = _matrix_count(modifiers)
    slot, offset = context.operands.address(items[1 if loads else 0])
    role = "half2" if loads else "int"
    site = context.site(space_of(modifiers), 16, loads=loads, stores=not loads, role=role)
    end = unfollowed(context)

    def handler(frame: Frame, group: Group) -> None:
        tally = group.machine.tallies[site.number]
        if not (loads and tally.count_again(frame[slot], group)):
            starts = group.by_warp(addresses(frame, slot, offset))[0][:, : 8 * count]
            if site.space == "generic":
                starts = access.in_window(starts)
            tally.count_matrices(starts, group)
        end(frame, group)

    return handler


# --- wgmma ----------------------------------------------------------------------------------------


def _warpgroup(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler | None:
    """wgmma.mma_async; its fence, commit and wait do nothing."""
    if modifiers[0] != "mma_async":
        return None
    m, n, k = _product_shape(modifiers)
    known = isa().type_bits
    kinds = [known[part] for part in modifiers if part in known]
    if m != ROWS * WARPS or len(kinds) != 3:
        raise UnsupportedError("wgmma type")
    depth_bytes = k * kinds[1] // 8
    # Of a sparse A every second element is stored; A may also come from registers.
    stored = ROWS * depth_bytes // (2 if "sp" in modifiers else 1) // PASS_BYTES
    own = 0 if isinstance(items[1], ir.Vector) else stored
    every = n * depth_bytes // PASS_BYTES
    site = context.site("shared", 16, loads=True, role="half2")
    end = unfollowed(context)

    def count(frame: Frame, group: Group) -> None:
        machine = group.machine
        rows, _, owner = group.layout
        warps = np.arange(owner.size) if rows is None else rows
        first = warps % (machine.per_block // WARP_SIZE) % WARPS == 0
        tally = machine.tallies[site.number]
        tally.shared_requests += group.warps
        tally.transactions += machine.per_slot(own + every * first.astype(np.int64), owner)
        end(frame, group)

    return count


# --- tcgen05 --------------------------------------------------------------------------------------


def _fifth(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler | None:
    """tcgen05: products count what they read of shared memory."""
    kind = modifiers[0]
    if kind == "mma":
        return _product(context, modifiers, items)
    return unfollowed(context) if kind == "ld" and context.decides else None


def _product(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    told = context.operands.source(items[descriptor_place(modifiers)], U32)
    shape = product_shape(context.body, context.instruction)
    from_memory = isinstance(items[1], ir.Address)  # A may lie in tensor memory
    site = context.site("shared", 16, loads=True, role="half2")

    def count(frame: Frame, group: Group) -> None:
        if shape is not None:
            m, n = shape[:2]
        else:
            asked = spread(as_type(frame[told], U32), group.machine.count)[group.index]
            m, n = descriptor_shape(int(asked[0]))
        tally = group.machine.tallies[site.number]
        tally.shared_requests += group.warps
        lines = n if from_memory else m + n
        tally.transactions += group.lanes * (lines * LINE_BYTES // PASS_BYTES)

    return count


BUILDERS: dict[str, Builder] = {
    "mma": _between_registers,
    "movmatrix": _between_registers,
    "wmma": _wmma,
    "ldmatrix": _matrices,
    "stmatrix": _matrices,
    "wgmma": _warpgroup,
    "tcgen05": _fifth,
}
