"""How far the default time model lies from measured times, and which part of it earns its place.

    python -m studies bottleneck            tables as Markdown
    python -m studies bottleneck --write    and bottleneck_errors.csv, for the intervals

Programs of ``studies.data.activity_tables``; nothing in the model was fitted to any of them, so
each is as good as left out.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from studies.card_tables import table as markdown_table
from studies.data.activity_tables import (
    ACTIVITY_GPUS,
    TABLE_CONSTANTS,
    MeasuredProgram,
    read_activity_table,
    reference_clocks,
)
from wattcast.features.errors import WattcastError
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.models.clocks import ClockPair
from wattcast.models.time.bottleneck import Constants, predicted_seconds, resource_seconds
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


def bottleneck_with(constants: Constants) -> Seconds:
    """The default model with other constants."""
    return lambda row, gpu: predicted_seconds(row.activity, gpu, row.clocks, constants)


def median_of_others(rows: Sequence[MeasuredProgram]) -> Seconds:
    """The no-information baseline: the geometric mean time of the other programs at the clocks."""

    def seconds(row: MeasuredProgram, gpu: GpuProfile) -> float:
        return exp(
            float(
                np.median(
                    [
                        log(other.time_seconds)
                        for other in rows
                        if other.program != row.program and other.clocks == row.clocks
                    ]
                )
            )
        )

    return seconds


def roofline(row: MeasuredProgram, gpu: GpuProfile) -> float:
    """Peak rates alone: device memory and the arithmetic pipes."""
    peak = Constants(reread_locality=1.0, fp64=1.0)
    resources = resource_seconds(row.activity, gpu, row.clocks, peak)
    return max(resources.get(name, 0.0) for name in ("dram", "fma", "fp64", "shared_fp64"))


_TABLE = TABLE_CONSTANTS
ABLATIONS: tuple[tuple[str, Constants], ...] = (
    ("as shipped", _TABLE),
    ("largest resource alone counts", replace(_TABLE, overlap_norm=50.0)),
    ("overlap norm 2", replace(_TABLE, overlap_norm=2.0)),
    ("overlap norm 4", replace(_TABLE, overlap_norm=4.0)),
    ("all estimated re-reads reach memory", replace(_TABLE, reread_locality=1.0)),
    ("pipes at their peak rates", replace(_TABLE, load_store=1.0, fp64=1.0, texture=1.0)),
    (
        "blocks start for nothing",
        replace(_TABLE, block_cycles=0.0, block_cycles_of_sm=0.0),
    ),
    ("launches start for nothing", replace(_TABLE, launch_seconds=0.0)),
)


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
    """Markdown: every GPU beside its baselines, every program, and the ablation."""
    scores, programs, ablation = [], {}, []
    for gpu_id in ACTIVITY_GPUS:
        rows = [row for row in read_activity_table(gpu_id) if row.kind == "real"]
        shipped = time_errors(gpu_id, bottleneck_with(TABLE_CONSTANTS))
        programs[gpu_id] = _by_program(shipped)
        for name, errors in (
            ("bottleneck", shipped),
            ("roofline", time_errors(gpu_id, roofline)),
            ("median of the other programs", time_errors(gpu_id, median_of_others(rows))),
        ):
            scores.append([gpu_id, name, str(len(programs[gpu_id])), *summary(errors)])
    for name, constants in ABLATIONS:
        cells = [summary(time_errors(gpu, bottleneck_with(constants))) for gpu in ACTIVITY_GPUS]
        ablation.append([name, *(f"{cell[0]}; {cell[2]}" for cell in cells)])
    names = sorted({name for each in programs.values() for name in each})
    lines = [[name, *(programs[gpu].get(name, "") for gpu in ACTIVITY_GPUS)] for name in names]
    return "\n".join(
        (
            "Mean (median) absolute error of time in percent, application programs.\n",
            markdown_table(
                ("GPU", "model", "programs", "highest clocks", "all clocks", "scaling"), scores
            ),
            "\nPredicted over measured time at the highest clocks.\n",
            markdown_table(("program", *ACTIVITY_GPUS), lines),
            "\nWithout one part: error at the highest clocks; error of scaling.\n",
            markdown_table(("model", *ACTIVITY_GPUS), ablation),
        )
    )


def _by_program(errors: TimeErrors) -> dict[str, str]:
    return {
        row.program: f"{predicted / row.time_seconds:.2f}"
        for row, predicted, chosen in zip(
            errors.rows, errors.predicted, errors.at_reference, strict=True
        )
        if chosen
    }


def write_errors(path: Path = ERRORS) -> None:
    """ln(measured / predicted) of every program at the highest clocks of its table."""
    lines = [
        (gpu, row.program, f"{log(row.time_seconds / predicted):.4f}")
        for gpu in ACTIVITY_GPUS
        for errors in [time_errors(gpu, bottleneck_with(TABLE_CONSTANTS))]
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
    parser = argparse.ArgumentParser(prog="python -m studies bottleneck", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {ERRORS.name}")
    options = parser.parse_args(arguments)
    try:
        print(score_tables())
        if options.write:
            write_errors()
    except WattcastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
