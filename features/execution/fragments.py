"""How matrices lie in the registers of a warp, and their element types.

``mma`` fragments follow the PTX ISA (section 9.7.14.5); those of ``wmma`` are not documented,
so element ``j`` of lane ``l`` is element ``(l * count + j) mod (rows * columns)`` of the matrix
in row-major order.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.execution.operands import UnsupportedError
from wattcast.features.execution.values import (
    EIGHT_BIT,
    F16,
    F32,
    F64,
    S8,
    S32,
    S64,
    U8,
    U16,
    U32,
    U64,
    Array,
    DType,
    eight_bit_values,
    from_bf16,
    to_bf16,
)
from wattcast.features.integers import UNSIGNED
from wattcast.features.launch import WARP_SIZE

Places = npt.NDArray[np.int64]


class Element(NamedTuple):
    """An element type: its width in bits and the dtype whose bits it is held in."""

    name: str
    bits: int
    dtype: DType

    @property
    def per_register(self) -> int:
        """Elements of one register (64-bit ones are alone in theirs)."""
        return max(1, 32 // self.bits)


ELEMENTS = {
    name: Element(name, bits, dtype)
    for name, bits, dtype in (
        ("f16", 16, F16), ("bf16", 16, U16), ("tf32", 32, U32), ("f32", 32, F32), ("f64", 64, F64),
        ("s8", 8, S8), ("u8", 8, U8), ("s4", 4, U8), ("u4", 4, U8), ("s32", 32, S32),
        ("e4m3", 8, U8), ("e5m2", 8, U8), ("e3m2", 8, U8), ("e2m3", 8, U8), ("e2m1", 8, U8),
        ("b1", 1, U8),
    )
}  # fmt: skip
PACKED = Element("e2m1", 4, U8)
"""e2m1 of kind::mxf4 and mxf4nvf4, two in a byte; else it lies in the middle of a byte."""


def numbers(registers: Array, element: Element) -> Array:
    """Registers ``uint[..., r]`` -> element values ``[..., r * per_register]`` to compute with.

    Floats come as float64, integers as int64.
    """
    raw = np.ascontiguousarray(registers)
    name = element.name
    if name == "f64":
        return raw.view(F64)
    raw = raw.view(U32)
    if name == "f32":
        return raw.view(F32).astype(F64)
    if name == "tf32":
        return (raw & np.uint32(0xFFFFE000)).view(F32).astype(F64)
    if name == "f16":
        return raw.view(F16).astype(F64)
    if name == "bf16":
        return from_bf16(raw.view(U16)).astype(F64)
    if element.bits == 8 and name in EIGHT_BIT:
        shift = np.uint8(2 if name == "e2m1" else 0)
        result: Array = eight_bit_values(name)[raw.view(U8) >> shift]
        return result
    if name == "b1":
        return np.unpackbits(raw.view(U8), axis=-1, bitorder="little").astype(S64)
    if element.bits == 4:
        pieces = raw.view(U8)
        both = np.stack([pieces & np.uint8(15), pieces >> np.uint8(4)], axis=-1)
        if element is PACKED:
            found: Array = eight_bit_values(name)[both.reshape(*raw.shape[:-1], -1)]
            return found
        values = both.reshape(*raw.shape[:-1], -1).astype(S64)
        return np.where(values > 7, values - 16, values) if name == "s4" else values
    return raw.view(element.dtype).astype(S64)


def registers_of(values: Array, element: Element) -> Array:
    """Element values -> register bits ``[..., r]``, rounded once."""
    name = element.name
    if name == "f64":
        return np.ascontiguousarray(values.astype(F64)).view(U64)
    if name == "bf16":
        return np.ascontiguousarray(to_bf16(values.astype(F32))).view(U32)
    if name in ("f16", "f32", "s32"):
        return np.ascontiguousarray(values.astype(element.dtype)).view(U32)
    raise UnsupportedError(f"matrix result of type {name}")


class Shape(NamedTuple):
    """``m`` x ``n`` x ``k``."""

    m: int
    n: int
    k: int


def parse_shape(modifiers: tuple[str, ...]) -> Shape:
    """``m16n8k16`` among the modifiers. Raises UnsupportedError."""
    for modifier in modifiers:
        if modifier.startswith("m") and "n" in modifier and "k" in modifier:
            m, _, rest = modifier[1:].partition("n")
            n, _, k = rest.partition("k")
            if m.isdigit() and n.isdigit() and k.isdigit():
                return Shape(int(m), int(n), int(k))
    raise UnsupportedError("matrix shape")


@lru_cache
def mma_places(shape: Shape, part: str, per_register: int, registers: int) -> tuple[Places, Places]:
    """Row and column of every element: two arrays ``(32, registers * per_register)``.

    PTX ISA 9.7.14.5: a group of four lanes holds one row of A, one column of B, one row of C.
    """
    lane = np.arange(WARP_SIZE)[:, None, None]
    register = np.arange(registers)[None, :, None]
    j = np.arange(per_register)[None, None, :]
    group, inner = lane >> 2, lane & 3
    if part == "a":
        tall = shape.m == 16
        row = group + (8 * (register & 1) if tall else 0) + 0 * j
        column = (register >> 1 if tall else register) * 4 * per_register + inner * per_register + j
    elif part == "b":
        row = register * 4 * per_register + inner * per_register + j
        column = group + 0 * register + 0 * j
    else:
        index = register * per_register + j
        row = group + 8 * (index >> 1)
        column = inner * 2 + (index & 1)
    size = registers * per_register
    rows = np.broadcast_to(row, (WARP_SIZE, registers, per_register)).reshape(WARP_SIZE, size)
    columns = np.broadcast_to(column, (WARP_SIZE, registers, per_register)).reshape(WARP_SIZE, size)
    return rows.astype(np.int64), columns.astype(np.int64)


@lru_cache
def wmma_places(rows: int, columns: int, count: int) -> tuple[Places, Places]:
    """Row and column of every element of a wmma fragment: two arrays ``(32, count)``."""
    flat = (np.arange(WARP_SIZE)[:, None] * count + np.arange(count)) % (rows * columns)
    return flat // columns, flat % columns


def assemble(values: Array, places: tuple[Places, Places], rows: int, columns: int) -> Array:
    """Fragments ``(warps, 32, count)`` -> matrices ``(warps, rows, columns)``."""
    if int(places[0].max()) >= rows or int(places[1].max()) >= columns:
        raise UnsupportedError("fragment of another shape")
    out = np.zeros((values.shape[0], rows, columns), dtype=values.dtype)
    out[:, places[0], places[1]] = values
    return out


def spread_out(held: Array, metadata: Array, selector: int, element: Element) -> Array:
    """The non-zeros of a sparse A, ``(warps, 16, k / 2)``, at their places, ``(warps, 16, k)``.

    ``metadata`` are the 32 bits of each lane: four for every four units of a row, where its first
    and second pair of bits say where two of them belong. A unit is an element, half a tf32, two of
    4 bits (PTX ISA, Warp-level matrix instructions for sparse matrices; CUTLASS reads the same from
    ``ELayout`` in mma_traits_sm90_gmma_sparse.hpp).
    """
    warps, rows, stored = held.shape
    units = 2 * stored * 2 if element.bits == 32 else 2 * stored // (2 if element.bits == 4 else 1)
    row, group = np.arange(rows)[:, None], np.arange(units // 4)
    if element.bits >= 16:  # a lane has both of its rows, 16 bits each
        lanes = units // 16
        lane = 4 * (row % 8) + selector * lanes + group // 4
        shift = 16 * (row // 8) + 4 * (group % 4)
    else:  # a lane has one row
        lane = 4 * (row % 8) + row // 8 + 2 * (selector if units == 32 else group // 8)
        shift = 4 * (group % 8)
    codes = metadata[:, lane] >> shift.astype(U32) & np.uint32(15)
    first, second = (codes & np.uint32(3)).astype(np.intp), (codes >> np.uint32(2)).astype(np.intp)
    full = np.zeros((warps, rows, units // 4, 4 * 2 * stored // units), dtype=held.dtype)
    at = np.ix_(np.arange(warps), np.arange(rows), np.arange(units // 4))
    if element.bits == 32:  # halves that belong together: one of two elements
        full = full.reshape(warps, rows, units // 4, 2)
        full[(*at, first // 2)] = held
        return full.reshape(warps, rows, -1)
    wide = 2 * stored // units  # elements of a unit
    pairs = held.reshape(warps, rows, units // 4, 2, wide)
    parts = full.reshape(warps, rows, units // 4, 4, wide)
    parts[(*at, first)] = pairs[:, :, :, 0]
    parts[(*at, second)] = pairs[:, :, :, 1]
    return full.reshape(warps, rows, -1)


def raw_table(arrays: list[Array], size: int) -> Array:
    """Registers of all threads -> bits ``(warps, 32, registers)``."""
    dtype = UNSIGNED[size]
    return np.stack([a.view(dtype).reshape(-1, WARP_SIZE) for a in arrays], axis=-1)
