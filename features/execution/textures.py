"""Textures and surfaces (PTX ISA 8.x, 9.7.10-11): where texels lie; what they hold is invented.

Memory bound to a one-dimensional texture lies as it is. Arrays of two and three dimensions lie in
blocks of 64 bytes and 8 rows: each of their sectors holds 16 bytes of two rows (X.Org, Nouveau,
memory types: block linear).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wattcast.features.attached import attached
from wattcast.features.dataflow import reads
from wattcast.features.execution.context import (
    Context,
    Frame,
    Handler,
    Items,
    elements,
)
from wattcast.features.execution.spaces import SPAN, Offsets
from wattcast.features.execution.values import (
    F32,
    S32,
    S64,
    TYPES,
    U64,
    Array,
    DType,
    Group,
    as_type,
    spread,
)
from wattcast.features.integers import UNSIGNED
from wattcast.features.ptx import ir

TEXTURES = frozenset({"tex", "tld4", "txq", "suld", "sust", "sured", "suq"})
_RANDOM = np.random.default_rng(20260101).random(1 << 12)

MOST_ROW_BYTES, MOST_ROWS = 1 << 16, 1 << 15
"""Rows of an array lie as if it were that large: its true width is not known."""
_NARROW = {0xFFFF: 2, 0xFF: 1}
"""Masks that leave so many bytes of an integer."""


def build(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """A fetch gives each thread a value in [0, 1) (integers: [0, 256)) by its coordinates, and
    counts the sectors of its texels; a surface is stored to where its coordinates say."""
    base, operands = context.instruction.base, context.operands
    types = [m for m in modifiers if m in TYPES]
    result = TYPES[types[0]] if types else F32
    if base == "tex" and len(types) > 1:
        result = TYPES[types[-2]]
    stores = base in ("sust", "sured")
    memory = base not in ("txq", "suq")
    site = context.site("texture" if memory else "none", 4, loads=base != "sust", stores=stores)
    address = next((item for item in items if isinstance(item, ir.Address)), None)
    coordinates: list[int] = []
    for item in address.coordinates if address else ():
        parts = [p for p in elements(item) if isinstance(p, ir.Register | ir.Immediate)]
        coordinates += [operands.source(p, S32) for p in parts]
    texture = None
    if address is not None and isinstance(address.base, ir.Register | ir.Symbol):
        texture = operands.source(address.base, U64)
    by_float = base in ("tex", "tld4") and bool(types) and types[-1] == "f32"
    layered = any(m.startswith("a") for m in modifiers[:3] if m in ("a1d", "a2d", "acube"))
    values = items[1] if stores and len(items) > 1 else items[0]
    size = 1 if base.startswith("su") else _texel_bytes(context.body, elements(values), result)

    def places(frame: Frame) -> list[Offsets]:
        """Whole coordinates, x first; of an array of textures the layer comes last."""
        held = [as_type(frame[slot], F32 if by_float else S32) for slot in coordinates]
        if layered and held:
            held = [*held[1:], as_type(frame[coordinates[0]], S32)]
        return [np.floor(each.astype(np.float64)).astype(np.int64) for each in held]

    def touch(frame: Frame, group: Group) -> None:
        machine = group.machine
        if texture is None or not coordinates or not memory:
            machine.tallies[site.number].requests += group.warps
            return
        where = as_type(frame[texture], U64).astype(S64) + _offsets(places(frame), size)
        machine.tallies[site.number].count_global(where, group)

    if stores:
        return touch
    writes = [operands.writing(o, result) for o in elements(items[0])]

    def handler(frame: Frame, group: Group) -> None:
        machine = group.machine
        touch(frame, group)
        mixed: Array = np.zeros(1, dtype=np.uint64)
        for slot in coordinates:
            held = frame[slot]
            bits = as_type(held, UNSIGNED[held.dtype.itemsize]).astype(np.uint64)
            mixed = mixed * np.uint64(2654435761) + (bits ^ (bits >> np.uint64(15)))
        for k, write in enumerate(writes):
            invented = _RANDOM[((mixed + np.uint64(977 * k)) & np.uint64(0xFFF)).astype(np.intp)]
            integers = result.kind != "f"
            whole = (invented * 256).astype(result) if integers else invented.astype(result)
            write(frame, group, spread(whole, machine.count))

    return handler


def _offsets(places: Sequence[Offsets], size: int) -> Offsets:
    """Byte offsets of texels of ``size`` bytes; coordinates beyond an edge are taken to it."""
    if len(places) == 1:
        return np.clip(places[0] * size, 0, SPAN - size)
    x = np.clip(places[0] * size, 0, MOST_ROW_BYTES - size)
    y = np.clip(places[1], 0, MOST_ROWS - 1)
    block = (y >> 3) * (MOST_ROW_BYTES >> 6) + (x >> 6)
    inside = ((x >> 5 & 1) << 8) | ((y >> 1 & 3) << 6) | ((x >> 4 & 1) << 5)
    found = (block << 9) + (inside | ((y & 1) << 4) | (x & 15))
    if len(places) > 2:
        plane = MOST_ROW_BYTES * MOST_ROWS
        found = found + np.clip(places[2], 0, SPAN // plane - 1) * plane
    return found


def _texel_bytes(body: ir.Body, outs: Sequence[ir.Operand], result: DType) -> int:
    """Bytes of a texel: of the channels that are read, four each but where all that reads one
    keeps less of it."""
    readers = _readers(body)
    used = [readers.get(out.name, ()) if isinstance(out, ir.Register) else () for out in outs]
    last = max((n for n, by in enumerate(used) if by), default=0)
    wide = max((_kept_bytes(one) for by in used for one in by), default=result.itemsize)
    channels = 1 << last.bit_length()
    return channels * min(wide, result.itemsize)


def _kept_bytes(one: ir.Instruction) -> int:
    """How many low bytes of a 32-bit integer an instruction looks at, as far as its name tells."""
    if one.base == "and":
        masks = [o.value for o in one.operands if isinstance(o, ir.Immediate)]
        return min((_NARROW.get(int(mask), 4) for mask in masks), default=4)
    if one.base == "cvt" and one.modifiers:
        kept = TYPES.get(one.modifiers[0])
        return kept.itemsize if kept is not None and kept.kind != "f" else 4
    return 4


@attached
def _readers(body: ir.Body) -> dict[str, list[ir.Instruction]]:
    found: dict[str, list[ir.Instruction]] = {}
    for one in body.instructions:
        for name in reads(one):
            found.setdefault(name, []).append(one)
    return found
