"""When the sectors of some sampled blocks are touched: the ground of reuse distances.

A few of the sampled blocks are traced. A block's clock counts its own requests to global memory,
those of skipped iterations too. Every traced access notes which sectors it touches when; of
longer traces only lines with a certain hash are kept, which leaves the times between two uses of
a line as they are (spatial sampling: Waldspurger et al., Efficient MRC Construction with SHARDS,
FAST 2015).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.memory import KEY_BITS, SECTORS_PER_LINE_SHIFT, sampled

if TYPE_CHECKING:
    from wattcast.features.execution.values import Group

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MOST_TOUCHES = 1 << 16
"""Touches of sectors kept; beyond, every other line is dropped (sorting these takes 2 ms)."""


class Picked(NamedTuple):
    """The traced part of an access: places among its keys, their slots, and by how many requests
    of the block each comes after the first of them."""

    where: npt.NDArray[np.intp]
    slots: Integers
    later: Integers


class Touches(NamedTuple):
    """Touches in the order of time within each slot. ``keys`` are footprint keys, ``weights``
    how many touches each stands for."""

    sites: Integers
    keys: Integers
    times: Integers
    weights: Floats


class Trace:
    """The touches of the traced slots of a machine."""

    def __init__(self, slots: int, traced: Sequence[int]) -> None:
        self.traced = np.zeros(slots, dtype=np.bool_)
        self.traced[list(traced)] = True
        self.clock: Integers = np.zeros(slots, dtype=np.int64)
        self._chunks: list[tuple[int, Integers, Integers]] = []
        self._weights: list[float] = []
        self._size = 0
        self._dropped = 0  # a mask: lines with any of these bits in their hash are not kept

    def pick(self, group: Group, per_row: Integers) -> Picked | None:
        """What to note of an access whose warps touch ``per_row`` sectors each."""
        rows, later = group.traced
        where = np.flatnonzero(np.repeat(rows, per_row))
        if not where.size:
            return None
        return Picked(
            where,
            np.repeat(group.layout.owners, per_row)[where],
            np.repeat(later, per_row)[where],
        )

    def note(self, site: int, keys: Integers, picked: Picked | None, warps: Integers) -> None:
        """One request of ``warps`` (by slot) that touches ``keys``."""
        if picked is not None:
            self._add(site, keys[picked.where], self.clock[picked.slots] + picked.later)
        self.clock += warps

    def note_one(self, site: int, sector: int, warps: Integers) -> None:
        """The same sector for every warp."""
        slots = np.flatnonzero(np.where(self.traced, warps, 0))
        if slots.size:
            times = np.repeat(slots, warps[slots])
            later = np.arange(times.size) - np.repeat(np.cumsum(warps[slots]) - warps[slots],
                                                      warps[slots])  # fmt: skip
            self._add(site, (times << KEY_BITS) | sector, self.clock[times] + later)
        self.clock += warps

    def _add(self, site: int, keys: Integers, times: Integers) -> None:
        if self._dropped:
            kept = self._kept(keys)
            keys, times = keys[kept], times[kept]
        self._chunks.append((site, keys, times))
        self._weights.append(1.0)
        self._size += keys.size
        while self._size > MOST_TOUCHES:
            self._dropped = self._dropped * 2 + 1
            self._chunks = [(s, k[self._kept(k)], t[self._kept(k)]) for s, k, t in self._chunks]
            self._size = sum(k.size for _, k, _ in self._chunks)

    def _kept(self, keys: Integers) -> npt.NDArray[np.bool_]:
        return sampled(keys >> SECTORS_PER_LINE_SHIFT, self._dropped)

    @property
    def mark(self) -> int:
        """Where the next access will be noted."""
        return len(self._chunks)

    def repeat(self, start: int, times: float, requests: Integers) -> None:
        """What was noted from a mark on happened ``times`` more; ``requests`` more by slot."""
        for index in range(start, len(self._weights)):
            self._weights[index] *= 1.0 + times
        self.clock += requests

    def touches(self) -> Touches:
        """Everything noted, in order."""
        sizes = [keys.size for _, keys, _ in self._chunks]
        sites = np.array([site for site, _, _ in self._chunks], dtype=np.int64)
        return Touches(
            np.repeat(sites, sizes),
            _joined(keys for _, keys, _ in self._chunks),
            _joined(times for _, _, times in self._chunks),
            np.repeat(np.array(self._weights, dtype=np.float64), sizes) * (1.0 + self._dropped),
        )


def _joined(parts: Iterable[Integers]) -> Integers:
    found = list(parts)
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)
