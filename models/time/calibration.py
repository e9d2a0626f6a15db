"""The default time model corrected by launches measured on a GPU's board.

What the model misses of a board (its driver's overheads, an optimistic bandwidth) it misses in
nearly the same proportion at every launch, or at every launch that the same thing bounds. So the
correction is a factor on the predicted seconds: one, or one for each ``regime``.
``training/calibrated.py`` fits it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import exp
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field, model_validator

from wattcast.features.activity import Activity
from wattcast.features.checked import Frozen, read_rows
from wattcast.features.errors import DataError, ModelError
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import WARP_SIZE
from wattcast.models.cards import Card, CardPart, Sha256, Spread, TrainingSize
from wattcast.models.clocks import ClockPair, bandwidth_bytes_per_second
from wattcast.models.intervals import (
    EXTRAPOLATED_WIDENING,
    Basis,
    Estimate,
    IntervalWidth,
    Width,
    conformal_factors,
    joined,
    parted,
)
from wattcast.models.store import Artifact
from wattcast.models.time.base import Regime, TimePrediction
from wattcast.models.time.measured_work import FLOPS_PER_FMA

# How far predicted times lie from measured ones, as an interval.
#
# ``spread.csv`` holds factors of the models that nothing was fitted in. ``scheduling`` and
# ``delay``: the spread of ln(measured / predicted) over the pairs of the thesis' Tables 4.8 and 4.2
# (``studies.papers.thesis.published``), the only published error of these models; it is that of the
# authors' tools, whose readings of the ambiguous steps are not known to be ours. ``queueing`` and
# ``queueing-cases``: made by ``python -m studies queueing --write``.

LEVEL = 0.9

UNCALIBRATED_FACTOR = 4.0
"""Interval factor either way of a model nobody published pairs for. Our convention, no figure
of a measurement: about the widest side of the published spreads (Tesla M60, model 2: 4.3)."""


OF_OTHERS = frozenset({"scheduling", "delay"})
"""Models whose published errors are those of the authors' tools, not of this code."""

SPREAD_FILE = Path(__file__).with_name("spread.csv")
ANY_GPU = "any"


class Factors(NamedTuple):
    """Interval of a family on a GPU: ``[low, high]`` times the prediction, and what it rests on."""

    gpu: str
    family: str
    low_factor: float
    high_factor: float
    groups: int
    rows: int


@lru_cache(maxsize=256)
def spread(family: str, gpu_id: str) -> tuple[IntervalWidth, Basis]:
    """Interval factors of a time model at 90 % on a GPU, and what they rest on.

    A GPU with measured times has its own (``unseen_kernel``: nothing in the model was fitted to
    them); any other gets those of all, ``EXTRAPOLATED_WIDENING`` times as wide in logarithms
    (``extrapolated``). So does every GPU where the errors are those of other code. Raises
    DataError where the file has no factors of the family.
    """
    rows = read_rows(SPREAD_FILE, Factors)
    found = {row.gpu: row for row in rows if row.family == family}
    row = found.get(gpu_id) or found.get(ANY_GPU)
    if row is None:
        raise DataError(f"{SPREAD_FILE.name} has no factors of {family}", file=SPREAD_FILE.name)
    width = IntervalWidth(low_factor=row.low_factor, high_factor=row.high_factor)
    if row.gpu == gpu_id and family not in OF_OTHERS:
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
    """ln(measured / predicted) seconds of one program on one GPU; where they are kept, what bounds
    it and whether arguments that decide its work were assumed."""

    gpu: str
    program: str
    log_ratio: float
    regime: str = ""
    assumed: bool = False


@lru_cache(maxsize=2)
def program_errors(path: Path = ERRORS) -> tuple[ProgramError, ...]:
    """All errors the intervals rest on."""
    return read_rows(path, ProgramError)


def interval_of(
    gpu: GpuProfile, regime: Regime | None = None, *, assumed: bool = False
) -> tuple[IntervalWidth, Basis]:
    """``interval_width``, or what was measured on the GPU where its profile tells that."""
    own = gpu.time_interval
    if own is None:
        return interval_width(gpu.id, regime, assumed)
    width = IntervalWidth(low_factor=own.low_factor, high_factor=own.high_factor)
    return width, "unseen_kernel"


OWN_WIDTH = 40
"""Programs from which on launches with assumed arguments, and those without, have each a width: at
90 % four of so many lie above it. A judgement, made when launches that memory bounds were 3.7 wide
by the 34 programs and 32 of either kind, and 2.2 by all of them."""


@lru_cache(maxsize=1024)
def interval_width(
    gpu_id: str, regime: Regime | None = None, assumed: bool = False
) -> tuple[IntervalWidth, Basis]:
    """Interval factors at 90 % of launches of a regime, or of all, and what they rest on.

    What answers of the service missed is pooled over all boards, because twenty programs of one
    give no 90 % quantile. Launches that memory bounds are known better than those that wait, so
    each regime has its own (Mondrian conformal prediction: Vovk, Gammerman and Shafer, Algorithmic
    Learning in a Random World, 2005, section 4.5), and so have launches where arguments that
    decide the work are ``assumed``, if ``OWN_WIDTH`` programs tell it. A GPU among the four of
    ``bottleneck_errors.csv`` is ``unseen_kernel``; any other has datasheet facts alone:
    ``uncalibrated``.
    """
    measured = any(error.gpu == gpu_id for error in program_errors())
    factor = _served_factor(regime, assumed)
    return IntervalWidth(low_factor=1 / factor, high_factor=factor), (
        "unseen_kernel" if measured else "uncalibrated"
    )


@lru_cache(maxsize=16)
def _served_factor(regime: Regime | None, assumed: bool) -> float:
    return factor_of(program_errors(ERRORS_SERVED), regime, assumed)


def factor_of(errors: Sequence[ProgramError], regime: str | None, assumed: bool) -> float:
    """High over predicted seconds of such a launch. What is assumed makes nothing surer."""
    factors = []
    for each in {False, assumed}:
        own = of_kind(errors, regime, each)
        ratios, programs = [one.log_ratio for one in own], [one.program for one in own]
        factors.append(conformal_factors(ratios, programs, LEVEL, symmetric=True)[1])
    return max(factors)


def of_kind(
    errors: Iterable[ProgramError], regime: str | None, assumed: bool
) -> list[ProgramError]:
    """The errors that the interval of such a launch rests on."""
    bounded = [one for one in errors if regime in (None, one.regime)]
    own = [one for one in bounded if one.assumed == assumed]
    enough = regime is not None and len({one.program for one in own}) >= OWN_WIDTH
    return own if enough else bounded


# --- The least time a launch can take: what its start takes, and what surel --------------------


Precision = Literal["fp32", "fp64", "fp16", "tensor"]

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
    return {
        "fp32": gpu.peak("fp32", core_mhz),
        "fp64": gpu.peak("fp64", core_mhz),
        "fp16": gpu.peak("fp16", core_mhz) or gpu.peak("fp32", core_mhz),
        "tensor": gpu.peak("tensor_fp16", core_mhz),
    }


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


# --- cards of time models: what they learned from, how well they do, how wide their intervals a


TimeScoreName = Literal[
    "median_ape_percent",
    "within_25_percent_share",
    "within_factor_2_share",
    "program_median_ape_percent",
    "program_within_factor_2_share",
]
"""Median absolute percentage error and shares over launches; ``program_``: per program first,
then the median of the programs' errors and the mean of their shares."""

TimeProtocol = Literal["random", "program", "port"]
"""What stays on one side of a fold: a launch; a program; a program with its ports (the same
program in CUDA and OpenMP)."""


class TimeTrainingFacts(TrainingSize):
    """What a time model was fitted on. ``kernels`` are kernels of programs, ``kernel_groups``
    programs with their ports."""

    programs: int = Field(ge=1)
    time_minimum_seconds: float = Field(gt=0)
    time_median_seconds: float = Field(gt=0)
    time_maximum_seconds: float = Field(gt=0)
    fingerprint: Sha256


class TimeScores(CardPart):
    """Scores of one protocol, beside what other ways of predicting reach on the same folds.

    A score is computed on the out-of-fold predictions of all launches of one fold assignment;
    the spread is over ``assignments`` of them.
    """

    protocol: TimeProtocol
    folds: int = Field(ge=2)
    assignments: int = Field(ge=1)
    model: dict[TimeScoreName, Spread]
    others: dict[str, dict[TimeScoreName, Spread]]


class TimeWidth(CardPart):
    """Interval of one basis: ``[low_factor, high_factor]`` times the predicted seconds.

    ``launches`` and ``groups``: share of left-out launches inside, and its mean over groups, each
    under widths from other groups; ``None`` where nothing can measure it.
    """

    low_factor: float = Field(gt=0, le=1)
    high_factor: float = Field(ge=1)
    launches: float | None = Field(default=None, ge=0, le=1)
    groups: float | None = Field(default=None, ge=0, le=1)

    @classmethod
    def of(cls, width: Width) -> TimeWidth:
        """A width without coverage. Raises ModelError for one that is no factor."""
        if not isinstance(width, IntervalWidth):
            raise ModelError("the width of a time must be a factor")
        return cls(low_factor=width.low_factor, high_factor=width.high_factor)


class TimeIntervals(CardPart):
    """Widths at one nominal ``level``; ``uncalibrated`` is that of the physical estimate alone,
    for GPUs without measurements."""

    method: Literal["hierarchical-conformal-log-residual"] = "hierarchical-conformal-log-residual"
    level: float = Field(gt=0, lt=1)
    unseen_kernel: TimeWidth
    extrapolated: TimeWidth
    uncalibrated: TimeWidth

    @model_validator(mode="after")
    def _extrapolated_is_wider(self) -> TimeIntervals:
        inner, outer = self.unseen_kernel, self.extrapolated
        if outer.low_factor > inner.low_factor or outer.high_factor < inner.high_factor:
            raise ValueError("the extrapolated interval must hold the unseen_kernel one")
        return self

    def estimate(self, seconds: float, basis: Basis, slack: float = 1.0) -> Estimate:
        """Interval around predicted seconds, both ends another factor ``slack`` (>= 1) away.

        Raises ModelError for ``seen_kernel``: a model alone has seen no kernel of a request.
        """
        if basis == "seen_kernel":
            raise ModelError(f"a time model gives no {basis!r} interval", basis=basis)
        width: TimeWidth = getattr(self, basis)
        return Estimate(
            seconds,
            seconds * width.low_factor / slack,
            seconds * width.high_factor * slack,
            self.level,
            basis,
        )


class MeasuredClocks(CardPart):
    """Clocks in MHz that all training launches ran at."""

    core_mhz: float = Field(gt=0)
    memory_mhz: float = Field(gt=0)


class AnyTimeCard(Card):
    """What cards of time models have in common."""

    target: Literal["time"]
    training: TimeTrainingFacts
    scores: tuple[TimeScores, ...]
    intervals: TimeIntervals

    def score(self, protocol: TimeProtocol) -> TimeScores:
        """Scores of one protocol. Raises ModelError if the card has none."""
        for scores in self.scores:
            if scores.protocol == protocol:
                return scores
        raise ModelError(f"the card has no {protocol} scores")


class TimeCard(AnyTimeCard):
    """Card of a time model. ``gpu_facts`` are those of the profile that its inputs rest on."""

    clocks: MeasuredClocks
    gpu_facts: dict[str, float]


# --- the default time model corrected by launches measured on a GPU's board -------------------


FAMILY = "bottleneck"
PART = "calibration"
"""Of a corrected prediction's ``parts``: the seconds that the correction adds."""

REGIMES: tuple[Regime, ...] = ("compute", "memory", "latency", "launch")

FEATURES = ("predicted_seconds", "core_mhz", "memory_mhz", *REGIMES)
"""What a card tells the measured range of: 1 for the regime of a launch, 0 for the others."""

SAME = 0.01
"""This near to the measured range, relatively, is inside: a clock's supported step, rounding."""


class TimeCorrection(Frozen):
    """Natural logarithms of factors on predicted seconds.

    ``log_factor`` holds for every launch but those whose regime is in ``by_regime``.
    """

    gpu: str
    log_factor: float = Field(allow_inf_nan=False)
    by_regime: dict[Regime, float] = Field(default={})

    def of(self, regime: Regime) -> float:
        """ln of the factor of a regime."""
        return self.by_regime.get(regime, self.log_factor)


class TimeBoard(CardPart):
    """Which board a correction is for (empty: uploads without a label), and the ids of the uploads
    it was fitted on."""

    label: str = Field(max_length=64)
    batches: tuple[str, ...]


class TimeCorrectionCard(AnyTimeCard):
    """Card of a correction. Groups count as programs: an upload tells kernels apart, no more."""

    board: TimeBoard


class CorrectedTimes:
    """One artifact. Stateless; safe to share between threads.

    Raises ModelError for a file that holds no correction.
    """

    def __init__(self, artifact: Artifact[TimeCorrectionCard]) -> None:
        self.card = artifact.card
        self.correction = artifact.parameters(TimeCorrection)
        self._ranges = {fact.name: (fact.minimum, fact.maximum) for fact in self.card.features}

    def seconds(self, regime: Regime, predicted_seconds: float) -> float:
        """Corrected seconds of a launch that the default model predicts."""
        return predicted_seconds * exp(self.correction.of(regime))

    def corrected(self, found: TimePrediction, gpu: GpuProfile) -> TimePrediction:
        """The default time model's prediction, corrected, with the interval measured for that.

        The interval still spans the cases of a launch that the prediction's spans. Outside the
        clocks, regimes and times that were measured the basis is ``extrapolated``. Raises
        ModelError for the prediction of another model.
        """
        if found.family != FAMILY or found.regime is None:
            raise ModelError(f"a correction of {FAMILY} does not fit {found.family}")
        estimate, before = found.estimate, found.width or interval_of(gpu)[0]
        seconds = self.seconds(found.regime, estimate.value)
        outside = any(self._outside(found.regime, estimate.value, found.clocks))
        basis: Basis = "extrapolated" if outside else "unseen_kernel"
        intervals = self.card.intervals
        width = intervals.extrapolated if outside else intervals.unseen_kernel
        least = parted(estimate.low / estimate.value, before.low_factor)
        most = parted(estimate.high / estimate.value, before.high_factor)
        low = seconds * joined(least, width.low_factor)
        high = seconds * joined(most, width.high_factor)
        return replace(
            found,
            estimate=Estimate(seconds, low, high, intervals.level, basis),
            parts={**found.parts, PART: seconds - estimate.value},
            card=self.card,
        )

    def _outside(self, regime: Regime, seconds: float, clocks: ClockPair) -> Iterator[bool]:
        values = dict(zip(FEATURES, features_of(regime, seconds, clocks), strict=True))
        for name, (low, high) in self._ranges.items():
            yield not low * (1 - SAME) <= values[name] <= high * (1 + SAME)


def features_of(regime: Regime, seconds: float, clocks: ClockPair) -> tuple[float, ...]:
    """``FEATURES`` of a launch that the default model predicts to take ``seconds``."""
    return (seconds, *clocks, *(float(regime == one) for one in REGIMES))
