"""Floating-point arithmetic, comparison, selection and moves."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce

from tests.reference.integers import COMPARE, reader
from tests.reference.numbers import decode, encode
from tests.reference.parse import Instruction
from tests.reference.slots import Lane, Plain, Slots


def saturate(value: float) -> float:
    return 0.0 if value != value else max(0.0, min(1.0, value))


def divide(a: float, b: float) -> float:
    if b == 0.0:
        if a == 0.0 or a != a:
            return math.nan
        return math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


def root(a: float) -> float:
    return math.sqrt(a) if a >= 0.0 else math.nan


def _power_of_two(a: float) -> float:
    try:
        return 2.0**a
    except OverflowError:
        return math.inf


def _log2(a: float) -> float:
    if a > 0.0:
        return math.log2(a)
    return -math.inf if a == 0.0 else math.nan


def _wave(function: Callable[[float], float]) -> Callable[[float], float]:
    return lambda a: function(a) if math.isfinite(a) else math.nan


UNARY: dict[str, Callable[[float], float]] = {
    "rcp": lambda a: divide(1.0, a),
    "sqrt": root,
    "rsqrt": lambda a: divide(1.0, root(a)),
    "ex2": _power_of_two,
    "lg2": _log2,
    "sin": _wave(math.sin),
    "cos": _wave(math.cos),
    "tanh": math.tanh,
}


def smaller(a: float, b: float) -> float:
    if a != a or b != b:
        return b if a != a else a
    if a == b == 0.0:
        return -0.0 if math.copysign(1.0, a) < 0 or math.copysign(1.0, b) < 0 else 0.0
    return min(a, b)


def larger(a: float, b: float) -> float:
    return -smaller(-a, -b)


BINARY: dict[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": divide,
    "min": smaller,
    "max": larger,
}
OPERATIONS: dict[str, Callable[..., float]] = {
    **UNARY, **BINARY, "fma": lambda a, b, c: a * b + c,
}  # fmt: skip
FLOAT_KINDS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64")


def compile_float(ins: Instruction, slots: Slots) -> Plain | None:
    """Arithmetic on a float type; None if the instruction is of another kind."""
    words = ins.opcode.split(".")
    kind, base = words[-1], words[0]
    if kind not in FLOAT_KINDS:
        return None
    if base == "mad":
        base = "fma"
    if base not in ("neg", "abs", "copysign") and base not in OPERATIONS:
        return None
    single = kind.removesuffix("x2")
    width = _bits(single)
    sources = [slots.source(o, f"b{2 * width if kind.endswith('x2') else width}")
               for o in ins.operands[1:]]  # fmt: skip
    d = slots.dest(ins.operands[0])
    compute = _scalar_operation(ins, base, single, words)
    if not kind.endswith("x2"):

        def step(r: Lane) -> None:
            r[d] = compute(*[r[s] for s in sources])

        return step

    def packed(r: Lane) -> None:
        low = compute(*[r[s] & (1 << width) - 1 for s in sources])
        high = compute(*[r[s] >> width for s in sources])
        r[d] = high << width | low

    return packed


def _bits(kind: str) -> int:
    return {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}[kind]


def _scalar_operation(
    ins: Instruction, base: str, kind: str, words: list[str]
) -> Callable[..., int]:
    """Bits in, bits out, for one element."""
    top = 1 << (_bits(kind) - 1)
    if base in ("neg", "abs"):
        sign: Callable[[int], int] = {"neg": lambda a: a ^ top, "abs": lambda a: a & ~top}[base]
        return sign
    if base == "copysign":
        return lambda a, b: (b & ~top) | (a & top)
    function: Callable[..., float] = OPERATIONS[base]
    if base in ("min", "max"):  # of two, or since PTX 8.8 of three
        plain, always = function, "NaN" in words
        function = lambda *given: (  # noqa: E731
            math.nan if always and any(map(math.isnan, given)) else reduce(plain, given)
        )
    relu, sat = "relu" in words, "sat" in words

    def compute(*bits: int) -> int:
        result = function(*(decode(b, kind) for b in bits))
        if relu:
            result = 0.0 if result <= 0.0 else result  # also -0
        return encode(saturate(result) if sat else result, kind)

    return compute


def compile_compare(ins: Instruction, slots: Slots) -> Plain | None:
    """setp, set, selp, slct, testp, mov."""
    base = ins.opcode.split(".")[0]
    if base in ("setp", "set"):
        return _compare(ins, slots)
    if base == "selp":
        kind = ins.opcode.split(".")[-1]
        d = slots.dest(ins.operands[0])
        a, b = (slots.source(o, kind) for o in ins.operands[1:3])
        p, flip = slots.predicate(ins.operands[3])

        def select(r: Lane) -> None:
            r[d] = r[a] if r[p] ^ flip else r[b]

        return select
    if base == "slct":
        kind, sign = ins.opcode.split(".")[-2:]
        d = slots.dest(ins.operands[0])
        a, b = (slots.source(o, kind) for o in ins.operands[1:3])
        c = slots.source(ins.operands[3], sign)

        def by_sign(r: Lane) -> None:
            value = decode(r[c], "f32") if sign == "f32" else reader(sign)(r[c])
            r[d] = r[a] if value >= 0 else r[b]

        return by_sign
    if base == "testp":
        test, kind = ins.opcode.split(".")[1:]
        d, a = slots.dest(ins.operands[0]), slots.source(ins.operands[1], kind)
        small = 2.0**-126 if kind == "f32" else 2.0**-1022
        tests: dict[str, Callable[[float], bool]] = {
            "finite": math.isfinite, "infinite": math.isinf, "notanumber": math.isnan,
            "number": lambda v: v == v,
            "normal": lambda v: math.isfinite(v) and (abs(v) >= small or v == 0),
            "subnormal": lambda v: 0 < abs(v) < small,
        }  # fmt: skip

        def probe(r: Lane) -> None:
            r[d] = int(tests[test](decode(r[a], kind)))

        return probe
    if base == "mov":
        return _move(ins, slots)
    return None


def _move(ins: Instruction, slots: Slots) -> Plain:
    kind = ins.opcode.split(".")[-1]
    target, source = ins.operands
    if target.kind == "list":
        outs = [slots.dest(o) for o in target.parts]
        a, each = slots.source(source, kind), int(kind[1:]) // len(outs)

        def unpack(r: Lane) -> None:
            bits = r[a]
            for i, out in enumerate(outs):
                r[out] = bits >> (each * i) & ((1 << each) - 1)

        return unpack
    d = slots.dest(target)
    if source.kind == "list":
        each = int(kind[1:]) // len(source.parts)
        parts = [slots.source(o, f"b{each}") for o in source.parts]

        def pack(r: Lane) -> None:
            r[d] = sum(r[p] << (each * i) for i, p in enumerate(parts))

        return pack
    a = slots.source(source, kind)
    mask = (1 << int(kind[1:])) - 1
    offset = source.offset if source.kind == "symbol" and source.text in slots.frame_symbols else 0

    def copy(r: Lane) -> None:
        r[d] = (r[a] + offset) & mask

    return copy


def _compare(ins: Instruction, slots: Slots) -> Plain:
    words = ins.opcode.split(".")
    kind = words[-1]
    combine = next((w for w in words[2:-1] if w in ("and", "or", "xor")), None)
    outs = ins.operands[0].parts if ins.operands[0].kind == "pair" else [ins.operands[0]]
    targets = [slots.dest(o) for o in outs]
    a, b = (slots.source(o, kind) for o in ins.operands[1:3])
    c, flip = slots.predicate(ins.operands[3]) if combine else (Slots.SINK, 0)
    test = _test(words[1], kind)
    to_word = words[0] == "set"
    true_word = 0x3F800000 if to_word and words[-2] == "f32" else 0xFFFFFFFF
    logic = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}.get(combine or "")
    if not combine and len(targets) == 1 and not to_word:
        (p,) = targets

        def simple(r: Lane) -> None:
            r[p] = int(test(r[a], r[b]))

        return simple

    def step(r: Lane) -> None:
        answer = int(test(r[a], r[b]))
        third = r[c] ^ flip
        for target, value in zip(targets, (answer, 1 - answer), strict=False):
            result = logic(value, third) if logic else value
            r[target] = result * true_word if to_word else result

    return step


def _test(name: str, kind: str) -> Callable[[int, int], bool]:
    if kind[0] in "usb" and kind[1:].isdigit():
        value, compare = reader(kind), COMPARE[name]
        if kind[0] != "s":
            return compare
        return lambda x, y: compare(value(x), value(y))

    def test(x: int, y: int) -> bool:
        left, right = decode(x, kind), decode(y, kind)
        unordered = left != left or right != right
        if name in ("num", "nan"):
            return unordered == (name == "nan")
        if unordered:
            return name.endswith("u")
        return COMPARE[name.removesuffix("u")](left, right)

    return test
