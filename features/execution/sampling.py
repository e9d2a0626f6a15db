"""Which blocks of a launch are run, and how the whole launch is estimated from them.

The grid is cut into strata: along each axis the first block, the last block and the interior
are classes of their own (edges behave differently: halos, partial tiles), so a 2-D grid has
up to 4 corners, 4 edges and one interior. Where it is known at which blocks behaviour changes
(a guard that few blocks pass), the axes are cut there too. Every stratum gets at least one
block while the budget lasts, the interior gets the rest, spread evenly over
every axis (``_spread``). Some blocks amid the interior bring their neighbours in x and y, for the
overlap of footprints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.launch import Dim3, Launch, place_in

SAMPLED_THREADS = 6144
"""Threads of all sampled blocks together that the plan aims at: large enough that numpy's
cost per call is shared by many threads, small enough to stay in the L2 cache."""
FEWEST, MOST = 8, 24

MOST_CLASSES = 9
"""Classes of blocks told apart however large these are: three along each of two axes (all lanes
work, some do, none does)."""

MOST_TRACED, MOST_TRACED_BESIDE = 4, 2
"""Blocks of the largest stratum and of others whose accesses are followed one by one: more say
little more, and each costs as much as all its accesses."""


@dataclass(frozen=True)
class SamplingPlan:
    """Blocks to run (linear numbers, x fastest) and what they stand for.

    ``strata`` gives each block's stratum, ``sizes`` the number of blocks of every stratum.
    ``pairs_x`` and ``pairs_y`` are positions in ``blocks`` of neighbours along x and y of
    ``grid``: the launch's, or one of as many blocks in the same order that its kernel makes of it.
    ``balanced``: the grid, where blocks differ by their place: what they stand for is then chosen
    so that the mean place along each axis is the grid's, and what grows linearly along one (a
    loop up to ``blockIdx``) is estimated without error (Deville and Saerndal, Calibration
    Estimators in Survey Sampling, JASA 1992).
    """

    blocks: tuple[int, ...]
    strata: tuple[int, ...]
    sizes: tuple[int, ...]
    pairs_x: tuple[tuple[int, int], ...] = ()
    pairs_y: tuple[tuple[int, int], ...] = ()
    grid: Dim3 | None = None
    balanced: Dim3 | None = None

    @cached_property
    def drawn(self) -> tuple[tuple[npt.NDArray[np.intp], int], ...]:
        """Positions in ``blocks`` and size of every stratum that has a block."""
        strata = np.array(self.strata)
        each = ((np.flatnonzero(strata == number), size) for number, size in enumerate(self.sizes))
        return tuple((places, size) for places, size in each if places.size)

    @property
    def complete(self) -> bool:
        """Every block of the launch is run."""
        return len(self.blocks) == sum(self.sizes)

    def weights(self) -> npt.NDArray[np.float64]:
        """How many blocks of the launch each sampled block stands for."""
        return self._calibrated[0]

    @cached_property
    def _calibrated(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64] | None]:
        """The weights; and if they are balanced, 1 for each block and how far it lies from the
        middle of each axis along which they are, as a share of it."""
        drawn = np.bincount(self.strata, minlength=len(self.sizes))
        per = np.array(self.sizes, dtype=np.float64) / np.maximum(drawn, 1)
        weights: npt.NDArray[np.float64] = per[list(self.strata)]
        if self.balanced is None or self.complete:
            return weights, None
        at = place_in(self.balanced, np.array(self.blocks))
        axes = [
            (place - (size - 1) / 2) / size
            for place, size in zip(at, self.balanced, strict=True) if size > 1
        ]  # fmt: skip
        whole = np.stack([np.ones(len(self.blocks)), *axes], axis=1)
        # All axes, else the first that the blocks can be balanced along.
        for columns in ([*range(len(axes) + 1)], *([0, n] for n in range(1, len(axes) + 1))):
            places = whole[:, columns]
            found = _balanced(weights, places)
            if found is not None:
                return found, places
        return weights, None

    def to_trace(self) -> list[int]:
        """Positions in ``blocks`` whose accesses are followed one by one: some of the largest
        stratum, far apart, and one each of the next largest (the largest may do nothing)."""
        main = [slot for slot, stratum in enumerate(self.strata) if stratum == 0]
        each = max(1, len(main) // MOST_TRACED)
        found = main[each // 2 :: each][:MOST_TRACED]
        others = sorted(range(1, len(self.sizes)), key=lambda stratum: -self.sizes[stratum])
        found += [self.strata.index(s) for s in others if s in self.strata][:MOST_TRACED_BESIDE]
        return found

    def numbered(self, launch: Launch) -> Launch:
        """The launch with the grid of the plan."""
        return launch if self.grid is None else replace(launch, grid=self.grid)

    def fewer(self, launch: Launch) -> SamplingPlan | None:
        """A few of the blocks for the whole launch: of the largest stratum two neighbours and the
        one farthest from them (two opposite them if the blocks are to be balanced), and one each of
        the next two, if half the blocks are enough for that. ``None`` if there are few anyway."""
        main = [slot for slot, stratum in enumerate(self.strata) if stratum == 0]
        pairs = [pair for near in (self.pairs_x, self.pairs_y) for pair in near[:1]]
        launch = self.numbered(launch)
        kept = [slot for pair in pairs for slot in pair if slot in main] or main[-1:]
        if self.balanced is None:
            kept.append(max(main, key=lambda slot: abs(self.blocks[slot] - self.blocks[kept[0]])))
        else:
            kept += self._opposite(main, kept[0])
        kept = list(dict.fromkeys(kept))
        room = min(2, len(self.blocks) // 2 - len(kept))
        if room < 0:
            return None
        others = sorted(set(self.strata) - {0}, key=lambda stratum: -self.sizes[stratum])[:room]
        kept = sorted([*kept, *(self.strata.index(stratum) for stratum in others)])
        numbers = tuple([0, *others].index(self.strata[slot]) for slot in kept)
        rest = [self.sizes[stratum] for stratum in others]
        sizes = (sum(self.sizes) - sum(rest), *rest)
        blocks = tuple(self.blocks[slot] for slot in kept)
        return SamplingPlan(
            blocks, numbers, sizes, *_pairs(blocks, launch), launch.grid, self.balanced
        )

    def _opposite(self, main: Sequence[int], first: int) -> list[int]:
        """Of some blocks (positions) the two nearest to where ``first`` mirrored in the middle of
        the grid lies."""
        assert self.balanced is not None
        grid = self.balanced

        def apart(slot: int) -> float:
            places = (place_in(grid, self.blocks[each]) for each in (slot, first))
            ends = zip(*places, grid, strict=True)
            return float(sum(abs(one + other - (size - 1)) / size for one, other, size in ends))

        return sorted((slot for slot in main if slot != first), key=apart)[:2]

    def estimate(self, per_block: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Launch totals from counts ``[blocks, ...]``: each stratum's mean times its size."""
        values = np.asarray(per_block)
        weights, places = self._calibrated
        if places is not None:
            # From the first block's on: what all blocks do alike is exact.
            first = values[0].astype(np.float64)
            beyond = np.tensordot(weights, values - first, axes=(0, 0))
            return np.asarray(first * sum(self.sizes) + beyond)
        total = np.zeros(values.shape[1:], dtype=np.float64)
        for chosen, size in self.drawn:
            total += values[chosen].sum(axis=0) * float(size) / chosen.size
        return total

    def total(self, per_block: npt.NDArray[np.int64]) -> float:
        """Estimate of a launch total from one count per sampled block."""
        return float(self.estimate(per_block))

    def standard_error(self, per_block: npt.NDArray[np.int64]) -> float:
        """Standard error of ``total`` (stratified, with finite-population correction).

        A stratum with one sampled block takes the pooled variance of the others; what is linear
        in a ``balanced`` block's place has none.
        """
        values = np.asarray(per_block, dtype=np.float64)
        weights, places = self._calibrated
        if places is not None:
            values = values - values[0]
            scale = np.sqrt(weights)
            fit = np.linalg.lstsq(places * scale[:, None], values * scale, rcond=None)[0]
            values = values - places @ fit
        own = [values[places] for places, _ in self.drawn]
        spreads = [float(((each - each.mean()) ** 2).sum()) for each in own]
        degrees = sum(each.size - 1 for each in own)
        pooled = sum(spreads) / degrees if degrees else 0.0
        total = 0.0
        for each, spread, (_, size) in zip(own, spreads, self.drawn, strict=True):
            if each.size < size:
                variance = spread / (each.size - 1) if each.size > 1 else pooled
                total += size * size * (1 - each.size / size) * variance / each.size
        return math.sqrt(total)


LEAST_WEIGHT = 0.1
"""Of what a block stood for before; balancing takes no block less seriously."""


def _balanced(
    weights: npt.NDArray[np.float64], places: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64] | None:
    """Weights as near to given ones as may be whose mean place is the middle of every axis.

    Blocks that stand for themselves alone keep doing so. ``None`` where there are too few others.
    """
    free, found = weights > 1.0, weights.copy()
    wanted = np.zeros(places.shape[1])
    wanted[0] = weights.sum()
    for _ in range(len(weights)):
        missing = wanted - places.T @ found
        lever = places * (weights * free)[:, None]
        change = lever @ np.linalg.lstsq(lever.T @ places, missing, rcond=None)[0]
        found = found + change
        low = found < LEAST_WEIGHT * weights
        if not low.any():
            exact = np.abs(wanted - places.T @ found).max() <= 1e-9 * wanted[0]
            return found if exact else None
        found = np.where(low, LEAST_WEIGHT * weights, found)
        free = free & ~low
    return None


def whole(launch: Launch) -> SamplingPlan:
    """Every block, each its own weight of one."""
    return SamplingPlan(tuple(range(launch.blocks)), (0,) * launch.blocks, (launch.blocks,),
                        *_pairs(range(launch.blocks), launch), launch.grid)  # fmt: skip


def plan_blocks(
    launch: Launch, *, most: int | None = None, seed: int = 0,
    cuts: Sequence[Sequence[int]] = ((), (), ()), balanced: bool = False,
) -> SamplingPlan:  # fmt: skip
    """The default plan: 8 to 24 blocks, about 6,000 threads (fewer if the grid is smaller).

    ``cuts`` gives coordinates along x, y and z at which blocks begin to behave differently;
    ``balanced``: each may differ from its neighbours (``SamplingPlan``).
    """
    per_block = launch.warps_per_block * 32
    # Classes of blocks that are told apart stand each for its own number.
    balanced = balanced and all(
        cut in (1, n - 1) for n, own in zip(launch.grid, cuts, strict=True) for cut in own
    )
    budget = most or max(FEWEST, min(MOST, SAMPLED_THREADS // per_block))
    if launch.blocks <= budget:
        return whole(launch)
    axes = [_classes({0, 1, n - 1, n, *own}) for n, own in zip(launch.grid, cuts, strict=True)]
    if math.prod(len(axis) for axis in axes) > budget - 3 and any(cuts):
        edges = [sorted({0, n, *own}) for n, own in zip(launch.grid, cuts, strict=True)]
        budget = max(budget, MOST_CLASSES + 3)
        while math.prod(len(own) - 1 for own in edges) > budget - 3:
            _drop_one(edges)
        axes = [_classes(set(own)) for own in edges]
    strata: list[tuple[tuple[int, int], ...]] = []
    for z in axes[2]:
        for y in axes[1]:
            strata += [(x, y, z) for x in axes[0]]
    sizes = [math.prod(hi - lo for lo, hi in box) for box in strata]
    # Small strata first; if there are too many (3-D), the smallest ones join the largest.
    order = sorted(range(len(strata)), key=lambda s: -sizes[s])
    kept = order[: max(1, budget - 3)] if len(order) > budget - 3 else order
    spare = max(0, budget - len(kept))
    shares = dict.fromkeys(kept, 1)
    large = [s for s in kept if sizes[s] > 1]
    # Half of what is left goes to the largest stratum's spread, a part to pairs of neighbours.
    for turn in range(spare - min(spare, 4)):
        target = (
            large[0] if turn % 3 < 2 or len(large) == 1 else large[1 + turn // 3 % (len(large) - 1)]
        )
        if shares[target] < sizes[target]:
            shares[target] += 1
    blocks: list[int] = []
    owner: list[int] = []
    drawn = _draws(seed, tuple(shares[stratum] for stratum in kept))
    for number, stratum in enumerate(kept):
        found = _spread(strata[stratum], drawn[number], launch)
        blocks += found
        owner += [number] * len(found)
    taken = set(blocks)
    main = [b for b, s in zip(blocks, owner, strict=True) if s == 0]
    main.sort(key=_from_centre(strata[kept[0]], launch))
    added, boxes = 0, [strata[s] for s in kept]
    for block in main:
        if added == min(spare, 4):
            break
        for step, axis in ((1, 0), (launch.grid[0], 1)):
            near = block + step
            inside = place_in(launch.grid, block)[axis] + 1 < launch.grid[axis]
            if added < min(spare, 4) and inside and near not in taken:
                where = _stratum(near, boxes, launch)
                if where is None or sizes[kept[where]] == shares[kept[where]]:
                    continue
                blocks.append(near)
                owner.append(where)
                taken.add(near)
                shares[kept[where]] += 1
                added += 1
    # Strata that got no block are represented by the largest one.
    kept_sizes = [sizes[s] for s in kept]
    kept_sizes[0] += launch.blocks - sum(kept_sizes)
    joined = sorted(zip(blocks, owner, strict=True))
    ordered = tuple(b for b, _ in joined)
    return SamplingPlan(
        ordered, tuple(s for _, s in joined), tuple(kept_sizes), *_pairs(ordered, launch),
        launch.grid,
        balanced=launch.grid if balanced else None,
    )  # fmt: skip


def _classes(edges: set[int]) -> list[tuple[int, int]]:
    return list(pairwise(sorted(edges)))


def _drop_one(edges: Sequence[list[int]]) -> None:
    """Join the class that is least of its axis to the smaller one beside it."""
    _, axis, at = min(
        ((right - left) / own[-1], axis, at)
        for axis, own in enumerate(edges) if len(own) > 2
        for at, (left, right) in enumerate(pairwise(own))
    )  # fmt: skip
    own = edges[axis]
    inner = [cut for cut in (at, at + 1) if 0 < cut < len(own) - 1]
    own.pop(min(inner, key=lambda cut: own[cut + 1] - own[cut - 1]))


def _stratum(
    block: int, strata: Sequence[tuple[tuple[int, int], ...]], launch: Launch
) -> int | None:
    position = place_in(launch.grid, block)
    for number, box in enumerate(strata):
        if all(lo <= p < hi for p, (lo, hi) in zip(position, box, strict=True)):
            return number
    return None


class _Draw(NamedTuple):
    """Along one axis: where in each part of its first half a block lies (in the middle one at
    0.5), and with which parts of the axis before they are paired."""

    jitters: tuple[float, ...]
    order: tuple[int, ...]


@lru_cache(maxsize=1024)
def _draws(seed: int, counts: tuple[int, ...]) -> tuple[tuple[_Draw, _Draw, _Draw], ...]:
    """What is drawn for strata of so many blocks, whatever their sizes: by axis."""
    generator = np.random.default_rng(seed)

    def draw(count: int, number: int) -> _Draw:
        jitters = tuple(float(generator.random()) for _ in range(count // 2))
        if count % 2:
            jitters += (0.5,)
        order = generator.permutation(count).tolist() if number else range(count)
        return _Draw(jitters, tuple(order))

    return tuple((draw(count, 0), draw(count, 1), draw(count, 2)) for count in counts)


def _spread(
    box: tuple[tuple[int, int], ...], drawn: tuple[_Draw, _Draw, _Draw], launch: Launch
) -> list[int]:
    """Different blocks of a box, as many as are ``drawn``: one from each of as many equal parts of
    every axis.

    Parts of the axes are paired at random, places in them drawn in pairs that mirror each other:
    what grows linearly along an axis (a triangular loop) has its true mean in the sample
    (Latin hypercube with antithetic points: Owen, Monte Carlo theory, methods and examples, 8.5).
    """
    dims = [hi - lo for lo, hi in box]
    columns: list[list[int]] = []
    for size, (jitters, order) in zip(dims, drawn, strict=True):
        count = len(order)
        along = [0] * count
        if size == 1:
            columns.append(along)
            continue
        for part, jitter in enumerate(jitters):
            mirror = count - 1 - part
            along[part] = min(size - 1, int(size * (part + jitter) / count))
            along[mirror] = size - 1 - along[part] if mirror != part else (size - 1) // 2
        columns.append([along[place] for place in order])
    found: dict[tuple[int, ...], None] = {}
    for place in zip(*columns, strict=True):
        while place in found:  # a small box: the next one that is free
            index = (place[0] + dims[0] * (place[1] + dims[1] * place[2]) + 1) % math.prod(dims)
            place = (index % dims[0], index // dims[0] % dims[1], index // (dims[0] * dims[1]))
        found[place] = None
    wide, high, _ = launch.grid
    return [box[0][0] + x + wide * (box[1][0] + y + high * (box[2][0] + z)) for x, y, z in found]


def _from_centre(box: tuple[tuple[int, int], ...], launch: Launch) -> Callable[[int], float]:
    """How far a block lies from the middle of a box: neighbours there keep a linear mean true."""
    (x, wide), (y, high), (z, deep) = (((lo + hi - 1) / 2, hi - lo) for lo, hi in box)

    def far(block: int) -> float:
        at = place_in(launch.grid, block)
        return float(abs(at[0] - x) / wide + abs(at[1] - y) / high + abs(at[2] - z) / deep)

    return far


def _pairs(
    blocks: Sequence[int], launch: Launch
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    where = {block: slot for slot, block in enumerate(blocks)}
    if len(where) > 4096:
        where = dict(list(where.items())[:4096])
    x, y = [], []
    for block, slot in where.items():
        place = place_in(launch.grid, block)
        if place[0] + 1 < launch.grid[0] and block + 1 in where:
            x.append((slot, where[block + 1]))
        if place[1] + 1 < launch.grid[1] and block + launch.grid[0] in where:
            y.append((slot, where[block + launch.grid[0]]))
    return tuple(x[:64]), tuple(y[:64])
