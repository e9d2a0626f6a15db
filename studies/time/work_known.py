"""What no model could tell apart, and what measuring one launch of a kernel tells of another.

Both look at launches of one kernel. Repetitions of a launch that took different times bound what
any prediction from work and launch can reach. Pairs of launches show what ``models.time.known``
gains: one is measured, the other predicted by models that saw neither the program nor its ports.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations, pairwise, permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from studies.data.launches import MeasuredLaunch
from wattcast.models.time.calibration import TimeIntervals
from wattcast.models.time.known import KnownLaunch, corrected, distance, launch_coordinates
from wattcast.training.card_tables import table

Floats = NDArray[np.float64]

DISTANCES = (0.0, 0.01, 0.1, 0.3, 1.0, 3.0, float("inf"))
"""Edges of the table's distances (``wattcast.models.time.known.distance``)."""


class Pair(NamedTuple):
    """One launch (the ``other``) predicted after another of its kernel: log errors before and
    after, and whether the intervals before and after hold the measured time."""

    other: int
    distance: float
    other_shape: bool
    error: float
    corrected_error: float
    inside: bool
    corrected_inside: bool


def pairs_of(
    launches: Sequence[MeasuredLaunch], predicted: Floats, intervals: TimeIntervals
) -> list[Pair]:
    """Every ordered pair of launches of one kernel, under predictions ``[n]`` in seconds."""
    found = []
    for members in _members(launch.same_kernel for launch in launches).values():
        for measured, other in permutations(members, 2):
            found.append(_pair(launches, predicted, intervals, measured, other))
    return found


def _pair(
    launches: Sequence[MeasuredLaunch],
    predicted: Floats,
    intervals: TimeIntervals,
    measured: int,
    other: int,
) -> Pair:
    one, two = launches[measured], launches[other]
    known = KnownLaunch(
        float(predicted[measured]), one.seconds, launch_coordinates(one.work.launch)
    )
    place = launch_coordinates(two.work.launch)
    before = intervals.estimate(float(predicted[other]), "unseen_kernel")
    after = corrected(before, place, [known])
    shapes = {(each.work.launch.grid, each.work.launch.block) for each in (one, two)}
    return Pair(
        other=other,
        distance=distance(before.value, place, known),
        other_shape=len(shapes) > 1,
        error=float(np.log(before.value / two.seconds)),
        corrected_error=float(np.log(after.value / two.seconds)),
        inside=before.low <= two.seconds <= before.high,
        corrected_inside=after.low <= two.seconds <= after.high,
    )


def known_table(pairs: Sequence[Pair]) -> str:
    """Error with and without the correction, by whether grid or block differ, and by distance."""
    kinds: dict[str, list[Pair]] = {
        "same grid and block": [pair for pair in pairs if not pair.other_shape],
        "other grid or block": [pair for pair in pairs if pair.other_shape],
    }
    for low, high in pairwise(DISTANCES):
        kinds[f"distance {low:g} to {high:g}"] = [
            pair for pair in pairs if low <= pair.distance < high
        ]
    titles = ["launches of one kernel", "pairs", "median APE %", "corrected", "within 2x %",
              "corrected", "inside 90 % interval", "corrected"]  # fmt: skip
    lines = []
    for name, chosen in kinds.items():
        if not chosen:
            continue
        before = np.array([pair.error for pair in chosen])
        after = np.array([pair.corrected_error for pair in chosen])
        lines.append(
            [
                name,
                str(len(chosen)),
                *(f"{100 * np.median(np.abs(np.expm1(error))):.1f}" for error in (before, after)),
                *(f"{100 * np.mean(np.abs(error) <= np.log(2)):.0f}" for error in (before, after)),
                f"{np.mean([pair.inside for pair in chosen]):.2f}",
                f"{np.mean([pair.corrected_inside for pair in chosen]):.2f}",
            ]
        )
    return table(titles, lines)


def repeats_table(launches: Sequence[MeasuredLaunch], tolerance: float = 0.1) -> str:
    """How far launches lie apart that a model of work can hardly tell or not tell at all.

    Longest over shortest time of repeated launches; of those among them whose every count of
    work agrees within ``tolerance``; and of launches of different kernels with the same grid and
    block whose counts agree as well: no prediction from work and launch can hold both.
    """
    repeated = [
        [launches[at] for at in members]
        for members in _members(launch.same_launch for launch in launches).values()
        if len(members) > 1
    ]
    # One launch of each kernel: repetitions would only count the same pair again.
    first = {launch.same_launch: launch for launch in reversed(launches)}.values()
    shapes: dict[Hashable, list[MeasuredLaunch]] = defaultdict(list)
    for launch in first:
        shapes[launch.work.launch.grid, launch.work.launch.block].append(launch)
    others = [
        pair
        for members in shapes.values()
        for pair in combinations(members, 2)
        if pair[0].same_kernel != pair[1].same_kernel and _same_work(pair, tolerance)
    ]
    alike = [group for group in repeated if _same_work(group, tolerance)]
    titles = ["launches", "number", "median", "90 %", "99 %", "most", "above 2x"]
    share = f"work within {100 * tolerance:.0f} %"
    lines = [
        _ratios("repeated: same program, kernel, arguments, grid, block", repeated),
        _ratios(f"repeated, {share}", alike),
        _ratios(f"pairs of other kernels, same grid and block, {share}", others),
    ]
    return table(titles, lines)


def _ratios(name: str, groups: Sequence[Sequence[MeasuredLaunch]]) -> list[str]:
    if not groups:
        return [name, "0", *["-"] * 5]
    ratios = [
        max(one.seconds for one in group) / min(one.seconds for one in group) for group in groups
    ]
    return [
        name,
        str(len(ratios)),
        *(f"{np.quantile(ratios, level):.3f}" for level in (0.5, 0.9, 0.99)),
        f"{max(ratios):.3g}",
        str(sum(ratio > 2 for ratio in ratios)),
    ]


def _same_work(group: Sequence[MeasuredLaunch], tolerance: float) -> bool:
    works = [one.work for one in group]
    counts = np.array(
        [(work.dram_bytes, work.int_ops, work.flops_sp, work.flops_dp) for work in works]
    )
    return bool(np.all(counts.max(axis=0) <= counts.min(axis=0) * (1 + tolerance)))


def _members(keys: Iterable[Hashable]) -> Mapping[Hashable, list[int]]:
    members: dict[Hashable, list[int]] = defaultdict(list)
    for at, key in enumerate(keys):
        members[key].append(at)
    return members
