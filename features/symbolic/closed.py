"""Exit tests solved in closed form: at which iteration a lane leaves, and in which row that is."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from wattcast.features.symbolic.arith import Test, Val
from wattcast.features.symbolic.each import Layout, Number, mapped, spread
from wattcast.features.symbolic.evaluate import Mask

NEVER = np.int64(1) << np.int64(60)
"""Iterations of a loop that is not left by an exit."""

Counts = npt.NDArray[np.int64]


def solve_test(test: Test) -> Counts:
    """First counter >= 0 at which ``value OP 0`` fails; NEVER if it does not, or not exactly."""
    value = test.value
    ((_, factor),) = value.terms.items()
    base, step = np.broadcast_arrays(
        np.asarray(value.base, dtype=np.int64), np.asarray(factor, dtype=np.int64)
    )
    divisor = np.where(step == 0, 1, step)
    if test.how in ("lt", "le"):
        # Integers: v <= 0 is v - 1 < 0.
        held = base - (1 if test.how == "le" else 0)
        steps = -(held // np.maximum(divisor, 1))  # ceil(-held / step)
        return np.where(held >= 0, 0, np.where(step > 0, steps, NEVER))
    if test.how == "ne":
        exact = (step != 0) & (base % divisor == 0) & (-base // divisor >= 0)
        return np.where(base == 0, 0, np.where(exact, -base // divisor, NEVER))
    return np.where(base != 0, 0, np.where(step != 0, 1, NEVER))


def picked_rows(firsts: Counts, starts: list[Counts], table: Counts) -> npt.NDArray[np.intp]:
    """The row of each lane's last iteration, by row of the context around."""
    found = [
        firsts[row]
        + np.searchsorted(points, table[row if table.shape[0] > 1 else 0], side="right")
        - 1
        for row, points in enumerate(starts)
    ]
    return np.array(found)


def kept(
    value: Val, low: Number, high: Number, last: Number | Counts, loop: int, mask: Mask,
    layout: Layout,
) -> bool:  # fmt: skip
    """Whether a value stays within bounds from counter 0 to ``last``, for all lanes there."""
    if set(value.terms) - {loop} or value.origin:
        return False
    factor = value.terms.get(loop, 0)

    def largest(numbers: Number | Counts) -> Any:
        return mapped(float, layout.extreme(np.maximum, numbers))

    reach = largest(abs(factor)) * largest(last) + largest(abs(value.base))
    if reach > 2.0**62:
        return False
    end = value.base + factor * last
    for edge in (value.base, end):
        wide = np.asarray(edge)
        good = (wide >= spread(low)) & (wide <= spread(high))
        if not layout.all(good | ~mask):
            return False
    return True
