"""``cvt`` on arrays (PTX ISA 8.x, section 9.7.9.21), rounding to nearest."""

from __future__ import annotations

import numpy as np

from wattcast.features.execution.floating import saturate
from wattcast.features.execution.integer import Function, Operation
from wattcast.features.execution.values import (
    F32,
    F64,
    TYPES,
    U32,
    Array,
    DType,
    from_bf16,
    pack_halves,
    to_bf16,
)

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
