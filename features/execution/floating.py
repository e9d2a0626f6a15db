"""Floating-point instructions of PTX on arrays (PTX ISA 8.x, sections 9.7.3 to 9.7.6).

Addition, multiplication, division and square root in f16, bf16, f32 and f64 round as IEEE 754
asks. ``precise`` adds what does not change any count: the single rounding of f32, f16 and bf16
``fma`` (computed in f64, rounded to odd first, so the second rounding is right), f64 ``fma`` by
compensated products (right barring subnormal parts and overflow), flushing of subnormals
(``.ftz``) and directed rounding. ``.approx`` functions are computed in f64 and rounded: at
least as near the true value as hardware.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wattcast.features.execution.integer import Function, Operation, packed
from wattcast.features.execution.values import (
    BOOL,
    F16,
    F32,
    F64,
    S64,
    TYPES,
    U16,
    U32,
    Array,
    DType,
    from_bf16,
    to_bf16,
)

# --- exact building blocks --------------------------------------------------------------------


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Sum and its rounding error, exact in f64 (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Product and its rounding error, exact in f64 barring overflow (Dekker, Veltkamp)."""

    def split(x: Array) -> tuple[Array, Array]:
        scaled = x * 134217729.0  # 2^27 + 1
        high = scaled - (scaled - x)
        return high, x - high

    product = a * b
    a1, a2 = split(a)
    b1, b2 = split(b)
    error = ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2
    return product, np.where(np.isfinite(error), error, 0.0)


def to_odd(total: Array, error: Array) -> Array:
    """Round to odd: an inexact f64 gets an odd last bit, so a later rounding is correct."""
    bits = total.view(S64)
    inexact = (error != 0) & np.isfinite(error) & ((bits & np.int64(1)) == 0) & (total != 0)
    away = (error > 0) == (total > 0)
    return np.where(inexact, bits + np.where(away, np.int64(1), np.int64(-1)), bits).view(F64)


def directed(exact: Array, dtype: DType, rounding: str) -> Array:
    """Round f64 values to ``dtype`` by ``rn``, ``rz``, ``rm`` (down) or ``rp`` (up)."""
    near = exact.astype(dtype)
    if rounding == "rn":
        return near
    value = near.astype(F64)
    low, high = dtype.type(-np.inf), dtype.type(np.inf)
    down = np.nextafter(near, low)
    up = np.nextafter(near, high)
    if rounding == "rz":
        return np.where(np.abs(value) > np.abs(exact), np.where(value > 0, down, up), near)
    if rounding == "rm":
        return np.where(value > exact, down, near)
    return np.where(value < exact, up, near)


def flush(a: Array) -> Array:
    """Subnormal f32 values become zero of the same sign (``.ftz``)."""
    return np.where(np.abs(a) < np.float32(1.1754943508222875e-38), a * np.float32(0), a)


# --- f32 and f64 -----------------------------------------------------------------------------


def _fma_exact(a: Array, b: Array, c: Array) -> Array:
    """a*b+c of f64-held narrower values, rounded to odd in f64."""
    return to_odd(*two_sum(a * b, c))


def _fused64(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """``a*b + c`` as a sum of two: rounding that sum once rounds the exact value.

    The smaller part is rounded to odd (Boldo and Melquiond, Emulation of FMA and
    correctly rounded sums, IEEE Transactions on Computers 57, 2008).
    """
    high, low = two_product(a, b)
    middle, error = two_sum(c, low)
    middle = np.where(low == 0, c, middle)  # -0 + 0 would be +0
    total, lost = two_sum(high, middle)
    return total, to_odd(*two_sum(error, lost))


def _fma64(a: Array, b: Array, c: Array) -> Array:
    total, rest = _fused64(a, b, c)
    exact = (rest == 0) | ~np.isfinite(total)  # adding +0 would lose the sign of -0
    return np.where(exact, total, total + rest)


def correct64(total: Array, error: Array, rounding: str) -> Array:
    """Directed rounding in f64 from the nearest value and its error (true - value).

    Infinities and NaN stay as they are.
    """
    error = np.where(np.isfinite(total), error, 0.0)
    down = np.nextafter(total, -np.inf)
    up = np.nextafter(total, np.inf)
    if rounding == "rm":
        return np.where(error < 0, down, total)
    if rounding == "rp":
        return np.where(error > 0, up, total)
    toward = np.where(total > 0, down, up)
    return np.where((error != 0) & ((error > 0) != (total > 0)), toward, total)


def _round64(base: str, rounding: str) -> Function | None:
    if base in ("add", "sub"):
        sign = 1.0 if base == "add" else -1.0
        return lambda a, b: correct64(*two_sum(a, b * sign), rounding)
    if base == "mul":
        return lambda a, b: correct64(*two_product(a, b), rounding)
    if base == "div":

        def quotient(a: Array, b: Array) -> Array:
            near = a / b
            product, low = two_product(near, b)
            return correct64(near, ((a - product) - low) * np.sign(b), rounding)

        return quotient
    if base in ("fma", "mad"):

        def fused(a: Array, b: Array, c: Array) -> Array:
            total, error = _fused64(a, b, c)
            nearest, rest = two_sum(total, error)
            exact = (error == 0) | ~np.isfinite(total)  # adding +0 would lose the sign of -0
            return correct64(np.where(exact, total, nearest), rest, rounding)

        return fused
    return None


def _overflowing(function: Function, base: str, rounding: str) -> Function:
    """Finite operands whose result is too large give the largest number where ``rounding``
    leads towards zero, not infinity."""
    largest = np.finfo(F64).max

    def apply(*sources: Array) -> Array:
        out = function(*sources)
        lost = np.isinf(out)
        for source in sources:
            lost = lost & np.isfinite(source)
        if base == "div":  # by zero infinity is exact
            lost = lost & (sources[1] != 0)
        if rounding != "rz":
            lost = lost & ((out > 0) if rounding == "rm" else (out < 0))
        return np.where(lost, np.copysign(largest, out), out)

    return apply


def _rounded32(base: str, rounding: str) -> Function | None:
    def wide(function: Function) -> Function:
        return lambda *s: directed(function(*(v.astype(F64) for v in s)), F32, rounding)

    exact: dict[str, Function] = {
        "add": lambda a, b: to_odd(*two_sum(a, b)),
        "sub": lambda a, b: to_odd(*two_sum(a, -b)),
        "mul": np.multiply,
        "fma": _fma_exact,
        "mad": _fma_exact,
        "div": np.divide,
        "rcp": np.reciprocal,
        "sqrt": np.sqrt,
    }
    return wide(exact[base]) if base in exact else None


def is_long_division(dividend: Array, divisor: Array) -> Array:
    """Where a division rounded to nearest leaves the short way of a reciprocal and Newton steps.

    It holds where operands and quotient are normal numbers; all else is done by a subroutine
    (``__cuda_sm3x_div_rn_noftz_f32_slowpath`` in machine code, entered where FCHK says so; exactly
    where near the ends of the range is not documented).
    """
    facts = np.finfo(F32)

    def normal(value: Array) -> Array:
        size = np.abs(value)
        found: Array = (size >= facts.tiny) & (size <= facts.max)
        return found

    with np.errstate(all="ignore"):
        slow: Array = ~(normal(dividend) & normal(divisor) & normal(dividend / divisor))
    return slow


def _sine(a: Array) -> Array:
    return np.sin(np.where(np.isfinite(a), a, np.nan))


def _cosine(a: Array) -> Array:
    return np.cos(np.where(np.isfinite(a), a, np.nan))


def _smaller(a: Array, b: Array) -> Array:
    """min: a number before NaN, -0 before +0 (PTX ISA, min)."""
    return np.where(a == b, np.where(np.signbit(a), a, b), np.fmin(a, b))


def _larger(a: Array, b: Array) -> Array:
    return np.where(a == b, np.where(np.signbit(a), b, a), np.fmax(a, b))


def _smaller_or_nan(a: Array, b: Array) -> Array:
    return np.where(np.isnan(a) | np.isnan(b), np.minimum(a, b), _smaller(a, b))


def _larger_or_nan(a: Array, b: Array) -> Array:
    return np.where(np.isnan(a) | np.isnan(b), np.maximum(a, b), _larger(a, b))


_EXTREMES: dict[str, Function] = {"min": _smaller, "max": _larger}
_EXTREMES_OR_NAN: dict[str, Function] = {"min": _smaller_or_nan, "max": _larger_or_nan}
_BINARY: dict[str, Function] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "min": np.fmin, "max": np.fmax, "copysign": lambda a, b: np.copysign(b, a),
}  # fmt: skip
_UNARY: dict[str, Function] = {
    "abs": np.abs, "neg": np.negative, "sqrt": np.sqrt, "rcp": np.reciprocal,
    "rsqrt": lambda a: 1.0 / np.sqrt(a), "sin": _sine, "cos": _cosine, "lg2": np.log2,
    "ex2": np.exp2, "tanh": np.tanh,
}  # fmt: skip
_TRANSCENDENTAL = frozenset({"rsqrt", "sin", "cos", "lg2", "ex2", "tanh"})


def _plain_fma(a: Array, b: Array, c: Array) -> Array:
    return a * b + c


def _native(base: str, modifiers: tuple[str, ...], dtype: DType, precise: bool) -> Function | None:
    """f32 and f64."""
    rounding = next((m for m in modifiers if m in ("rz", "rm", "rp")), None)
    directed_function: Function | None = None
    if precise and rounding:
        pick = _rounded32 if dtype is F32 else _round64
        directed_function = pick(base, rounding)
        if directed_function is not None and dtype is F64:
            directed_function = _overflowing(directed_function, base, rounding)
    if directed_function is not None:
        function = directed_function
    elif base in ("fma", "mad"):
        if not precise:
            function = _plain_fma
        elif dtype is F32:

            def function(a: Array, b: Array, c: Array) -> Array:
                return _fma_exact(a.astype(F64), b.astype(F64), c.astype(F64)).astype(F32)
        else:
            function = _fma64
    elif base in _EXTREMES and precise:
        function = (_EXTREMES_OR_NAN if "NaN" in modifiers else _EXTREMES)[base]
    elif base in _EXTREMES and "NaN" in modifiers:
        function = np.minimum if base == "min" else np.maximum
    elif base in _TRANSCENDENTAL and dtype is F32 and precise:
        inner = _UNARY[base]

        def function(a: Array) -> Array:
            return inner(a.astype(F64)).astype(F32)
    elif base in _BINARY:
        function = _BINARY[base]
    elif base in _UNARY:
        function = _UNARY[base]
    else:
        return None
    if "xorsign" in modifiers:
        plain = function

        def function(a: Array, b: Array) -> Array:
            sign = np.signbit(a) ^ np.signbit(b)
            return np.copysign(plain(np.abs(a), np.abs(b)), np.where(sign, -1.0, 1.0)).astype(dtype)

    if "sat" in modifiers:
        unclamped = function

        def function(*s: Array) -> Array:
            return saturate(unclamped(*s))

    if "ftz" in modifiers and precise and dtype is F32 and base not in ("copysign",):
        unflushed = function

        def function(*s: Array) -> Array:
            return flush(unflushed(*(flush(v) for v in s)))

    return function


def saturate(a: Array) -> Array:
    """Clamp to [+0, 1]; NaN becomes 0 (``.sat``)."""
    clamped = np.clip(a, 0, 1) + a.dtype.type(0)  # -0 becomes +0
    packed: Array = np.where(np.isnan(a), a.dtype.type(0), clamped).astype(a.dtype, copy=False)
    return packed


# --- f16 and bf16 ------------------------------------------------------------------------------


def to_bf16_exact(value: Array) -> Array:
    """f64 -> bfloat16 bits with one rounding (through an odd-rounded f32)."""
    single = value.astype(F32)
    back = single.astype(F64)
    bits = single.view(U32)
    inexact = (back != value) & ((bits & np.uint32(1)) == 0) & np.isfinite(single) & (single != 0)
    grows = np.abs(value) > np.abs(back)
    odd = np.where(inexact, np.where(grows, bits + np.uint32(1), bits - np.uint32(1)), bits)
    return to_bf16(odd.view(F32))


def _narrow(base: str, modifiers: tuple[str, ...], brain: bool) -> Function | None:
    """f16 or bf16 by way of f64, with one rounding at the end."""
    exact: dict[str, Function] = {
        **_BINARY,
        **_UNARY,
        **_EXTREMES,
        "add": lambda a, b: to_odd(*two_sum(a, b)),
        "sub": lambda a, b: to_odd(*two_sum(a, -b)),
        "fma": _fma_exact,
        "mad": _fma_exact,
    }
    if base in ("min", "max") and "NaN" in modifiers:
        exact[base] = _EXTREMES_OR_NAN[base]
    if base not in exact:
        return None
    inner = exact[base]
    clamp = "sat" in modifiers
    positive = "relu" in modifiers

    def apply(*sources: Array) -> Array:
        wide = [(from_bf16(s) if brain else s.view(F16)).astype(F64) for s in sources]
        out = inner(*wide)
        if clamp:
            out = saturate(out)
        if positive:
            out = np.where(np.isnan(out), out, np.maximum(out, 0.0) + 0.0)
        return to_bf16_exact(out) if brain else out.astype(F16)

    return apply


def _both_singles(function: Function) -> Function:
    """f32x2: two f32 in a 64-bit register."""

    def apply(*sources: Array) -> Array:
        pairs = [np.ascontiguousarray(s).view(F32).reshape(-1, 2) for s in sources]
        low = function(*(p[:, 0] for p in pairs))
        high = function(*(p[:, 1] for p in pairs))
        return np.ascontiguousarray(np.stack([low, high], axis=1)).view(TYPES["f32x2"]).reshape(-1)

    return apply


_TESTS: dict[str, Function] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda a: ~np.isnan(a),
    "notanumber": np.isnan,
    # "positive and negative zero are considered normal numbers" (PTX ISA, testp)
    "normal": lambda a: np.isfinite(a) & ((np.abs(a) >= np.finfo(a.dtype).tiny) | (a == 0)),
    "subnormal": lambda a: (a != 0) & (np.abs(a) < np.finfo(a.dtype).tiny),
}
_COUNTS = {"fma": 3, "mad": 3, **dict.fromkeys(_BINARY, 2), **dict.fromkeys(_UNARY, 1)}


def floating_operation(base: str, modifiers: tuple[str, ...], *, precise: bool) -> Operation | None:
    """The operation of a floating-point opcode, or ``None`` if it is not one."""
    kind = modifiers[-1] if modifiers else ""
    if base == "testp" and kind in ("f32", "f64"):
        return Operation(_TESTS[modifiers[0]], (TYPES[kind],), BOOL)
    count = _COUNTS.get(base)
    if count is None:
        return None
    function: Function | None
    if kind in ("f32", "f64"):
        dtype = TYPES[kind]
        function = _native(base, modifiers, dtype, precise)
        return Operation(function, (dtype,) * count, dtype) if function else None
    if kind in ("f16", "bf16"):
        held = F16 if kind == "f16" else U16
        function = _narrow(base, modifiers, kind == "bf16")
        return Operation(function, (held,) * count, held) if function else None
    if kind in ("f16x2", "bf16x2"):
        function = _narrow(base, modifiers, kind == "bf16x2")
        return Operation(packed(function, U16), (U32,) * count, U32) if function else None
    if kind == "f32x2":
        function = _native(base, modifiers, F32, precise)
        held = TYPES[kind]
        return Operation(_both_singles(function), (held,) * count, held) if function else None
    return None


# --- comparisons --------------------------------------------------------------------------------

_ORDERED: dict[str, Function] = {
    "eq": np.equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_OPPOSITE = {"ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def comparison(name: str, kind: str) -> tuple[Function, DType]:
    """A comparison by name and type, with the dtype its operands want.

    Ordered comparisons are false for NaN, ``equ``, ``ltu``... true (PTX ISA 9.7.6.2).
    Raises KeyError for an unknown comparison or type.
    """
    dtype = TYPES[kind]
    if kind == "bf16":
        inner, _ = comparison(name, "f32")
        return (lambda a, b: inner(from_bf16(a), from_bf16(b))), dtype
    if dtype.kind != "f":
        if name in _UNSIGNED:
            size = dtype.itemsize
            return _ORDERED[_UNSIGNED[name]], np.dtype(f"u{size}")
        return (np.not_equal if name == "ne" else _ORDERED[name]), dtype
    if name in _ORDERED:
        return _ORDERED[name], dtype
    unordered: dict[str, Callable[[Array, Array], Array]] = {
        "ne": lambda a, b: (a < b) | (a > b),
        "equ": lambda a, b: ~((a < b) | (a > b)),
        "neu": np.not_equal,
        "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
        "nan": lambda a, b: np.isnan(a) | np.isnan(b),
    }
    if name in unordered:
        return unordered[name], dtype
    opposite = _ORDERED[_OPPOSITE[name]]
    return (lambda a, b: ~opposite(a, b)), dtype
