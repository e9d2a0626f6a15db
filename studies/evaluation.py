"""Protocols and baselines of evaluation that only studies ask for.

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

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from scipy.spatial import cKDTree
from sklearn.feature_selection import VarianceThreshold
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from studies.fitting import out_of_fold
from studies.fitting.out_of_fold import Case, FitPredict, Fold, OutOfFold, folds_of, plain
from wattcast.training.evaluation.scores import (
    FOLDS,
    Floats,
    Indices,
    Predict,
    Protocol,
    Rows,
    fold_assignment,
)


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


evaluate = partial(out_of_fold.evaluate, others={"nearest_watts": nearest_watts})
"""``out_of_fold.evaluate`` beside the nearest training row."""


def cross_validate(
    rows: Rows, fit_predict: FitPredict, protocol: Protocol, seeds: Sequence[int],
    *, jobs: int = 1,
) -> OutOfFold:  # fmt: skip
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
