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
        ("e4m3", 8, U8), ("e5m2", 8, U8),
    )
}  # fmt: skip


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
    if name in EIGHT_BIT:
        result: Array = eight_bit_values(name)[raw.view(U8)]
        return result
    if name in ("s4", "u4"):
        pieces = raw.view(U8)
        both = np.stack([pieces & np.uint8(15), pieces >> np.uint8(4)], axis=-1)
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


def raw_table(arrays: list[Array], size: int) -> Array:
    """Registers of all threads -> bits ``(warps, 32, registers)``."""
    dtype = UNSIGNED[size]
    return np.stack([a.view(dtype).reshape(-1, WARP_SIZE) for a in arrays], axis=-1)
