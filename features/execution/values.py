"""Values of registers: numpy arrays, one element per thread, or one for all threads.

A register holds an array of shape ``(n,)`` (one element per thread of every sampled block)
or ``(1,)`` (the same value in all threads: loop counters, arguments). Its dtype is that of
the instruction that wrote it last; a reader reinterprets the bits when it wants another
type, exactly as PTX registers are untyped bits. Packed halves are ``uint32``; bfloat16 is
carried in ``uint16``.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from wattcast.features.integers import SIGNED, UNSIGNED

Array = npt.NDArray[Any]
DType = np.dtype[Any]

BOOL = np.dtype(np.bool_)
U8, U16, U32, U64 = (np.dtype(f"u{n}") for n in (1, 2, 4, 8))
S8, S16, S32, S64 = (np.dtype(f"i{n}") for n in (1, 2, 4, 8))
F16, F32, F64 = (np.dtype(f"f{n}") for n in (2, 4, 8))

U128 = np.dtype([("low", "u8"), ("high", "u8")])
"""What loads, stores and moves carry of 128 bits; nothing computes with it."""

# PTX fundamental and packed types (PTX ISA 8.x, section 5.2) -> the dtype that carries them.
TYPES: dict[str, DType] = {
    "pred": BOOL,
    "b8": U8, "u8": U8, "s8": S8,
    "b16": U16, "u16": U16, "s16": S16, "f16": F16, "bf16": U16,
    "b32": U32, "u32": U32, "s32": S32, "f32": F32, "tf32": U32, "f16x2": U32, "bf16x2": U32,
    "u16x2": U32, "s16x2": U32, "u8x4": U32, "s8x4": U32,
    "b64": U64, "u64": U64, "s64": S64, "f64": F64, "f32x2": U64,
    "texref": U64, "samplerref": U64, "surfref": U64,
    "b128": U128,
}  # fmt: skip


def constant(value: int | float, dtype: DType) -> Array:
    """One value for all threads, integers wrapped to the type's width. Shape ``(1,)``."""
    if dtype is BOOL:
        return np.array([bool(value)])
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.array([value], dtype=np.float64).astype(dtype)
    size = dtype.itemsize
    raw = int(value) & ((1 << (8 * size)) - 1)
    return np.array([raw], dtype=UNSIGNED[size]).view(dtype)


def literal(value: int | float, text: str, dtype: DType) -> Array:
    """An immediate operand as the instruction's type wants its bits. Shape ``(1,)``."""
    head = text.lstrip("-")[:2].lower()
    if head in ("0f", "0d"):
        bits = int(text.lstrip("-")[2:], 16)
        single = head == "0f"
        if dtype.kind == "f":
            held = np.array([bits], dtype=U32 if single else U64).view(F32 if single else F64)
            if text.startswith("-"):
                held = -held
            with np.errstate(over="ignore", invalid="ignore"):
                return held.astype(dtype)
        return constant(bits, dtype)
    if isinstance(value, float) and dtype.kind != "f" and dtype is not BOOL:
        pattern = struct.pack("<f" if dtype.itemsize <= 4 else "<d", value)
        return constant(int.from_bytes(pattern, "little"), dtype)
    return constant(value, dtype)


def as_type(value: Array, dtype: DType) -> Array:
    """The low bits of a register's value read as another type (never a conversion).

    A wider register is truncated; a narrower one is zero-extended.
    """
    held = value.dtype
    if held is dtype:
        return value
    size = dtype.itemsize
    if held.itemsize == size and held is not BOOL and dtype is not BOOL:
        return value.view(dtype)
    if 16 in (held.itemsize, size):
        out = np.zeros((value.shape[0], size), dtype=U8)
        kept = min(held.itemsize, size)
        out[:, :kept] = np.ascontiguousarray(value).view(U8).reshape(-1, held.itemsize)[:, :kept]
        bits: Array = out.view(dtype)[:, 0] if dtype is not BOOL else np.any(out, axis=1)
        return bits
    if dtype is BOOL:
        result: Array = value != 0
        return result
    raw = value if held is BOOL else value.view(UNSIGNED[held.itemsize])
    return raw.astype(UNSIGNED[size]).view(dtype)


def widen(value: Array, size: int) -> Array:
    """Extend an integer to a register of ``size`` bytes: by sign if its dtype is signed.

    PTX ISA section 9.4.1: results narrower than the destination register are extended.
    """
    held = value.dtype
    if held is BOOL or held.itemsize == size:
        return value
    if held.itemsize > size:
        return as_type(value, UNSIGNED[size])
    if held.kind == "f":
        return value.view(UNSIGNED[held.itemsize]).astype(UNSIGNED[size])
    return value.astype((SIGNED if held.kind == "i" else UNSIGNED)[size])


def spread(value: Array, count: int) -> Array:
    """The value with one element per thread (a read-only view if it was uniform)."""
    return value if value.shape[0] == count else np.broadcast_to(value, (count,))


# --- bfloat16 and packed halves ----------------------------------------------


def from_bf16(bits: Array) -> Array:
    """bfloat16 bits -> float32, exact."""
    return (bits.view(U16).astype(U32) << np.uint32(16)).view(F32)


def to_bf16(value: Array) -> Array:
    """float32 -> bfloat16 bits, round to nearest even; NaN becomes 0x7fff (PTX canonical)."""
    raw = value.astype(F32, copy=False).view(U32)
    rounded = ((raw + (np.uint32(0x7FFF) + ((raw >> np.uint32(16)) & np.uint32(1))))
               >> np.uint32(16)).astype(U16)  # fmt: skip
    return np.where(np.isnan(value), np.uint16(0x7FFF), rounded)


def halves(packed: Array) -> tuple[Array, Array]:
    """The low and high 16 bits of packed 32-bit values."""
    return packed.astype(U16), (packed >> np.uint32(16)).astype(U16)


def pack_halves(low: Array, high: Array) -> Array:
    """Two 16-bit values -> one ``uint32`` (low first)."""
    result: Array = low.view(U16).astype(U32) | (high.view(U16).astype(U32) << np.uint32(16))
    return result
