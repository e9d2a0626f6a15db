"""Floating-point instructions of PTX on arrays (PTX ISA 8.x, sections 9.7.3 to 9.7.6).

They round to nearest in the precision of their type, fused ones twice and those of halves in f32
first: what is counted rests on floats through comparisons alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wattcast.features.execution.integer import Function, Operation, packed
from wattcast.features.execution.values import (
    BOOL,
    F16,
    F32,
    F64,
    TYPES,
    U16,
    U32,
    Array,
    DType,
    from_bf16,
    pack_halves,
    to_bf16,
)


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


def _fused(a: Array, b: Array, c: Array) -> Array:
    return a * b + c


_FUNCTIONS: dict[str, tuple[Function, int]] = {
    "add": (np.add, 2), "sub": (np.subtract, 2), "mul": (np.multiply, 2), "div": (np.divide, 2),
    "min": (np.fmin, 2), "max": (np.fmax, 2), "copysign": (lambda a, b: np.copysign(b, a), 2),
    "fma": (_fused, 3), "mad": (_fused, 3),
    "abs": (np.abs, 1), "neg": (np.negative, 1), "sqrt": (np.sqrt, 1), "rcp": (np.reciprocal, 1),
    "rsqrt": (lambda a: 1.0 / np.sqrt(a), 1), "sin": (_sine, 1), "cos": (_cosine, 1),
    "lg2": (np.log2, 1), "ex2": (np.exp2, 1), "tanh": (np.tanh, 1),
}  # fmt: skip
"""What each does, and how many operands it has."""

_OR_NAN: dict[str, Function] = {"min": np.minimum, "max": np.maximum}


def _function(base: str, modifiers: tuple[str, ...], dtype: DType) -> Function:
    """On arrays of f32 or f64, modifiers included."""
    plain = _OR_NAN[base] if base in _OR_NAN and "NaN" in modifiers else _FUNCTIONS[base][0]
    changes = {"xorsign", "sat", "relu"}.intersection(modifiers)

    def changed(*values: Array) -> Any:
        found = plain(*map(np.abs, values)) if "xorsign" in changes else plain(*values)
        if "xorsign" in changes:
            odd = np.logical_xor(*map(np.signbit, values))
            found = np.copysign(found, np.where(odd, -1.0, 1.0)).astype(dtype)
        found = saturate(found) if "sat" in changes else found
        return np.maximum(found, dtype.type(0)) if "relu" in changes else found

    return changed if changes else plain


def saturate(a: Array) -> Array:
    """Clamp to [0, 1]; NaN becomes 0 (``.sat``)."""
    clamped: Array = np.where(np.isnan(a), a.dtype.type(0), np.clip(a, 0, 1))
    return clamped.astype(a.dtype, copy=False)


def _of_halves(function: Function, brain: bool) -> Function:
    """On f16 or bf16 by way of f32."""

    def apply(*sources: Array) -> Array:
        out = function(*(from_bf16(s) if brain else s.view(F16).astype(F32) for s in sources))
        return to_bf16(out) if brain else out.astype(F16)

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


def floating_operation(base: str, modifiers: tuple[str, ...]) -> Operation | None:
    """The operation of a floating-point opcode, or ``None`` if it is not one."""
    kind = modifiers[-1] if modifiers else ""
    if base == "testp" and kind in ("f32", "f64"):
        return Operation(_TESTS[modifiers[0]], (TYPES[kind],), BOOL)
    if base not in _FUNCTIONS:
        return None
    count = _FUNCTIONS[base][1]
    if kind in ("f32", "f64"):
        dtype = TYPES[kind]
        return Operation(_function(base, modifiers, dtype), (dtype,) * count, dtype)
    if kind == "f32x2":
        held = TYPES[kind]
        function = _both_singles(_function(base, modifiers, F32))
        return Operation(function, (held,) * count, held)
    if kind.removesuffix("x2") not in ("f16", "bf16"):
        return None
    narrow = _of_halves(_function(base, modifiers, F32), kind.startswith("b"))
    if kind.endswith("x2"):
        return Operation(packed(narrow, U16), (U32,) * count, U32)
    held = TYPES[kind]
    return Operation(narrow, (held,) * count, held)


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


# ``cvt`` on arrays (PTX ISA 8.x, section 9.7.9.21), rounding to nearest.

_INTEGRAL: dict[str, Function] = {
    "rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil,
}  # fmt: skip
_FLOATS = frozenset({"f16", "f32", "f64", "bf16", "tf32"})


def float_to_integer(value: Array, dtype: DType, rounding: str = "rzi") -> Array:
    """Round and clamp to the integer's range.

    NaN becomes 0, but the integer's top bit alone if it comes from f64 or goes to 64 bits
    (PTX ISA, cvt).
    """
    wide = value.astype(F64)
    whole = _INTEGRAL[rounding](wide)
    limits = np.iinfo(dtype)
    top = float(limits.max) if dtype.itemsize < 8 else float(limits.max) + 1.0
    over = whole >= top
    under = whole <= float(limits.min)
    safe = np.where(over | under | np.isnan(whole), 0.0, whole)
    out = safe.astype(dtype)
    out = np.where(over, dtype.type(limits.max), out)
    out = np.where(under, dtype.type(limits.min), out)
    if value.dtype is F64 or dtype.itemsize == 8:
        top_bit = limits.min if limits.min else limits.max // 2 + 1
        out = np.where(np.isnan(whole), dtype.type(top_bit), out)
    return out


def clamped(value: Array, dtype: DType) -> Array:
    """An integer within the destination's range (``.sat``)."""
    limits, own = np.iinfo(dtype), np.iinfo(value.dtype)
    kept = np.clip(value, max(limits.min, own.min), min(limits.max, own.max))
    return kept.astype(dtype)


def _tf32(value: Array) -> Array:
    """f32 -> tf32: 10 bits of mantissa kept, round to nearest, ties away (``.rna``)."""
    raw = value.astype(F32).view(U32)
    return (raw + np.uint32(0x1000)) & np.uint32(0xFFFFE000)


def _to_float(source: str, target: str, modifiers: tuple[str, ...]) -> Function:
    """From a float or an integer."""
    integral = next((m for m in modifiers if m in _INTEGRAL), None) if source in _FLOATS else None
    clamp, positive = "sat" in modifiers, "relu" in modifiers
    result = TYPES[target]

    def narrowed(value: Array) -> Array:
        if target == "bf16":
            return to_bf16(value.astype(F32))
        return _tf32(value) if target == "tf32" else value.astype(result)

    def apply(value: Array) -> Array:
        wide = from_bf16(value) if source == "bf16" else value
        if integral:
            wide = _INTEGRAL[integral](wide)
        if clamp:
            wide = saturate(wide.astype(F64))
        return narrowed(np.maximum(wide, 0) if positive else wide)

    if source == target and not (integral or clamp or positive):
        return lambda a: a
    return apply


def conversion(modifiers: tuple[str, ...]) -> Operation | None:
    """The operation of ``cvt.<modifiers>``; ``None`` if the types are not followed, as those of
    fewer than 16 bits."""
    if len(modifiers) < 2:
        return None
    target, source = modifiers[-2], modifiers[-1]
    if target in ("f16x2", "bf16x2") and source == "f32":
        narrow = _to_float("f32", target.removesuffix("x2"), modifiers)
        return Operation(lambda a, b: pack_halves(narrow(b), narrow(a)), (F32, F32), U32)
    if "x" in target or "x" in source or target not in TYPES or source not in TYPES:
        return None
    held, result = TYPES[source], TYPES[target]
    if target in _FLOATS:
        return Operation(_to_float(source, target, modifiers), (held,), result)
    if source in _FLOATS:
        rounding = next((m for m in modifiers if m in _INTEGRAL), "rzi")
        widen: Function = from_bf16 if source == "bf16" else lambda a: a
        return Operation(lambda a: float_to_integer(widen(a), result, rounding), (held,), result)
    if held.kind not in "iu" or result.kind not in "iu":
        return None
    if "sat" in modifiers:
        return Operation(lambda a: clamped(a, result), (held,), result)
    if held is result:
        return Operation(lambda a: a, (held,), result)
    return Operation(lambda a: a.astype(result), (held,), result)
