"""cvt: between integers and floats of all widths, rounded to nearest, and saturation."""

from __future__ import annotations

import math

from tests.reference.floats import saturate
from tests.reference.integers import reader
from tests.reference.numbers import decode, encode, to_integer
from tests.reference.parse import Instruction, type_bytes
from tests.reference.slots import Lane, Plain, Slots

INTEGER_ROUNDINGS = ("rni", "rzi", "rmi", "rpi")


def is_integer(kind: str) -> bool:
    return kind[0] in "usb" and kind[1:].isdigit()


def convert(bits: int, source: str, target: str, words: set[str]) -> int:
    """``bits`` of type ``source`` as bits of type ``target``; ``words`` are the modifiers."""
    if is_integer(source):
        value = reader(source)(bits & ((1 << int(source[1:])) - 1))
        if is_integer(target):
            return _fit(value, target) if "sat" in words else value & ((1 << int(target[1:])) - 1)
        return encode(float(value), target)
    number = decode(bits, source)
    rounding = next((w for w in words if w in INTEGER_ROUNDINGS), None)
    if is_integer(target):
        if number != number:
            lost = source == "f64" or target in ("s64", "u64")
            return 1 << (int(target[1:]) - 1) if lost else 0
        if math.isinf(number):
            return _fit(1 << 80 if number > 0 else -(1 << 80), target)
        return _fit(to_integer(number, rounding or "rzi"), target)
    if rounding and math.isfinite(number):
        number = math.copysign(float(to_integer(number, rounding)), number)
    if "relu" in words:
        number = 0.0 if number <= 0.0 else number
    if "sat" in words:
        number = saturate(number)
    return encode(number, target)


def _fit(value: int, kind: str) -> int:
    """Clamp to the range of an integer type, as bits."""
    width = int(kind[1:])
    low, high = (
        (-(1 << (width - 1)), (1 << (width - 1)) - 1) if kind[0] == "s" else (0, (1 << width) - 1)
    )
    return max(low, min(high, value)) & ((1 << width) - 1)


def compile_convert(ins: Instruction, slots: Slots) -> Plain | None:
    parts = ins.opcode.split(".")
    if parts[0] != "cvt":
        return None
    target, source = parts[-2:]
    words = set(parts[1:-2])
    d = slots.dest(ins.operands[0])
    sources = [slots.source(o, source) for o in ins.operands[1:]]
    if source.endswith("x2"):  # both halves, each by itself
        one, other = source.removesuffix("x2"), target.removesuffix("x2")
        from_bits, to_bits = (8 if kind[0] == "e" else 16 for kind in (one, other))
        (pair,) = sources

        def halves(r: Lane) -> None:
            parts = (r[pair] >> at & ((1 << from_bits) - 1) for at in (from_bits, 0))
            upper, lower = (convert(part, one, other, words) for part in parts)
            r[d] = upper << to_bits | lower

        return halves
    if target in ("f16x2", "bf16x2", "e4m3x2", "e5m2x2"):
        single = target.removesuffix("x2")
        first, second = sources  # the first operand becomes the upper half

        def pack(r: Lane) -> None:
            upper, lower = (convert(r[s], source, single, words) for s in (first, second))
            r[d] = upper << (8 if target[0] == "e" else 16) | lower

        return pack
    (a,) = sources
    # A register may be wider than the type: sources are cut, results sign- or zero-extended.
    mask = (1 << type_bytes(source) * 8) - 1
    register = slots.width(ins.operands[0], type_bytes(target) * 8)
    extend = reader(target) if is_integer(target) and register > int(target[1:]) else None
    out = (1 << register) - 1

    def step(r: Lane) -> None:
        bits = convert(r[a] & mask, source, target, words)
        r[d] = extend(bits) & out if extend else bits

    return step
