"""Bits to numbers and back, one scalar at a time.

Registers hold raw bits as Python integers. ``decode`` gives the float a register means,
``encode`` the bits of a float, rounded to nearest even, whatever rounding an opcode names: that is
how the engine takes it, too, as no count follows from the last place of a float.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from functools import cache

NAN_BITS = {"f16": 0x7FFF, "bf16": 0x7FFF, "tf32": 0x7FFFFFFF, "f32": 0x7FFFFFFF}
NAN_BITS["f64"] = 0x7FF8000000000000

_pack_float, _unpack_float = struct.Struct("<f").pack, struct.Struct("<f").unpack
_pack_double, _unpack_double = struct.Struct("<d").pack, struct.Struct("<d").unpack
_pack_half, _unpack_half = struct.Struct("<e").pack, struct.Struct("<e").unpack
_pack_int, _unpack_int = struct.Struct("<I").pack, struct.Struct("<I").unpack
_pack_long, _unpack_long = struct.Struct("<Q").pack, struct.Struct("<Q").unpack
_pack_short, _unpack_short = struct.Struct("<H").pack, struct.Struct("<H").unpack


class _Singles(dict[int, float]):
    """f32 bits -> value, remembered: the same constants and addresses come again and again."""

    def __missing__(self, bits: int) -> float:
        value: float = _unpack_float(_pack_int(bits))[0]
        if len(self) < 1_000_000:
            self[bits] = value
        return value


singles = _Singles()


def decode(bits: int, kind: str) -> float:
    """The value of ``bits`` read as ``kind`` (a key of FORMATS)."""
    if kind in ("f32", "tf32"):
        return singles[bits]
    if kind == "f64":
        return float(_unpack_double(_pack_long(bits))[0])
    if kind in NARROW:
        return narrow_values(kind)[bits]
    if kind == "f16":
        return float(_unpack_half(_pack_short(bits))[0])
    return singles[bits << 16]  # bf16 is the upper half of an f32


# Floats of 8, 6 and 4 bits: bits of exponent and fraction, and the largest finite pattern
# (OCP 8-bit Floating Point and Microscaling Formats; PTX ISA, "alternate floating point formats").
# 0x7F is not a number in those of 8 bits, the others have none.
NARROW = {"e4m3": (4, 3, 0x7E), "e5m2": (5, 2, 0x7B), "e3m2": (3, 2, 0x1F), "e2m3": (2, 3, 0x1F),
          "e2m1": (2, 1, 0x07)}  # fmt: skip


@cache
def narrow_values(kind: str) -> list[float]:
    """The values of all patterns, the sign in the highest of their bits."""
    exponent_bits, places, largest = NARROW[kind]
    bias, sign = (1 << (exponent_bits - 1)) - 1, 1 << (exponent_bits + places)
    found = []
    for bits in range(2 * sign):
        size = bits % sign
        exponent, fraction = size >> places, Fraction(size % (1 << places), 1 << places)
        value = float((fraction + (exponent > 0)) * Fraction(2) ** (max(exponent, 1) - bias))
        if size > largest:
            value = math.inf if size == 0x7C and kind == "e5m2" else math.nan
        found.append(-value if bits & sign else value)
    return found


def encode_narrow(value: float, kind: str) -> int:
    """The nearest finite 8-bit float (``.satfinite``), of two as near the even one."""
    exponent_bits, places, largest = NARROW[kind]
    sign = 1 << (exponent_bits + places)
    if value != value:
        return 0x7F if sign == 0x80 else largest
    values = narrow_values(kind)
    best = min(range(largest + 1), key=lambda b: (abs(abs(value) - values[b]), b & 1))
    return best | (sign if math.copysign(1.0, value) < 0 else 0)


def encode_single(value: float) -> int:
    """Bits of ``value`` rounded to f32, nearest even."""
    if value != value:
        return 0x7FFFFFFF
    try:
        bits: int = _unpack_int(_pack_float(value))[0]
    except OverflowError:
        return 0x7F800000 if value > 0 else 0xFF800000
    return bits


def encode_double(value: float) -> int:
    """Bits of ``value`` as f64."""
    if value != value:
        return NAN_BITS["f64"]
    bits: int = _unpack_long(_pack_double(value))[0]
    return bits


def encode(value: float, kind: str) -> int:
    """Bits of ``value`` rounded to ``kind``, nearest even."""
    if kind == "f32":
        return encode_single(value)
    if kind == "f64":
        return encode_double(value)
    if kind in NARROW:
        return encode_narrow(value, kind)
    if value != value:
        return NAN_BITS[kind]
    if kind == "f16":
        try:
            half: int = _unpack_short(_pack_half(value))[0]
        except OverflowError:
            return 0x7C00 if value > 0 else 0xFC00
        return half
    bits = encode_single(value)
    cut = 16 if kind == "bf16" else 13  # bits of an f32 that bf16 and tf32 lack
    if math.isfinite(value):
        bits += (1 << (cut - 1)) - 1 + (bits >> cut & 1)
    return bits >> 16 if kind == "bf16" else bits >> 13 << 13


def signed(bits: int, width: int) -> int:
    """Two's complement value of ``width`` bits."""
    return bits - (1 << width) if bits >> (width - 1) & 1 else bits


def to_integer(value: float, mode: str) -> int:
    """A finite float rounded to an integer: rni, rzi, rmi or rpi."""
    if mode == "rzi":
        return math.trunc(value)
    if mode == "rmi":
        return math.floor(value)
    if mode == "rpi":
        return math.ceil(value)
    return round(value)  # Python rounds halves to even
