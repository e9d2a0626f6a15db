"""Values of registers: numpy arrays, one element per thread, or one for all threads.

A register holds an array of shape ``(n,)`` (one element per thread of every sampled block)
or ``(1,)`` (the same value in all threads: loop counters, arguments). Its dtype is that of
the instruction that wrote it last; a reader reinterprets the bits when it wants another
type, exactly as PTX registers are untyped bits. Packed halves are ``uint32``; bfloat16 is
carried in ``uint16``.
"""

from __future__ import annotations

import struct
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.integers import SIGNED, UNSIGNED
from wattcast.features.launch import WARP_SIZE

if TYPE_CHECKING:
    from wattcast.features.execution.machine import Machine


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


# Groups of threads that execute together, and the state of all threads of sampled blocks.

Mask = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]


class CutShortError(Exception):
    """The budget of work or of steps is spent."""


ISSUE_UNITS = 2048
"""Units of work (``features.errors.Effort``) that carrying out an instruction costs, however few
lanes do: numpy's 5 us per call over its 2 ns per lane, measured over the fixture kernels."""
SLICE_UNITS = 512
"""The same where only what steers a loop is run on, and nothing is counted (1.4 us)."""
ACCESS_UNITS, ATOMIC_UNITS = 16, 64
"""Further units per lane of an access to memory, of an atomic one, and of a matrix product."""


class Layout(NamedTuple):
    """Warps of a group: their numbers (``None``: all), their lanes (``None``: all 32) as
    ``bool[rows, 32]``, and the block slot of each."""

    rows: npt.NDArray[np.intp] | None
    lanes: Mask | None
    owners: npt.NDArray[np.int64]


class Group:
    """Threads at the same instruction. ``mask`` has one element per thread of all slots.

    ``full`` tells that no other thread lives, so registers may be written without a mask.
    """

    def __init__(self, machine: Machine, mask: Mask, count: int) -> None:
        self.machine = machine
        self.mask = mask
        self.count = count
        self.full = count == machine.live_count
        self._whole: tuple[Mask, bool] | None = None

    @cached_property
    def warps(self) -> Counts:
        """Warps with an active lane, by slot."""
        rows = self.mask.reshape(-1, WARP_SIZE).any(axis=1)
        found: Counts = rows.reshape(self.machine.slots, -1).sum(axis=1)
        return found

    @cached_property
    def lanes(self) -> Counts:
        """Active lanes, by slot."""
        words = np.bitwise_count(self.mask.view(np.uint64)).reshape(self.machine.slots, -1)
        found: Counts = words.sum(axis=1, dtype=np.int64)
        return found

    @cached_property
    def stat(self) -> Counts:
        """``int64[2, slots]``: warps, lanes."""
        return np.stack([self.warps, self.lanes])

    @property
    def whole_warps(self) -> bool:
        """Whether all living lanes of its warps take part."""
        live = self.machine.live
        if self._whole is None or self._whole[0] is not live:
            words = self.mask.view(np.uint64).reshape(-1, WARP_SIZE // 8)
            others = (live & ~self.mask).view(np.uint64).reshape(-1, WARP_SIZE // 8)
            self._whole = live, not (words.any(axis=1) & others.any(axis=1)).any()
        return self._whole[1]

    @cached_property
    def everyone(self) -> bool:
        """Every lane of every slot takes part: no mask is needed at all."""
        return self.count == self.machine.count

    @cached_property
    def index(self) -> npt.NDArray[np.intp]:
        """The active threads' numbers."""
        return np.flatnonzero(self.mask)

    @cached_property
    def layout(self) -> Layout:
        """Which warps take part and with which lanes."""
        if self.everyone:
            return Layout(None, None, self.machine.owners)
        table = self.mask.reshape(-1, WARP_SIZE)
        rows = np.flatnonzero(table.any(axis=1))
        lanes = None if rows.size * WARP_SIZE == self.count else table[rows]
        chosen = rows if rows.size < table.shape[0] else None
        return Layout(chosen, lanes, self.machine.owners[rows])

    def by_warp(self, value: Array) -> tuple[Array, Mask | None, npt.NDArray[np.int64]]:
        """What the warps that take part hold, ``[rows, 32]``; their lanes and slots."""
        rows, lanes, owners = self.layout
        table = spread(value, self.machine.count).reshape(-1, WARP_SIZE)
        return table if rows is None else table[rows], lanes, owners

    @cached_property
    def traced(self) -> tuple[Mask, Counts]:
        """For each warp of the layout: whether its block is traced, and its rank in its block."""
        owners, trace = self.layout.owners, self.machine.trace
        assert trace is not None
        rank = np.arange(owners.size) - np.searchsorted(owners, owners)
        return trace.traced[owners], rank

    def narrowed(self, predicate: Array, negated: bool) -> Group | None:
        """The threads of the group whose predicate holds; ``None`` if there are none."""
        if predicate.shape[0] == 1:
            return self if bool(predicate[0]) != negated else None
        if negated:
            mask = self.mask & ~predicate
        else:
            mask = self.mask & predicate if not self.everyone else predicate
        count = int(np.count_nonzero(mask))
        if count == self.count:
            return self
        return Group(self.machine, mask, count) if count else None

    def split(self, predicate: Array, negated: bool) -> tuple[Group | None, Group | None]:
        """The threads whose predicate holds, and the others."""
        if predicate.dtype is not BOOL:
            predicate = predicate != 0
        first = self.narrowed(predicate, negated)
        if first is None:
            return None, self
        if first is self:
            return self, None
        mask = self.mask & ~first.mask
        return first, Group(self.machine, mask, self.count - first.count)


def merge(group: Group, new: Array, old: Array) -> Array:
    """``new`` for the group's threads, ``old`` for the others (bits reinterpreted)."""
    dtype = new.dtype
    held = old.dtype
    if held is not dtype:
        if held.itemsize == dtype.itemsize and held is not BOOL and dtype is not BOOL:
            old = old.view(dtype)
        else:
            old = old.astype(dtype)
    return np.where(group.mask, new, old)
