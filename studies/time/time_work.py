"""Time from measured work: launches, programs and ports left out (docs/work.md)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from studies.data.launches import MeasuredLaunch, read_launches
from studies.pages.figures import Points, cumulative, scatter
from studies.pages.page import Section, Table
from studies.pages.targets import Chapter, Target
from studies.time.work_artifact import ASSIGNMENTS, calibrated
from studies.time.work_folds import (
    MEDIAN,
    MODEL,
    NEAREST,
    OTHERS,
    PHYSICAL,
    PROTOCOLS,
    ROOFLINE,
    LeftOut,
    WorkTable,
    leave_out,
)
from studies.time.work_known import known_table, pairs_of, repeats_table
from studies.time.work_tables import interval_table, score_table
from studies.time.work_transfer import transfer_table
from wattcast.models.time.calibration import TimeProtocol

Floats = NDArray[np.float64]
Progress = Callable[[str], None]

JUDGED: TimeProtocol = "program"
MEDIAN_BOUND, STRETCH_MEDIAN_BOUND = 30.0, 25.0
WITHIN_BOUND, STRETCH_WITHIN_BOUND = 78.0, 85.0
"""Targets with programs left out, in percent: median error, and share within a factor of 2; each
with what was to be tried for."""


def work_chapter(assignments: int = ASSIGNMENTS, progress: Progress = lambda line: None) -> Chapter:
    """Fit and score anew: every fold of every assignment. Raises DataError for missing data."""
    launches = read_launches()
    table = WorkTable.of(launches)
    left_out: dict[TimeProtocol, LeftOut] = {}
    for protocol in PROTOCOLS:
        progress(f"measured work: {len(launches)} launches, {protocol} folds")
        left_out[protocol] = leave_out(table, protocol, range(assignments), os.cpu_count() or 1)
    return Chapter(
        (
            _scores_section(launches, table, left_out),
            _limits_section(launches, table, left_out[JUDGED]),
            _elsewhere_section(launches, table, left_out["port"]),
        ),
        tuple(_targets(left_out[JUDGED], table)),
    )


def _targets(judged: LeftOut, table: WorkTable) -> list[Target]:
    scores = judged.scores(table).model
    median = scores["median_ape_percent"].mean
    within = scores["within_factor_2_share"].mean * 100
    return [
        Target("measured work, program left out, median error", median, MEDIAN_BOUND),
        Target(
            "measured work, program left out, within a factor 2", within, WITHIN_BOUND, "at least"
        ),
        Target(
            "measured work, program left out, median error",
            median,
            STRETCH_MEDIAN_BOUND,
            stretch=True,
        ),
        Target(
            "measured work, program left out, within a factor 2",
            within,
            STRETCH_WITHIN_BOUND,
            "at least",
            stretch=True,
        ),
    ]


def _scores_section(
    launches: Sequence[MeasuredLaunch],
    table: WorkTable,
    left_out: Mapping[TimeProtocol, LeftOut],
) -> Section:
    judged = left_out[JUDGED]
    scores = score_table([one.scores(table) for one in left_out.values()])
    programs = len({launch.program for launch in launches})
    errors = {
        way: (np.abs(judged.predicted[way][0] / table.seconds - 1) * 100).tolist()
        for way in (MODEL, *OTHERS)
    }
    return Section(
        "Time from measured work",
        (
            f"{len(launches)} launches of {programs} programs on a GeForce RTX 3080, from what a "
            "profiler counted (docs/work.md). This model **is fitted**: everything in it anew in "
            "each fold, once with launches, once with programs, once with programs and their "
            "ports left out. The random split is what other launches of the same kernel tell. "
            f"`{MODEL}` is served; `{PHYSICAL}` is the same without the trees, `{ROOFLINE}` has "
            f"nothing fitted, `{NEAREST}` takes the time of the most similar training launch, "
            f"`{MEDIAN}` knows nothing. Mean ± standard deviation over seeded fold assignments.",
            scores,
            interval_table(calibrated(table, left_out["port"])),
            cumulative(
                "time-work-errors",
                "Share of launches with at most that error, programs left out (first assignment).",
                errors,
            ),
            scatter(
                "time-work-scatter",
                "Predicted over measured time, programs left out: one point for each program, the "
                "medians of its launches; the band is a factor of 2.",
                _program_points(table, judged),
                "ms",
            ),
        ),
    )


def _limits_section(
    launches: Sequence[MeasuredLaunch], table: WorkTable, judged: LeftOut
) -> Section:
    return Section(
        "What limits time from measured work",
        (
            "Programs left out, by how long launches take and by how their kernels were made: "
            "where the error is.",
            Table(
                ("launches", "number", "median error, %", "within a factor 2, %", "too short, %"),
                [
                    [name, str(int(chosen.sum())), *_cells(table, judged, chosen)]
                    for name, chosen in _groups(launches, table).items()
                ],
            ),
            "How far launches lie apart that work and launch shape cannot tell apart, longest over "
            "shortest: no model of these inputs can be nearer than that.",
            repeats_table(launches),
        ),
    )


def _elsewhere_section(
    launches: Sequence[MeasuredLaunch], table: WorkTable, port: LeftOut
) -> Section:
    intervals = calibrated(table, port)
    return Section(
        "Measured work: a known launch, another GPU",
        (
            "One launch of a kernel measured, another of its launches predicted: error without "
            "and with the correction it allows. The model saw neither the program nor its ports.",
            known_table(pairs_of(launches, port.predicted[MODEL][0], intervals)),
            "The physical estimate on GPUs that it was not fitted to: kernels of Wang and Chu's "
            "files with their counters, at all pairs of clocks.",
            transfer_table(intervals),
        ),
    )


def _groups(launches: Sequence[MeasuredLaunch], table: WorkTable) -> dict[str, NDArray[np.bool_]]:
    micros = table.seconds * 1e6
    runtimes = np.array([launch.work.runtime for launch in launches])
    edges = ((0, 10), (10, 100), (100, 1000), (1000, float("inf")))
    groups = {"all": np.ones(len(micros), dtype=np.bool_)}
    for low, high in edges:
        name = f"{low} to {high} µs" if high < float("inf") else f"{low} µs and more"
        groups[name] = (micros >= low) & (micros < high)
    for runtime in sorted(set(runtimes.tolist())):
        groups[f"kernels of {runtime}"] = runtimes == runtime
    return {name: chosen for name, chosen in groups.items() if chosen.any()}


def _cells(table: WorkTable, judged: LeftOut, chosen: NDArray[np.bool_]) -> list[str]:
    ratio = judged.predicted[MODEL][:, chosen] / table.seconds[chosen]
    return [
        f"{np.median(np.abs(ratio - 1)) * 100:.1f}",
        f"{np.mean((ratio >= 0.5) & (ratio <= 2)) * 100:.1f}",
        f"{np.mean(ratio < 1) * 100:.0f}",
    ]


def _program_points(table: WorkTable, judged: LeftOut) -> list[Points]:
    programs = table.groups["program"]
    members = [programs == program for program in np.unique(programs)]
    predicted = judged.predicted[MODEL][0]
    return [
        Points(
            MODEL,
            [float(np.median(table.seconds[own])) * 1e3 for own in members],
            [float(np.median(predicted[own])) * 1e3 for own in members],
        )
    ]
