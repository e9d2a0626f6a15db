"""Floating-point semantics, to the precision of the types."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fixtures.tables import rows
from wattcast.features.execution.alu import arithmetic
from wattcast.features.execution.floating import comparison
from wattcast.features.execution.values import TYPES


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


@pytest.mark.parametrize(
    ("name", "less", "equal", "greater", "unordered"),
    rows("floats", "comparisons"),
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
