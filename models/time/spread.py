"""How far the thesis' predicted times lie from its measured ones, as an interval.

``table_4_8.csv`` holds the published pairs of model 2 (thesis Table 4.8, microseconds, 44 kernels
on four GPUs), ``table_4_2.csv`` those of model 1 (Table 4.2, 45 kernels on Tesla K20). The spread
of ln(measured / predicted) is the only published error of these models; it is that of the
authors' tools, whose readings of the ambiguous steps are not known to be ours.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import log
from pathlib import Path
from typing import NamedTuple

from wattcast.features.errors import DataError
from wattcast.features.gpus import GpuProfile
from wattcast.models.estimate import Basis, Estimate
from wattcast.models.intervals import EXTRAPOLATED_WIDENING, IntervalWidth, conformal_factors

TABLE = Path(__file__).with_name("table_4_8.csv")
DELAY_TABLE = Path(__file__).with_name("table_4_2.csv")
GPUS = ("tesla-k20", "quadro-k4200", "tesla-m60", "gtx-1050")
LEVEL = 0.9

UNCALIBRATED_FACTOR = 4.0
"""Interval factor either way of a model nobody published pairs for. Our convention, no figure
of a measurement: about the widest side of the published spreads (Tesla M60, model 2: 4.3)."""


class Pair(NamedTuple):
    """A measured and a predicted kernel time in microseconds (thesis Tables 4.2 and 4.8)."""

    benchmark: str
    kernel: str
    gpu: str
    actual_us: float
    predicted_us: float

    @property
    def log_ratio(self) -> float:
        """ln(measured / predicted)."""
        return log(self.actual_us / self.predicted_us)


def published_pairs(path: Path = TABLE) -> tuple[Pair, ...]:
    """All pairs of Table 4.8 (model 2). Raises DataError naming file, row and column."""
    return tuple(
        Pair(
            row["benchmark"],
            row["kernel"],
            gpu,
            _microseconds(path, number, row, f"{gpu}_actual_us"),
            _microseconds(path, number, row, f"{gpu}_predicted_us"),
        )
        for number, row in _rows(path)
        for gpu in GPUS
    )


def published_delay_pairs(path: Path = DELAY_TABLE) -> tuple[Pair, ...]:
    """All pairs of Table 4.2 (model 1, Tesla K20). Raises DataError naming file, row and column."""
    return tuple(
        Pair(
            row["benchmark"],
            row["kernel"],
            "tesla-k20",
            _microseconds(path, number, row, "actual_us"),
            _microseconds(path, number, row, "predicted_us"),
        )
        for number, row in _rows(path)
    )


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(enumerate(csv.DictReader(file), start=2))


def _microseconds(path: Path, number: int, row: Mapping[str, str], column: str) -> float:
    try:
        value = float(row[column])
    except (KeyError, TypeError, ValueError):
        value = 0.0
    if not value > 0:
        raise DataError(
            f"{path.name}, row {number}: {column} is no time above 0",
            file=path.name,
            row=number,
            column=column,
        )
    return value


def spread_of(pairs: Sequence[Pair], gpu_id: str) -> tuple[IntervalWidth, Basis]:
    """Interval factors at 90 % for a GPU from published pairs, and what they rest on.

    A GPU of the table gets its own spread (``unseen_kernel``: nothing in the model was fitted
    to those times). Any other gets that of all its GPUs, ``EXTRAPOLATED_WIDENING`` times as wide
    in logarithms, with basis ``extrapolated``: its latencies are measured, its times are not.
    Kernels of one benchmark count as one group, as in ``wattcast.models.intervals``.
    """
    own = [pair for pair in pairs if pair.gpu == gpu_id]
    used = own or list(pairs)
    names = sorted({pair.benchmark for pair in used})
    groups = [names.index(pair.benchmark) for pair in used]
    low, high = conformal_factors([pair.log_ratio for pair in used], groups, LEVEL)
    width = IntervalWidth(low_factor=low, high_factor=high)
    return (
        (width, "unseen_kernel") if own else (width.widened(EXTRAPOLATED_WIDENING), "extrapolated")
    )


@lru_cache(maxsize=16)
def spread(gpu_id: str) -> tuple[IntervalWidth, Basis]:
    """``spread_of`` Table 4.8: model 2."""
    return spread_of(published_pairs(), gpu_id)


@lru_cache(maxsize=16)
def delay_spread(gpu_id: str) -> tuple[IntervalWidth, Basis]:
    """``spread_of`` Table 4.2: model 1, measured on Tesla K20 alone."""
    return spread_of(published_delay_pairs(), gpu_id)


def estimate_within(
    seconds: float, low_seconds: float, high_seconds: float, spread: tuple[IntervalWidth, Basis]
) -> Estimate:
    """A time with its interval; ``low_seconds`` and ``high_seconds`` are the predictions for the
    ends of what is uncertain about the kernel (trip counts, registers)."""
    width, basis = spread
    return Estimate(
        seconds,
        min(seconds, low_seconds) * width.low_factor,
        max(seconds, high_seconds) * width.high_factor,
        LEVEL,
        basis,
    )


def time_estimate(seconds: float, low_seconds: float, high_seconds: float, gpu_id: str) -> Estimate:
    """``estimate_within`` the spread of model 2 on a GPU."""
    return estimate_within(seconds, low_seconds, high_seconds, spread(gpu_id))


def uncalibrated_estimate(seconds: float, low_seconds: float, high_seconds: float) -> Estimate:
    """``estimate_within`` a factor ``UNCALIBRATED_FACTOR`` either way: no published pairs exist."""
    width = IntervalWidth(low_factor=1 / UNCALIBRATED_FACTOR, high_factor=UNCALIBRATED_FACTOR)
    return estimate_within(seconds, low_seconds, high_seconds, (width, "uncalibrated"))


# --- the interval of the default time model: what it missed on programs it was not fitted to --
# ``bottleneck_errors.csv`` (made by ``python -m wattcast.training.bottleneck --write``) holds
# ln(measured / predicted) of the application programs of four GPUs at their highest clocks. A
# program is a group, over all GPUs: an unseen program is what a user brings.


ERRORS = Path(__file__).with_name("bottleneck_errors.csv")


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
