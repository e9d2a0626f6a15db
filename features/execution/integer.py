"""Integer and bit instructions of PTX on arrays (PTX ISA 8.x, sections 9.7.1, 9.7.2, 9.7.8).

Wrap-around is exact: the arrays carry the instruction's own width. Each function takes
arrays of the dtypes that ``Operation.sources`` names and returns one of ``result``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from wattcast.features.execution.values import (
    BOOL,
    S16,
    S32,
    S64,
    TYPES,
    U8,
    U16,
    U32,
    U64,
    Array,
    DType,
    halves,
    pack_halves,
)
from wattcast.features.integers import BY_SIGN, SIGNED, UNSIGNED, Lanes, operations

Function = Callable[..., Array]

_ones = Lanes(U32).ones


class Operation(NamedTuple):
    """A pure operation: ``function(*sources) -> result``; dtypes of both. One with ``others``
    (dtypes) has several results."""

    function: Callable[..., Any]
    sources: tuple[DType, ...]
    result: DType
    others: tuple[DType, ...] = ()


# --- multiplication ------------------------------------------------------


def _multiply(mode: str, dtype: DType) -> tuple[Function, DType]:
    if mode == "wide":
        wide = (SIGNED if dtype.kind == "i" else UNSIGNED)[2 * dtype.itemsize]
        return (lambda a, b: a.astype(wide) * b.astype(wide)), wide
    if mode == "hi":
        return Lanes(dtype).high, dtype
    return np.multiply, dtype


# --- saturation, packed halves ------------------------------------------------------------


def _saturated(function: Function) -> Function:
    limits = np.iinfo(np.int32)

    def apply(*sources: Array) -> Array:
        exact = function(*(s.astype(S64) for s in sources))
        return np.clip(exact, limits.min, limits.max).astype(S32)

    return apply


def packed(function: Function, dtype: DType) -> Function:
    """Apply to the two 16-bit halves of packed operands."""

    def apply(*sources: Array) -> Array:
        pairs = [halves(s) for s in sources]
        low = function(*(p[0].view(dtype) for p in pairs))
        high = function(*(p[1].view(dtype) for p in pairs))
        return pack_halves(low, high)

    return apply


# --- bits -----------------------------------------------------------------------------------


def _find_leading(size: int, signed: bool, shift: bool) -> Function:
    bits = 8 * size

    def apply(a: Array) -> Array:
        if signed:
            a = np.where(a < 0, ~a, a)
        position = Lanes(a.dtype).length(a) - np.uint32(1)
        if shift:
            return np.where(position == 0xFFFFFFFF, position, np.uint32(bits - 1) - position)
        return position

    return apply


def _funnel(left: bool, wrap: bool) -> Function:
    def apply(a: Array, b: Array, c: Array) -> Array:
        amount = ((c & np.uint32(31)) if wrap else np.minimum(c, np.uint32(32))).astype(U64)
        both = (b.astype(U64) << np.uint64(32)) | a.astype(U64)
        moved = (both << amount) >> np.uint64(32) if left else both >> amount
        result: Array = moved.astype(U32)
        return result

    return apply


# prmt modes (PTX ISA 9.7.8.7): byte taken for result bytes 0-3, by the selector's low two bits.
_PERMUTES: dict[str, tuple[tuple[int, ...], ...]] = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}


def _permute(mode: str | None) -> Function:
    table = np.array(_PERMUTES[mode]) if mode else None

    def apply(*words: Array) -> Array:
        a, b, c = np.broadcast_arrays(*words)
        given = np.stack([a, b], axis=1).view(UNSIGNED[1])
        selectors = c[:, None] >> np.arange(0, 16, 4, dtype=U32) & np.uint32(0xF)
        places = selectors & np.uint32(7) if table is None else table[c & np.uint32(3)]
        out = np.take_along_axis(given, places.astype(np.intp), axis=1)
        if table is None:  # the sign of the byte
            signs = (out.view(SIGNED[1]) >> 7).view(UNSIGNED[1])
            out = np.where(selectors & np.uint32(8), signs, out)
        return np.ascontiguousarray(out).view(U32)[:, 0]

    return apply


def logic3(table: int) -> Function:
    """``lop3`` for an 8-bit look-up table (PTX ISA 9.7.8.6)."""

    def apply(a: Array, b: Array, c: Array) -> Array:
        out = np.zeros(1, dtype=a.dtype)
        for index in range(8):
            if table >> index & 1:
                term = a if index & 4 else ~a
                term = term & (b if index & 2 else ~b)
                out = out | (term & (c if index & 1 else ~c))
        return out

    return apply


def _dot(parts: int, first: str, second: str, high: bool) -> Function:
    """dp4a / dp2a: signed or unsigned byte products added to a 32-bit value."""

    def pick(value: Array, index: int, width: int, signed: bool) -> Array:
        part = (value >> np.uint32(width * index)).astype(UNSIGNED[width // 8])
        return part.view(SIGNED[width // 8]).astype(S64) if signed else part.astype(S64)

    def apply(a: Array, b: Array, c: Array) -> Array:
        total = c.view(U32).astype(S64)
        for index in range(parts):
            left = pick(a, index, 32 // parts, first[0] == "s")
            right = pick(b, index + (2 if high else 0), 8, second[0] == "s")
            total = total + left * right
        return total.astype(U32)

    return apply


def _nth_set(a: Array, base: Array, offset: Array) -> Array:
    """fns: position of the n-th set bit from ``base`` on, down for a negative n; 0: of it alone."""
    mask, start, wanted = (each[:, None] for each in np.broadcast_arrays(a, base, offset))
    steps = np.arange(32) * np.where(wanted < 0, -1, 1)
    places = start.astype(S64) + np.where(wanted == 0, 0, steps)
    inside = (places >= 0) & (places < 32)
    found = inside & (mask >> np.clip(places, 0, 31).astype(U32) & np.uint32(1) != 0)
    reached = np.cumsum(found, axis=1) == np.maximum(np.abs(wanted.astype(S64)), 1)
    first = np.take_along_axis(places, reached.argmax(axis=1)[:, None], axis=1)[:, 0]
    return np.where(reached.any(axis=1), first, 0xFFFFFFFF).astype(U32)


def _sign_extend(wrap: bool, dtype: DType) -> Function:
    def apply(a: Array, b: Array) -> Array:
        size = (b & np.uint32(31)) if wrap else np.minimum(b, np.uint32(32))
        value = a.view(U32)
        field = value & _ones(size)
        if dtype.kind == "i":
            top = np.where(size == 0, np.uint32(0), size - np.uint32(1))
            sign = (((value >> top) & np.uint32(1)) != 0) & (size != 0)
            field = np.where(sign, field | ~_ones(size), field)
        return field.view(dtype)

    return apply


def _bit_mask(wrap: bool) -> Function:
    def apply(a: Array, b: Array) -> Array:
        if wrap:
            a, b = a & np.uint32(31), b & np.uint32(31)
        return _ones(b) << a

    return apply


# --- the table -------------------------------------------------------------------------------


def _wide_mac(mode: str, dtype: DType) -> tuple[Function, DType]:
    product, result = _multiply(mode, dtype)
    return (lambda a, b, c: product(a, b) + c), result


def _mul24(high: bool) -> Function:
    def apply(a: Array, b: Array) -> Array:
        if a.dtype.kind == "i":
            left, right = ((v << np.int32(8) >> np.int32(8)).astype(S64) for v in (a, b))
        else:
            left, right = ((v & np.uint32(0xFFFFFF)).astype(S64) for v in (a, b))
        exact = left * right
        result: Array = (exact >> np.int64(16) if high else exact).astype(U32).view(a.dtype)
        return result

    return apply


def integer_operation(base: str, modifiers: tuple[str, ...]) -> Operation | None:
    """The operation of an integer or bit opcode, or ``None`` if it is not one.

    ``lop3`` is left to the decoder, as its table is an operand. Carries are too.
    """
    if not modifiers:
        return None
    kind = modifiers[-1]
    if kind in ("u16x2", "s16x2"):
        if base not in ("add", "min", "max"):
            return None
        half = S16 if kind == "s16x2" else U16
        return Operation(packed(operations(Lanes(half))[base].function, half), (U32, U32), U32)
    if kind == "pred":
        if base not in ("and", "or", "xor", "not"):
            return None
        function, count, _ = operations(Lanes(U8))[base]
        return Operation(function, (BOOL,) * count, BOOL)
    if kind not in TYPES or TYPES[kind].kind == "f" or kind in ("f16x2", "bf16x2", "bf16", "tf32"):
        return None
    dtype = TYPES[kind]
    raw = UNSIGNED[dtype.itemsize]
    mode = modifiers[0]
    if base in ("mul", "mad"):
        table = _multiply if base == "mul" else _wide_mac
        function, result = table(mode if mode in ("wide", "hi", "lo") else "lo", dtype)
        if "sat" in modifiers:  # only mad.hi.sat.s32
            return Operation(
                _saturated(lambda a, b, c: (a * b >> np.int64(32)) + c), (S32, S32, S32), S32
            )
        sources = (dtype, dtype) if base == "mul" else (dtype, dtype, result)
        return Operation(function, sources, result)
    if base in ("mul24", "mad24"):
        product = _mul24(mode == "hi")
        if base == "mul24":
            return Operation(product, (dtype, dtype), dtype)
        return Operation(lambda a, b, c: product(a, b) + c, (dtype,) * 3, dtype)
    if "sat" in modifiers and base in ("add", "sub"):
        return Operation(_saturated(np.add if base == "add" else np.subtract), (S32, S32), S32)
    if base in operations(Lanes(raw)):
        # Where signedness does not matter, the unsigned dtype saves reinterpretations.
        kind_of = dtype if base in BY_SIGN else raw
        function, numbers, counts = operations(Lanes(kind_of))[base]
        result = U32 if base in ("popc", "clz") else kind_of
        if "relu" in modifiers:
            inner = function
            function = lambda *s: np.maximum(inner(*s), 0)  # noqa: E731
        return Operation(function, (kind_of,) * numbers + (U32,) * counts, result)
    special: dict[str, Operation] = {
        "cnot": Operation(lambda a: (a == 0).astype(raw), (raw,), raw),
        "sad": Operation(lambda a, b, c: np.where(a < b, b - a, a - b) + c, (dtype,) * 3, dtype),
        "bfind": Operation(
            _find_leading(dtype.itemsize, dtype.kind == "i", "shiftamt" in modifiers),
            (dtype,),
            U32,
        ),
        "fns": Operation(_nth_set, (U32, U32, S32), U32),
        "shf": Operation(_funnel(mode == "l", "wrap" in modifiers), (U32,) * 3, U32),
        "szext": Operation(_sign_extend("wrap" in modifiers, dtype), (dtype, U32), dtype),
        "bmsk": Operation(_bit_mask("wrap" in modifiers), (U32, U32), U32),
    }
    if base in ("dp4a", "dp2a"):
        first, second = modifiers[-2:]
        parts = 4 if base == "dp4a" else 2
        return Operation(_dot(parts, first, second, mode == "hi"), (U32,) * 3, U32)
    return special.get(base)


def permute_operation(modifiers: tuple[str, ...]) -> Operation:
    """prmt: the mode follows the type (``prmt.b32.f4e``)."""
    mode = next((m for m in modifiers if m in _PERMUTES), None)
    return Operation(_permute(mode), (U32,) * 3, U32)
