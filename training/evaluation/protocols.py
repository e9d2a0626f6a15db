"""How models are scored: on rows, kernels, families and GPUs that they have not seen.

``random`` folds split rows, so that other launches of the same kernel are in training: what the
literature reports. ``grouped`` folds keep all rows of a kernel group on one side: what a user's
own kernel gets. ``studies.evaluation`` has other protocols and baselines. Scores are computed on
the out-of-fold predictions of all tested rows of one fold assignment; mean and spread are over
seeded assignments, since fold luck is large.

    evaluate(rows, fit, protocol, seeds)     any model, beside the median of the training rows
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wattcast.models.cards import ScoreName, Spread
from wattcast.models.intervals import Residuals
from wattcast.training.evaluation.scores import best_exponent, point_scores, spread_of
from wattcast.training.evaluation.splits import (
    FOLDS,
    Fit,
    Floats,
    Fold,
    Indices,
    Predict,
    Protocol,
    Rows,
    fold_assignment,
    folds_of,
    joined,
)


def median_watts(train: Rows) -> Predict:
    """The median of all training and known rows."""

    def predict(known: Rows, test: Rows) -> Floats:
        watts = np.concatenate([train.watts, known.watts])
        return np.full(len(test), np.median(watts))

    return predict


ASSIGNMENTS = 10
"""Seeded fold assignments of a full evaluation."""
LEVEL = 0.9


@dataclass(frozen=True)
class OutOfFold:
    """Predictions of every tested row by models that did not see it, one per assignment.

    ``predicted_watts`` and ``baseline_watts`` (the median of the training rows) are
    ``[assignments, n]``, NaN where a row was not tested; ``outside`` marks rows with a feature
    outside the range of their fold's training rows. ``folds`` holds the number of each row's fold
    (-1: not tested).
    """

    rows: Rows
    predicted_watts: Floats
    baseline_watts: Floats
    outside: NDArray[np.bool_]
    folds: Indices | None = None
    protocol: str = "grouped"

    def scores(self) -> dict[ScoreName, Spread]:
        """Mean and spread of the model's scores over the assignments."""
        return self._spread(self.predicted_watts)

    def baseline_scores(self) -> dict[ScoreName, Spread]:
        """The same of the median power of the training rows of each fold."""
        return self._spread(self.baseline_watts)

    def best_exponent(
        self, exponents: Sequence[float], floor_watts: float, level: float = LEVEL
    ) -> float:
        """How widths are to grow with the prediction, by the scores of cross-conformal ones."""
        known = [(one, folds) for one, folds, _ in self.by_assignment(self.predicted_watts)]
        return best_exponent(known, level, exponents, floor_watts)

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

    def _spread(self, each: Floats) -> dict[ScoreName, Spread]:
        return spread_of([self._point_scores(watts) for watts in each])

    def _point_scores(self, watts: Floats) -> dict[ScoreName, float]:
        tested = ~np.isnan(watts)
        return point_scores(self.rows.watts[tested], watts[tested], self.rows.groups[tested])

    def by_assignment(self, watts: Floats) -> Iterator[tuple[Residuals, Indices, Indices]]:
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
    protocol: Protocol,
    seeds: Sequence[int],
    *,
    folds: int = FOLDS,
    jobs: int = 1,
) -> OutOfFold:
    """Predict every tested row by a model that did not see it, once per seed, beside the median.

    The model gets test rows without their power. ``folds`` as in ``splits.folds_of``; ``jobs`` fits
    at a time. Raises ValueError where the rows do not allow the protocol.
    """
    dealt = [folds_of(fold_assignment(rows, protocol, seed, folds)) for seed in seeds]
    fits = {"model": fit, "median_watts": median_watts}
    watts, outside, numbers = out_of_fold(rows, fits, dealt, jobs)
    return OutOfFold(
        rows, watts["model"], watts["median_watts"], outside, folds=numbers, protocol=protocol
    )


def out_of_fold(
    rows: Rows, fits: Mapping[str, Fit], dealt: Sequence[Iterable[Fold]], jobs: int = 1
) -> tuple[dict[str, Floats], NDArray[np.bool_], Indices]:
    """What each of ``fits`` predicts of the tested rows, ``[assignments, n]`` (NaN: not tested).

    ``dealt`` are the folds of each assignment. Also: which rows lie outside the range of their
    training rows, and the numbers of their folds (-1: not tested).
    """
    shape = (len(dealt), len(rows))
    predicted = {name: np.full(shape, np.nan) for name in fits}
    fold_numbers = np.full(shape, -1, dtype=np.int64)
    outside = np.zeros(shape, dtype=np.bool_)

    def one(task: tuple[int, int, Fold]) -> None:
        at, number, fold = task
        train = rows.take(fold.train)
        predicts = {name: fit(train) for name, fit in fits.items()}
        for known_rows, test_rows in fold.cases:
            known, test = rows.take(known_rows), rows.take(test_rows).hidden()
            for name, predict in predicts.items():
                predicted[name][at, test_rows] = predict(known, test)
            seen = joined([train, known]) if len(known) else train
            outside[at, test_rows] = outside_range(seen.vectors, test.vectors)
            fold_numbers[at, test_rows] = number

    tasks = [
        (at, number, fold) for at, folds in enumerate(dealt) for number, fold in enumerate(folds)
    ]
    # Each task writes rows of its own; the order of tasks changes nothing.
    with ThreadPoolExecutor(jobs) as pool:
        deque(pool.map(one, tasks), maxlen=0)
    return predicted, outside, fold_numbers


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
