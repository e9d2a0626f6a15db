"""Launch configuration: how a kernel is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from wattcast.features.errors import LaunchError

Dim3 = tuple[int, int, int]

WARP_SIZE = 32
"""Threads of a warp, on every CUDA GPU so far (CUDA C++ Programming Guide)."""


@dataclass(frozen=True, slots=True)
class PointerHint:
    """What a pointer argument points to: element count and the shape of its data."""

    elements: int | None = None
    values: str = "uniform"
    low: float = 0.0
    high: float = 1.0

    def describes(self, *, trips: bool = False) -> bool:
        """Whether it tells anything of the data: of places in no order (``index``) no ``trips``
        follow, as where offsets of rows were meant."""
        return self != PointerHint(self.elements) and not (trips and self.values == "index")


Argument = int | float | PointerHint

L2State = Literal["warm", "cold"]
"""What L2 holds when a launch starts: what an equal launch left there, or nothing."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Grid and block in blocks and threads, shared memory in bytes.

    ``arguments`` are addressed by position (``"3"``) or PTX parameter name. ``l2`` is the state of
    the L2 cache when the launch starts. ``reference_threads`` are those of the launch that this one
    is compared with: trips that nobody gave are assumed as of it.
    Raises LaunchError for a dimension below 1, more than three dimensions, or negative
    shared memory. Limits that depend on the GPU are checked by ``wattcast.features.occupancy``.
    """

    grid: Dim3
    block: Dim3
    dynamic_shared_bytes: int = 0
    arguments: Mapping[str, Argument] = field(default_factory=lambda: MappingProxyType({}))
    l2: L2State = "warm"
    reference_threads: int | None = None

    def __post_init__(self) -> None:
        for name, dims in (("grid", self.grid), ("block", self.block)):
            if len(dims) != 3:
                raise LaunchError(f"{name} needs 1 to 3 dimensions", field=name)
            for axis, size in zip("xyz", dims, strict=True):
                if size < 1:
                    raise LaunchError(f"{name}.{axis} is {size}; it must be at least 1", field=name)
        if self.dynamic_shared_bytes < 0:
            raise LaunchError(
                f"dynamic_shared_bytes is {self.dynamic_shared_bytes}; it cannot be negative",
                field="dynamic_shared_bytes",
            )

    @classmethod
    def of(
        cls,
        grid: int | tuple[int, ...] | list[int],
        block: int | tuple[int, ...] | list[int],
        dynamic_shared_bytes: int = 0,
        arguments: Mapping[str, Argument] | None = None,
        l2: L2State = "warm",
    ) -> Launch:
        """Build from 1 to 3 dimensions; missing ones are 1. Raises LaunchError."""
        dims = dim3("grid", grid), dim3("block", block)
        return cls(*dims, dynamic_shared_bytes, arguments or {}, l2)

    def by_name(self, names: Sequence[str]) -> dict[str, Argument]:
        """Arguments by name, of a kernel whose parameters have these: some may be given by their
        position (``"0"``), those inside a structure by the bytes from its start too (``"0+4"``)."""
        places = {str(at): name for at, name in enumerate(names)}
        parts = ((key.partition("+"), value) for key, value in self.arguments.items())
        return {places.get(key, key) + plus + at: value for (key, plus, at), value in parts}

    @property
    def blocks(self) -> int:
        """Blocks of the grid (the thesis' nB)."""
        return prod(self.grid)

    @property
    def threads_per_block(self) -> int:
        """Threads of a block (the thesis' nT_b)."""
        return prod(self.block)

    @property
    def threads(self) -> int:
        """All threads launched (T = nB x nT_b)."""
        return self.blocks * self.threads_per_block

    @property
    def warps_per_block(self) -> int:
        """Warps of a block; a partial warp counts as one."""
        return -(-self.threads_per_block // WARP_SIZE)


def dim3(name: str, value: int | tuple[int, ...] | list[int]) -> Dim3:
    """Three dimensions of 1 to 3; missing ones are 1. Raises LaunchError, naming ``name``."""
    dims = (value,) if isinstance(value, int) else tuple(value)
    if not 1 <= len(dims) <= 3:
        raise LaunchError(f"{name} needs 1 to 3 dimensions, not {len(dims)}", field=name)
    x, y, z = (*dims, 1, 1)[:3]
    return (x, y, z)


Integers = npt.NDArray[np.int64]


def place_in(grid: Dim3, block: Any) -> tuple[Any, Any, Any]:
    """x, y and z of a block by its number (x fastest), or of an array of them."""
    wide, high, _ = grid
    return block % wide, block // wide % high, block // (wide * high)


def lane_values(launch: Launch, blocks: Integers, name: str) -> Integers | None:
    """A special register (``tid.x``) in all lanes of some blocks, padded to whole warps: one value
    if the launch's shape makes it the same in all; ``None`` if it is none that tells lanes apart.
    """
    head, _, axis = name.partition(".")
    per_block = launch.warps_per_block * WARP_SIZE
    if head in ("tid", "ctaid", "ntid", "nctaid"):
        shape = launch.block if head in ("tid", "ntid") else launch.grid
        place = "xyz".find(axis) if axis else -1
        if head.startswith("n") or place < 0:
            return np.array([shape[place] if place >= 0 else 0])
        if shape[place] == 1:
            return np.zeros(1, dtype=np.int64)
        index = np.arange(per_block) if head == "tid" else blocks
        part = index // prod(shape[:place])
        part = part % shape[place] if place < 2 else part
        if head == "tid":
            return np.tile(part, blocks.size)
        return part if blocks.size == 1 else np.repeat(part, per_block)
    linear = np.tile(np.arange(per_block), blocks.size)
    if head == "warpid":
        return linear // WARP_SIZE
    bit = np.int64(1) << linear % WARP_SIZE
    table = {
        "laneid": linear % WARP_SIZE, "lanemask_eq": bit, "lanemask_lt": bit - 1,
        "lanemask_le": 2 * bit - 1, "lanemask_gt": 0xFFFFFFFF & ~(2 * bit - 1),
        "lanemask_ge": 0xFFFFFFFF & ~(bit - 1),
    }  # fmt: skip
    return table.get(head)


def in_rows(launch: Launch, row: int) -> Launch:
    """A launch of a line of blocks as one of rows of so many, in the same order; 0: as it is."""
    return replace(launch, grid=(row, launch.blocks // row, 1)) if row else launch


# --- launch shapes that do the same work: other blocks, and grids that cover the same threads ----


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
    deep = [z for z in _POWERS if z <= _MOST_Z] if axes == 3 else [1]
    return tuple(
        (x, y, z)
        for x, y, z in product(_POWERS, _POWERS, deep)
        if x >= _LEAST_X and LEAST_THREADS <= x * y * z <= MOST_THREADS
    )


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
