"""``cvt`` on arrays (PTX ISA 8.x, section 9.7.9.21)."""

from __future__ import annotations

import numpy as np

from wattcast.features.execution import floating
from wattcast.features.execution.integer import Function, Operation
from wattcast.features.execution.values import (
    EIGHT_BIT,
    F16,
    F32,
    F64,
    TYPES,
    U8,
    U16,
    U32,
    Array,
    DType,
    eight_bit_values,
    from_bf16,
    halves,
    pack_halves,
    to_eight_bit,
)

_INTEGRAL: dict[str, Function] = {
    "rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil,
}  # fmt: skip


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


def integer_to_float(value: Array, dtype: DType, rounding: str) -> Array:
    """A directed rounding of integers, exact for 64 bits too: by halves that f64 can hold."""
    if value.dtype.itemsize < 8:
        return floating.directed(value.astype(F64), dtype, rounding)
    shift, low = value.dtype.type(32), value.dtype.type(0xFFFFFFFF)
    upper = (value >> shift).astype(F64) * 2.0**32
    total, error = floating.two_sum(upper, (value & low).astype(F64))
    if dtype is F64:
        return floating.correct64(total, error, rounding)
    return floating.directed(floating.to_odd(total, error), dtype, rounding)


def clamped(value: Array, dtype: DType) -> Array:
    """An integer within the destination's range (``.sat``)."""
    limits, own = np.iinfo(dtype), np.iinfo(value.dtype)
    kept = np.clip(value, max(limits.min, own.min), min(limits.max, own.max))
    return kept.astype(dtype)


def _tf32(value: Array) -> Array:
    """f32 -> tf32: 10 bits of mantissa kept, round to nearest, ties away (``.rna``)."""
    raw = value.astype(F32).view(U32)
    return (raw + np.uint32(0x1000)) & np.uint32(0xFFFFE000)


def _float_to_float(
    source: str, target: str, modifiers: tuple[str, ...], precise: bool
) -> Function:
    rounding = next((m for m in modifiers if m in ("rz", "rm", "rp")), "rn")
    integral = next((m for m in modifiers if m in _INTEGRAL), None)
    clamp = "sat" in modifiers
    positive = "relu" in modifiers
    ftz = "ftz" in modifiers and precise and "f32" in (source, target)

    def apply(value: Array) -> Array:
        if ftz and source == "f32":
            value = floating.flush(value)
        exact = (from_bf16(value) if source == "bf16" else value).astype(F64)
        if integral:
            exact = _INTEGRAL[integral](exact)
        if clamp:
            exact = floating.saturate(exact)
        if positive:
            exact = np.maximum(exact, 0.0)
        if target == "bf16":
            if rounding == "rz":
                return (exact.astype(F32).view(U32) >> np.uint32(16)).astype(U16)
            return floating.to_bf16_exact(exact)
        if target == "tf32":
            return _tf32(exact)
        out = floating.directed(exact, TYPES[target], rounding if precise else "rn")
        return floating.flush(out) if ftz and target == "f32" else out

    if source == target and not (integral or clamp or positive or ftz):
        return lambda a: a
    simple = rounding == "rn" and not (integral or clamp or positive or ftz)
    if simple and {source, target} <= {"f16", "f32", "f64"}:
        result = TYPES[target]
        return lambda a: a.astype(result)
    return apply


def _packed(
    target: str, source: str, modifiers: tuple[str, ...], precise: bool
) -> Operation | None:
    """Pairs of narrow floats: from two f32, or from a pair."""
    to, of = target.removesuffix("x2"), source.removesuffix("x2")
    if "ue8m0" in (to, of):
        return _scales(target, source, modifiers)
    if to in EIGHT_BIT:
        relu = "relu" in modifiers

        def eight(value: Array) -> Array:
            wide = (from_bf16(value) if of == "bf16" else value).astype(F64)
            found: Array = to_eight_bit(np.where(relu & (wide <= 0), 0.0, wide), to).astype(U16)
            return found

        if source == "f32" and to == "e2m1":
            return Operation(lambda a, b: (eight(b) | eight(a) << np.uint16(4)).astype(U8),
                             (F32, F32), U8)  # fmt: skip
        if source == "f32":
            return Operation(lambda a, b: eight(b) | eight(a) << np.uint16(8), (F32, F32), U16)
        if source in ("f16x2", "bf16x2"):
            held = F16 if of == "f16" else U16

            def narrowed(pair: Array) -> Array:
                low, high = halves(pair)
                packed: Array = eight(low.view(held)) | eight(high.view(held)) << np.uint16(8)
                return packed

            return Operation(narrowed, (U32,), U16)
        return None
    if of in EIGHT_BIT and target == "f16x2":
        relu = "relu" in modifiers

        apart = 4 if of == "e2m1" else 8

        def widened(pair: Array) -> Array:
            low, high = (eight_bit_values(of)[(pair >> np.uint16(at)) & np.uint16(255)]
                         for at in (0, apart))  # fmt: skip
            parts = (np.where(relu & (each <= 0), 0.0, each) for each in (low, high))
            first, second = (each.astype(F16) for each in parts)
            return pack_halves(first, second)

        return Operation(widened, (U16,), U32)
    if target in ("f16x2", "bf16x2") and source == "f32":
        narrow = _float_to_float("f32", to, modifiers, precise)
        return Operation(lambda a, b: pack_halves(narrow(b), narrow(a)), (F32, F32), U32)
    return None


def _scales(target: str, source: str, modifiers: tuple[str, ...]) -> Operation | None:
    """ue8m0x2, powers of two: rounded towards zero or up, the largest for what is beyond."""

    def power(value: Array) -> Array:
        size, exponent = np.frexp(np.abs(value.astype(F64)))
        exponent = exponent - 1 + ((size > 0.5) & ("rp" in modifiers))
        held = np.where(size == 0, 0, np.clip(exponent + 127, 0, 254))
        found: Array = np.where(np.isfinite(value), held, np.where(np.isnan(value), 255, 254))
        return found.astype(U16)

    if source == "f32":
        return Operation(lambda a, b: power(b) | power(a) << np.uint16(8), (F32, F32), U16)
    if target == "ue8m0x2" and source == "bf16x2":

        def narrowed(pair: Array) -> Array:
            low, high = (power(from_bf16(each)) for each in halves(pair))
            found: Array = low | high << np.uint16(8)
            return found

        return Operation(narrowed, (U32,), U16)
    if target == "bf16x2":

        def widened(pair: Array) -> Array:
            low, high = (eight_bit_values("ue8m0")[pair >> np.uint16(at) & np.uint16(255)]
                         for at in (0, 8))  # fmt: skip
            return pack_halves(floating.to_bf16_exact(low), floating.to_bf16_exact(high))

        return Operation(widened, (U16,), U32)
    return None


def _four(to: str) -> Operation:
    """Four narrow floats of four f32. Those that round at random are rounded to the nearest."""
    wide = 4 if to == "e2m1" else 8

    def function(a: Array, b: Array, c: Array, d: Array) -> Array:
        out = np.zeros(1, dtype=U32)
        for place, value in enumerate((d, c, b, a)):
            out = out | to_eight_bit(value.astype(F64), to).astype(U32) << np.uint32(wide * place)
        return out.astype(U16) if to == "e2m1" else out

    return Operation(function, (F32,) * 4, U16 if to == "e2m1" else U32)


_FLOATS = frozenset({"f16", "f32", "f64", "bf16", "tf32"})


def conversion(modifiers: tuple[str, ...], *, precise: bool) -> Operation | None:
    """The operation of ``cvt.<modifiers>``, or ``None`` if the types are not known."""
    if len(modifiers) < 2:
        return None
    target, source = modifiers[-2], modifiers[-1]
    if target.endswith("x4"):
        return None if precise else _four(target.removesuffix("x4"))
    if target.endswith("x2"):
        return _packed(target, source, modifiers, precise)
    if target not in TYPES or source not in TYPES:
        return None
    held, result = TYPES[source], TYPES[target]
    if source in _FLOATS and target in _FLOATS:
        return Operation(_float_to_float(source, target, modifiers, precise), (held,), result)
    if source in _FLOATS:
        rounding = next((m for m in modifiers if m in _INTEGRAL), "rzi")
        widen: Function = from_bf16 if source == "bf16" else lambda a: a
        return Operation(lambda a: float_to_integer(widen(a), result, rounding), (held,), result)
    if target in _FLOATS:
        rounding = next((m for m in modifiers if m in ("rz", "rm", "rp")), "rn")
        if target == "bf16":
            return Operation(lambda a: floating.to_bf16_exact(a.astype(F64)), (held,), U16)
        if rounding == "rn" or not precise:
            if target == "f16":
                return Operation(lambda a: a.astype(F64).astype(F16), (held,), F16)
            return Operation(lambda a: a.astype(result), (held,), result)
        return Operation(lambda a: integer_to_float(a, result, rounding), (held,), result)
    if held.kind not in "iu" or result.kind not in "iu":
        return None
    if "sat" in modifiers:
        return Operation(lambda a: clamped(a, result), (held,), result)
    if held is result:
        return Operation(lambda a: a, (held,), result)
    return Operation(lambda a: a.astype(result), (held,), result)
