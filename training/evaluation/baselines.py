"""What a model has to beat: predictors that know next to nothing of a kernel.

*   ``median_watts``: the median power of the training rows;
*   ``clock_median_watts``: that of the training rows at the row's clocks; where none were
    measured there, or the rows have one clock, it is the former;
*   ``nearest_watts``: the power of the nearest training row, features standardised;
*   ``own_median_watts``: the median power of the known rows of the same kernel or GPU, in protocols
    that have some: what a few measurements tell without any model.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import numpy as np
from scipy.spatial import cKDTree

from wattcast.training.evaluation.rows import Fit, Floats, Predict, Rows, joined

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
