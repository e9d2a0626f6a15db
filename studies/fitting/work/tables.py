"""Time from measured work: cross-validation, artifact with card, and the tables of docs/work.md.

    python -m studies work  trains, writes the artifact, prints the tables
    python -m studies work --table FILE        the same from another table of launches

Equal data, seeds and library versions give equal files, byte for byte (SOURCE_DATE_EPOCH sets the
card's date).
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import pairwise, permutations
from math import log
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from studies.card_tables import table
from studies.card_tables import table as markdown
from studies.data.launches import MeasuredLaunch
from studies.fitting.work.artifact import ASSIGNMENTS, Trained, train
from studies.fitting.work.folds import MODEL, OTHERS, WorkTable, fitted_constants
from wattcast.models.store import PACKAGED_ARTIFACTS
from wattcast.models.time.calibration import TimeIntervals, TimeScores, TimeWidth
from wattcast.models.time.known import KnownLaunch, corrected, distance
from wattcast.models.time.measured_work import work_schema

Floats = NDArray[np.float64]
Progress = Callable[[str], None]


def score_table(scores: Sequence[TimeScores]) -> str:
    """Scores of every protocol, mean ± spread over assignments, beside the other ways."""
    titles = ["left out", "way", "median APE %", "within 25 %", "within 2x", "per program APE %",
              "per program within 2x"]  # fmt: skip
    lines = []
    for one in scores:
        for way in (MODEL, *OTHERS):
            found = one.model if way == MODEL else one.others[way]
            ape, macro = found["median_ape_percent"], found["program_median_ape_percent"]
            shares = [
                found[name]
                for name in ("within_25_percent_share", "within_factor_2_share",
                             "program_within_factor_2_share")
            ]  # fmt: skip
            cells = [f"{100 * share.mean:.1f} ± {100 * share.std:.1f} %" for share in shares]
            lines.append(
                [
                    _LEFT_OUT[one.protocol],
                    way,
                    f"{ape.mean:.1f} ± {ape.std:.1f}",
                    cells[0],
                    cells[1],
                    f"{macro.mean:.1f} ± {macro.std:.1f}",
                    cells[2],
                ]
            )
    return markdown(titles, lines)


_LEFT_OUT: Mapping[str, str] = {
    "program": "program",
    "port": "program and its ports",
    "random": "launch (random)",
}


def interval_table(intervals: TimeIntervals) -> str:
    """Widths and what they hold."""
    titles = ["basis", "interval", "launches inside", "mean over programs with ports"]
    lines = []
    for basis in ("unseen_kernel", "extrapolated", "uncalibrated"):
        width: TimeWidth = getattr(intervals, basis)
        held = [
            "-" if share is None else f"{share:.2f}" for share in (width.launches, width.groups)
        ]
        lines.append([basis, f"×{width.low_factor:.2f} to ×{width.high_factor:.2f}", *held])
    return markdown(titles, lines)


def report(trained: Trained) -> str:
    """All tables of docs/work.md."""
    card, launches = trained.card, trained.launches
    predicted = trained.left_out["port"].predicted[MODEL][0]
    table = WorkTable.of(launches)
    refitted = fitted_constants(table.units, table.seconds, table.weights)
    served = work_schema().constants
    constants = markdown(
        ["constant", "served", "fitted to this table"],
        [
            *([name, f"{value:.4g}", f"{refitted.factors[name]:.4g}"]
              for name, value in served.factors.items()),
            ["norm", f"{served.norm:.4g}", f"{refitted.norm:.4g}"],
        ],
    )  # fmt: skip
    parts = [
        score_table(card.scores),
        interval_table(card.intervals),
        known_table(pairs_of(launches, predicted, card.intervals)),
        constants,
    ]
    return "\n".join(parts)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m studies work")
    parser.add_argument("--out", type=Path, default=PACKAGED_ARTIFACTS, help="artifact root")
    parser.add_argument("--table", type=Path, help="launches to train on")
    parser.add_argument("--assignments", type=int, default=ASSIGNMENTS)
    options = parser.parse_args(arguments)

    def progress(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    trained = train(options.out, options.table, options.assignments, progress)
    print(report(trained))
    return 0


# --- What no model could tell apart, and what measuring one launch of a ker --------------------


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
    known = KnownLaunch(float(predicted[measured]), one.seconds, log(one.work.launch.threads))
    place = log(two.work.launch.threads)
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


def _members(keys: Iterable[Hashable]) -> Mapping[Hashable, list[int]]:
    members: dict[Hashable, list[int]] = defaultdict(list)
    for at, key in enumerate(keys):
        members[key].append(at)
    return members
