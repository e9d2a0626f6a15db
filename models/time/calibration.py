"""The default time model corrected by launches measured on a GPU's board.

What the model misses of a board (its driver's overheads, an optimistic bandwidth) it misses in
nearly the same proportion at every launch, or at every launch that the same thing bounds. So the
correction is a factor on the predicted seconds: one, or one for each ``regime``.
``training/calibrated.py`` fits it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import exp
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from wattcast.features.errors import ModelError
from wattcast.features.gpus import GpuProfile
from wattcast.models.cards import Card, CardPart, Sha256, Spread, TrainingSize
from wattcast.models.clocks import ClockPair
from wattcast.models.estimate import Basis, Estimate
from wattcast.models.intervals import IntervalWidth, Width
from wattcast.models.store import Artifact
from wattcast.models.time.base import Regime, TimePrediction
from wattcast.models.time.spread import interval_of

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
        widths = {
            "unseen_kernel": self.unseen_kernel,
            "extrapolated": self.extrapolated,
            "uncalibrated": self.uncalibrated,
        }
        if basis not in widths:
            raise ModelError(f"a time model gives no {basis!r} interval", basis=basis)
        width = widths[basis]
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
PARAMETERS_NAME = "model.json"
PART = "calibration"
"""Of a corrected prediction's ``parts``: the seconds that the correction adds."""

REGIMES: tuple[Regime, ...] = ("compute", "memory", "latency", "launch")

FEATURES = ("predicted_seconds", "core_mhz", "memory_mhz", *REGIMES)
"""What a card tells the measured range of: 1 for the regime of a launch, 0 for the others."""

SAME = 0.01
"""This near to the measured range, relatively, is inside: a clock's supported step, rounding."""


class TimeCorrection(BaseModel):
    """Natural logarithms of factors on predicted seconds.

    ``log_factor`` holds for every launch but those whose regime is in ``by_regime``.
    """

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    gpu: str
    log_factor: float = Field(allow_inf_nan=False)
    by_regime: dict[Regime, float] = {}

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
        try:
            self.correction = TimeCorrection.model_validate_json(artifact.read(PARAMETERS_NAME))
        except ValidationError as error:
            raise ModelError(f"{PARAMETERS_NAME} of {self.card.folder}: {error}") from error
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
        estimate, before = found.estimate, interval_of(gpu)[0]
        seconds = self.seconds(found.regime, estimate.value)
        factor = seconds / estimate.value
        outside = any(self._outside(found.regime, estimate.value, found.clocks))
        basis: Basis = "extrapolated" if outside else "unseen_kernel"
        intervals = self.card.intervals
        width = intervals.extrapolated if outside else intervals.unseen_kernel
        low = factor * min(estimate.low / before.low_factor, estimate.value) * width.low_factor
        high = factor * max(estimate.high / before.high_factor, estimate.value) * width.high_factor
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
