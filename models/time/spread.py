"""How far the thesis' predicted times lie from its measured ones, as an interval.

The spread of ln(measured / predicted) over the pairs of the thesis' Tables 4.2 (model 1) and 4.8
(model 2) is the only published error of these models; it is that of the authors' tools, whose
readings of the ambiguous steps are not known to be ours. ``studies.time.published`` holds the
pairs, and ``spread_of`` them gave the factors at 90 % below. A GPU with published times has its
own (``unseen_kernel``: nothing in the model was fitted to those times); any other gets those of
all, ``EXTRAPOLATED_WIDENING`` times as wide in logarithms.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from wattcast.features.gpus import GpuProfile
from wattcast.models.estimate import Basis, Estimate
from wattcast.models.intervals import EXTRAPOLATED_WIDENING, IntervalWidth, conformal_factors

LEVEL = 0.9

UNCALIBRATED_FACTOR = 4.0
"""Interval factor either way of a model nobody published pairs for. Our convention, no figure
of a measurement: about the widest side of the published spreads (Tesla M60, model 2: 4.3)."""


Factors = tuple[float, float]
"""Low and high."""

SPREAD: Mapping[str, Factors] = MappingProxyType({
    "tesla-k20": (0.3335042515916763, 2.208003785574258),
    "quadro-k4200": (0.45522243713733074, 2.1932367149758454),
    "tesla-m60": (0.2226536790838489, 4.262420382165605),
    "gtx-1050": (0.27254707631318137, 2.9050867174280874),
})  # fmt: skip
"""Factors of model 2 on the GPUs of Table 4.8."""
SPREAD_ELSEWHERE: Factors = 0.13972656775266648, 4.951521293720485
DELAY_SPREAD: Mapping[str, Factors] = MappingProxyType(
    {"tesla-k20": (0.529126213592233, 2.977453074927514)}
)
"""Factors of model 1, of which Table 4.2 has times on Tesla K20 alone."""
DELAY_SPREAD_ELSEWHERE: Factors = 0.38489202836160147, 5.13768399529143


def spread(gpu_id: str) -> tuple[IntervalWidth, Basis]:
    """Factors of model 2 on a GPU, and what they rest on."""
    return _own_or(SPREAD, gpu_id, SPREAD_ELSEWHERE)


def delay_spread(gpu_id: str) -> tuple[IntervalWidth, Basis]:
    """Factors of model 1 on a GPU, and what they rest on."""
    return _own_or(DELAY_SPREAD, gpu_id, DELAY_SPREAD_ELSEWHERE)


def _own_or(
    known: Mapping[str, Factors], gpu_id: str, elsewhere: Factors
) -> tuple[IntervalWidth, Basis]:
    low, high = known.get(gpu_id, elsewhere)
    width = IntervalWidth(low_factor=low, high_factor=high)
    return width, "unseen_kernel" if gpu_id in known else "extrapolated"


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
