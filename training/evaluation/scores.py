"""The scores of predicted power and time: one function and one definition each.

Arrays are ``[n]``: watts measured, predicted, and the lower and upper end of an interval. Errors
in percent are of the measured value. The interval scores are ``models.intervals``' own, so that
a card and a report cannot mean different things by one name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wattcast.models.cards import ScoreName, Spread
from wattcast.models.intervals import (
    Residuals,
    conformal_width,
    interval_bounds,
    measure_coverage,
)
from wattcast.models.time.calibration import TimeScoreName

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Name = TypeVar("Name", bound=str)

_DIGITS = 6
"""Digits kept of a mean and its spread: far more than the spread supports, and steady against
the order of summation."""


def r2(measured: Floats, predicted: Floats) -> float:
    """Share of the variance explained, 1 - SS_res / SS_tot about the mean of ``measured``.
    0 is what that mean would score, below 0 is worse. NaN where all measured values are equal."""
    total = float(np.sum((measured - measured.mean()) ** 2))
    return 1 - float(np.sum((predicted - measured) ** 2)) / total if total > 0 else float("nan")


def rmse_watts(measured: Floats, predicted: Floats) -> float:
    """Root of the mean squared error."""
    return float(np.sqrt(np.mean((predicted - measured) ** 2)))


def mae_watts(measured: Floats, predicted: Floats) -> float:
    """Mean absolute error."""
    return float(np.mean(np.abs(predicted - measured)))


def ape_percent(measured: Floats, predicted: Floats) -> Floats:
    """Absolute error of every row in percent of its measured value, ``[n]``."""
    return np.asarray(np.abs(predicted - measured) / measured * 100)


def mape_percent(measured: Floats, predicted: Floats) -> float:
    """Mean absolute error in percent: every row counts the same."""
    return float(np.mean(ape_percent(measured, predicted)))


def median_ape_percent(measured: Floats, predicted: Floats) -> float:
    """Median absolute error in percent: half of the rows are nearer."""
    return float(np.median(ape_percent(measured, predicted)))


def kernel_macro_mape_percent(measured: Floats, predicted: Floats, groups: ArrayLike) -> float:
    """MAPE of every kernel group, averaged: a kernel counts the same however often it was run."""
    return float(np.mean(group_means(ape_percent(measured, predicted), groups)))


def point_scores(measured: Floats, predicted: Floats, groups: ArrayLike) -> dict[ScoreName, float]:
    """All scores of predicted watts, under the names that cards use."""
    return {
        "r2": r2(measured, predicted),
        "rmse_watts": rmse_watts(measured, predicted),
        "mae_watts": mae_watts(measured, predicted),
        "mape_percent": mape_percent(measured, predicted),
        "median_ape_percent": median_ape_percent(measured, predicted),
        "kernel_macro_mape_percent": kernel_macro_mape_percent(measured, predicted, groups),
    }


def interval_score_watts(measured: Floats, low: Floats, high: Floats, level: float) -> float:
    """Mean interval score: width plus 2 / (1 - level) times the distance of a miss; less is better.

    T. Gneiting and A. E. Raftery, "Strictly proper scoring rules, prediction, and estimation",
    JASA 102 (2007), equation 43.
    """
    own = np.arange(len(measured))
    return measure_coverage("", measured, low, high, own, level).interval_score_watts


def cross_conformal(
    residuals: Residuals,
    folds: ArrayLike,
    level: float,
    *,
    exponents: Sequence[float] = (0.0,),
    floor_watts: float = 0.0,
) -> tuple[Floats, Floats]:
    """Lower and upper bounds ``[n]``, those of a fold from the residuals of the other folds.

    ``residuals.groups`` says which rows count as one (``models.intervals.conformal_factors``),
    ``exponents`` how widths may grow with the prediction (``conformal_width``): of several that
    which scores best among the other folds. Raises ModelError for predictions that are not
    positive.
    """
    fold = np.asarray(folds)
    low, high = np.empty_like(residuals.predicted_watts), np.empty_like(residuals.predicted_watts)
    for each in np.unique(fold):
        test, other = fold == each, fold != each
        known = residuals.take(other)
        exponent = best_exponent([(known, fold[other])], level, exponents, floor_watts)
        width = conformal_width(known, level, exponent)
        low[test], high[test] = interval_bounds(residuals.predicted_watts[test], width, floor_watts)
    return low, high


def best_exponent(
    assignments: Sequence[tuple[Residuals, Indices]],
    level: float,
    exponents: Sequence[float],
    floor_watts: float,
) -> float:
    """The exponent whose intervals score best, by residuals and their folds; else the first."""
    if len(exponents) == 1:
        return exponents[0]

    def score(exponent: float) -> float:
        found = []
        for residuals, folds in assignments:
            bounds = cross_conformal(
                residuals, folds, level, exponents=[exponent], floor_watts=floor_watts
            )
            found.append(interval_score_watts(residuals.measured_watts, *bounds, level))
        return float(np.mean(found))

    return min(exponents, key=score)


def spread_of(each: Sequence[dict[Name, float]]) -> dict[Name, Spread]:
    """Mean and (population) standard deviation of every score over seeded assignments."""
    return {
        name: Spread(
            mean=_rounded(np.mean([one[name] for one in each])),
            std=_rounded(np.std([one[name] for one in each])),
        )
        for name in each[0]
    }


def group_means(values: Floats, groups: ArrayLike) -> Floats:
    """Mean value of each group, in the order of the groups' numbers."""
    _, index = np.unique(np.asarray(groups), return_inverse=True)
    return np.asarray(np.bincount(index, weights=values) / np.bincount(index))


def _rounded(value: float | np.floating) -> float:
    return round(float(value), _DIGITS)


def time_scores(
    measured: Floats, predicted: Floats, programs: Indices
) -> dict[TimeScoreName, float]:
    """Scores of predicted seconds ``[n]``; see ``TimeScoreName``."""
    ape = np.abs(predicted / measured - 1) * 100
    within = np.abs(np.log(predicted / measured)) <= np.log(2)
    members = [programs == program for program in np.unique(programs)]
    return {
        "median_ape_percent": float(np.median(ape)),
        "within_25_percent_share": float(np.mean(ape <= 25)),
        "within_factor_2_share": float(np.mean(within)),
        "program_median_ape_percent": float(np.median([np.median(ape[own]) for own in members])),
        "program_within_factor_2_share": float(np.mean([within[own].mean() for own in members])),
    }
