"""Random straight-line instructions: every arithmetic, bit, conversion and comparison opcode
that both interpreters define.

A row is an opcode with alternatives in braces and a letter per operand: ``r`` 32-bit,
``d`` 64-bit, ``h`` 16-bit integer, ``f`` f32, ``g`` f64, ``e`` f16, ``x`` f16x2, ``p``
predicate; a capital is written, ``?`` may be an immediate, ``q`` a predicate or its negation.
``|`` separates instructions of one sequence; other words stand for themselves.

Floats are rounded to nearest and subnormals kept: the engine follows no other rounding.

Integers and floats are kept apart: what a NaN's bits are is left open by PTX, so a float goes
into an integer register only by conversion, comparison, or after ``testp.number``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from functools import cache

from tests.generated.choices import Choices

POOLS = {"r": 6, "d": 4, "h": 3, "f": 4, "g": 3, "e": 3, "x": 2, "p": 4}
"""Registers by letter: how many there are."""
REGISTER_TYPES = {
    "r": "b32", "d": "b64", "h": "b16", "f": "f32", "g": "f64", "e": "b16", "x": "b32", "p": "pred",
}  # fmt: skip

WORDS = (0, 1, 2, 3, 5, 7, 8, 16, 31, 32, 33, 63, 64, 100, 255, 0x7FFF, 0x8000, 0xFFFF, 65536,
         0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x12345678, 0xDEADBEEF)  # fmt: skip
SINGLES = (
    0x00000000, 0x3F800000, 0x40000000, 0xBF000000, 0x3F000000, 0x42C80000, 0x80000000,
    0x00000001, 0x007FFFFF, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x4F000000, 0x34000000,
)  # fmt: skip
DOUBLES = (
    0x0000000000000000, 0x3FF0000000000000, 0xBFE0000000000000, 0x4059000000000000,
    0x3FB999999999999A, 0x41DFFFFFFFC00000, 0x43E0000000000000, 0x8000000000000000,
)  # fmt: skip

INTEGERS = {"h": ("u16", "s16", "b16"), "r": ("u32", "s32", "b32"), "d": ("u64", "s64", "b64")}


def _integer_rows() -> list[str]:
    rows = []
    for a, (unsigned, signed, bits) in INTEGERS.items():
        big = a.upper()
        both = f"{{{unsigned},{signed}}}"
        rows += [
            f"{{add,sub,mul.lo,min,max}}.{both} {big} {a} {a}?",
            f"mul.hi.{both} {big} {a} {a}?",
            f"mad.lo.{both} {big} {a} {a} {a}?",
            f"{{and,or,xor}}.{bits} {big} {a} {a}?",
            f"{{not,cnot}}.{bits} {big} {a}",
            f"{{neg,abs}}.{signed} {big} {a}",
            f"shl.{bits} {big} {a} s",
            f"shr.{{{unsigned},{signed},{bits}}} {big} {a} s",
            f"or.{bits} %n{a} {a} 1 | {{div,rem}}.{unsigned} {big} {a} %n{a}",
            f"or.{bits} %n{a} {a} 1 | {{div,rem}}.{signed} {big} {a} %n{a}",
            f"selp.{{{bits},{unsigned}}} {big} {a} {a}? p",
            f"setp.{{eq,ne,lt,le,gt,ge}}.{both} P {a} {a}?",
            f"setp.{{lo,ls,hi,hs}}.{unsigned} P {a} {a}?",
            f"setp.{{eq,ne,lt,gt}}.{{and,or,xor}}.{both} P {a} {a}? q",
            f"setp.{{eq,lt,ge}}.{both} V {a} {a}?",
            f"setp.{{le,gt}}.{{and,or}}.{signed} V {a} {a}? q",
            f"set.{{lt,eq}}.{{u32,s32}}.{both} R {a} {a}?",
            f"mov.{bits} {big} {a}?",
        ]
        if a != "h":
            rows += [
                f"mad.hi.{both} {big} {a} {a} {a}?",
                f"{{popc,clz}}.{bits} R {a}",
                f"brev.{bits} {big} {a}",
                f"bfind.{both} R {a}",
                f"bfind.shiftamt.{both} R {a}",
                f"bfe.{both} {big} {a} s s",
                f"bfi.{bits} {big} {a} {a} s s",
                f"slct.{bits}.s32 {big} {a} {a} r",
                f"add.cc.{unsigned} {big} {a} {a} | addc.{unsigned} {big} {a} {a}?",
                f"sub.cc.{unsigned} {big} {a} {a} | subc.{unsigned} {big} {a} {a}?",
            ]
        rows.append(f"sad.{both} {big} {a} {a} {a}")
    return [
        *rows,
        "{add,sub}.sat.s32 R r r",
        "mul.wide.{u16,s16} R h h?", "mul.wide.{u32,s32} D r r?",
        "mad.wide.{u16,s16} R h h r?", "mad.wide.{u32,s32} D r r? d",
        "mad.lo.cc.u32 R r r r | madc.hi.u32 R r r r",
        "add.cc.u32 R r r | addc.cc.u32 R r r | addc.u32 R r 0",
        "prmt.b32 R r r r?", "shf.{l,r}.{wrap,clamp}.b32 R r r s", "lop3.b32 R r r r l",
        "dp4a.{u32,s32}.{u32,s32} R r r r",
        "mov.b64 D {r,r}", "mov.b64 {R,R} d", "mov.b32 R {h,h}", "mov.b32 {H,H} r",
        "{and,or,xor}.pred P p q", "not.pred P p", "mov.pred P p", "slct.u32.f32 R r r f",
        "mov.u32 R c",
    ]  # fmt: skip


_WIDTHS = {"8": "hr", "16": "hr", "32": "r", "64": "d"}
_TYPES = [f"{sign}{bits}" for bits in _WIDTHS for sign in "us"]
_FLOATS = {"f16": "e", "f32": "f", "f64": "g"}


def _exceeds(source: str, to: str) -> bool:
    """Whether a value of one integer type may lie outside another: only then PTX has .sat."""
    wide, room = int(source[1:]), int(to[1:])
    if source[0] == to[0]:
        return wide > room
    return source[0] == "s" or wide >= room


def _conversion_rows() -> list[str]:
    rows = []
    for to, source in itertools.product(_TYPES, _TYPES):
        for a, b in itertools.product(_WIDTHS[to[1:]], _WIDTHS[source[1:]]):
            clamp = "{,.sat}" if _exceeds(source, to) else ""
            rows.append(f"cvt{clamp}.{to}.{source} {a.upper()} {b}")
    for to, (source, b) in itertools.product(_TYPES, _FLOATS.items()):
        for a in _WIDTHS[to[1:]]:
            rows.append(f"cvt.{{rni,rzi,rmi,rpi}}.{to}.{source} {a.upper()} {b}")
            if source == "f32":
                rows.append(f"cvt.rzi.ftz.{to}.f32 {a.upper()} f")
    for (to, a), source in itertools.product(_FLOATS.items(), _TYPES):
        for b in _WIDTHS[source[1:]]:
            rows.append(f"cvt.rn.{to}.{source} {a.upper()} {b}")
    return [
        *rows,
        "cvt.{f32,f64}.f16 {F|G} e", "cvt.f64.f32 G f", "cvt.sat.f32.f32 F f",
        "cvt.rn{,.sat}.f32.f64 F g", "cvt.rn.f16.f32 E f",
        "cvt.rn.f16.f64 E g", "cvt.{rni,rzi,rmi,rpi}{,.sat}.f32.f32 F f",
        "cvt.{rni,rzi,rmi,rpi}.f64.f64 G g", "cvt.rn.f16x2.f32 X f f",
    ]  # fmt: skip


_UNORDERED = "{eq,ne,lt,le,gt,ge,equ,neu,ltu,leu,gtu,geu,num,nan}"


def _float_rows() -> list[str]:
    return [
        "{add,sub,mul}{,.rn}{,.sat}.f32 F f f?",
        "fma.rn{,.sat}.f32 F f f f?",
        "div.rn.f32 F f f?", "div.{approx,full}.f32 F f f",
        "{sqrt,rcp}.{rn,approx}.f32 F f",
        "{rsqrt,ex2,lg2,sin,cos}.approx.f32 F f", "tanh.approx.f32 F f",
        "{min,max}{,.NaN}.f32 F f f?", "{abs,neg}.f32 F f",
        f"setp.{_UNORDERED}.f32 P f f?", "setp.{lt,geu}.{and,or,xor}.f32 P f f q",
        "setp.{lt,gt}.f32 V f f", "set.{lt,geu}.{u32,f32}.f32 {R|F} f f", "selp.f32 F f f? p",
        "testp.{finite,infinite,number,notanumber,normal,subnormal}.f32 P f",
        "slct.f32.s32 F f f r", "mov.f32 F f?", "mov.b32 F r",
        "testp.number.f32 %v f=1 | selp.f32 %cf f=1 0f3F800000 %v | mov.b32 R %cf",
        "{add,sub,mul}{,.rn}.f64 G g g?", "fma.rn.f64 G g g g?",
        "div.rn.f64 G g g?", "{sqrt,rcp}.rn.f64 G g", "{min,max}.f64 G g g?",
        "{abs,neg}.f64 G g", f"setp.{_UNORDERED}.f64 P g g?", "selp.f64 G g g? p",
        "testp.{finite,infinite,number,notanumber,normal,subnormal}.f64 P g", "mov.f64 G g?",
        "testp.number.f64 %v g=1 | selp.f64 %cg g=1 0d3FF0000000000000 %v | mov.b64 D %cg",
        "{add,sub,mul}{,.rn}{,.sat}.f16 E e e", "fma.rn{,.sat,.relu}.f16 E e e e",
        "{min,max}{,.NaN}.f16 E e e", "{abs,neg}.f16 E e", f"setp.{_UNORDERED}.f16 P e e",
        "{add,sub,mul}{,.rn}{,.sat}.f16x2 X x x", "fma.rn{,.sat,.relu}.f16x2 X x x x",
        "{min,max}{,.NaN}.f16x2 X x x", "{abs,neg}.f16x2 X x",
        "mov.b32 X {e,e}", "mov.b32 {E,E} x", "selp.b16 E e e p", "mov.b16 E h",
    ]  # fmt: skip


def _expand(text: str) -> list[str]:
    """All alternatives of the braces in an opcode."""
    found = re.search(r"\{([^{}]*)\}", text)
    if found is None:
        return [text]
    parts = found[1].split(",")
    return [
        whole
        for part in parts
        for whole in _expand(text[: found.start()] + part + text[found.end() :])
    ]


Step = tuple[tuple[str, ...], tuple[str, ...]]  # opcodes to choose from, operands


@cache
def tables() -> dict[str, list[list[Step]]]:
    """The rows by family."""

    def parsed(row: str) -> list[Step]:
        steps = []
        for part in row.split(" | "):
            opcode, *operands = part.split()
            steps.append((tuple(_expand(opcode)), tuple(operands)))
        return steps

    return {
        "integer": [parsed(r) for r in _integer_rows()],
        "conversion": [parsed(r) for r in _conversion_rows()],
        "float": [parsed(r) for r in _float_rows()],
    }


SPECIALS = (
    "%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ctaid.x", "%ctaid.y", "%nctaid.x",
    "%laneid", "%warpid", "%lanemask_lt", "%lanemask_ge", "%lanemask_eq", "WARP_SZ",
)  # fmt: skip


def register(choices: Choices, letter: str) -> str:
    """A register of a pool."""
    return f"%{letter}{choices.integer(0, POOLS[letter] - 1)}"


def immediate(choices: Choices, letter: str) -> str:
    """A literal for a register of that letter."""
    if letter == "f":
        return f"0f{choices.pick(SINGLES):08X}"
    if letter == "g":
        return f"0d{choices.pick(DOUBLES):016X}"
    value = choices.pick(WORDS)
    if letter == "h":
        return str(value & 0x7FFF)
    if letter == "d" and choices.chance(30):
        return hex(value << 32 | choices.pick(WORDS))
    return str(-value) if value < 0x8000 and choices.chance(20) else hex(value)


def predicate(choices: Choices) -> str:
    """A predicate register or its negation."""
    return ("!" if choices.chance(30) else "") + register(choices, "p")


def instructions(choices: Choices, family: str) -> list[str]:
    """The next instruction or short sequence, without guards."""
    row = choices.pick(tables()[family])
    return _written(choices, row, [choices.pick(opcodes) for opcodes, _ in row])


def every_instruction(choices: Choices) -> Iterator[list[str]]:
    """Each alternative of each row once, operands at random."""
    for row in (row for rows in tables().values() for row in rows):
        for number in range(max(len(opcodes) for opcodes, _ in row)):
            yield _written(choices, row, [opcodes[number % len(opcodes)] for opcodes, _ in row])


def _written(choices: Choices, row: list[Step], chosen: list[str]) -> list[str]:
    lines = []
    kept: dict[str, str] = {}
    for opcode, (_, operands) in zip(chosen, row, strict=True):
        written = [_operand(choices, o, opcode, kept) for o in operands]
        lines.append(f"{opcode} {', '.join(written)};")
    return lines


def _operand(choices: Choices, text: str, opcode: str, kept: dict[str, str]) -> str:
    if "=" in text:  # the same register again in a later instruction of the sequence
        return kept.setdefault(text, register(choices, text[0]))
    if text.startswith("{") and "|" in text:  # the destination's type tells the register
        first, second = text[1:-1].split("|")
        kind = opcode.split(".")[-2]
        letter = {"f32": "F", "f64": "G", "u32": "R"}[kind]
        assert letter in (first, second)
        return register(choices, letter.lower())
    if text.startswith("{"):
        letters = text[1:-1].split(",")
        if letters[0].isupper():  # two destinations must differ
            one = choices.integer(0, POOLS[letters[0].lower()] - 1)
            other = (one + 1) % POOLS[letters[0].lower()]
            return f"{{%{letters[0].lower()}{one}, %{letters[0].lower()}{other}}}"
        return "{" + ", ".join(register(choices, letter) for letter in letters) + "}"
    if text == "q":
        return predicate(choices)
    if text == "V":
        one = choices.integer(0, POOLS["p"] - 1)
        return f"%p{one}|%p{(one + 1) % POOLS['p']}"
    if text == "s":
        return register(choices, "r") if choices.chance(30) else str(choices.integer(0, 70))
    if text == "l":
        return hex(choices.integer(0, 255))
    if text == "c":
        return choices.pick(SPECIALS)
    if text.endswith("?"):
        letter = text[0]
        if choices.chance(35):
            return immediate(choices, letter)
        return register(choices, letter)
    if len(text) == 1 and text.lower() in POOLS:
        return register(choices, text.lower())
    return text
