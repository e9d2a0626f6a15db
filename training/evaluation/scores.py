"""The scores of predicted power and time: one function and one definition each.

Arrays are ``[n]``: watts measured, predicted, and the lower and upper end of an interval. Errors
in percent are of the measured value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wattcast.models.cards import ProtocolScores, ScoreName, Spread
from wattcast.models.time.calibration import TimeScoreName
from wattcast.training.evaluation.splits import Protocol

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


def spread_of(each: Sequence[dict[Name, float]]) -> dict[Name, Spread]:
    """Mean and (population) standard deviation of every score over seeded assignments."""
    return {
        name: Spread(
            mean=_rounded(np.mean([one[name] for one in each])),
            std=_rounded(np.std([one[name] for one in each])),
        )
        for name in each[0]
    }


def protocol_scores(
    protocol: Protocol,
    folds: int,
    measured: Floats,
    groups: ArrayLike,
    model: Sequence[Floats] | Floats,
    baseline: Sequence[Floats] | Floats,
) -> ProtocolScores:
    """Scores of a measured table: predictions ``[n]`` of model and baseline by assignment."""
    own, plain = (
        spread_of([point_scores(measured, one, groups) for one in each])
        for each in (model, baseline)
    )
    return ProtocolScores(
        table="measured",
        protocol=protocol,
        folds=folds,
        assignments=len(model),
        model=own,
        baseline=plain,
    )


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
