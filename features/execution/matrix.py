"""Handlers of mma, wmma, ldmatrix, stmatrix and movmatrix (PTX ISA 8.x, section 9.7.14).

A sum of products is formed in f64 and rounded once. Whole warps take part: lanes that should
not be active take part as well.
"""

from __future__ import annotations

import numpy as np

from wattcast.features.execution import access, fragments
from wattcast.features.execution.context import Context, space_of
from wattcast.features.execution.groups import Group
from wattcast.features.execution.loads import addresses
from wattcast.features.execution.operands import (
    Frame,
    Handler,
    Items,
    UnsupportedError,
    elements,
    store,
)
from wattcast.features.execution.spaces import Offsets
from wattcast.features.execution.values import (
    U8,
    U16,
    U32,
    U64,
    Array,
    as_type,
    eight_bit_values,
    spread,
)
from wattcast.features.execution.warp import Builder
from wattcast.features.launch import WARP_SIZE
from wattcast.features.ptx import ir


def _sources(context: Context, operand: ir.Operand, size: int) -> list[int]:
    dtype = U64 if size == 8 else U32
    return [context.operands.source(o, dtype) for o in elements(operand)]


def gathered(frame: Frame, group: Group, slots: list[int], size: int) -> Array:
    """Bits ``(warps, 32, registers)`` of a fragment."""
    dtype = U64 if size == 8 else U32
    count = group.machine.count
    return fragments.raw_table([spread(as_type(frame[s], dtype), count) for s in slots], size)


def _scatter(frame: Frame, group: Group, slots: list[int], bits: Array) -> None:
    for k, slot in enumerate(slots):
        store(frame, group, slot, np.ascontiguousarray(bits[..., k]).reshape(-1))


def unfollowed(one: ir.Instruction) -> tuple[str, str, int]:
    """The warning of an instruction that is counted, where something rests on its values."""
    return (
        "unsupported_instruction",
        f"{one.opcode} is counted, but its values are not followed: its results keep old ones",
        one.line,
    )


def taking_part(group: Group, table: Array) -> Array:
    """The rows of the warps that take part, of a table with one for every warp."""
    rows = group.layout.rows
    return table if rows is None else table[rows]


def scatter_part(frame: Frame, group: Group, slots: list[int], bits: Array) -> None:
    """Store fragments of the warps that take part; the others get zeros, and keep what they had."""
    rows = group.layout.rows
    full = np.zeros((group.machine.count // WARP_SIZE, WARP_SIZE, len(slots)), dtype=bits.dtype)
    full[slice(None) if rows is None else rows] = bits
    _scatter(frame, group, slots, full)


def product(a: Array, b: Array, c: Array, precise: bool) -> Array:
    if a.dtype.kind == "f" and not precise:
        a, b = a.astype(np.float32), b.astype(np.float32)
    result: Array = np.matmul(a, b) + c
    return result


# --- mma ---------------------------------------------------------------------------------------


def multiply(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """mma.sync, sparse and scaled by blocks too (not the quad-pair m8n8k4 of Volta)."""
    shape = fragments.parse_shape(modifiers)
    types = [m for m in modifiers if m in fragments.ELEMENTS]
    if len(types) < 4:
        raise UnsupportedError("mma type")
    packed = "kind::mxf4" in modifiers or "kind::mxf4nvf4" in modifiers
    kind_d, kind_a, kind_b, kind_c = (fragments.ELEMENTS[t] for t in types[:4])
    if packed:
        kind_a = kind_b = fragments.PACKED
    if shape == (8, 8, 4) and kind_a.name == "f16":
        raise UnsupportedError("mma.m8n8k4.f16")
    sparse = any(m.partition("::")[0] == "sp" for m in modifiers)
    slots = []
    for item, kind in zip(items[1:4], (kind_a, kind_b, kind_c), strict=True):
        slots.append(_sources(context, item, 8 if kind.bits == 64 else 4))
    wide = U64 if kind_d.bits == 64 else U32
    outs = [context.operands.target(o, wide) for o in elements(items[0])]
    parts = [
        fragments.mma_places(shape, name, kind.per_register, len(s))
        for name, kind, s in zip("abc", (kind_a, kind_b, kind_c), slots, strict=True)
    ]
    result = fragments.mma_places(shape, "c", kind_d.per_register, len(outs))
    metadata, selector = (_sources(context, items[4], 4), _number(items[5])) if sparse else ([], 0)
    scales = _Scales(context, modifiers, items[-4:]) if "block_scale" in modifiers else None
    differ, precise = "xor" in modifiers, context.precise

    def handler(frame: Frame, group: Group) -> None:
        a, b, c = [
            fragments.assemble(
                fragments.numbers(gathered(frame, group, s, 8 if kind.bits == 64 else 4), kind),
                places, rows, columns,
            )
            for s, kind, places, rows, columns in (
                (slots[0], kind_a, parts[0], shape.m, shape.k // (2 if sparse else 1)),
                (slots[1], kind_b, parts[1], shape.k, shape.n),
                (slots[2], kind_c, parts[2], shape.m, shape.n),
            )
        ]  # fmt: skip
        if metadata:
            told = gathered(frame, group, metadata, 4)[..., 0]
            a = fragments.spread_out(a, told, selector, kind_a)
        if scales is not None:
            a, b = scales.apply(frame, group, a, b)
        if differ:  # bits that differ: x + y - 2 x y
            c = c + a.sum(axis=2, keepdims=True) + b.sum(axis=1, keepdims=True)
            a = -2 * a
        total = product(a, b, c, precise)
        _scatter(frame, group, outs, fragments.registers_of(total[:, result[0], result[1]], kind_d))

    return handler


def _number(operand: ir.Operand) -> int:
    if not isinstance(operand, ir.Immediate):
        raise UnsupportedError("a selector that is computed")
    return int(operand.value)


class _Scales:
    """Scales of blocks along k: a byte each, of a row of A and of a column of B.

    Of the four lanes of a quad, two hold the scales of its two rows, one that of its column; which,
    the selectors say (PTX ISA, Block scaling for mma.sync; CUTLASS, mma_traits_sm120.hpp).
    """

    def __init__(self, context: Context, modifiers: tuple[str, ...], items: Items) -> None:
        told = next((m for m in modifiers if m.startswith("scale_vec::")), "")
        self.blocks = int(told[-2]) if told else 1 if "kind::mxf8f6f4" in modifiers else 2
        self.table = eight_bit_values("ue4m3" if "ue4m3" in modifiers else "ue8m0")
        self.a, self.b = (_sources(context, items[at], 4) for at in (0, 2))
        choice = [context.operands.source(o, U16) for at in (1, 3) for o in elements(items[at])]
        self.byte_a, self.lane_a, self.byte_b, self.lane_b = choice

    def apply(self, frame: Frame, group: Group, a: Array, b: Array) -> tuple[Array, Array]:
        row, column = np.arange(a.shape[1]), np.arange(b.shape[2])
        byte_a, lane_a, byte_b, lane_b = (
            int(as_type(frame[slot], U16)[0])
            for slot in (self.byte_a, self.lane_a, self.byte_b, self.lane_b)
        )
        lanes = 4 * (row % 8) + row // 8 + 2 * (lane_a & 1)
        by_row = self._values(frame, group, self.a, lanes, byte_a)
        lanes = 4 * column + (lane_b & 3)
        by_column = self._values(frame, group, self.b, lanes, byte_b)
        each = a.shape[2] // self.blocks
        scaled: Array = b * np.repeat(by_column, each, axis=2).swapaxes(1, 2)
        return a * np.repeat(by_row, each, axis=2), scaled

    def _values(self, frame: Frame, group: Group, slots: list[int], lanes: Array,
                first: int) -> Array:  # fmt: skip
        held = np.ascontiguousarray(gathered(frame, group, slots, 4)[:, lanes]).view(U8)
        first = min(first, 4 - self.blocks)
        found: Array = self.table[held.reshape(len(held), -1, 4)[:, :, first : first + self.blocks]]
        return found


# --- wmma --------------------------------------------------------------------------------------


def _wmma_element(modifiers: tuple[str, ...]) -> fragments.Element:
    found = [m for m in modifiers if m in fragments.ELEMENTS]
    if not found or found[-1] in ("s4", "u4"):
        raise UnsupportedError("wmma type")
    return fragments.ELEMENTS[found[-1]]


def _tile(shape: fragments.Shape, which: str) -> tuple[int, int]:
    return {"a": (shape.m, shape.k), "b": (shape.k, shape.n)}.get(which, (shape.m, shape.n))


class _Tiles:
    """A wmma fragment in memory: the tile's elements, each once."""

    def __init__(
        self, context: Context, modifiers: tuple[str, ...], memory: ir.Operand,
        stride: ir.Operand | None, registers: int, which: str, *, stores: bool,
    ) -> None:  # fmt: skip
        self.element = _wmma_element(modifiers)
        self.space = space_of(modifiers)
        self.rows, self.columns = _tile(fragments.parse_shape(modifiers), which)
        self.by_row = "row" in modifiers
        self.size = self.element.bits // 8
        self.count = registers * self.element.per_register
        # The fragment runs over the tile in row-major order, again and again if it is larger.
        tile = self.rows * self.columns
        self.elements = min(tile, WARP_SIZE * self.count)
        self.repeats = -(-WARP_SIZE * self.count // tile)
        flat = np.arange(self.elements)
        self.places = flat // self.columns, flat % self.columns
        self.slot, self.offset = context.operands.address(memory)
        self.stride = None if stride is None else context.operands.source(stride, U32)
        self.site = context.site(
            self.space, self.size * self.count, loads=not stores, stores=stores, role="float"
        )

    def locate(self, frame: Frame, group: Group) -> tuple[Offsets, bool]:
        """Element addresses of the warps that take part, and whether they are shared."""
        count = group.machine.count
        base = spread(addresses(frame, self.slot, self.offset), count).reshape(-1, WARP_SIZE)
        first = taking_part(group, base)[:, 0]
        lead = np.full(1, self.columns if self.by_row else self.rows, dtype=np.int64)
        if self.stride is not None:
            held = spread(as_type(frame[self.stride], U32), count).reshape(-1, WARP_SIZE)
            lead = taking_part(group, held)[:, 0].astype(np.int64)
        row, column = self.places
        along, across = (row, column) if self.by_row else (column, row)
        element = along * lead[:, None] + across
        where = first[:, None] + element * self.size
        shared = self.space == "shared"
        if self.space == "generic":
            shared = bool((access.windows(where) == access.SHARED_WINDOW).all())
            where = access.in_window(where)
        return where, shared


def _which(modifiers: tuple[str, ...]) -> str:
    return next(m for m in modifiers if m in ("a", "b", "c", "d"))


def load_tile(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """wmma.load: the tile's elements, one request per warp."""
    outs = [context.operands.target(o, U32) for o in elements(items[0])]
    stride = items[2] if len(items) > 2 else None
    tiles = _Tiles(context, modifiers, items[1], stride, len(outs), _which(modifiers), stores=False)

    def handler(frame: Frame, group: Group) -> None:
        machine = group.machine
        where, shared = tiles.locate(frame, group)
        machine.tallies[tiles.site.number].count_tile(where, tiles.size, shared, group)
        values = access.read_flat(tiles.site, machine, where, shared, group, tiles.element.dtype)
        wide = U64 if tiles.element.bits == 64 else U32
        if tiles.repeats > 1:
            values = np.tile(values, (1, tiles.repeats))[:, : WARP_SIZE * tiles.count]
        bits = np.ascontiguousarray(values.reshape(-1, WARP_SIZE, tiles.count)).view(wide)
        scatter_part(frame, group, outs, bits)

    return handler


def store_tile(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """wmma.store.d."""
    element = _wmma_element(modifiers)
    size = 8 if element.bits == 64 else 4
    sources = _sources(context, items[1], size)
    stride = items[2] if len(items) > 2 else None
    tiles = _Tiles(context, modifiers, items[0], stride, len(sources), "d", stores=True)

    def handler(frame: Frame, group: Group) -> None:
        machine = group.machine
        where, shared = tiles.locate(frame, group)
        machine.tallies[tiles.site.number].count_tile(where, tiles.size, shared, group)
        bits = taking_part(group, gathered(frame, group, sources, size))
        values = np.ascontiguousarray(bits).view(tiles.element.dtype)
        values = values.reshape(where.shape[0], -1)[:, : tiles.elements]
        access.write_flat(tiles.site, machine, where, shared, group, values)

    return handler


def multiply_tiles(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """wmma.mma."""
    shape = fragments.parse_shape(modifiers)
    types = [fragments.ELEMENTS[m] for m in modifiers if m in fragments.ELEMENTS]
    if len(types) == 2:  # .dtype.ctype: the factors are f16
        kinds = (types[0], fragments.ELEMENTS["f16"], fragments.ELEMENTS["f16"], types[1])
    elif len(types) == 4:
        kinds = (types[0], types[1], types[2], types[3])
    else:
        raise UnsupportedError("wmma.mma types")
    sizes = [8 if kind.bits == 64 else 4 for kind in kinds]
    outs = [context.operands.target(o, U64 if sizes[0] == 8 else U32) for o in elements(items[0])]
    slots = [
        _sources(context, item, size) for item, size in zip(items[1:4], sizes[1:], strict=True)
    ]
    precise = context.precise

    def handler(frame: Frame, group: Group) -> None:
        matrices = []
        for which, kind, held, size in zip("abc", kinds[1:], slots, sizes[1:], strict=True):
            rows, columns = _tile(shape, which)
            values = fragments.numbers(gathered(frame, group, held, size), kind)
            places = fragments.wmma_places(rows, columns, values.shape[-1])
            matrices.append(fragments.assemble(values, places, rows, columns))
        total = product(matrices[0], matrices[1], matrices[2], precise)
        count = len(outs) * kinds[0].per_register
        row, column = fragments.wmma_places(shape.m, shape.n, count)
        _scatter(frame, group, outs, fragments.registers_of(total[:, row, column], kinds[0]))

    return handler


# --- ldmatrix, stmatrix, movmatrix ---------------------------------------------------------------


def _matrix_count(modifiers: tuple[str, ...]) -> int:
    """Matrices of eight rows of 16 bytes. Those of narrower elements (from 10.0 on) have as many
    bytes in a row, and ``m16n16`` has twice the rows."""
    count = next((n for m, n in (("x1", 1), ("x2", 2), ("x4", 4)) if m in modifiers), 1)
    return 2 * count if "m16n16" in modifiers else count


def _follows(context: Context, modifiers: tuple[str, ...]) -> bool:
    """Whether the values of a matrix form are followed: those of 16-byte rows."""
    known = "m8n8" in modifiers or ("m8n16" in modifiers and "trans" not in modifiers)
    if not known and context.precise:
        raise UnsupportedError("values of this matrix form")
    return known


def _padded(rows: Array, modifiers: tuple[str, ...]) -> Array:
    """Rows of 16 bytes that hold 16 elements of 4 or 6 bits and padding -> a byte for each."""
    if "b4x16_p64" in modifiers:
        pieces = rows[..., :8]
        both = np.stack([pieces & np.uint8(15), pieces >> np.uint8(4)], axis=-1)
        return both.reshape(rows.shape)
    if "b6x16_p32" in modifiers:
        bits = np.unpackbits(rows[..., :12], axis=-1, bitorder="little")
        bits = bits.reshape(*rows.shape[:-1], 16, 6)
        return np.packbits(bits, axis=-1, bitorder="little")[..., 0]
    return rows


_ROW = np.arange(WARP_SIZE) >> 2
_COLUMN = 2 * (np.arange(WARP_SIZE) & 3)
"""Where the first of a lane's two elements of an 8 x 8 matrix of 16 bits lies."""


def _to_lanes(matrices: Array) -> Array:
    """8 x 8 matrices of 16 bits ``(..., 8, 8)`` -> registers ``(..., 32)``."""
    low = matrices[..., _ROW, _COLUMN].astype(U32)
    high = matrices[..., _ROW, _COLUMN + 1].astype(U32)
    bits: Array = low | (high << np.uint32(16))
    return bits


def _from_lanes(bits: Array) -> Array:
    """The inverse of ``_to_lanes``."""
    matrices = np.zeros((*bits.shape[:-1], 8, 8), dtype=U16)
    matrices[..., _ROW, _COLUMN] = bits.astype(U16)
    matrices[..., _ROW, _COLUMN + 1] = (bits >> np.uint32(16)).astype(U16)
    return matrices


def _row_addresses(site: access.Site, frame: Frame, slot: int, offset: int, group: Group,
                   count: int) -> Offsets:  # fmt: skip
    """Row addresses ``(warps that take part, 8 * matrices)`` in shared memory."""
    where = spread(addresses(frame, slot, offset), group.machine.count).reshape(-1, WARP_SIZE)
    chosen = taking_part(group, where)[:, : 8 * count]
    return access.in_window(chosen) if site.space == "generic" else chosen


def load_matrices(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """ldmatrix: lanes 8i to 8i+7 give the rows of matrix i (16 bytes each)."""
    count = _matrix_count(modifiers)
    outs = [context.operands.target(o, U32) for o in elements(items[0])]
    slot, offset = context.operands.address(items[1])
    site = context.site(space_of(modifiers), 16, loads=True, role="half2")
    across, idle = "trans" in modifiers, context.idle
    follows, one = _follows(context, modifiers), context.instruction

    def handler(frame: Frame, group: Group) -> None:
        machine = group.machine
        if idle and machine.tallies[site.number].count_again(frame[slot], group):
            return
        starts = _row_addresses(site, frame, slot, offset, group, count)
        machine.tallies[site.number].count_matrices(starts, group)
        if idle:
            return
        if not follows:
            machine.complain(*unfollowed(one))
            return
        where = starts[:, :, None] + 2 * np.arange(8)
        values = access.read_flat(
            site, machine, where.reshape(starts.shape[0], -1), True, group, U16
        )
        rows = np.ascontiguousarray(values).view(U8).reshape(-1, count, 8, 16)
        values = np.ascontiguousarray(_padded(rows, modifiers)).view(U16)
        bits = _to_lanes(values.swapaxes(2, 3) if across else values).swapaxes(1, 2)
        scatter_part(frame, group, outs, bits)

    return handler


def store_matrices(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """stmatrix: the inverse of ldmatrix."""
    count, idle = _matrix_count(modifiers), context.idle
    follows, one = _follows(context, modifiers), context.instruction
    slot, offset = context.operands.address(items[0])
    sources = _sources(context, items[1], 4)
    site = context.site(space_of(modifiers), 16, stores=True)
    across = "trans" in modifiers

    def handler(frame: Frame, group: Group) -> None:
        machine = group.machine
        starts = _row_addresses(site, frame, slot, offset, group, count)
        machine.tallies[site.number].count_matrices(starts, group)
        if idle:
            return
        if not follows:
            machine.complain(*unfollowed(one))
            return
        bits = taking_part(group, gathered(frame, group, sources, 4))
        values = _from_lanes(bits.swapaxes(1, 2))
        if across:
            values = values.swapaxes(2, 3)
        where = (starts[:, :, None] + 2 * np.arange(8)).reshape(starts.shape[0], -1)
        access.write_flat(site, machine, where, True, group, values.reshape(where.shape))

    return handler


def transpose(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """movmatrix.trans: an 8 x 8 matrix of b16 transposed across the warp."""
    dst = context.operands.target(items[0], U32)
    source = context.operands.source(items[1], U32)

    def handler(frame: Frame, group: Group) -> None:
        bits = gathered(frame, group, [source], 4)[..., 0]
        store(frame, group, dst, _to_lanes(_from_lanes(bits).swapaxes(1, 2)).reshape(-1))

    return handler


def _wmma(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler | None:
    kind = modifiers[0]
    if kind == "load":
        return load_tile(context, modifiers[1:], items)
    if kind == "store":
        return store_tile(context, modifiers[1:], items)
    return multiply_tiles(context, modifiers[1:], items)


BUILDERS: dict[str, Builder] = {
    "mma": multiply,
    "wmma": _wmma,
    "ldmatrix": load_matrices,
    "stmatrix": store_matrices,
    "movmatrix": transpose,
}
