"""What 90 % intervals hold on kernels that neither the model nor its calibration has seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from studies.fitting.out_of_fold import Fit, OutOfFold, averaged, evaluate, measure_coverage
from wattcast.models.intervals import (
    Coverage,
    IntervalCalibration,
    Residuals,
    Width,
    calibrate,
    conformal_width,
    interval_bounds,
)
from wattcast.training.evaluation.scores import FOLDS, Rows, fold_assignment, outside_range

Floats = NDArray[np.float64]

LEVEL = 0.9
EXPONENTS = (0.0, 0.5, 1.0)
"""How the widths for unseen kernels may grow with the prediction: in proportion, as its square
root, not at all. Which one a card takes, its interval scores decide."""
NESTED_SEEDS = (0, 1)
"""Outer assignments of the nested protocol: each costs as much as six plain ones."""


@dataclass(frozen=True)
class NestedFold:
    """Outer test rows (their indices and predictions) and the inner out-of-fold predictions."""

    test: NDArray[np.int64]
    outside: NDArray[np.bool_]
    predicted_watts: Floats
    inner: OutOfFold


def nested_folds(rows: Rows, fit: Fit, seeds: Sequence[int], *, jobs: int = 1) -> list[NestedFold]:
    """Grouped folds, each with a grouped cross-validation of its own training rows."""
    folds = []
    for seed in seeds:
        assignment = fold_assignment(rows, "grouped", seed)
        for fold in range(FOLDS):
            test, train = np.flatnonzero(assignment == fold), np.flatnonzero(assignment != fold)
            known = rows.take(train)
            inner = evaluate(known, fit, "grouped", [seed], jobs=jobs)
            nothing = rows.take(np.empty(0, dtype=np.int64))
            predicted = fit(known)(nothing, rows.take(test).hidden())
            outside = outside_range(known.vectors, rows.vectors[test])
            folds.append(NestedFold(test, outside, predicted, inner))
    return folds


def averaged_folds(parts: Sequence[Sequence[NestedFold]]) -> list[NestedFold]:
    """The average of several models on the same nested folds."""
    return [
        NestedFold(
            each[0].test,
            each[0].outside,
            np.mean([one.predicted_watts for one in each], axis=0),
            averaged([one.inner for one in each]),
        )
        for each in zip(*parts, strict=True)
    ]


def calibrated(
    grouped: OutOfFold, random: OutOfFold, nested: Sequence[NestedFold], floor_watts: float
) -> IntervalCalibration:
    """Widths from all out-of-fold residuals, with the coverage they really have.

    The unseen-kernel coverage is nested: predictions and widths of a kernel come from models
    and residuals of other kernels alone, which also choose how it grows with the prediction
    (``EXPONENTS``). The seen-kernel coverage is that of rows in random
    folds under widths from the residuals of other rows.
    """
    calibration = calibrate(
        grouped=grouped.residuals(),
        random=random.residuals(),
        outside=grouped.outside.ravel(),
        floor_watts=floor_watts,
        level=LEVEL,
        exponent=grouped.best_exponent(EXPONENTS, floor_watts),
        unseen_coverage=_nested_coverage(grouped.rows, nested, floor_watts),
        seen_coverage=_random_coverage(random, floor_watts),
    )
    beyond = _extrapolated_coverage(grouped.rows, nested, calibration, floor_watts)
    outer = calibration.extrapolated.model_copy(update={"coverage": beyond})
    return calibration.model_copy(update={"extrapolated": outer})


def _nested_coverage(rows: Rows, nested: Sequence[NestedFold], floor_watts: float) -> Coverage:
    widths = [_unseen_width(fold.inner, floor_watts) for fold in nested]
    bounds = [
        interval_bounds(fold.predicted_watts, width, floor_watts)
        for fold, width in zip(nested, widths, strict=True)
    ]
    test = np.concatenate([fold.test for fold in nested])
    return measure_coverage(
        "nested leave-kernel-groups-out, every row",
        rows.watts[test],
        np.concatenate([low for low, _ in bounds]),
        np.concatenate([high for _, high in bounds]),
        rows.groups[test],
        LEVEL,
    )


def _extrapolated_coverage(
    rows: Rows, nested: Sequence[NestedFold], calibration: IntervalCalibration, floor_watts: float
) -> Coverage | None:
    """Coverage of the wider interval on left-out rows outside the training range, if any.

    Nested like the unseen-kernel one in its predictions; the width is the shipped one, since
    few such rows are left for a calibration of their own inside a fold.
    """
    if not any(fold.outside.any() for fold in nested):
        return None
    test = np.concatenate([fold.test[fold.outside] for fold in nested])
    watts = np.concatenate([fold.predicted_watts[fold.outside] for fold in nested])
    low, high = interval_bounds(watts, calibration.extrapolated, floor_watts)
    return measure_coverage(
        "leave-kernel-groups-out, rows outside the training range, shipped width",
        rows.watts[test],
        low,
        high,
        rows.groups[test],
        LEVEL,
    )


def _unseen_width(inner: OutOfFold, floor_watts: float) -> Width:
    exponent = inner.best_exponent(EXPONENTS, floor_watts)
    return conformal_width(inner.residuals(), LEVEL, exponent)


def _random_coverage(random: OutOfFold, floor_watts: float) -> Coverage:
    rows, watts = random.rows, random.predicted_watts[0]
    # Which rows calibrate is drawn anew: half of the rows for the other half, both ways.
    half = np.random.default_rng(0).permutation(len(watts)) % 2
    low, high = np.empty_like(watts), np.empty_like(watts)
    residuals = Residuals(rows.watts, watts, np.arange(len(watts)))
    for part in (0, 1):
        width = conformal_width(residuals.take(half != part), LEVEL)
        low[half == part], high[half == part] = interval_bounds(
            watts[half == part], width, floor_watts
        )
    return measure_coverage(
        "random folds, rows split between calibration and test",
        rows.watts,
        low,
        high,
        rows.groups,
        LEVEL,
    )
