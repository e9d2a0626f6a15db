"""Cards of time models: what they learned from, how well they do, how wide their intervals are."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from wattcast.features.errors import ModelError
from wattcast.models.cards import Card, CardPart, Sha256, Spread, TrainingSize
from wattcast.models.estimate import Basis, Estimate
from wattcast.models.intervals import IntervalWidth, Width

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
