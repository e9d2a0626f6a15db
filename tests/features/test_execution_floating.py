"""Floating-point semantics against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattcast.features.execution.alu import arithmetic
from wattcast.features.execution.floating import comparison
from wattcast.features.execution.values import TYPES, from_bf16

SINGLES = st.floats(width=32, allow_nan=False, allow_infinity=False)
HALVES = st.floats(width=16, allow_nan=False, allow_infinity=False)
DOUBLES = st.floats(-1e100, 1e100)


def apply(opcode: str, *values: object) -> np.generic:
    """One instruction on one thread."""
    base, *modifiers = opcode.split(".")
    operation = arithmetic(base, tuple(modifiers), precise=True)
    assert operation is not None
    with np.errstate(all="ignore"):
        sources = [np.array([v]).astype(t) for v, t in zip(values, operation.sources, strict=True)]
        found = operation.function(*sources)
    assert found.dtype is operation.result
    return found[0]


def nearest(value: Fraction, precision: int, smallest: int) -> Fraction:
    """Round to nearest even with ``precision`` bits and least exponent ``smallest``."""
    if value == 0:
        return value
    exponent = math.floor(math.log2(abs(value))) if abs(value) > 0 else 0
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, smallest) - precision + 1)
    return round(value / unit) * unit  # Python rounds half to even


@given(a=SINGLES, b=SINGLES, c=SINGLES)
def test_fma_of_singles_rounds_once(a: float, b: float, c: float) -> None:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    wanted = nearest(exact, 24, -126)
    if abs(wanted) > Fraction(float(np.finfo(np.float32).max)):
        return
    assert Fraction(float(apply("fma.rn.f32", a, b, c))) == wanted


@given(a=HALVES, b=HALVES, c=HALVES)
def test_fma_of_halves_rounds_once(a: float, b: float, c: float) -> None:
    wanted = nearest(Fraction(a) * Fraction(b) + Fraction(c), 11, -14)
    if abs(wanted) <= 65504:
        assert Fraction(float(apply("fma.rn.f16", a, b, c))) == wanted


@given(a=st.integers(0, 2**15 - 1), b=st.integers(0, 2**15 - 1))
def test_bfloat16_sums_round_once(a: int, b: int) -> None:
    pair = [Fraction(float(v)) if np.isfinite(v) else None
            for v in from_bf16(np.array([a, b], dtype=np.uint16))]  # fmt: skip
    if pair[0] is None or pair[1] is None:
        return
    wanted = nearest(pair[0] + pair[1], 8, -126)
    found = from_bf16(np.array([apply("add.rn.bf16", a, b)]))[0]
    if np.isfinite(found):
        assert Fraction(float(found)) == wanted


@pytest.mark.parametrize("name", ["add", "mul"])
@given(a=SINGLES, b=SINGLES)
def test_directed_rounding_brackets_the_exact_value(name: str, a: float, b: float) -> None:
    exact = Fraction(a) + Fraction(b) if name == "add" else Fraction(a) * Fraction(b)
    down, up = (apply(f"{name}.{mode}.f32", a, b) for mode in ("rm", "rp"))
    if np.isfinite(down) and np.isfinite(up):
        assert Fraction(float(down)) <= exact <= Fraction(float(up))
        assert up == down or up == np.nextafter(down, np.float32(np.inf))
        toward = apply(f"{name}.rz.f32", a, b)
        assert abs(Fraction(float(toward))) <= abs(exact)


@given(a=DOUBLES, b=DOUBLES)
def test_directed_sums_of_doubles_bracket_the_exact_value(a: float, b: float) -> None:
    down, up = (apply(f"add.{mode}.f64", a, b) for mode in ("rm", "rp"))
    assert Fraction(float(down)) <= Fraction(a) + Fraction(b) <= Fraction(float(up))


@given(a=st.floats(width=32))
def test_floats_become_integers_by_truncation_and_clamping(a: float) -> None:
    found = int(apply("cvt.rzi.s32.f32", a))
    if math.isnan(a):
        assert found == 0
    else:
        clamped = max(-(2.0**31), min(2.0**31 - 1, a))
        assert found == math.trunc(clamped)


@given(a=st.integers(-(2**63), 2**63 - 1))
def test_integers_become_singles_with_one_rounding(a: int) -> None:
    wanted = nearest(Fraction(a), 24, -126)
    assert Fraction(float(apply("cvt.rn.f32.s64", a))) == wanted


@pytest.mark.parametrize(
    ("name", "less", "equal", "greater", "unordered"),
    [
        ("eq", False, True, False, False),
        ("ne", True, False, True, False),
        ("neu", True, False, True, True),
        ("ltu", True, False, False, True),
        ("geu", False, True, True, True),
        ("num", True, True, True, False),
        ("nan", False, False, False, True),
        ("equ", False, True, False, True),
    ],
)
def test_comparisons_of_floats(
    name: str, less: bool, equal: bool, greater: bool, unordered: bool
) -> None:
    function, dtype = comparison(name, "f32")
    left = np.array([1, 2, 3, np.nan], dtype=dtype)
    right = np.array([2, 2, 2, 2], dtype=dtype)
    assert function(left, right).tolist() == [less, equal, greater, unordered]


def test_saturation_subnormals_and_nan() -> None:
    assert apply("add.sat.f32", 0.75, 0.75) == 1.0
    assert apply("mul.sat.f32", -1.0, 0.5) == 0.0
    assert apply("add.ftz.f32", 1e-40, 0.0) == 0.0
    assert apply("min.f32", np.nan, 2.0) == 2.0
    assert np.isnan(apply("min.NaN.f32", np.nan, 2.0))
    assert apply("cvt.rn.f16x2.f32", 1.0, 2.0) == 0x3C004000
    assert TYPES["f16x2"].itemsize == 4
