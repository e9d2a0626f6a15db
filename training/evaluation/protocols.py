"""How models are scored: on rows, kernels, families and GPUs that they have not seen.

``random`` folds split rows, so that other launches of the same kernel are in training: what the
literature reports. ``grouped`` folds keep all rows of a kernel group on one side: what a user's
own kernel gets. ``training.evaluation.splits`` has the other protocols. Scores are computed on the
out-of-fold predictions of all tested rows of one fold assignment; mean and spread are over seeded
assignments, since fold luck is large.

    evaluate(rows, fit, protocol, seeds)     any protocol, any model
    cross_validate(rows, fit_predict, ...)   the same for a model of vectors and watts alone

``BASELINES`` know next to nothing of a kernel; every score stands beside theirs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from wattcast.models.cards import ScoreName, Spread
from wattcast.models.intervals import Residuals
from wattcast.training.evaluation.scores import (
    IntervalScoreName,
    best_exponent,
    cross_conformal,
    interval_scores,
    point_scores,
    spread_of,
)
from wattcast.training.evaluation.splits import (
    FOLDS,
    WITH_SHOTS,
    AnyProtocol,
    Fit,
    FitPredict,
    Floats,
    Fold,
    Indices,
    Predict,
    Protocol,
    Rows,
    folds_of,
    joined,
    plain,
)

Baseline = Literal["median_watts", "clock_median_watts", "nearest_watts", "own_median_watts"]


def median_watts(train: Rows) -> Predict:
    """The median of all training and known rows."""

    def predict(known: Rows, test: Rows) -> Floats:
        watts = np.concatenate([train.watts, known.watts])
        return np.full(len(test), np.median(watts))

    return predict


def clock_median_watts(train: Rows) -> Predict:
    """The median of the training and known rows at the same clocks."""

    def predict(known: Rows, test: Rows) -> Floats:
        measured = joined([train, known]) if len(known) else train
        watts = np.full(len(test), np.median(measured.watts))
        if measured.clocks is not None and test.clocks is not None:
            for clock in np.intersect1d(measured.clocks, test.clocks):
                watts[test.clocks == clock] = np.median(measured.watts[measured.clocks == clock])
        return watts

    return predict


def nearest_watts(train: Rows) -> Predict:
    """The power of the nearest training or known row.

    Features are standardised by mean and deviation of the training rows; a missing value lies
    at the mean, a feature that never varies has no say.
    """
    places = _Places(train.vectors)
    neighbours = cKDTree(places(train.vectors))

    def predict(known: Rows, test: Rows) -> Floats:
        at = places(test.vectors)
        distance, index = neighbours.query(at)
        watts: Floats = train.watts[index]
        if len(known):
            known_distance, index = cKDTree(places(known.vectors)).query(at)
            watts = np.where(known_distance < distance, known.watts[index], watts)
        return watts

    return predict


def own_median_watts(train: Rows) -> Predict:
    """The median of the known rows; of the training rows where none are known."""

    def predict(known: Rows, test: Rows) -> Floats:
        return np.full(len(test), np.median((known if len(known) else train).watts))

    return predict


BASELINES: Mapping[Baseline, Fit] = MappingProxyType(
    {
        "median_watts": median_watts,
        "clock_median_watts": clock_median_watts,
        "nearest_watts": nearest_watts,
        "own_median_watts": own_median_watts,
    }
)


class _Places:
    """Where rows lie, standardised as the training rows are."""

    def __init__(self, vectors: Floats) -> None:
        present = ~np.isnan(vectors)
        counts = np.maximum(present.sum(axis=0), 1)
        filled = np.where(present, vectors, 0.0)
        self.mean = filled.sum(axis=0) / counts
        deviation = np.where(present, vectors - self.mean, 0.0)
        scale = np.sqrt((deviation**2).sum(axis=0) / counts)
        # Rounding of the mean leaves a constant column a deviation of its last digits.
        self.scale = np.where(scale > 1e-12 * np.abs(self.mean), scale, np.inf)

    def __call__(self, vectors: Floats) -> Floats:
        return np.asarray(np.nan_to_num((vectors - self.mean) / self.scale, nan=0.0))


ASSIGNMENTS = 10
"""Seeded fold assignments of a full evaluation."""
LEVEL = 0.9

CONSTANT = (1.0,)
"""The exponent of intervals of equally many watts around each prediction."""


@dataclass(frozen=True)
class OutOfFold:
    """Predictions of every tested row by models that did not see it, one per assignment.

    ``predicted_watts`` and ``baseline_watts`` (the median of the training rows) are
    ``[assignments, n]``, NaN where a row was not tested; ``outside`` marks rows with a feature
    outside the range of their fold's training rows. ``others`` holds the predictions of the
    further baselines, ``folds`` the number of each row's fold (-1: not tested).
    """

    rows: Rows
    predicted_watts: Floats
    baseline_watts: Floats
    outside: NDArray[np.bool_]
    others: Mapping[Baseline, Floats] = field(default_factory=dict)
    folds: Indices | None = None
    protocol: AnyProtocol = "grouped"

    def scores(self) -> dict[ScoreName, Spread]:
        """Mean and spread of the model's scores over the assignments."""
        return self._spread(self.predicted_watts)

    def baseline_scores(self) -> dict[ScoreName, Spread]:
        """The same of the median power of the training rows of each fold."""
        return self._spread(self.baseline_watts)

    def other_scores(self) -> dict[Baseline, dict[ScoreName, Spread]]:
        """The same of the further baselines."""
        return {name: self._spread(watts) for name, watts in self.others.items()}

    def interval_scores(
        self,
        exponents: Sequence[float] = (0.0,),
        level: float = LEVEL,
        *,
        floor_watts: float = 0.0,
        of: Baseline | None = None,
    ) -> dict[IntervalScoreName, Spread]:
        """What intervals hold whose width comes from the residuals of the other folds alone.

        They are around the model's predictions, or around those ``of`` a baseline; ``exponents``
        and ``floor_watts`` are those of ``cross_conformal``.

        The residuals were left by models that saw the fold under test, as in cross-conformal
        prediction; ``evaluation.calibration`` nests that away too, at six times the fits. Raises
        ValueError for predictions without fold numbers.
        """
        return spread_of(
            [
                interval_scores(
                    known.measured_watts,
                    *cross_conformal(
                        known, folds, level, exponents=exponents, floor_watts=floor_watts
                    ),
                    groups,
                    level,
                )
                for known, folds, groups in self._by_assignment(self._predicted(of))
            ]
        )

    def best_exponent(
        self, exponents: Sequence[float], floor_watts: float, level: float = LEVEL
    ) -> float:
        """How widths are to grow with the prediction, by the scores of cross-conformal ones."""
        known = [(one, folds) for one, folds, _ in self._by_assignment(self.predicted_watts)]
        return best_exponent(known, level, exponents, floor_watts)

    def take(self, rows: Indices) -> OutOfFold:
        """What was predicted of the chosen rows, one GPU's say."""
        return replace(
            self,
            rows=self.rows.take(rows),
            predicted_watts=self.predicted_watts[:, rows],
            baseline_watts=self.baseline_watts[:, rows],
            outside=self.outside[:, rows],
            others={name: watts[:, rows] for name, watts in self.others.items()},
            folds=None if self.folds is None else self.folds[:, rows],
        )

    def residuals(self) -> Residuals:
        """All assignments' tested predictions in one list, for interval calibration."""
        count = len(self.predicted_watts)
        predicted = self.predicted_watts.ravel()
        tested = ~np.isnan(predicted)
        return Residuals(
            np.tile(self.rows.watts, count)[tested],
            predicted[tested],
            np.tile(self.rows.groups, count)[tested],
        )

    def _predicted(self, of: Baseline | None) -> Floats:
        if of is None:
            return self.predicted_watts
        return self.baseline_watts if of == "median_watts" else self.others[of]

    def _spread(self, each: Floats) -> dict[ScoreName, Spread]:
        return spread_of([self._point_scores(watts) for watts in each])

    def _point_scores(self, watts: Floats) -> dict[ScoreName, float]:
        tested = ~np.isnan(watts)
        return point_scores(self.rows.watts[tested], watts[tested], self.rows.groups[tested])

    def _by_assignment(self, watts: Floats) -> Iterator[tuple[Residuals, Indices, Indices]]:
        """Residuals, folds and kernel groups of the tested rows of each assignment."""
        if self.folds is None:
            raise ValueError("intervals need to know the folds")
        for predicted, folds in zip(watts, self.folds, strict=True):
            tested = folds >= 0
            groups = self.rows.groups[tested]
            # In random folds the kernel is known, so that every row is a case of its own.
            units = np.arange(len(groups)) if self.protocol == "random" else groups
            yield (
                Residuals(self.rows.watts[tested], predicted[tested], units),
                folds[tested],
                groups,
            )


def evaluate(
    rows: Rows,
    fit: Fit,
    protocol: AnyProtocol,
    seeds: Sequence[int],
    *,
    folds: int = FOLDS,
    shots: int = 0,
    jobs: int = 1,
) -> OutOfFold:
    """Predict every tested row by a model that did not see it, once per seed, with baselines.

    The model gets test rows without their power. ``shots`` and ``folds`` as in
    ``splits.folds_of``; ``jobs`` fits at a time. Raises ValueError where the rows do not
    allow the protocol.
    """
    baselines: dict[Baseline, Fit] = {
        name: baseline
        for name, baseline in BASELINES.items()
        if name != "own_median_watts" or protocol in WITH_SHOTS
    }
    shape = (len(seeds), len(rows))
    predicted = np.full(shape, np.nan)
    others = {name: np.full(shape, np.nan) for name in baselines}
    fold_numbers = np.full(shape, -1, dtype=np.int64)
    outside = np.zeros(shape, dtype=np.bool_)

    def one(task: tuple[int, int, Fold]) -> None:
        at, number, fold = task
        train = rows.take(fold.train)
        predict = fit(train)
        simple = {name: baseline(train) for name, baseline in baselines.items()}
        for known_rows, test_rows in fold.cases:
            known, test = rows.take(known_rows), rows.take(test_rows).hidden()
            predicted[at, test_rows] = predict(known, test)
            for name, baseline in simple.items():
                others[name][at, test_rows] = baseline(known, test)
            seen = joined([train, known]) if len(known) else train
            outside[at, test_rows] = outside_range(seen.vectors, test.vectors)
            fold_numbers[at, test_rows] = number

    tasks = [
        (at, number, fold)
        for at, seed in enumerate(seeds)
        for number, fold in enumerate(folds_of(rows, protocol, seed, folds=folds, shots=shots))
    ]
    # Each task writes rows of its own; the order of tasks changes nothing.
    with ThreadPoolExecutor(jobs) as pool:
        deque(pool.map(one, tasks), maxlen=0)
    baseline = others.pop("median_watts")
    return OutOfFold(rows, predicted, baseline, outside, others, fold_numbers, protocol)


def cross_validate(
    rows: Rows,
    fit_predict: FitPredict,
    protocol: Protocol,
    seeds: Sequence[int],
    *,
    folds: int = FOLDS,
    jobs: int = 1,
) -> OutOfFold:
    """As ``evaluate``, for a model that needs vectors and watts alone."""
    return evaluate(rows, plain(fit_predict), protocol, seeds, folds=folds, jobs=jobs)


def outside_range(train: Floats, test: Floats) -> NDArray[np.bool_]:
    """Test rows with a value beyond the range of the training rows', ``[m]``."""
    # fmin and fmax: a feature that no training row has bounds nothing, and is no reason to warn.
    low, high = np.fmin.reduce(train, axis=0), np.fmax.reduce(train, axis=0)
    return np.asarray(((test < low) | (test > high)).any(axis=1))


def averaged(parts: Sequence[OutOfFold]) -> OutOfFold:
    """The average of several models on the same folds."""
    first = parts[0]
    mean = np.mean([part.predicted_watts for part in parts], axis=0)
    return replace(first, predicted_watts=mean)
