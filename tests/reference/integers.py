"""Integer, logic and predicate instructions: exact, with wrap-around."""

from __future__ import annotations

import operator
from collections.abc import Callable

from tests.reference.numbers import signed
from tests.reference.parse import Instruction, InterpreterError
from tests.reference.slots import Lane, Plain, Slots


def _divide(a: int, b: int, width: int) -> int:
    if b == 0:
        return (1 << width) - 1  # unspecified by PTX; what hardware returns
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: int, b: int, width: int) -> int:
    if b == 0:
        return a
    return a - b * _divide(a, b, width)


def _shift_left(a: int, b: int, width: int) -> int:
    return a << b if b < width else 0


def _shift_right(a: int, b: int, width: int) -> int:
    return a >> min(b, width)


# Each takes the operands as the values their type means, and the width.
BINARY: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda a, b, w: a + b,
    "sub": lambda a, b, w: a - b,
    "mul.lo": lambda a, b, w: a * b,
    "mul.wide": lambda a, b, w: a * b,
    "mul.hi": lambda a, b, w: (a * b) >> w,
    "div": _divide,
    "rem": _remainder,
    "min": lambda a, b, w: min(a, b),
    "max": lambda a, b, w: max(a, b),
    "and": lambda a, b, w: a & b,
    "or": lambda a, b, w: a | b,
    "xor": lambda a, b, w: a ^ b,
    "mul24.lo": lambda a, b, w: a * b,
}


def _leading_zeros(a: int, width: int) -> int:
    return width - a.bit_length()


def _find_high(a: int, width: int) -> int:
    """bfind of a signed or unsigned value: the highest bit that is not a sign bit."""
    a = ~a if a < 0 else a
    return a.bit_length() - 1  # -1 (all ones) if there is none


UNARY: dict[str, Callable[[int, int], int]] = {
    "neg": lambda a, w: -a,
    "not": lambda a, w: ~a,
    "cnot": lambda a, w: int(a == 0),
    "abs": lambda a, w: abs(a),
    "popc": lambda a, w: a.bit_count(),
    "clz": _leading_zeros,
    "brev": lambda a, w: int(f"{a:0{w}b}"[::-1], 2),
    "bfind": _find_high,
    "bfind.shiftamt": lambda a, w: w - 1 - _find_high(a, w) if _find_high(a, w) >= 0 else -1,
}

COMPARE: dict[str, Callable[[float, float], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge, "lo": operator.lt, "ls": operator.le,
    "hi": operator.gt, "hs": operator.ge,
}  # fmt: skip


def reader(kind: str) -> Callable[[int], int]:
    """Register bits -> the integer that type ``kind`` (``s32``...) means."""
    if not kind.startswith("s"):
        return lambda bits: bits
    sign = 1 << (int(kind[1:]) - 1)
    return lambda bits: (bits ^ sign) - sign


def compile_integer(ins: Instruction, slots: Slots) -> Plain | None:
    """The instruction as a function on one thread's registers; None if it is not of this kind."""
    words = ins.opcode.split(".")
    kind = words[-1]
    base = words[0]
    if kind == "pred" and base in ("and", "or", "xor", "not", "mov"):
        return _predicate_logic(ins, slots, base)
    if kind[0] not in "usb" or not kind[1:].isdigit():
        return None
    width = int(kind[1:])
    mask = (1 << width) - 1
    name = ".".join(w for w in words[:-1] if w in (base, "lo", "hi", "wide", "shiftamt"))
    value = reader(kind)
    operands = ins.operands
    if base in ("add", "sub", "addc", "subc", "mad", "madc") and ("cc" in words or base[-1] == "c"):
        return _with_carry(ins, slots, words, width)
    if base in ("shl", "shr"):
        d, a = slots.dest(operands[0]), slots.source(operands[1], kind)
        b = slots.source(operands[2], "u32")
        shift = _shift_left if base == "shl" else _shift_right

        def shift_step(r: Lane) -> None:
            r[d] = shift(value(r[a]), r[b], width) & mask

        return shift_step
    if name in BINARY and len(operands) == 3:
        return _binary(ins, slots, name, kind)
    if name in UNARY and len(operands) == 2:
        unary = UNARY[name]
        d, a = slots.dest(operands[0]), slots.source(operands[1], kind)
        out = 0xFFFFFFFF if base in ("popc", "clz", "bfind") else mask

        def unary_step(r: Lane) -> None:
            r[d] = unary(value(r[a]), width) & out

        return unary_step
    if base in ("mad", "mad24"):
        return _multiply_add(ins, slots, name, kind)
    special = _SPECIAL.get(base)
    return special(ins, slots, words, width) if special else None


def _binary(ins: Instruction, slots: Slots, name: str, kind: str) -> Plain:
    d = slots.dest(ins.operands[0])
    a, b = (slots.source(o, kind) for o in ins.operands[1:])
    width = int(kind[1:])
    out = (1 << (2 * width if name == "mul.wide" else width)) - 1
    unsigned_is_enough = name in ("add", "sub", "mul.lo", "and", "or", "xor")
    if "sat" in ins.opcode.split("."):
        value, low, high = reader(kind), -(1 << (width - 1)), (1 << (width - 1)) - 1
        function = BINARY[name]

        def saturated(r: Lane) -> None:
            r[d] = max(low, min(high, function(value(r[a]), value(r[b]), width))) & out

        return saturated
    if unsigned_is_enough:
        plain = {
            "add": operator.add, "sub": operator.sub, "mul.lo": operator.mul,
            "and": operator.and_, "or": operator.or_, "xor": operator.xor,
        }[name]  # fmt: skip

        def modular(r: Lane) -> None:
            r[d] = plain(r[a], r[b]) & out

        return modular
    function, value = BINARY[name], reader(kind)

    def general(r: Lane) -> None:
        r[d] = function(value(r[a]), value(r[b]), width) & out

    return general


def _multiply_add(ins: Instruction, slots: Slots, name: str, kind: str) -> Plain:
    width = int(kind[1:])
    part = name.partition(".")[2]
    wide = 2 * width if part == "wide" else width
    d = slots.dest(ins.operands[0])
    a, b = (slots.source(o, kind) for o in ins.operands[1:3])
    c = slots.source(ins.operands[3], f"u{wide}")
    value, out, drop = reader(kind), (1 << wide) - 1, width if part == "hi" else 0

    def step(r: Lane) -> None:
        r[d] = ((value(r[a]) * value(r[b]) >> drop) + r[c]) & out

    return step


def _with_carry(ins: Instruction, slots: Slots, words: list[str], width: int) -> Plain:
    kind, base = words[-1], words[0]
    d = slots.dest(ins.operands[0])
    sources = [slots.source(o, kind) for o in ins.operands[1:]]
    uses, sets = base in ("addc", "subc", "madc"), "cc" in words
    mask, carry, value = (1 << width) - 1, Slots.CARRY, reader(kind)
    drop = width if "hi" in words else 0

    def step(r: Lane) -> None:
        carried = r[carry] if uses else 0
        if base.startswith("sub"):
            total = r[sources[0]] - r[sources[1]] - carried
        elif base.startswith("mad"):
            product = value(r[sources[0]]) * value(r[sources[1]]) >> drop
            total = (product & mask) + r[sources[2]] + carried
        else:
            total = r[sources[0]] + r[sources[1]] + carried
        r[d] = total & mask
        if sets:
            r[carry] = total >> width & 1

    return step


def _predicate_logic(ins: Instruction, slots: Slots, base: str) -> Plain:
    d = slots.dest(ins.operands[0])
    a, flip_a = slots.predicate(ins.operands[1])
    if base in ("not", "mov"):
        flip = flip_a ^ (base == "not")

        def copy(r: Lane) -> None:
            r[d] = r[a] ^ flip

        return copy
    b, flip_b = slots.predicate(ins.operands[2])
    combine = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}[base]

    def step(r: Lane) -> None:
        r[d] = combine(r[a] ^ flip_a, r[b] ^ flip_b)

    return step


def _prmt(ins: Instruction, slots: Slots, words: list[str], width: int) -> Plain:
    if len(words) > 2:
        raise InterpreterError(f"line {ins.line}: {ins.opcode} is not supported")
    d = slots.dest(ins.operands[0])
    a, b, c = (slots.source(o, "b32") for o in ins.operands[1:])

    def step(r: Lane) -> None:
        pool = (r[a] | r[b] << 32).to_bytes(8, "little")
        result = 0
        for i in range(4):
            pick = r[c] >> (4 * i) & 15
            byte = pool[pick & 7]
            if pick & 8:
                byte = 255 if byte & 128 else 0
            result |= byte << (8 * i)
        r[d] = result

    return step


def _bit_field(ins: Instruction, slots: Slots, words: list[str], width: int) -> Plain:
    kind = words[-1]
    d = slots.dest(ins.operands[0])
    if words[0] == "bfi":
        f, a = (slots.source(o, kind) for o in ins.operands[1:3])
        at, length = (slots.source(o, "u32") for o in ins.operands[3:])

        def insert(r: Lane) -> None:
            field = ((1 << (r[length] & 255)) - 1) << (r[at] & 255) & ((1 << width) - 1)
            r[d] = (r[a] & ~field) | (r[f] << (r[at] & 255) & field)

        return insert
    a = slots.source(ins.operands[1], kind)
    at, length = (slots.source(o, "u32") for o in ins.operands[2:])
    value = reader(kind)

    def extract(r: Lane) -> None:
        count = r[length] & 255
        bits = value(r[a]) >> (r[at] & 255) & ((1 << count) - 1)
        if kind[0] == "s" and count:
            # The sign is the field's top bit, or the value's where the field reaches beyond.
            top = min((r[at] & 255) + count - 1, width - 1)
            bits = signed(bits, count) if count <= width else bits
            if r[a] >> top & 1 and bits >= 0:
                bits -= 1 << count
        r[d] = bits & ((1 << width) - 1)

    return extract


def _funnel(ins: Instruction, slots: Slots, words: list[str], width: int) -> Plain:
    d = slots.dest(ins.operands[0])
    a, b, c = (slots.source(o, "b32") for o in ins.operands[1:])
    left, wrap = words[1] == "l", words[2] == "wrap"

    def step(r: Lane) -> None:
        count = r[c] & 31 if wrap else min(r[c], 32)
        both = r[b] << 32 | r[a]
        r[d] = (both << count >> 32 if left else both >> count) & 0xFFFFFFFF

    return step


def _lop3(ins: Instruction, slots: Slots, words: list[str], width: int) -> Plain:
    d = slots.dest(ins.operands[0])
    a, b, c, table = (slots.source(o, "b32") for o in ins.operands[1:])

    def step(r: Lane) -> None:
        result = 0
        for i in range(8):
            if r[table] >> i & 1:
                result |= (
                    (r[a] if i & 4 else ~r[a]) & (r[b] if i & 2 else ~r[b])
                    & (r[c] if i & 1 else ~r[c])
                )  # fmt: skip
        r[d] = result & 0xFFFFFFFF

    return step


def _dot(ins: Instruction, slots: Slots, words: list[str], width: int) -> Plain:
    if words[0] != "dp4a":
        raise InterpreterError(f"line {ins.line}: {ins.opcode} is not supported")
    d = slots.dest(ins.operands[0])
    a, b, c = (slots.source(o, "b32") for o in ins.operands[1:])
    signed_a, signed_b = words[1] == "s32", words[2] == "s32"

    def step(r: Lane) -> None:
        total = r[c]
        for i in range(0, 32, 8):
            x, y = r[a] >> i & 255, r[b] >> i & 255
            total += (signed(x, 8) if signed_a else x) * (signed(y, 8) if signed_b else y)
        r[d] = total & 0xFFFFFFFF

    return step


def _sad(ins: Instruction, slots: Slots, words: list[str], width: int) -> Plain:
    d = slots.dest(ins.operands[0])
    a, b, c = (slots.source(o, words[-1]) for o in ins.operands[1:])
    value = reader(words[-1])

    def step(r: Lane) -> None:
        r[d] = (abs(value(r[a]) - value(r[b])) + r[c]) & ((1 << width) - 1)

    return step


_SPECIAL = {
    "prmt": _prmt, "bfi": _bit_field, "bfe": _bit_field, "shf": _funnel, "lop3": _lop3,
    "dp4a": _dot, "dp2a": _dot, "sad": _sad,
}  # fmt: skip
