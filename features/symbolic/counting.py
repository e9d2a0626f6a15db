"""Launch totals of warps and lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.symbolic.arith import (
    Amount,
    Layout,
    Missing,
    Number,
    Test,
    Val,
    each,
    mapped,
    spread,
)
from wattcast.features.symbolic.evaluate import Context, Evaluator, Mask

if TYPE_CHECKING:
    from wattcast.features.symbolic.accesses import Grounds, Patterns


Floats = npt.NDArray[np.float64]


def packed(mask: Mask) -> npt.NDArray[np.uint32]:
    """Warps of ``[rows, lanes]``, a bit for each lane: ``[rows, warps]``."""
    found = np.packbits(mask.reshape(-1), bitorder="little").view(np.uint32)
    return found.reshape(mask.shape[0], -1)


class Counting:
    """Counts lanes and warps of masks over the launch; keeps what accesses were found to do.

    ``warp_weights``: launch warps each sampled warp stands for.
    """

    def __init__(self, evaluator: Evaluator, warp_weights: npt.NDArray[np.float64]) -> None:
        self.evaluator = evaluator
        self.layout = evaluator.lanes.layout
        self.warp_weights = warp_weights
        self._counted: dict[tuple[int, int], tuple[Mask, Context, Amount, Amount]] = {}
        self._packed: tuple[Mask, npt.NDArray[np.uint32]] | None = None
        self.grounds: dict[tuple[object, ...], Grounds] = {}
        self.patterns: dict[tuple[object, ...], Patterns] = {}

    def count(self, mask: Mask, context: Context) -> tuple[Amount, Amount]:
        """Launch totals of warps and lanes in a mask, over all rows."""
        key = (id(mask), id(context))
        kept = self._counted.get(key)
        if kept is not None and kept[0] is mask and kept[1] is context:
            return kept[2], kept[3]
        if self._packed is None or self._packed[0] is not mask:
            self._packed = mask, packed(mask)
        lanes = np.bitwise_count(self._packed[1])
        weight = weights_of(mask, context)
        warps = self.weighed(weight, lanes > 0)
        total = self.weighed(weight, lanes)
        self._counted[key] = (mask, context, warps, total)
        return warps, total

    def weighed(self, weight: Floats | None, counts: npt.NDArray[Any]) -> Amount:
        """Launch totals of ``[rows, warps]`` with the weights of rows, or of ``[warps]``."""
        layout, warps = self.layout, self.warp_weights
        if layout.count == 1:
            per_row = counts @ warps
            return float(per_row if weight is None else weight @ per_row)
        counts = counts.astype(np.float64)
        if weight is None:
            return each_of(layout, [float(counts[at] @ warps[at]) for at in layout.warps])
        if layout.even and len(counts) == 1:  # as many products of a row and a column
            stack = layout.count, 1, -1
            dots = (counts.reshape(stack) @ warps.reshape(layout.count, -1, 1)).ravel()
            return each_of(layout, (dots * weight[..., 0]).tolist())
        rows = weight if weight.ndim == 2 else [weight] * layout.count
        parts = zip(rows, layout.warps, strict=True)
        found = [row @ (np.ascontiguousarray(counts[:, at]) @ warps[at]) for row, at in parts]
        return each_of(layout, [float(one) for one in found])


def each_of(layout: Layout, values: list[float]) -> Amount:
    """A total of each launch."""
    found: Amount = each(layout, values)
    return found


def weights_of(mask: npt.NDArray[Any], context: Context) -> Floats:
    """Weights of a mask's rows, ``[rows]`` or ``[launches, rows]``."""
    weight = context.weight
    return weight if mask.shape[0] == context.rows else weight.sum(axis=-1, keepdims=True)


# Exit tests solved in closed form: at which iteration a lane leaves, and in which row that is.

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


# What the walk found, entry by entry, so that a loop tried in vain can be taken back.
#
# Totals are of the launch, or of each launch that is walked.


class Visit(NamedTuple):
    """A block was executed: launch totals. ``known``: they are no guess."""

    block: int
    warps: Amount
    lanes: Amount
    known: bool


class Guarded(NamedTuple):
    """A guarded instruction was: lanes whose guard is true."""

    position: int
    lanes: Amount
    known: bool


class Split(NamedTuple):
    """A conditional branch was: warps and lanes that take it, and warps that do not."""

    position: int
    taken_warps: Amount
    taken_lanes: Amount
    other_warps: Amount
    reason: Missing | None


class Touched(NamedTuple):
    """A memory access was: launch totals. ``reason`` tells why the address is not known."""

    position: int
    part: int
    requests: Amount
    sectors: Amount
    transactions: Amount
    stride: Number | None
    reason: Missing | None
    l1_millicycles: Amount = 0.0


class Rounds(NamedTuple):
    """A loop was entered by ``entries`` lanes, which executed its header ``headers`` times.

    ``reason``: why it is not known how often.
    """

    loop: int
    entries: Amount
    headers: Amount
    reason: Missing | None


Entry = Visit | Guarded | Split | Touched | Rounds
