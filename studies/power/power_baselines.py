"""``python -m studies baselines``: what knowing next to nothing of a kernel scores, by protocol."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from studies.data.activity_tables import ACTIVITY_GPUS, read_activity_table
from studies.data.frequency import kernel_group
from wattcast.features.errors import WattcastError
from wattcast.training.card_tables import table
from wattcast.training.evaluation.protocols import ASSIGNMENTS, OutOfFold, evaluate, nearest_watts
from wattcast.training.evaluation.splits import WITH_SHOTS, AnyProtocol, Rows
from wattcast.training.power_rows import POWER_FILES, power_rows

_PROTOCOLS: tuple[AnyProtocol, ...] = ("random", "grouped", "family", "known")
_SHOTS = 3


def activity_rows(gpu: str, root: Path | None = None) -> Rows:
    """The applications of an activity table at all their clocks.

    Vectors are the logarithms of 1 + each quantity and of the measured seconds, then both clocks.

    Groups are programs, variants of one counting as one. Raises DataError for a missing or
    defective table.
    """
    measured = [row for row in read_activity_table(gpu, root) if row.kind == "real"]
    counts = np.array([[*asdict(row.activity).values()] for row in measured])
    seconds = np.array([row.time_seconds for row in measured])
    clocks = np.array([[row.clocks.core_mhz, row.clocks.memory_mhz] for row in measured])
    return Rows.of(
        np.column_stack([np.log1p(counts), np.log(seconds), clocks]),
        [row.power_watts for row in measured],
        [kernel_group(row.program) for row in measured],
        kernels=[" ".join(row.label) for row in measured],
        clocks=clocks,
        gpus=[gpu] * len(measured),
    )


def baseline_lines(label: Sequence[str], result: OutOfFold) -> Iterator[list[str]]:
    """Lines of a table, one for each baseline: its point scores, coverage and interval score."""
    each = {"median_watts": result.baseline_scores(), **result.other_scores()}
    for name, scores in each.items():
        if name == "clock_median_watts" and result.rows.clocks is None:
            continue  # one clock: its median is the median
        intervals = result.interval_scores(of=name)
        shown = [*scores.values(), intervals["coverage"], intervals["interval_score_watts"]]
        yield [*label, name, *(f"{one.mean:.2f} ± {one.std:.2f}" for one in shown)]


TITLES = (
    *("source", "protocol", "predictor", "R2", "RMSE W", "MAE W", "MAPE %", "median APE %"),
    *("kernel-macro MAPE %", "coverage at 90 %", "interval score W"),
)
"""Titles of ``baseline_lines`` with a label of two."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m studies baselines", description=__doc__)
    parser.add_argument("--assignments", type=int, default=ASSIGNMENTS)
    options = parser.parse_args(arguments)
    seeds = range(options.assignments)
    lines: list[list[str]] = []
    try:
        for source_id in POWER_FILES:
            lines += _lines(source_id, power_rows([source_id]), _PROTOCOLS, seeds)
        for gpu in ACTIVITY_GPUS:
            lines += _lines(f"activity {gpu}", activity_rows(gpu), ("random", "grouped"), seeds)
        pooled = power_rows()
        # Without a seed's say: one assignment tells all.
        found = evaluate(pooled, nearest_watts, "gpu", [0])
        for source_id in POWER_FILES:
            own = np.flatnonzero(pooled.gpus == source_id)
            # One GPU is one fold: there is none other to calibrate an interval on.
            lines += [
                [source_id, "gpu", name, *(f"{one.mean:.2f}" for one in scores.values()), "", ""]
                for name, scores in {
                    "median_watts": found.take(own).baseline_scores(),
                    "nearest_watts": found.take(own).scores(),
                }.items()
            ]
    except WattcastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(table(TITLES, lines), end="")
    return 0


def _lines(
    label: str, rows: Rows, protocols: Sequence[AnyProtocol], seeds: Sequence[int]
) -> Iterator[list[str]]:
    for protocol in protocols:
        shots = _SHOTS if protocol in WITH_SHOTS else 0
        # The model asked is a baseline itself: only the baselines are shown.
        found = evaluate(rows, nearest_watts, protocol, seeds, shots=shots)
        yield from baseline_lines([label, protocol], found)
