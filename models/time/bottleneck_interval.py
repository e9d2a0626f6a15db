"""The interval of the default time model: what it missed on programs it was not fitted to.

``bottleneck_errors.csv`` (made by ``python -m studies bottleneck --write``) holds
ln(measured / predicted) of the application programs of four GPUs at their highest clocks. A
program is a group, over all GPUs: an unseen program is what a user brings.
"""

from __future__ import annotations

import csv
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from wattcast.features.gpus import GpuProfile
from wattcast.models.estimate import Basis
from wattcast.models.intervals import EXTRAPOLATED_WIDENING, IntervalWidth, conformal_factors

ERRORS = Path(__file__).with_name("bottleneck_errors.csv")
LEVEL = 0.9


class ProgramError(NamedTuple):
    """ln(measured / predicted) seconds of one program on one GPU."""

    gpu: str
    program: str
    log_ratio: float


@lru_cache(maxsize=1)
def program_errors() -> tuple[ProgramError, ...]:
    """All errors the intervals rest on."""
    with ERRORS.open(encoding="utf-8", newline="") as file:
        return tuple(
            ProgramError(row["gpu"], row["program"], float(row["log_ratio"]))
            for row in csv.DictReader(file)
        )


def interval_of(gpu: GpuProfile) -> tuple[IntervalWidth, Basis]:
    """``interval_width``, or what was measured on the GPU where its profile tells that."""
    own = gpu.time_interval
    if own is None:
        return interval_width(gpu.id)
    width = IntervalWidth(low_factor=own.low_factor, high_factor=own.high_factor)
    return width, "unseen_kernel"


def level_of(gpu: GpuProfile) -> float:
    """Probability that ``interval_of`` holds."""
    return LEVEL if gpu.time_interval is None else gpu.time_interval.level


@lru_cache(maxsize=256)
def interval_width(gpu_id: str) -> tuple[IntervalWidth, Basis]:
    """Interval factors at 90 % and what they rest on.

    The errors of all four GPUs are pooled, because fifteen programs give no 90 % quantile. A GPU
    among them is ``unseen_kernel``; any other has datasheet facts alone: ``uncalibrated``, and
    ``EXTRAPOLATED_WIDENING`` times as wide in logarithms.
    """
    errors = program_errors()
    programs = sorted({error.program for error in errors})
    groups = [programs.index(error.program) for error in errors]
    residuals = [error.log_ratio for error in errors]
    low, high = conformal_factors(residuals, groups, LEVEL, symmetric=True)
    width = IntervalWidth(low_factor=low, high_factor=high)
    if any(error.gpu == gpu_id for error in errors):
        return width, "unseen_kernel"
    return width.widened(EXTRAPOLATED_WIDENING), "uncalibrated"
