"""How far the default time model lies from measured times on the activity tables.

    python -m studies bottleneck            tables as Markdown
    python -m studies bottleneck --write    and bottleneck_errors.csv, for the intervals

Programs of ``studies.data.activity_tables``; nothing in the model was fitted to any of them, so
each is as good as left out.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from studies import parser_of
from studies.card_tables import table as markdown_table
from studies.data.activity_tables import (
    ACTIVITY_GPUS,
    TABLE_CONSTANTS,
    MeasuredProgram,
    read_activity_table,
    reference_clocks,
)
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.models.clocks import ClockPair
from wattcast.models.time.bottleneck import predicted_seconds
from wattcast.models.time.calibration import ERRORS

Floats = NDArray[np.float64]
Seconds = Callable[[MeasuredProgram, GpuProfile], float]


@dataclass(frozen=True)
class TimeErrors:
    """Application rows of one GPU: measured and predicted seconds, ``[n]``."""

    gpu: str
    rows: tuple[MeasuredProgram, ...]
    reference: ClockPair
    measured: Floats
    predicted: Floats

    @property
    def at_reference(self) -> NDArray[np.bool_]:
        """Rows at the reference clocks."""
        return np.array([row.clocks == self.reference for row in self.rows])

    @property
    def percent(self) -> Floats:
        """Absolute error in percent of the measured time."""
        return np.asarray(np.abs(self.predicted / self.measured - 1) * 100)

    @property
    def scaling_percent(self) -> Floats:
        """Error of time over time at the reference clocks, in percent, without those rows."""
        measured, predicted = self._scaled(self.measured), self._scaled(self.predicted)
        return np.asarray(np.abs(predicted / measured - 1) * 100)[~self.at_reference]

    def _scaled(self, seconds: Floats) -> Floats:
        pairs = list(zip(self.rows, seconds, strict=True))
        base = {row.label: value for row, value in pairs if row.clocks == self.reference}
        return np.array([value / base[row.label] for row, value in pairs])


def time_errors(gpu_id: str, seconds: Seconds) -> TimeErrors:
    """Predict every application row of a GPU. Raises DataError."""
    gpu = load_gpu(gpu_id)
    rows = tuple(row for row in read_activity_table(gpu_id) if row.kind == "real")
    return TimeErrors(
        gpu=gpu_id,
        rows=rows,
        reference=reference_clocks(rows),
        measured=np.array([row.time_seconds for row in rows]),
        predicted=np.array([seconds(row, gpu) for row in rows]),
    )


def shipped(row: MeasuredProgram, gpu: GpuProfile) -> float:
    """The default model as it ships."""
    return predicted_seconds(row.activity, gpu, row.clocks, TABLE_CONSTANTS)


def median_of_others(rows: Sequence[MeasuredProgram]) -> Seconds:
    """The no-information baseline: the geometric mean time of the other programs at the clocks."""

    def seconds(row: MeasuredProgram, gpu: GpuProfile) -> float:
        others = [
            log(other.time_seconds)
            for other in rows
            if other.program != row.program and other.clocks == row.clocks
        ]
        return exp(float(np.median(others)))

    return seconds


def summary(errors: TimeErrors) -> list[str]:
    """Mean and median error at the reference clocks, over all, and of scaling, in percent."""
    at_reference = errors.percent[errors.at_reference]
    scaling = errors.scaling_percent
    return [
        f"{at_reference.mean():.1f} ({np.median(at_reference):.1f})",
        f"{errors.percent.mean():.1f} ({np.median(errors.percent):.1f})",
        f"{scaling.mean():.1f} ({np.median(scaling):.1f})",
    ]


def score_tables() -> str:
    """Markdown: every GPU beside its baseline."""
    scores = []
    for gpu_id in ACTIVITY_GPUS:
        rows = [row for row in read_activity_table(gpu_id) if row.kind == "real"]
        programs = str(len({row.program for row in rows}))
        for name, seconds in (
            ("bottleneck", shipped),
            ("median of the other programs", median_of_others(rows)),
        ):
            scores.append([gpu_id, name, programs, *summary(time_errors(gpu_id, seconds))])
    titles = ("GPU", "model", "programs", "highest clocks", "all clocks", "scaling")
    return f"Mean (median) absolute error of time in percent.\n\n{markdown_table(titles, scores)}"


def write_errors(path: Path = ERRORS) -> None:
    """ln(measured / predicted) of every program at the highest clocks of its table."""
    lines = [
        (gpu, row.program, f"{log(row.time_seconds / predicted):.4f}")
        for gpu in ACTIVITY_GPUS
        for errors in [time_errors(gpu, shipped)]
        for row, predicted, chosen in zip(
            errors.rows, errors.predicted, errors.at_reference, strict=True
        )
        if chosen
    ]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("gpu", "program", "log_ratio"))
        writer.writerows(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = parser_of("bottleneck", __doc__)
    parser.add_argument("--write", action="store_true", help=f"write {ERRORS.name}")
    options = parser.parse_args(arguments)
    print(score_tables())
    if options.write:
        write_errors()
    return 0
