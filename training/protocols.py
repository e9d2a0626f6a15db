"""How models are scored: on rows, and on kernels, they have not seen.

``random`` folds split rows, so that other launches of the same kernel are in training: what the
literature reports. ``grouped`` folds keep all rows of a kernel group on one side: what a user's
own kernel gets. Scores are computed on the out-of-fold predictions of all rows of one fold
assignment; mean and spread are over seeded assignments, since fold luck is large.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from models.cards import ScoreName, Spread
from models.intervals import Residuals
from training.rows import FitPredict, Floats, Indices, Rows
from training.scores import point_scores, spread_of

Protocol = Literal["random", "grouped"]

FOLDS = 5
ASSIGNMENTS = 10
"""Seeded fold assignments of a full evaluation."""


@dataclass(frozen=True)
class OutOfFold:
    """Predictions of every row by models that did not see it, one per assignment.

    ``predicted_watts`` and ``baseline_watts`` are ``[assignments, n]``; ``outside`` marks rows
    with a feature outside the range of their fold's training rows.
    """

    rows: Rows
    predicted_watts: Floats
    baseline_watts: Floats
    outside: NDArray[np.bool_]

    def scores(self) -> dict[ScoreName, Spread]:
        """Mean and spread of the model's scores over the assignments."""
        return self._spread(self.predicted_watts)

    def baseline_scores(self) -> dict[ScoreName, Spread]:
        """The same of the median power of the training rows of each fold."""
        return self._spread(self.baseline_watts)

    def residuals(self) -> Residuals:
        """All assignments' predictions in one list, for interval calibration."""
        count = len(self.predicted_watts)
        return Residuals(
            np.tile(self.rows.watts, count),
            self.predicted_watts.ravel(),
            np.tile(self.rows.groups, count),
        )

    def _spread(self, each: Floats) -> dict[ScoreName, Spread]:
        measured, groups = self.rows.watts, self.rows.groups
        return spread_of([point_scores(measured, watts, groups) for watts in each])


def fold_assignment(rows: Rows, protocol: Protocol, seed: int, folds: int = FOLDS) -> Indices:
    """Fold of every row, ``[n]`` in 0..folds-1, the same for the same seed.

    ``grouped`` deals the shuffled groups out, each to the fold with the fewest rows so far, so
    that folds have like sizes although groups do not. Raises ValueError for fewer groups than
    folds.
    """
    generator = np.random.default_rng(seed)
    if protocol == "random":
        assignment = np.empty(len(rows.watts), dtype=np.int64)
        assignment[generator.permutation(len(rows.watts))] = np.arange(len(rows.watts)) % folds
        return assignment
    sizes = np.bincount(rows.groups)
    groups = np.flatnonzero(sizes)
    if len(groups) < folds:
        raise ValueError(f"{len(groups)} kernel groups cannot fill {folds} folds")
    fold_of = np.full(len(sizes), -1, dtype=np.int64)
    filled = np.zeros(folds, dtype=np.int64)
    for group in generator.permutation(groups):
        fold = int(np.argmin(filled))
        fold_of[group] = fold
        filled[fold] += sizes[group]
    return fold_of[rows.groups]


def cross_validate(
    rows: Rows,
    fit_predict: FitPredict,
    protocol: Protocol,
    seeds: Sequence[int],
    *,
    folds: int = FOLDS,
    jobs: int = 1,
) -> OutOfFold:
    """Predict every row by a model that did not see it, once per seed; ``jobs`` fits at a time."""
    shape = (len(seeds), len(rows.watts))
    predicted, baseline = np.empty(shape), np.empty(shape)
    outside = np.zeros(shape, dtype=np.bool_)

    def one(task: tuple[int, Indices, int]) -> None:
        at, assignment, fold = task
        test, train = assignment == fold, assignment != fold
        vectors = rows.vectors[train]
        predicted[at, test] = fit_predict(vectors, rows.watts[train], rows.vectors[test])
        baseline[at, test] = np.median(rows.watts[train])
        outside[at, test] = outside_range(vectors, rows.vectors[test])

    tasks = [
        (at, assignment, fold)
        for at, seed in enumerate(seeds)
        for assignment in [fold_assignment(rows, protocol, seed, folds)]
        for fold in range(folds)
    ]
    # Each task writes rows of its own; the order of tasks changes nothing.
    with ThreadPoolExecutor(jobs) as pool:
        deque(pool.map(one, tasks), maxlen=0)
    return OutOfFold(rows, predicted, baseline, outside)


def outside_range(train: Floats, test: Floats) -> NDArray[np.bool_]:
    """Test rows with a value beyond the range of the training rows', ``[m]``."""
    low, high = np.nanmin(train, axis=0), np.nanmax(train, axis=0)
    return np.asarray(((test < low) | (test > high)).any(axis=1))


def averaged(parts: Sequence[OutOfFold]) -> OutOfFold:
    """The average of several models on the same folds."""
    mean = np.mean([part.predicted_watts for part in parts], axis=0)
    return OutOfFold(parts[0].rows, mean, parts[0].baseline_watts, parts[0].outside)
