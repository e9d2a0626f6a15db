"""Integer semantics against Python's unbounded integers, wrapped by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattcast.features.execution.alu import arithmetic
from wattcast.features.execution.integer import logic3
from wattcast.features.execution.values import TYPES, UNSIGNED, as_type, constant, literal, widen


def wrap(value: int, kind: str) -> int:
    """``value`` as a type of PTX holds it."""
    bits = 8 * TYPES[kind].itemsize
    value &= (1 << bits) - 1
    return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value


def apply(opcode: str, *values: int) -> int:
    """One instruction on one thread; the result's raw bits read by its own type."""
    base, *modifiers = opcode.split(".")
    operation = arithmetic(base, tuple(modifiers), precise=True)
    assert operation is not None
    with np.errstate(all="ignore"):
        sources = [constant(v, t) for v, t in zip(values, operation.sources, strict=True)]
        return int(operation.function(*sources)[0])


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


BINARY: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "min": min,
    "max": max,
    "div": quotient,
    "rem": lambda a, b: a - b * quotient(a, b),
}
INTEGERS = st.integers(-(2**64), 2**64)
SMALL = st.integers(-3, 3)


@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("name", BINARY)
@settings(max_examples=40)
@given(a=INTEGERS | SMALL, b=INTEGERS | SMALL)
def test_arithmetic_wraps(name: str, kind: str, a: int, b: int) -> None:
    a, b = wrap(a, kind), wrap(b, kind)
    if b == 0 and name in ("div", "rem"):
        return
    assert wrap(apply(f"{name}.{kind}", a, b), kind) == wrap(BINARY[name](a, b), kind)


@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u32", "s64", "u64"])
@given(a=INTEGERS, b=INTEGERS, c=INTEGERS)
def test_upper_halves_and_wide_products(kind: str, a: int, b: int, c: int) -> None:
    a, b, c = wrap(a, kind), wrap(b, kind), wrap(c, kind)
    bits = 8 * TYPES[kind].itemsize
    assert wrap(apply(f"mul.hi.{kind}", a, b), kind) == wrap(a * b >> bits, kind)
    assert wrap(apply(f"mad.hi.{kind}", a, b, c), kind) == wrap((a * b >> bits) + c, kind)
    if bits < 64:
        assert apply(f"mul.wide.{kind}", a, b) == a * b


@given(a=st.integers(0, 2**32 - 1), b=st.integers(0, 300), c=st.integers(0, 300))
def test_shifts_and_fields(a: int, b: int, c: int) -> None:
    assert apply("shl.b32", a, b) == (a << b) % 2**32
    assert apply("shr.u32", a, b) == a >> b
    signed = wrap(a, "s32")
    assert apply("shr.s32", signed, b) == signed >> min(b, 31)
    assert apply("shl.b64", a, b) == (a << b) % 2**64
    position, length = b % 256, c % 256
    assert apply("bfe.u32", a, b, c) == (a >> position) & ((1 << length) - 1)
    if length:
        top = min(position + length - 1, 31)
        sign = a >> top & 1
        taken = [
            a >> (position + i) & 1 if i < length and position + i <= 31 else sign
            for i in range(32)
        ]
        wanted = wrap(sum(bit << i for i, bit in enumerate(taken)), "s32")
        assert apply("bfe.s32", signed, b, c) == wanted
    mask = ((1 << length) - 1) << position
    assert apply("bfi.b32", a, 0, b, c) == (a << position & mask) % 2**32


@given(a=st.integers(0, 2**64 - 1))
def test_counting_bits(a: int) -> None:
    low = a % 2**32
    assert apply("popc.b64", a) == a.bit_count()
    assert apply("clz.b32", low) == 32 - low.bit_length()
    assert apply("clz.b64", a) == 64 - a.bit_length()
    assert apply("brev.b32", low) == int(f"{low:032b}"[::-1], 2)
    assert apply("bfind.u32", low) == (low.bit_length() - 1) % 2**32
    signed = wrap(low, "s32")
    assert apply("bfind.s32", signed) == ((~signed if signed < 0 else signed).bit_length() - 1) % (
        2**32
    )


@given(
    a=st.integers(0, 2**32 - 1), b=st.integers(0, 2**32 - 1), c=st.integers(0, 2**32 - 1),
    table=st.integers(0, 255),
)  # fmt: skip
def test_permutes_funnels_and_logic(a: int, b: int, c: int, table: int) -> None:
    both = b << 32 | a
    amount = min(c, 32)
    assert apply("shf.l.clamp.b32", a, b, c) == (both << amount) >> 32 & 0xFFFFFFFF
    assert apply("shf.r.wrap.b32", a, b, c) == both >> (c & 31) & 0xFFFFFFFF
    wanted = 0
    for index in range(4):
        nibble = c >> 4 * index & 15
        byte = both >> 8 * (nibble & 7) & 255
        if nibble & 8:
            byte = 255 if byte & 128 else 0
        wanted |= byte << 8 * index
    assert apply("prmt.b32", a, b, c) == wanted
    logic = logic3(table)(*(constant(v, UNSIGNED[4]) for v in (a, b, c)))
    for bit in range(32):
        row = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1)
        assert int(logic[0]) >> bit & 1 == table >> row & 1


@given(a=st.integers(0, 2**32 - 1), b=st.integers(0, 2**32 - 1), c=INTEGERS)
def test_sums_of_products_of_bytes(a: int, b: int, c: int) -> None:
    def byte(value: int, index: int, kind: str) -> int:
        return wrap(value >> 8 * index, kind)

    for left in ("s32", "u32"):
        for right in ("s32", "u32"):
            total = c + sum(
                byte(a, i, left[0] + "8") * byte(b, i, right[0] + "8") for i in range(4)
            )
            found = apply(f"dp4a.{left}.{right}", a, b, c)
            assert found % 2**32 == total % 2**32


def test_division_by_zero_and_the_most_negative_number_do_not_fail() -> None:
    assert wrap(apply("div.s32", -(2**31), -1), "s32") == -(2**31)
    assert apply("rem.s32", -(2**31), -1) == 0
    assert wrap(apply("div.u32", 5, 0), "u32") == 2**32 - 1


def test_literals_keep_their_bits() -> None:
    assert literal(1.0, "0f3F800000", TYPES["b32"])[0] == 0x3F800000
    assert literal(1.0, "0f3F800000", TYPES["f32"])[0] == 1.0
    assert literal(0.5, "0d3FE0000000000000", TYPES["f64"])[0] == 0.5
    assert literal(-1, "-1", TYPES["u32"])[0] == 2**32 - 1


def test_registers_are_extended_by_the_sign_of_what_is_written() -> None:
    assert widen(np.array([-1], dtype=np.int8), 4).view(np.uint32)[0] == 2**32 - 1
    assert widen(np.array([255], dtype=np.uint8), 4)[0] == 255
    assert as_type(np.array([2**40 + 7], dtype=np.uint64), TYPES["u16"])[0] == 7
