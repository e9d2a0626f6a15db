"""How far predicted times lie from measured ones, as an interval.

``spread.csv`` holds factors of the models that nothing was fitted in. ``scheduling`` and ``delay``:
the spread of ln(measured / predicted) over the pairs of the thesis' Tables 4.8 and 4.2
(``studies.papers.thesis.published``), the only published error of these models; it is that of the
authors' tools, whose readings of the ambiguous steps are not known to be ours. ``queueing`` and
``queueing-cases``: made by ``python -m studies queueing --write``.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from wattcast.features.activity import Activity
from wattcast.features.errors import DataError
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import WARP_SIZE
from wattcast.models.clocks import ClockPair, bandwidth_bytes_per_second
from wattcast.models.estimate import Basis, Estimate
from wattcast.models.intervals import EXTRAPOLATED_WIDENING, IntervalWidth, conformal_factors

LEVEL = 0.9

UNCALIBRATED_FACTOR = 4.0
"""Interval factor either way of a model nobody published pairs for. Our convention, no figure
of a measurement: about the widest side of the published spreads (Tesla M60, model 2: 4.3)."""


OF_OTHERS = frozenset({"scheduling", "delay"})
"""Models whose published errors are those of the authors' tools, not of this code."""

SPREAD_FILE = Path(__file__).with_name("spread.csv")
ANY_GPU = "any"


@lru_cache(maxsize=256)
def spread(family: str, gpu_id: str) -> tuple[IntervalWidth, Basis]:
    """Interval factors of a time model at 90 % on a GPU, and what they rest on.

    A GPU with measured times has its own (``unseen_kernel``: nothing in the model was fitted to
    them); any other gets those of all, ``EXTRAPOLATED_WIDENING`` times as wide in logarithms
    (``extrapolated``). So does every GPU where the errors are those of other code. Raises
    DataError where the file has no factors of the family.
    """
    with SPREAD_FILE.open(encoding="utf-8", newline="") as file:
        found = {row["gpu"]: row for row in csv.DictReader(file) if row["family"] == family}
    row = found.get(gpu_id) or found.get(ANY_GPU)
    if row is None:
        raise DataError(f"{SPREAD_FILE.name} has no factors of {family}", file=SPREAD_FILE.name)
    width = IntervalWidth(
        low_factor=float(row["low_factor"]), high_factor=float(row["high_factor"])
    )
    if row["gpu"] == gpu_id and family not in OF_OTHERS:
        return width, "unseen_kernel"
    return width.widened(EXTRAPOLATED_WIDENING), "extrapolated"


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


def uncalibrated_estimate(seconds: float, low_seconds: float, high_seconds: float) -> Estimate:
    """``estimate_within`` a factor ``UNCALIBRATED_FACTOR`` either way: no published pairs exist."""
    width = IntervalWidth(low_factor=1 / UNCALIBRATED_FACTOR, high_factor=UNCALIBRATED_FACTOR)
    return estimate_within(seconds, low_seconds, high_seconds, (width, "uncalibrated"))


# --- the interval of the default time model: what its answers missed ---------------------------
# ``served_errors.csv`` (``python -m studies widths --write``) holds ln(measured / predicted) of
# what the service answers for public programs, kernels of a Volta, a sweep and tuning spaces. A
# program is a group, over all GPUs: an unseen program is what a user brings.
# ``bottleneck_errors.csv`` (``python -m studies bottleneck --write``) holds those on activity
# tables, and names the boards whose programs were in sight when the model was made.


ERRORS = Path(__file__).with_name("bottleneck_errors.csv")
ERRORS_SERVED = Path(__file__).with_name("served_errors.csv")


class ProgramError(NamedTuple):
    """ln(measured / predicted) seconds of one program on one GPU."""

    gpu: str
    program: str
    log_ratio: float


@lru_cache(maxsize=2)
def program_errors(path: Path = ERRORS) -> tuple[ProgramError, ...]:
    """All errors the intervals rest on."""
    with path.open(encoding="utf-8", newline="") as file:
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

    What answers of the service missed is pooled over all boards, because twenty programs of one
    give no 90 % quantile. A GPU among the four of ``bottleneck_errors.csv`` is ``unseen_kernel``;
    any other has datasheet facts alone: ``uncalibrated``.
    """
    measured = any(error.gpu == gpu_id for error in program_errors())
    errors = program_errors(ERRORS_SERVED)
    programs = sorted({error.program for error in errors})
    groups = [programs.index(error.program) for error in errors]
    residuals = [error.log_ratio for error in errors]
    low, high = conformal_factors(residuals, groups, LEVEL, symmetric=True)
    width = IntervalWidth(low_factor=low, high_factor=high)
    return width, "unseen_kernel" if measured else "uncalibrated"


# --- The least time a launch can take: what its start takes, and what surel --------------------


Precision = Literal["fp32", "fp64", "fp16", "tensor"]

FLOPS_PER_FMA = 2
"""A multiply-add is two operations; peaks are stated so."""

LEAST_LAUNCH_SECONDS = 1e-6
"""Of a launch that does nothing. The shortest of 2,596 launches that a profiler timed on an RTX
3080 took 1.7 us (docs/data.md, measured work); the round figure below leaves newer boards room."""


def least_seconds(activities: Iterable[Activity], gpu: GpuProfile, clocks: ClockPair) -> float:
    """Of a launch, or launches, that may be any of the cases; at least the start of one."""
    return min((_least(each, gpu, clocks) for each in activities), default=LEAST_LAUNCH_SECONDS)


def _least(activity: Activity, gpu: GpuProfile, clocks: ClockPair) -> float:
    peaks = peaks_per_second(gpu, max(clocks.core_mhz, gpu.max_core_mhz))
    flops = lane_flops(activity, 0.0, gpu)
    memory = bandwidth_bytes_per_second(gpu, max(clocks.memory_mhz, gpu.memory_mhz))
    moved = max(0.0, activity.footprint_bytes - gpu.l2_bytes)
    bounds = [flops[name] / peaks[name] for name in flops if peaks[name] > 0]
    return max(LEAST_LAUNCH_SECONDS * max(1.0, activity.kernel_launches), moved / memory, *bounds)


def peaks_per_second(gpu: GpuProfile, core_mhz: float) -> dict[Precision, float]:
    """Floating-point operations a second at a core clock: lanes x 2 x clock of every SM.

    FP16 counts both halves of a lane's pair; where there are no such lanes the compiler converts
    to FP32. ``tensor`` is that of dense FP16 matrices, 0 without tensor cores.
    """
    sm = gpu.capability
    hz = gpu.sm_count * core_mhz * 1e6
    per_cycle: dict[Precision, float] = {
        "fp32": sm.fp32_lanes,
        "fp64": sm.fp64_lanes,
        "fp16": sm.fp16_lanes or sm.fp32_lanes,
        "tensor": sm.tensor_fma_per_clock,
    }
    return {name: FLOPS_PER_FMA * each * hz for name, each in per_cycle.items()}


def lane_flops(activity: Activity, tensor_flops: float, gpu: GpuProfile) -> dict[Precision, float]:
    """Operations the lanes of each precision were occupied for, over the whole launch.

    An addition holds its lane as long as a multiply-add and counts as one, and a partial warp
    as a whole one: what could have been done, which is what the peak is made of.
    """
    pair = 2 if gpu.capability.fp16_lanes else 1
    slots = FLOPS_PER_FMA * WARP_SIZE
    return {
        "fp32": slots * activity.fp32_instructions,
        "fp64": slots * activity.fp64_instructions,
        "fp16": slots * pair * activity.fp16_instructions,
        "tensor": tensor_flops,
    }
