"""How blocks use the same data again: within a block over time, and between blocks.

What an analysis measures of sampled blocks, and what follows for any set of blocks: the distinct
sectors (or lines) that they touch together. ``features.activity.memory`` makes cache traffic of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cache
from math import expm1, gcd
from typing import NamedTuple

from wattcast.features.launch import Dim3


class Patch(NamedTuple):
    """Some blocks of a grid, ``adjacent`` or far apart, in as many ``rows`` (equal y and z) and
    ``columns`` (equal x)."""

    blocks: float
    rows: float
    columns: float
    adjacent: bool


def patch(count: float, spacing: int, grid: Dim3) -> Patch:
    """The first ``count`` blocks of the linear order (x fastest), ``spacing`` apart."""
    width, height = grid[0], grid[1] * grid[2]
    reach = count * spacing / width
    if spacing >= width:
        rows = min(count, float(height))
    else:
        rows = min(max(1.0, reach), count, float(height))
    columns = min(count, width / gcd(width, spacing))
    return Patch(count, rows, max(1.0, columns), spacing == 1)


@dataclass(frozen=True, slots=True)
class Sharing:
    """Shares of a block's footprint in one buffer that other blocks touch too.

    ``everyone``: all blocks touch it; the others are shares of the rest. ``beside``, ``below``:
    with the next block along x, along y. ``row``, ``column``: with far blocks of the same y and z,
    of the same x. ``population``: if finite, blocks touch so many units at random.
    """

    everyone: float = 0.0
    beside: float = 0.0
    below: float = 0.0
    row: float = 0.0
    column: float = 0.0
    population: float = float("inf")

    def copies(self, among: Patch) -> float:
        """By how much the rest of several blocks exceeds that of one, chance apart."""
        if among.adjacent:
            along = among.blocks / among.rows
            wide = 1.0 + max(0.0, along - 1.0) * (1.0 - self.beside)
            return wide * (1.0 + (among.rows - 1.0) * (1.0 - self.below))
        alone = max(0.0, 1.0 - self.row - self.column)
        return self.row * among.rows + self.column * among.columns + alone * among.blocks

    def union(self, among: Patch, each: float) -> float:
        """Distinct units of several blocks, each of which touches ``each`` of them."""
        rest = each * (1.0 - self.everyone) * self.copies(among)
        if self.population != float("inf"):
            rest = -self.population * expm1(-rest / self.population)
        return each * self.everyone + rest


@dataclass(frozen=True, slots=True)
class ReuseCurve:
    """How soon a block comes back to a buffer, by ``windows``: the block's own requests to global
    memory, from 0 up.

    ``lines``: distinct 128-byte lines touched in a window of that length, on average.
    ``loads_beyond``, ``stores_beyond``: of the sectors touched again, the share whose line lay
    untouched for longer.
    """

    windows: tuple[float, ...]
    lines: tuple[float, ...]
    loads_beyond: tuple[float, ...]
    stores_beyond: tuple[float, ...]

    def longer(self, factor: float) -> ReuseCurve:
        """The curve of a block that goes on in the same way for ``factor`` times as long."""
        if factor <= 1.0:
            return self
        return ReuseCurve(
            (*self.windows, self.windows[-1] * factor),
            (*self.lines, self.lines[-1] * factor),
            (*self.loads_beyond, self.loads_beyond[-1]),
            (*self.stores_beyond, self.stores_beyond[-1]),
        )


@dataclass(frozen=True, slots=True)
class Stream:
    """What a launch does to one buffer, in 32-byte sectors of the whole launch.

    ``kept_load_sectors`` may be held by L1; ``direct_load_sectors`` pass it (``.cg``, volatile).
    Atomics pass it too. The ``unique_`` ones are distinct within a block, summed over blocks: of
    loads that L1 may hold, of all loads and atomics, of those not stored to before, of stores
    and atomics. ``distinct_sectors`` and ``distinct_lines``: of the whole launch. ``kept`` follows
    the loads that L1 may hold, ``all`` every access.
    """

    name: str
    kept_load_sectors: float
    direct_load_sectors: float
    store_sectors: float
    atomic_sectors: float
    unique_kept_sectors: float
    unique_load_sectors: float
    unique_read_sectors: float
    unique_store_sectors: float
    distinct_sectors: float
    distinct_lines: float
    sharing: Sharing
    line_sharing: Sharing
    kept: ReuseCurve = field(repr=False)
    all: ReuseCurve = field(repr=False)

    def times(self, factor: float) -> Stream:
        """The stream of blocks that go on in the same way for ``factor`` times as long."""
        sectors = {name: getattr(self, name) * factor for name in _of_length()}
        return replace(self, kept=self.kept.longer(factor), all=self.all.longer(factor), **sectors)


@cache
def _of_length() -> tuple[str, ...]:
    """Fields of a stream that grow with how long its blocks go on."""
    names = (each.name for each in fields(Stream))
    return tuple(name for name in names if name.endswith(("_sectors", "_lines")))
