"""The lanes of the sampled blocks: special registers, and who exists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from wattcast.features.launch import WARP_SIZE, Launch
from wattcast.features.symbolic.arith import Array, Missing, Val, Value
from wattcast.features.symbolic.each import ApartError, Layout, Mask, Number, each


class Lanes:
    """All lanes of the sampled blocks, padded to whole warps: ids and who exists.

    Those of several launches lie one behind the other, as ``layout`` tells.
    """

    def __init__(self, launches: Sequence[Launch], blocks: Sequence[npt.NDArray[np.int64]]) -> None:
        self._each = [_OneLaunch(*pair) for pair in zip(launches, blocks, strict=True)]
        self.layout = Layout([one.count for one in self._each])
        self.count: Number = each(self.layout, self.layout.sizes)
        self._kept: dict[str, Value] = {}
        living = [one.living for one in self._each]
        self.living: Mask = (living[0] if len(living) == 1 else np.concatenate(living))[None, :]

    def special(self, name: str) -> Value:
        """A special register's value."""
        found = self._kept.get(name)
        if found is None:
            found = joined(self.layout, [one.special(name) for one in self._each])
            self._kept[name] = found
        return found


def joined(layout: Layout, values: Sequence[Value]) -> Value:
    """One value of what it is in each launch. Raises ApartError where the kinds differ."""
    first = values[0]
    if len(values) == 1:
        return first
    if isinstance(first, Missing):
        kinds: list[object] = [v if isinstance(v, Missing) else type(v) for v in values]
    else:
        kinds = [(type(v), v.origin) if isinstance(v, Val) else type(v) for v in values]
    if kinds.count(kinds[0]) != len(kinds):
        raise ApartError([str(kind) for kind in kinds])
    if isinstance(first, int):
        number: Number = each(layout, list(values))
        return number
    if not isinstance(first, Val) or not isinstance(first.base, np.ndarray):
        return first
    held = [value for value in values if isinstance(value, Val)]
    low = each(layout, [value.low for value in held])
    high = each(layout, [value.high for value in held])
    return Val(np.concatenate([value.base for value in held]), low, high)


class _OneLaunch:
    """The lanes of one launch."""

    def __init__(self, launch: Launch, blocks: npt.NDArray[np.int64]) -> None:
        self.launch = launch
        self.blocks = blocks
        self.per_block = launch.warps_per_block * WARP_SIZE
        self.count = blocks.size * self.per_block
        self.thread = np.arange(self.per_block, dtype=np.int64)
        self.living = self._in_all(self.thread < launch.threads_per_block)

    def _in_all(self, inside: Array) -> Array:
        """What is so in one block, for all blocks."""
        return np.broadcast_to(inside, (self.blocks.size, inside.size)).flatten()

    def special(self, name: str) -> Value:
        """A special register's value."""
        head, _, axis = name.partition(".")
        place = "xyz".find(axis) if axis else -1
        launch = self.launch
        if head in ("ntid", "nctaid"):
            return (launch.block if head == "ntid" else launch.grid)[place] if place >= 0 else 0
        if head in ("tid", "ctaid"):
            shape = launch.block if head == "tid" else launch.grid
            if place < 0 or shape[place] == 1:
                return 0
            below = int(np.prod(shape[:place], dtype=np.int64))
            if head == "tid":
                inside = self.thread // below
                base = self._in_all(inside % shape[place] if place < 2 else inside)
            else:
                block = self.blocks // below
                block = block % shape[place] if place < 2 else block
                if self.blocks.size == 1:
                    return int(block[0])
                base = np.repeat(block, self.per_block)
            return Val(base, 0, int(base.max()))
        lane = self._in_all(self.thread % WARP_SIZE)
        if head == "laneid":
            return Val(lane, 0, WARP_SIZE - 1)
        if head == "warpid":
            return Val(self._in_all(self.thread // WARP_SIZE), 0, launch.warps_per_block - 1)
        if head == "nwarpid":
            return launch.warps_per_block
        equal = np.int64(1) << lane
        table = {
            "lanemask_eq": equal, "lanemask_lt": equal - 1, "lanemask_le": 2 * equal - 1,
            "lanemask_gt": 0xFFFFFFFF & ~(2 * equal - 1), "lanemask_ge": 0xFFFFFFFF & ~(equal - 1),
        }  # fmt: skip
        if name in table:
            return Val(table[name].astype(np.int32).astype(np.int64), -(1 << 31), (1 << 31) - 1)
        return Missing(f"%{name} is known only at run time", 0)
