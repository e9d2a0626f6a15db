"""Memory facts of warp accesses: sectors, bank conflicts, footprints.

Everything here works on arrays of shape ``(warps, 32)``: the byte address of each lane and,
optionally, which lanes take part. One row is one warp execution of one access.

Sources: CUDA C++ Best Practices Guide 13 and Programming Guide (compute capability 5.x and
later): global memory moves in 32-byte sectors; shared memory has 32 banks, 4 bytes wide;
8-byte accesses are served per half-warp, 16-byte accesses per quarter-warp.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from wattcast.features.launch import WARP_SIZE

Integers = npt.NDArray[np.int64]
Lanes = npt.NDArray[np.bool_]

SECTOR_BYTES = 32
"""Smallest unit moved from L2 (CUDA C++ Best Practices Guide, 13.2.1)."""
SECTOR_SHIFT = 5
SECTORS_PER_LINE_SHIFT = 2
SECTORS_PER_LINE = 4
LINE_BYTES = SECTOR_BYTES * SECTORS_PER_LINE
"""A cache line of L1 and L2 is 128 bytes, filled by sectors (CUDA C++ Best Practices Guide,
13.2.1; Jia et al., Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking, 2018)."""
BANKS = 32
"""Shared memory banks of 4 bytes (CUDA C++ Programming Guide, compute capability 5.x on)."""

KEY_BITS = 43
"""A footprint key is ``block slot << KEY_BITS | sector``: 48-bit addresses of 32-byte sectors."""


def distinct_per_row(units: Integers, active: Lanes | None = None) -> tuple[Integers, Integers]:
    """Distinct units of each row of ``(rows, lanes)``, over the active lanes.

    Returns the count per row and, flattened in row order, the distinct units themselves.
    """
    ordered, empty = units, None
    if active is not None:  # other lanes repeat their warp's highest unit, so they add nothing
        top = np.where(active, units, -1).max(axis=1)
        ordered, empty = np.where(active, units, top[:, None]), top < 0
    if (ordered[:, 1:] < ordered[:, :-1]).any():  # lanes mostly touch what lies further on
        ordered = np.sort(ordered, axis=1)
    first = np.empty(ordered.shape, dtype=np.bool_)
    first[:, 0] = True if empty is None else ~empty
    np.not_equal(ordered[:, 1:], ordered[:, :-1], out=first[:, 1:])
    counts = first.sum(axis=1)
    return counts, ordered[first]


def sectors(addresses: Integers, active: Lanes | None = None) -> tuple[Integers, Integers]:
    """Distinct 32-byte sectors touched by each warp, and the sector numbers.

    A vector access is one request of up to 32 naturally aligned bytes per lane, hence one
    sector per lane at most.
    """
    return distinct_per_row(addresses >> SECTOR_SHIFT, active)


def shared_transactions(addresses: Integers, width: int, active: Lanes | None = None) -> Integers:
    """Shared-memory transactions of each warp for an access of ``width`` bytes per lane.

    The degree of bank conflict: the most distinct words that fall in one bank; words shared by
    lanes are broadcast for free. 8-byte accesses count per half-warp and 16-byte accesses per
    quarter-warp, where each unit covers 2 or 4 adjacent banks; twice as many lanes go together
    where all of them read in pairs, n and n ^ 1 or n and n ^ 2 the same (an engineer of NVIDIA on
    compute capability 7.x, forums.developer.nvidia.com/t/77228; taken to hold elsewhere).
    """
    parts = _parts(width)
    units = addresses // (4 * parts)
    result = _in_parts(units, parts, parts, active)
    if parts > 1:
        paired = np.zeros(units.shape[0], dtype=np.bool_)
        for apart in (1, 2):
            other = np.arange(WARP_SIZE) ^ apart
            same = units == units[:, other]
            if active is not None:
                same |= ~(active & active[:, other])
            paired |= same.all(axis=1)
        if paired.any():
            lanes = None if active is None else active[paired]
            result[paired] = _in_parts(units[paired], parts, parts // 2, lanes)
    return result


def _parts(width: int) -> int:
    """How many parts of a warp are served one after another for so many bytes of a lane."""
    return min(4, max(4, width) // 4) if width <= 16 else 4


def _in_parts(units: Integers, words: int, parts: int, active: Lanes | None) -> Integers:
    """Transactions of each warp for units of so many words, the warp served in equal parts."""
    lanes = WARP_SIZE // parts
    members = None if active is None else active.reshape(-1, lanes)
    most = _most_in_a_bank(units.reshape(-1, lanes), members, BANKS // words)
    result: Integers = most.reshape(-1, parts).sum(axis=1)
    return result


def _most_in_a_bank(units: Integers, active: Lanes | None, banks: int) -> Integers:
    """The most distinct units of each row that fall in one of so many banks."""
    rows = units.shape[0]
    top = units.max(axis=1) if active is None else np.where(active, units, -1).max(axis=1)
    low = units if active is None else np.where(active, units, top[:, None])
    low = low.min(axis=1)
    # Among as many adjacent units no two share a bank. (-1: nobody there; below: wild addresses.)
    if (top - low < banks).all() and (low >= (0 if active is None else -1)).all():
        alone: Integers = (top >= 0).astype(np.int64)
        return alone
    counts, values = distinct_per_row(units, active)
    owner = np.repeat(np.arange(rows) * banks, counts)
    loads = np.bincount(owner + values % banks, minlength=rows * banks).reshape(rows, banks)
    most: Integers = loads.max(axis=1)
    return most


TAG_MILLICYCLES, LINE_MILLICYCLES = 430, 278
"""Thousandths of a cycle in which L1 looks up a request: once, and for each line of 128 bytes
(4-byte loads on A100 and A40; Ernst, gpu-benches, gpu-strides; docs/activity.md)."""


def l1_millicycles(
    addresses: Integers, width: int, active: Lanes | None, counts: Integers, touched: Integers
) -> Integers:
    """Thousandths of a cycle that L1 takes for a load of each warp: its data pass 32 banks as in
    shared memory, its lines are looked up some four a cycle; the slower counts. Of a store
    (``width`` 0) it is the thousandths of lines.

    ``counts`` and ``touched`` are the distinct sectors as ``sectors`` returns them.
    """
    rows = np.repeat(np.arange(counts.size), counts)
    lines = touched >> SECTORS_PER_LINE_SHIFT
    first = changes(lines) | changes(rows)
    each: Integers = np.bincount(rows[first], minlength=counts.size)
    if not width:
        return 1000 * each
    tags = TAG_MILLICYCLES + LINE_MILLICYCLES * each
    parts = _parts(width)  # pairs that read the same take no less: 8 bytes at stride 0 take 2
    data = 1000 * _in_parts(addresses // (4 * parts), parts, parts, active)
    found: Integers = np.where(counts > 0, np.maximum(data, tags), 0)
    return found


def bank_conflicts(addresses: Integers) -> Integers:
    """The most distinct 4-byte words in one bank, for each row of byte addresses (any width)."""
    return _most_in_a_bank(addresses >> 2, None, BANKS)


TILE_LINES, TILE_PIECE = 8, 16


def tile_passes(tile_bytes: int, lead_bytes: int) -> int:
    """Passes of 32 banks in which a warp loads a factor of ``wmma`` whose lines lie so far apart.

    ptxas makes loads of a word a lane of it, each of 16 bytes of eight lines (ptxas 12.9 for 7.5 to
    9.0: four for 16 x 16 FP16; as ``mma`` wants its factors, PTX ISA 9.0, 9.7.14.5). Where lines
    are a multiple of 128 bytes apart they meet in the same banks. One warp a tile of 16 x 16 from
    global memory takes 80 cycles of an SM of an NVIDIA L20 for each pair of factors, at every size
    (22.9 to 23.8 TFLOP/s: github.com/DefTruth/CUDA-Learn-Notes, 03cb535, hgemm); 64 are passes.
    """
    lines = np.arange(TILE_LINES)[:, None] * lead_bytes + np.arange(0, TILE_PIECE, 4)
    loads = max(1, tile_bytes // (TILE_LINES * TILE_PIECE))
    return loads * int(bank_conflicts(lines.reshape(1, -1))[0])


MANY, DENSE = 1 << 12, 4
"""Values, and how many times as many lie between the least and the largest, from which on and up to
which a table of them is filled faster than they are sorted (a judgement)."""


def distinct(values: Integers, own: bool = False) -> Integers:
    """Sorted distinct values. They are mostly sorted runs, which a stable sort merges; many that
    lie densely are marked in a table. An array of the caller's ``own``, which nobody reads
    afterwards, is not copied."""
    if values.size < 2:
        return values.reshape(-1)
    if values.size >= MANY:
        low = int(values.min())
        span = int(values.max()) - low + 1
        if span <= DENSE * values.size:
            table = np.zeros(span, dtype=np.bool_)
            table[values - low] = True
            return np.flatnonzero(table) + low
    ordered = values if own else values.flatten()
    ordered.sort(kind="stable")
    found: Integers = ordered[changes(ordered)]
    return found


def changes(values: Integers) -> Lanes:
    """Where a value is the first, or another than the one before it."""
    found = np.ones(values.shape, dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=found[1:])
    return found


_HASH = -0x61C8864680B583EB  # 2^64 over the golden ratio, as int64 (Knuth, volume 3, 6.4)


def sampled(lines: Integers, dropped: int) -> Lanes:
    """Which lines are kept of which those with any of these bits in their hash are dropped (spatial
    sampling: Waldspurger et al., Efficient MRC Construction with SHARDS, FAST 2015)."""
    kept: Lanes = ((lines * np.int64(_HASH)) >> 40) & dropped == 0
    return kept


MOST_KEYS = 4_000_000
"""Footprint keys kept of one memory instruction."""


class SectorLog:
    """Which sectors an instruction touched, by block slot; compacted as it grows.

    Beyond ``limit`` every other line is dropped, and again: each key stands for ``factor`` then.
    """

    __slots__ = ("_compacted", "_merged", "_pending", "_pending_size", "factor", "limit")

    def __init__(self, limit: int = MOST_KEYS) -> None:
        self._merged: Integers = np.empty(0, dtype=np.int64)
        self._pending: list[Integers] = []
        self._pending_size = 0
        self._compacted = 0
        self.limit = limit
        self.factor = 1

    def add(self, keys: Integers) -> None:
        """Add footprint keys (need not be sorted or unique)."""
        if self.factor > 1:
            keys = self._sampled(keys)
        self._pending.append(keys)
        self._pending_size += keys.size
        if self._pending_size > min(400_000, self.limit):
            self._compact()

    def _sampled(self, keys: Integers) -> Integers:
        # The same lines in every block, so that what blocks share stays told.
        lines = (keys & ((1 << KEY_BITS) - 1)) >> SECTORS_PER_LINE_SHIFT
        return keys[sampled(lines, self.factor - 1)]

    def _compact(self) -> None:
        if self._pending:
            parts = [self._merged, *self._pending] if self._merged.size else self._pending
            first = parts[0]
            if len(parts) == 1 and (first[1:] > first[:-1]).all():
                self._merged = first
            else:
                self._merged = distinct(np.concatenate(parts), own=True)
            self._pending.clear()
            self._pending_size = 0
            self._compacted += 1
            while self._merged.size > self.limit:
                self.factor *= 2
                self._merged = self._sampled(self._merged)

    @property
    def mark(self) -> tuple[int, int]:
        """Where the next keys will be added."""
        return self._compacted, len(self._pending)

    def since(self, mark: tuple[int, int]) -> Integers | None:
        """Sorted distinct keys added since a mark; ``None`` if they were compacted meanwhile, or
        not all kept."""
        if mark[0] != self._compacted or self.factor > 1:
            return None
        added = self._pending[mark[1] :]
        return distinct(np.concatenate(added), own=True) if added else np.empty(0, dtype=np.int64)

    def beyond(self, slots: int) -> Integers:
        """Distinct sectors of each block slot that are not listed."""
        return per_slot(self.keys, slots) * (self.factor - 1)

    @property
    def keys(self) -> Integers:
        """Sorted distinct keys so far, each for ``factor`` like it."""
        self._compact()
        return self._merged

    def per_slot(self, slots: int) -> Integers:
        """Distinct sectors of each block slot."""
        return per_slot(self.keys, slots) * self.factor


@lru_cache(maxsize=64)
def _slot_starts(slots: int) -> Integers:
    return np.arange(1, slots, dtype=np.int64) << KEY_BITS


def per_slot(keys: Integers, slots: int) -> Integers:
    """Distinct sectors of each block slot from sorted distinct footprint keys.

    Wild addresses beyond 48 bits spill into the slot's part of the key: they count for some
    slot rather than for none.
    """
    ends = np.empty(slots + 1, dtype=np.int64)
    ends[0], ends[slots] = 0, keys.size
    ends[1:slots] = np.searchsorted(keys, _slot_starts(slots))
    found: Integers = ends[1:] - ends[:-1]
    return found


def unite(keys: list[Integers]) -> Integers:
    """Sorted distinct union of footprint keys."""
    if not keys:
        return np.empty(0, dtype=np.int64)
    if len(keys) == 1:
        return keys[0]
    return distinct(np.concatenate(keys), own=True)


def slot_sectors(keys: Integers, slot: int) -> Integers:
    """The sector numbers of one block slot, sorted, from sorted footprint keys."""
    low, high = np.searchsorted(keys, [slot << KEY_BITS, (slot + 1) << KEY_BITS])
    return keys[low:high] & ((1 << KEY_BITS) - 1)
