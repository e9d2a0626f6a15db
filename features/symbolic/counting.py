"""Launch totals of warps and lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wattcast.features.symbolic.each import Amount, Layout, each
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
        lanes = np.bitwise_count(self.lanes_of(mask))
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

    def marked(self, mask: Mask) -> Amount:
        """Cells that a mask marks."""
        if self.layout.count == 1:
            return float(mask.sum())
        found = np.add.reduceat(mask.sum(axis=0), self.layout.starts)
        return each_of(self.layout, found.astype(np.float64).tolist())

    def lanes_of(self, mask: Mask) -> npt.NDArray[np.uint32]:
        """Each row's warps, a bit for each of their lanes; kept for the mask asked for last."""
        if self._packed is None or self._packed[0] is not mask:
            self._packed = mask, packed(mask)
        return self._packed[1]

    def of_warps(self, mask: Mask, context: Context) -> npt.NDArray[np.float64]:
        """How often each sampled warp comes, over all rows."""
        here = self.lanes_of(mask) != 0
        weight = weights_of(mask, context)
        if weight.ndim == 1 and (self.layout.count == 1 or len(here) == 1):
            found: npt.NDArray[np.float64] = weight @ here
            return found
        rows = weight if weight.ndim == 2 else [weight] * self.layout.count
        parts = zip(rows, self.layout.warps, strict=True)
        return np.concatenate([row @ here[:, at] for row, at in parts])


def each_of(layout: Layout, values: list[float]) -> Amount:
    """A total of each launch."""
    found: Amount = each(layout, values)
    return found


def weights_of(mask: npt.NDArray[Any], context: Context) -> Floats:
    """Weights of a mask's rows, ``[rows]`` or ``[launches, rows]``."""
    weight = context.weight
    return weight if mask.shape[0] == context.rows else weight.sum(axis=-1, keepdims=True)
