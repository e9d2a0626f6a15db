"""Baselines and intervals of evaluation that only studies ask for.

| protocol | left out | answers |
|---|---|---|
| ``random`` | a fifth of the rows | a new launch of a kernel that was measured |
| ``grouped`` | a fifth of the kernel groups | a new kernel |
| ``known_folds`` | the same, but for ``shots`` rows of each kernel | that, measured a little |

    evaluate(rows, fit, protocol, seeds)     any model
    cross_validate(rows, fit_predict, ...)   the same for a model of vectors and watts alone

The nearest training row knows next to nothing of a kernel; every score stands beside its.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial import cKDTree
from sklearn.feature_selection import VarianceThreshold
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from studies.fitting.out_of_fold import (
    LEVEL,
    Case,
    Fit,
    FitPredict,
    Fold,
    OutOfFold,
    cross_conformal,
    folds_of,
    interval_score_watts,
    measure_coverage,
    median_watts,
    out_of_fold,
    plain,
)
from wattcast.models.cards import ScoreName, Spread
from wattcast.training.evaluation.scores import (
    FOLDS,
    Floats,
    Indices,
    Predict,
    Protocol,
    Rows,
    fold_assignment,
    spread_of,
)

IntervalScoreName = Literal[
    "coverage", "kernel_macro_coverage", "mean_width_watts", "interval_score_watts"
]

CONSTANT = (1.0,)
"""The exponent of intervals of equally many watts around each prediction."""


def nearest_watts(train: Rows) -> Predict:
    """The power of the nearest training row.

    Features are standardised by mean and deviation of the training rows; a missing value lies
    at the mean, a feature that never varies has no say.
    """
    told = ~np.isnan(train.vectors).all(axis=0)
    zeros = SimpleImputer(strategy="constant", fill_value=0.0)
    places = make_pipeline(VarianceThreshold(), StandardScaler(), zeros)
    neighbours = cKDTree(places.fit_transform(train.vectors[:, told]))

    def predict(known: Rows, test: Rows) -> Floats:
        _, index = neighbours.query(places.transform(test.vectors[:, told]))
        return np.asarray(train.watts[index])

    return predict


@dataclass(frozen=True)
class BesideBaselines(OutOfFold):
    """Predictions out of fold beside those of further baselines, ``others``."""

    others: Mapping[str, Floats] = field(default_factory=dict)

    def other_scores(self) -> dict[str, dict[ScoreName, Spread]]:
        """Scores of the further baselines."""
        return {name: self._spread(watts) for name, watts in self.others.items()}

    def interval_scores(
        self,
        exponents: Sequence[float] = (0.0,),
        level: float = LEVEL,
        *,
        floor_watts: float = 0.0,
    ) -> dict[IntervalScoreName, Spread]:
        """What intervals hold whose width comes from the residuals of the other folds alone.

        ``exponents`` and ``floor_watts`` are those of ``cross_conformal``. The residuals were left
        by models that saw the fold under test, as in cross-conformal prediction;
        ``evaluation.calibration`` nests that away too, at six times the fits. Raises ValueError for
        predictions without fold numbers.
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
                for known, folds, groups in self.by_assignment(self.predicted_watts)
            ]
        )


def evaluate(
    rows: Rows, fit: Fit, protocol: Protocol, seeds: Sequence[int],
    *, folds: int = FOLDS, jobs: int = 1,
) -> BesideBaselines:  # fmt: skip
    """Predict every row by a model that did not see it, once per seed, with baselines.

    The model gets test rows without their power; ``jobs`` fits at a time. Raises ValueError where
    the rows do not allow the protocol.
    """
    dealt = [folds_of(fold_assignment(rows, protocol, seed, folds)) for seed in seeds]
    fits = {"model": fit, "median_watts": median_watts, "nearest_watts": nearest_watts}
    watts, outside, numbers = out_of_fold(rows, fits, dealt, jobs)
    others = {"nearest_watts": watts["nearest_watts"]}
    return BesideBaselines(
        rows, watts["model"], watts["median_watts"], outside, numbers, protocol, others
    )


def cross_validate(
    rows: Rows, fit_predict: FitPredict, protocol: Protocol, seeds: Sequence[int],
    *, jobs: int = 1,
) -> BesideBaselines:  # fmt: skip
    """As ``evaluate``, for a model that needs vectors and watts alone."""
    return evaluate(rows, plain(fit_predict), protocol, seeds, jobs=jobs)


def known_folds(rows: Rows, seed: int, shots: int) -> Iterator[Fold]:
    """Grouped folds, but for ``shots`` rows (at least 1) of each kernel, drawn by the seed.

    A kernel with no more rows than that is not tested.
    """
    kernels = rows.groups if rows.kernels is None else rows.kernels
    # Another stream than the one that dealt the folds: which rows are known must not follow it.
    generator = np.random.default_rng([seed, 1])
    for train, ((_, test),) in folds_of(fold_assignment(rows, "grouped", seed, FOLDS)):
        cases = [
            _case(test[kernels[test] == kernel], shots, generator)
            for kernel in np.unique(kernels[test])
        ]
        yield Fold(train, tuple(case for case in cases if len(case.test)))


def _case(own: Indices, shots: int, generator: np.random.Generator) -> Case:
    order = generator.permutation(own)
    return Case(np.sort(order[:shots]), np.sort(order[shots:]))


def coverage(measured: Floats, low: Floats, high: Floats) -> float:
    """Share of rows inside their interval."""
    return float(np.mean((low <= measured) & (measured <= high)))


def interval_scores(
    measured: Floats, low: Floats, high: Floats, groups: ArrayLike, level: float
) -> dict[IntervalScoreName, float]:
    """All scores of intervals at a nominal level."""
    found = measure_coverage("", measured, low, high, groups, level)
    return {
        "coverage": coverage(measured, low, high),
        "kernel_macro_coverage": found.kernels,
        "mean_width_watts": found.mean_width_watts,
        "interval_score_watts": interval_score_watts(measured, low, high, level),
    }
