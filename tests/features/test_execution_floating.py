"""Floating-point semantics, to the precision of the types."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattcast.features.execution.alu import arithmetic
from wattcast.features.execution.floating import comparison
from wattcast.features.execution.values import TYPES, from_bf16, to_bf16

SINGLES = st.floats(width=32, allow_nan=False, allow_infinity=False)
HALVES = st.floats(width=16, allow_nan=False, allow_infinity=False)
DOUBLES = st.floats(-1e100, 1e100)


def apply(opcode: str, *values: object) -> np.generic:
    """One instruction on one thread."""
    base, *modifiers = opcode.split(".")
    operation = arithmetic(base, tuple(modifiers))
    assert operation is not None
    with np.errstate(all="ignore"):
        sources = [np.array([v]).astype(t) for v, t in zip(values, operation.sources, strict=True)]
        found = operation.function(*sources)
    assert found.dtype is operation.result
    return found[0]


@given(a=st.floats(width=32))
def test_floats_become_integers_by_truncation_and_clamping(a: float) -> None:
    found = int(apply("cvt.rzi.s32.f32", a))
    if math.isnan(a):
        assert found == 0
    else:
        clamped = max(-(2.0**31), min(2.0**31 - 1, a))
        assert found == math.trunc(clamped)


@given(a=SINGLES, b=SINGLES, c=SINGLES)
def test_arithmetic_is_right_to_the_precision_of_its_type(a: float, b: float, c: float) -> None:
    for kind, of_one in (("f32", 2.0**-22), ("f16", 2.0**-9), ("bf16", 2.0**-6)):
        left, right, more = (np.clip(v, -100, 100) for v in (a, b, c))
        held = [to_bf16(np.float32([v]))[0] if kind == "bf16" else v for v in (left, right, more)]
        found = np.array([apply(f"fma.rn.{kind}", *held)])
        value = float(from_bf16(found)[0] if kind == "bf16" else found[0])
        size = abs(left * right) + abs(more) + abs(left) + abs(right) + 1
        assert abs(value - (left * right + more)) <= 4 * of_one * size


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


def test_saturation_and_nan() -> None:
    assert apply("add.sat.f32", 0.75, 0.75) == 1.0
    assert apply("mul.sat.f32", -1.0, 0.5) == 0.0
    assert apply("min.f32", np.nan, 2.0) == 2.0
    assert np.isnan(apply("min.NaN.f32", np.nan, 2.0))
    assert apply("cvt.rn.f16x2.f32", 1.0, 2.0) == 0x3C004000
    assert TYPES["f16x2"].itemsize == 4
