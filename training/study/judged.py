"""A model judged by both protocols on the same folds as its baseline, and the table of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from models.cards import ScoreName, Spread
from training.protocols import OutOfFold, cross_validate
from training.rows import FitPredict, Rows
from training.splits import Protocol

ASSIGNMENTS = 2
"""Seeded fold assignments unless asked otherwise: the whole study in a few minutes."""
PROTOCOLS: tuple[Protocol, ...] = ("random", "grouped")
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
    random: OutOfFold
    grouped: OutOfFold

    def by(self, protocol: Protocol) -> OutOfFold:
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


def cells(
    judged: Judged, names: Sequence[ScoreName] = ("r2", "rmse_watts", "mae_watts")
) -> list[str]:
    """Scores by random, then by grouped folds, each mean ± spread (median's)."""
    return [
        cell(judged.scores(protocol)[name], judged.median(protocol)[name], name)
        for protocol in PROTOCOLS
        for name in names
    ]


def cell(value: Spread, median: Spread | None, name: ScoreName) -> str:
    """A score as text, with the median-power baseline in brackets."""
    digits = 3 if name == "r2" else 2
    text = f"{value.mean:.{digits}f} ± {value.std:.{digits}f}"
    return text if median is None else f"{text} ({median.mean:.{digits}f})"
