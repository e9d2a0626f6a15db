"""Launch shapes that do the same work: other blocks, and grids that cover the same threads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from wattcast.features.launch import Dim3, Launch

LEAST_THREADS, MOST_THREADS = 32, 1024
"""Usual blocks hold a warp at least, and as many threads as every GPU since 2010 takes at most
(CUDA C++ Programming Guide, technical specifications)."""

LINE_BLOCKS = (32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
"""Blocks along one axis: whole warps, denser where most kernels lie."""

_POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_LEAST_X = 4
"""A plane's blocks are at least this wide: narrower ones never coalesce."""
_MOST_Z = 8


def axes_of(launch: Launch) -> int:
    """How many axes a launch uses, 1 to 3."""
    used = [axis for axis in range(3) if launch.grid[axis] > 1 or launch.block[axis] > 1]
    return max(used, default=0) + 1


def usual_blocks(axes: int) -> tuple[Dim3, ...]:
    """Blocks worth trying for a kernel that uses 1 to 3 axes."""
    if axes == 1:
        return tuple((x, 1, 1) for x in LINE_BLOCKS)
    return tuple(_powers_of_two(axes))


def _powers_of_two(axes: int) -> Iterator[Dim3]:
    deep = [z for z in _POWERS if z <= _MOST_Z] if axes == 3 else [1]
    for x, y, z in product(_POWERS, _POWERS, deep):
        if x >= _LEAST_X and LEAST_THREADS <= x * y * z <= MOST_THREADS:
            yield x, y, z


def covering_grid(base: Launch, block: Dim3) -> Dim3:
    """The smallest grid of ``block`` with no fewer threads along any axis than ``base`` has.

    Where ``block`` does not divide them there are more: a kernel guards against those by
    comparing its index with a bound, as it has to for any size.
    """
    x, y, z = (
        -(-blocks * threads // new)
        for blocks, threads, new in zip(base.grid, base.block, block, strict=True)
    )
    return x, y, z
