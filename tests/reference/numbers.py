"""Bits to numbers and back, with the rounding of IEEE 754, one scalar at a time.

Registers hold raw bits as Python integers. ``decode`` gives the float a register means,
``encode`` the bits of a float, rounded to nearest even; ``round_exact`` does every other
rounding from exact rationals (slow and obviously right).
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from functools import cache

# precision in bits, smallest and largest exponent of a normal number (IEEE 754-2019 table 3.5;
# bf16 and tf32: PTX ISA, "alternate floating point formats")
FORMATS = {
    "f16": (11, -14, 15),
    "bf16": (8, -126, 127),
    "tf32": (11, -126, 127),
    "f32": (24, -126, 127),
    "f64": (53, -1022, 1023),
}
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
    if math.isfinite(value) and value != 0.0:
        value = round_exact(Fraction(value), kind, "rn")
    bits = encode_single(value)
    return bits >> 16 if kind == "bf16" else bits


def round_exact(value: Fraction, kind: str, mode: str) -> float:
    """``value`` rounded to ``kind``; mode rn (nearest even), rna (nearest, away), rz, rm, rp.

    Zero comes back as +0.0; the caller knows the sign a zero result has.
    """
    if value == 0:
        return 0.0
    precision, lowest, highest = FORMATS[kind]
    negative, size = value < 0, abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, lowest) - precision + 1)
    steps, rest = divmod(size, quantum)
    up = {
        "rn": rest * 2 > quantum or (rest * 2 == quantum and steps % 2 == 1),
        "rna": rest * 2 >= quantum,
        "rz": False,
        "rm": negative and rest > 0,
        "rp": not negative and rest > 0,
    }[mode]
    size = (steps + up) * quantum
    largest = (2 - Fraction(2) ** (1 - precision)) * Fraction(2) ** highest
    if size > largest:
        away = (
            mode in ("rn", "rna") or (mode == "rm" and negative) or (mode == "rp" and not negative)
        )
        result = math.inf if away else float(largest)
    else:
        result = float(size)
    return -result if negative else result


def fused(a: float, b: float, c: float) -> float:
    """a * b + c of f32, f16 or bf16 numbers, rounded to odd in f64.

    The product of two f32 is exact in f64. Rounding the sum to odd keeps, in the last bit, that
    something was cut off, so that the later rounding to a shorter format is the right one.
    """
    product = a * b
    total = product + c
    if not math.isfinite(total):
        return total
    # Knuth's two-sum: the exact error of the addition.
    back = total - product
    error = (product - (total - back)) + (c - back)
    if error != 0.0 and not _unpack_long(_pack_double(total))[0] & 1:
        total = math.nextafter(total, math.inf if error > 0 else -math.inf)
    return total


def fused_double(a: float, b: float, c: float) -> float:
    """a * b + c of f64 numbers, rounded once."""
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c  # the sign of zero as the plain operations have it
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


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
