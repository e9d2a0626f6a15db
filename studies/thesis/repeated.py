"""Repeated runs of XGBoost: thesis Table 5.9.

The thesis averages the scores of the folds and calls the spread over five shufflings robustness.
Here stand both that and the project's own scores, which pool the predictions of all folds of a
shuffling: the mean of the folds' R2 is another number, since every fold has a variance of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from studies.evaluation import BesideBaselines
from studies.thesis.data import rows_of
from studies.thesis.judged import PROTOCOLS, Effort, Judged, judge
from studies.thesis.regressors import REGRESSORS
from wattcast.models.cards import ScoreName, Spread
from wattcast.training.evaluation.scores import point_scores, spread_of
from wattcast.training.evaluation.splits import Protocol

RUNS = 5
"""Runs of Table 5.9."""
MODEL = "xgboost"


class Repeated(NamedTuple):
    """One GPU over all runs: pooled predictions, and the scores averaged over folds."""

    judged: Judged
    by_fold: Mapping[Protocol, Mapping[ScoreName, Spread]]


def repeated_runs(
    tables: Mapping[str, pd.DataFrame], effort: Effort, runs: int = RUNS
) -> dict[str, Repeated]:
    """GPU -> the runs of XGBoost, each with folds dealt anew."""
    found = {}
    for gpu, frame in tables.items():
        effort.progress(f"{gpu}: {runs} runs")
        judged = judge(MODEL, rows_of(frame), REGRESSORS[MODEL], replace(effort, assignments=runs))
        by_fold = {each: mean_of_folds(judged.by(each)) for each in PROTOCOLS}
        found[gpu] = Repeated(judged, by_fold)
    return found


def mean_of_folds(predicted: BesideBaselines) -> dict[ScoreName, Spread]:
    """Scores of each fold, averaged over the folds of a run; mean and spread over runs.

    Raises ValueError for predictions without fold numbers.
    """
    if predicted.folds is None:
        raise ValueError("scores by fold need to know the folds")
    rows, runs = predicted.rows, []
    for watts, numbers in zip(predicted.predicted_watts, predicted.folds, strict=True):
        folds = [
            point_scores(rows.watts[test], watts[test], rows.groups[test])
            for test in (np.flatnonzero(numbers == fold) for fold in np.unique(numbers))
        ]
        runs.append({name: float(np.nanmean([one[name] for one in folds])) for name in folds[0]})
    return spread_of(runs)
