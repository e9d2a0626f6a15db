"""A model judged by both protocols on the same folds as its baseline, and its scores as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from studies.evaluation import BesideBaselines, cross_validate
from wattcast.models.cards import ScoreName, Spread
from wattcast.training.evaluation.splits import FitPredict, Protocol, Rows

ASSIGNMENTS = 2
"""Seeded fold assignments unless asked otherwise: the whole study in a few minutes."""
PROTOCOLS: tuple[Protocol, ...] = ("random", "grouped")
LEFT_OUT: Mapping[Protocol, str] = {"random": "rows", "grouped": "kernels"}
"""What each protocol leaves out, in words."""
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """How thoroughly to judge: seeded fold assignments, fits at a time, and who is told."""

    assignments: int = ASSIGNMENTS
    jobs: int = 2
    progress: Progress = lambda line: None

    @property
    def seeds(self) -> range:
        """Seeds of the fold assignments."""
        return range(self.assignments)


@dataclass(frozen=True)
class Judged:
    """Out-of-fold predictions of one model: rows left out at random, and whole kernels."""

    model: str
    random: BesideBaselines
    grouped: BesideBaselines

    def by(self, protocol: Protocol) -> BesideBaselines:
        """Predictions of one protocol."""
        return self.random if protocol == "random" else self.grouped

    def scores(self, protocol: Protocol) -> Mapping[ScoreName, Spread]:
        """Mean and spread over fold assignments."""
        return self.by(protocol).scores()

    def median(self, protocol: Protocol) -> Mapping[ScoreName, Spread]:
        """The same of the training rows' median power as the prediction for everything."""
        return self.by(protocol).baseline_scores()


def judge(model: str, rows: Rows, fit_predict: FitPredict, effort: Effort) -> Judged:
    """Predict every row by fits that did not see it (random), nor its kernel (grouped)."""
    found = {
        protocol: cross_validate(rows, fit_predict, protocol, effort.seeds, jobs=effort.jobs)
        for protocol in PROTOCOLS
    }
    return Judged(model, found["random"], found["grouped"])


def text(value: Spread, name: ScoreName) -> str:
    """A score: mean ± spread over fold assignments, the mean alone where there is no spread."""
    if value.std == 0 or abs(value.mean) >= 1000:
        return mean(value, name)
    digits = 3 if name == "r2" else 2
    return f"{value.mean:.{digits}f} ± {value.std:.{digits}f}"


def mean(value: Spread, name: ScoreName) -> str:
    """The mean alone. Scores beyond all measure lose digits."""
    digits = 3 if name == "r2" else 2
    return f"{value.mean:.{digits}f}" if abs(value.mean) < 1000 else f"{value.mean:.1e}"


def beside_median(judged: Judged, protocol: Protocol, name: ScoreName) -> str:
    """A score with that of the training rows' median in brackets."""
    median = judged.median(protocol)[name]
    return f"{text(judged.scores(protocol)[name], name)} ({mean(median, name)})"
