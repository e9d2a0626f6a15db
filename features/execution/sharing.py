"""Which part of its data a block shares with which others, from the sampled blocks' footprints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, expm1
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.counts import Run, Sharing, patch
from wattcast.features.execution.sampling import SamplingPlan
from wattcast.features.launch import Launch
from wattcast.features.memory import (
    KEY_BITS,
    SECTORS_PER_LINE,
    SECTORS_PER_LINE_SHIFT,
    changes,
    distinct,
    sampled,
    slot_sectors,
)

Integers = npt.NDArray[np.int64]
Table = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]

MOST_TOUCHES = 1 << 14
"""Touched sectors looked at; of more, lines with a certain hash."""
MOST_BLOCKS = 32
"""Blocks compared with each other."""
PRODUCT_ROWS = 256
"""Rows of a product: OpenBLAS would give larger ones to several threads, which on busy cores takes
a hundred times as long (its GEMM_MULTITHREAD_THRESHOLD, 4, times 65,536 multiply-adds)."""
MOST_PAIRS, MOST_PATTERN = 4, 2048
"""Neighbours, and sectors of each, of which the pattern is looked at."""
FAR = 8
"""Blocks apart from which two share no line by chance of their place (or half the grid)."""
FEWEST_JUMPS = 3
"""Jumps between the sampled blocks, below which blocks that take turns look as if they moved on."""
PARTS = 1024
"""Parts of a sector that moves are told in: 32 of them are a byte."""
MOST_OF_ALL = 0.75
"""What this share of the sampled blocks touches is everyone's."""
FILLED = 4.0
"""How well it is known that blocks which meet by chance draw from all between the first and the
last that anyone touches: as 1 over the variance of its logarithm, within a factor of 1.65."""
FEWEST_RECORDS, MOST_BEGINS, ALIKE = 16, 64, 0.8
"""Runs of sectors that tell of records; how nearly they all begin in one phase (of 16 in phases of
their own the mean is over .8 in one of 28,000 cases, exp(-n R^2); a record that begins anywhere in
a sector, three sectors long, has .83)."""
WORDS_PER_SECTOR, LONGEST_RECORD_WORDS = 8, 2048
"""4-byte words, in which the sizes of records are looked for."""
CROWDED, MOST_STEPS = 1.1, 60
"""How much more than there is blocks touch together for sure, and steps of an iteration that comes
nearer by a tenth in each there, by more where it is more."""
FEWEST_FOR_CHANCE = 6
"""Blocks below which sharing with some by chance cannot be told from sharing with all."""


class Pairs(NamedTuple):
    """Which pairs of sampled blocks are how related (``bool[blocks, blocks]``, each pair once).

    ``places``: x, y and z of each block. ``weights``: how many pairs of the launch each stands
    for, all in all 1.
    """

    beside: Flags
    below: Flags
    row: Flags
    column: Flags
    apart: Flags
    places: Integers
    weights: Table


def relations(plan: SamplingPlan, launch: Launch) -> Pairs:
    """Relations of the first ``MOST_BLOCKS`` blocks of a plan."""
    blocks = np.array(plan.blocks[:MOST_BLOCKS], dtype=np.int64)
    x, row = blocks % launch.grid[0], blocks // launch.grid[0]
    across = np.abs(x[:, None] - x)
    down = np.abs(row[:, None] - row)
    once = np.triu(np.ones_like(across, dtype=np.bool_), 1)
    width, height = launch.grid[0], launch.blocks // launch.grid[0]
    far_across = across >= max(2, min(FAR, width // 2))
    far_down = down >= max(2, min(FAR, height // 2))
    share = plan.weights()[: blocks.size] / launch.blocks
    return Pairs(
        once & (down == 0) & (across == 1),
        once & (across == 0) & (down == 1),
        once & (down == 0) & far_across,
        once & (across == 0) & far_down,
        once & far_across & far_down,
        np.stack([x, row % launch.grid[1], row // launch.grid[1]], axis=1),
        np.outer(share, share).astype(np.float32),
    )


class Listed(NamedTuple):
    """Sorted sectors of which only some are listed: each stands for ``factor`` like it."""

    sectors: Integers
    factor: float


def measure_sharing(
    keys: Integers, partly: Sequence[Listed], pairs: Pairs, launch: Launch,
    each_sectors: float, each_lines: float, busy: float, beyond: float,
) -> tuple[Sharing, Sharing, Run]:  # fmt: skip
    """Sharing of sectors and of lines, from sorted distinct footprint keys of one buffer, and what
    lies side by side.

    ``partly`` tells of which sectors not all are among the keys. ``each_sectors`` and
    ``each_lines`` are a block's distinct ones on average, of ``busy`` blocks of the launch. Where
    the budget ended, there is room for ``beyond`` sectors, whatever was listed.
    """
    count = pairs.row.shape[0]
    begin, end = np.searchsorted(keys, [0, count << KEY_BITS])  # huge addresses wrap
    runs = _runs(keys[begin:end], KEY_BITS, count)
    run = measure_run(keys[begin:end], runs, pairs, each_sectors)
    drifts = _drifts(keys[begin:end], runs, pairs, launch)
    of_sectors = [drift.sectors if drift else _Drifted() for drift in drifts]
    of_lines = [
        drift.lines if drift else _Drifted(_lines_of_neighbours(keys, related))
        for drift, related in zip(drifts, (pairs.beside, pairs.below), strict=True)
    ]
    everything, keys = keys, keys[begin:end]
    if keys.size > MOST_TOUCHES:
        every = 1 << int(everything.size // MOST_TOUCHES).bit_length()
        line = keys >> SECTORS_PER_LINE_SHIFT & ((1 << KEY_BITS - SECTORS_PER_LINE_SHIFT) - 1)
        keys = keys[sampled(line, every - 1)]
    units, place = np.unique(keys & ((1 << KEY_BITS) - 1), return_inverse=True)
    if not units.size:
        return Sharing(), Sharing(), run
    touched = np.zeros((units.size, count), dtype=np.float32)
    touched[place, keys >> KEY_BITS] = 1
    weights = np.ones(units.size, dtype=np.float32)
    for listed in partly:
        at = np.minimum(np.searchsorted(listed.sectors, units), listed.sectors.size - 1)
        weights[listed.sectors[at] == units] = listed.factor
    # Neighbours that go on where a block ends leave no gaps as parts of records do.
    dense, span = _stretch(everything, count, float(weights.mean()), None if run.goes_on else runs)
    span = max(span, beyond)
    line = units >> SECTORS_PER_LINE_SHIFT
    starts = np.flatnonzero(changes(line))
    lines = np.maximum.reduceat(touched, starts, axis=0)
    return (
        _sharing(touched, weights, pairs, launch, each_sectors, busy, (dense, span), of_sectors),
        _sharing(
            lines, np.maximum.reduceat(weights, starts), pairs, launch, each_lines,
            busy, (dense / SECTORS_PER_LINE, span / SECTORS_PER_LINE), of_lines,
        ),
        run,
    )  # fmt: skip


def _stretch(keys: Integers, count: int, factor: float, runs: _Runs | None) -> tuple[float, float]:
    """Sectors between the first and the last that anyone touches: as far as blocks fill theirs, and
    all, or the share of them that ``runs`` tell where these may be parts of records.

    Where many blocks touch dense stretches, and far ones the same by chance, these lie anywhere in
    between, although few sampled blocks leave gaps. Each sector stands for ``factor`` like it.
    """
    ends = np.searchsorted(keys, np.arange(count + 1) << KEY_BITS)
    low, high = ends[:-1][np.diff(ends) > 0], ends[1:][np.diff(ends) > 0] - 1
    if not low.size:
        return 0.0, 0.0
    first, last = (keys[each] & ((1 << KEY_BITS) - 1) for each in (low, high))
    reach = last - first + 1
    dense = min(1.0, factor * float((high - low + 1).sum() / reach.sum()))
    span = float(last.max() - first.min() + 1)
    return dense * span, span * (_of_records(keys[ends[0] : ends[-1]], runs) if runs else 1.0)


def _of_records(keys: Integers, runs: _Runs) -> float:
    """The share of records that is touched, where sectors touched lie alike in records of one size:
    their runs then begin in one phase of it (Rayleigh's test). 1 where they do not, or where all
    begin at multiples of more than a run, as tiles do."""
    run = float(np.median(np.diff(np.searchsorted(keys, runs.begins), append=keys.size)))
    begins = distinct(runs.begins & ((1 << KEY_BITS) - 1))
    if begins.size < FEWEST_RECORDS or np.gcd.reduce(np.diff(begins)) >= run:
        return 1.0
    begins = begins[:: -(-begins.size // MOST_BEGINS)]
    words = np.arange(ceil(run * WORDS_PER_SECTOR), LONGEST_RECORD_WORDS)
    turns = (begins - begins[0])[:, None] * WORDS_PER_SECTOR % words / words
    alike = np.abs(np.exp(2j * np.pi * turns).mean(axis=0)) > ALIKE
    return run * WORDS_PER_SECTOR / int(words[alike.argmax()]) if alike.any() else 1.0


def _lines_of_neighbours(keys: Integers, pairs: Flags) -> float | None:
    """The share of a block's lines that the next block touches, on average over alignments.

    Blocks narrower than a line share it by fours or twos, and a few pairs do not tell how many
    of the others do. ``None`` where neighbours do not touch the same pattern further on.
    """
    shares = []
    for left, right in np.argwhere(pairs)[:MOST_PAIRS]:
        ours, theirs = slot_sectors(keys, left), slot_sectors(keys, right)
        if not ours.size or ours.size != theirs.size:
            return None
        step = int(theirs[0] - ours[0])
        if not np.array_equal(ours[:MOST_PATTERN] + step, theirs[:MOST_PATTERN]):
            return None
        pattern = ours[:MOST_PATTERN]
        for turn in range(SECTORS_PER_LINE if step % SECTORS_PER_LINE else 1):
            here, there = (
                distinct((pattern + moved * step) >> SECTORS_PER_LINE_SHIFT)
                for moved in (turn, turn + 1)
            )
            common = np.intersect1d(here, there, assume_unique=True)
            shares.append(common.size / here.size)
    return float(np.mean(shares)) if shares else None


class _Drifted(NamedTuple):
    """Shares of a block's units that the next block and a far one touch, where that is known."""

    near: float | None = None
    far: float | None = None

    def instead_of(self, near: float | None, far: float | None) -> tuple[float | None, float]:
        """These shares, where they are not known those of sampled pairs: ``near`` and ``far``."""
        near = near if self.near is None else self.near
        if far is None:
            far = self.far
        if far is None:
            # The grid has no blocks that far apart: what nearly all neighbours share goes on.
            far = near if near is not None and near > MOST_OF_ALL else 0.0
        return near, far


class _Drift(NamedTuple):
    """What blocks share that move on by parts of a sector."""

    sectors: _Drifted
    lines: _Drifted


class _Runs(NamedTuple):
    """Runs of adjacent units: where they begin, and by slot how many runs and units there are."""

    begins: Integers
    runs: Integers
    units: Integers


def _runs(units: Integers, bits: int, slots: int) -> _Runs:
    """The runs of sorted units with their slots above so many ``bits``."""
    begins = units[changes(units - np.arange(units.size))]
    edges = np.arange(slots + 1) << bits
    counts = (np.diff(np.searchsorted(each, edges)) for each in (begins, units))
    return _Runs(begins, *counts)


def measure_run(keys: Integers, found: _Runs, pairs: Pairs, each: float) -> Run:
    """What lies side by side, from sorted distinct footprint keys of one buffer and their runs, of
    which a block touches ``each`` on average: more than are listed where iterations were skipped,
    and those are taken to go on."""
    slots = pairs.row.shape[0]
    used = np.flatnonzero(found.units)
    if not used.size:
        return Run()
    length = found.units.sum() / found.runs.sum()
    more = each / found.units[used].mean()
    first = np.zeros(slots, dtype=np.int64)
    first[used] = keys[np.searchsorted(keys, used << KEY_BITS)]
    first &= (1 << KEY_BITS) - 1

    both = (found.units > 0) & (found.units > 0)[:, None]
    steps = [0.0, 0.0]
    for axis, *related in ((0, pairs.beside, pairs.row), (1, pairs.below, pairs.column)):
        for pair in related:  # far ones tell of parts of a sector
            left, right = np.nonzero(pair & both)
            apart = pairs.places[right] - pairs.places[left]
            along = apart[:, axis] if apart[:, axis].all() else apart[:, 2]
            moved = np.abs(first[right] - first[left]) / np.maximum(np.abs(along), 1)
            if moved.size:
                steps[axis] = float(np.median(moved))
            if steps[axis] >= 1.0:
                break
    return Run(float(length * max(1.0, more)), *steps)


def _drifts(keys: Integers, sectors: _Runs, pairs: Pairs, launch: Launch) -> list[_Drift | None]:
    """What neighbours share along x, and along y (z, if y is 1), that move on by parts of a sector.

    A matrix walked by columns: eight blocks touch the same sectors and the ninth does not, which
    a few pairs of neighbours do not show. Blocks that touch the same runs of sectors elsewhere
    tell how far a block moves on along each axis (least squares), and each run gains as many new
    units as its block moves on. So do blocks that stay for a while and then jump, as where a tile's
    row is a quotient of the block number. ``None`` where blocks move by whole sectors, or beyond
    their runs.
    """
    unknown: list[_Drift | None] = [None, None]
    places, stands_for = pairs.places, np.sqrt(np.diagonal(pairs.weights))
    slots = places.shape[0]
    if not keys.size:
        return unknown
    usual = int(np.bincount(sectors.runs[sectors.runs > 0]).argmax())
    alike = np.flatnonzero(sectors.runs == usual)
    first = np.searchsorted(sectors.begins, alike << KEY_BITS)
    runs = sectors.begins[first[:, None] + np.arange(min(usual, MOST_PATTERN))]
    low = runs[:, 0] & ((1 << KEY_BITS) - 1)
    pattern = runs - runs[:, :1]
    same = (np.abs(pattern - pattern[0]) <= 1).all(axis=1)  # each begins in a sector of its own
    alike, moved = alike[same], (low - low[0])[same].astype(np.float64)
    design = np.c_[places[alike], np.ones(alike.size)]
    needed = 1 + np.count_nonzero(np.ptp(places, axis=0))
    found, _, rank, _ = np.linalg.lstsq(design, moved, rcond=None)
    astray = np.abs(design @ found - moved).max()
    jump = int(np.gcd.reduce(moved.astype(np.int64)))
    jumps = 1 < astray < jump and FEWEST_JUMPS * jump <= np.ptp(moved)
    if rank < needed or alike.size <= needed or (astray > 1 and not jumps):
        return unknown
    steps = [round(abs(step) * PARTS) / PARTS for step in found.tolist()]
    least = jump if jumps else 0.0  # of a run, beyond which neighbours share nothing
    # Blocks at the edges, of which more are sampled than there are, touch parts of their runs.
    of_blocks = stands_for[alike]
    long = max(sectors.units[alike] @ of_blocks / (usual * of_blocks.sum()), least)
    axes = (0, launch.grid[0]), (1 if launch.grid[1] > 1 else 2, launch.grid[1] * launch.grid[2])
    drifting = [(jumps or steps[axis] % 1 != 0) and steps[axis] < long for axis, _ in axes]
    if not any(drifting):
        return unknown
    lines = _runs(
        distinct(keys >> SECTORS_PER_LINE_SHIFT), KEY_BITS - SECTORS_PER_LINE_SHIFT, slots
    )
    wide = lines.units[alike] @ of_blocks / (lines.runs[alike] @ of_blocks)
    wide = max(wide, least / SECTORS_PER_LINE)

    def drift(axis: int, blocks: int) -> _Drift:
        step, far = steps[axis], steps[axis] * max(2, min(FAR, blocks // 2))
        return _Drift(
            _shared(long, step, far),
            _shared(wide, step / SECTORS_PER_LINE, far / SECTORS_PER_LINE),
        )

    return [drift(*axis) if one else None for axis, one in zip(axes, drifting, strict=True)]


def _shared(long: float, step: float, far: float) -> _Drifted:
    """What blocks share whose runs are so many units ``long`` on average and move by ``step``; far
    ones by ``far``, but not into the same unit by chance."""
    near, apart = step / long, max(1.0, far) / long
    return _Drifted(1.0 - min(1.0, float(near)), 1.0 - min(1.0, float(apart)))


def _sharing(
    touched: Table, weights: Table, pairs: Pairs, launch: Launch, each: float, busy: float,
    stretch: tuple[float, float], drifted: Sequence[_Drifted],
) -> Sharing:  # fmt: skip
    """``stretch`` is that of ``_stretch``; ``drifted``: what is known along x and y of blocks that
    move on evenly."""
    dense, span = stretch
    common = np.zeros((touched.shape[1],) * 2, dtype=np.float32)
    for start in range(0, len(touched), PRODUCT_ROWS):
        part = slice(start, start + PRODUCT_ROWS)
        common += touched[part].T @ (touched[part] * weights[part, None])
    sizes = np.diagonal(common)
    smaller = np.minimum(sizes[:, None], sizes)

    def share(related: Flags) -> float | None:
        whole = float((smaller * pairs.weights)[related].sum())
        return float((common * pairs.weights)[related].sum()) / whole if whole else None

    beside, below, row, column = map(share, (pairs.beside, pairs.below, pairs.row, pairs.column))
    everyone = share(pairs.apart)
    beside, row = drifted[0].instead_of(beside, row)
    below, column = drifted[1].instead_of(below, column)
    if launch.grid[0] == 1:
        everyone = column
    elif launch.blocks == launch.grid[0]:
        everyone = row
    elif everyone is None:
        everyone = row * column
    population = float("inf")
    users = int(np.count_nonzero(sizes))
    by_chance = 0.0
    if everyone and users >= FEWEST_FOR_CHANCE:
        by = touched.sum(axis=1)
        touches = by * weights
        of_all = float(touches[by >= MOST_OF_ALL * users].sum() / touches.sum())
        of_all = min(everyone, of_all)
        # What chance brings together, some blocks touch, but not nearly all.
        some = (by > 1) & (by < MOST_OF_ALL * users)
        of_some = float(touches[some].sum() / touches.sum())
        by_chance = min(everyone - of_all, of_some)
        if by_chance > 0:
            # Two draws of n among P have n^2 / P in common.
            population = max(1.0, each, (1.0 - of_all) ** 2 * each / by_chance)
            # Few met: the logarithm of a rate from k of them has the variance 1 / k.
            met = np.count_nonzero(np.diff(np.flatnonzero(some)) != 1) + 1
            sure = met / (met + FILLED)
            if population < span:
                population = float(population**sure * span ** (1.0 - sure))
            population = max(population, min(dense, each * launch.blocks))
            everyone = of_all

    def of_rest(found: float | None) -> float:
        rest = 1.0 - everyone - by_chance  # what chance may bring together is not theirs alone
        return max(0.0, ((found or 0.0) - everyone - by_chance) / rest) if rest > 0 else 0.0

    found = Sharing(
        everyone, of_rest(beside), of_rest(below), of_rest(row), of_rest(column), population
    )
    if users < FEWEST_FOR_CHANCE or population != float("inf"):
        return found
    whole = each * (1.0 - everyone) * found.copies(patch(busy, 1, launch.grid))
    return replace(found, population=_crowded(whole, span * (1.0 - everyone)))


def _crowded(whole: float, span: float) -> float:
    """Of how many units blocks draw that touch ``whole`` ones, where there are but ``span``: of so
    many that all of these are touched, although no two sampled blocks met. Infinite where all
    find room side by side."""
    if whole <= CROWDED * span:
        return float("inf")
    each = whole / span  # draws of a unit, whose share 1 - exp(-each) is drawn at all
    for _ in range(MOST_STEPS):
        each = -expm1(-each) * whole / span
    return whole / each
