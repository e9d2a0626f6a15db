"""Outliers by HDBSCAN/GLOSH and what removing them does: thesis section 5.8.2, Table 5.11.

The thesis wants rows found whose power differs from that of rows with similar features, so power
is clustered along with the features, all scaled to 0..1. It does not say from which score on a
row is an outlier; here are as many of the highest scores as its share of the rows.

Table 5.11 is about rows removed from training AND from the scores: errors then shrink or grow by
which rows are asked about. ``kept_in_scores`` is the other question, whether training without
outliers helps to predict all rows: outliers are then sought among each fold's training rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import hdbscan  # type: ignore[import-untyped]
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from studies.thesis.data import rows_of
from studies.thesis.judged import Effort, Judged, judge
from studies.thesis.printed import printed
from studies.thesis.regressors import REGRESSORS
from wattcast.training.evaluation.splits import FitPredict, Floats

BOTH_WAYS = ("xgboost", "catboost")
"""Models also judged on all rows; section 5.8.2 speaks of these."""


@dataclass(frozen=True)
class Outliers:
    """GLOSH score (0 to 1) of every row ``[n]``, which are outliers, and models without them.

    ``kernels`` counts the outliers of each kernel; ``removed`` is Table 5.11's way,
    ``kept_in_scores`` removes them from training alone.
    """

    scores: Floats
    chosen: NDArray[np.bool_]
    kernels: dict[str, int]
    removed: dict[str, Judged]
    kept_in_scores: dict[str, Judged]


def study_outliers(
    frame: pd.DataFrame, effort: Effort, models: tuple[str, ...] = tuple(REGRESSORS)
) -> Outliers:
    """Find the outliers of one GPU's rows, and judge models without them."""
    rows = rows_of(frame)
    scores = outlier_scores(rows.vectors, rows.watts)
    chosen = highest(scores)
    counts = frame.loc[chosen, "kernel_id"].value_counts()
    without = rows_of(frame[~chosen])
    removed, kept = {}, {}
    for model in models:
        effort.progress(f"without outliers: {model}")
        removed[model] = judge(model, without, REGRESSORS[model], effort)
        if model in BOTH_WAYS:
            kept[model] = judge(model, rows, without_outliers(REGRESSORS[model]), effort)
    named = {str(kernel): int(count) for kernel, count in counts.items()}
    return Outliers(scores, chosen, named, removed, kept)


def outlier_scores(vectors: Floats, watts: Floats) -> Floats:
    """GLOSH score of every row among the others, ``[n]`` in 0..1, from features and power.

    R. Campello et al., "Hierarchical density estimates for data clustering, visualization, and
    outlier detection", TKDD 10 (2015).
    """
    table = np.column_stack([vectors, watts])
    inputs = make_pipeline(SimpleImputer(strategy="median"), MinMaxScaler())
    found = hdbscan.HDBSCAN(gen_min_span_tree=False).fit(inputs.fit_transform(table))
    return np.nan_to_num(np.asarray(found.outlier_scores_, dtype=np.float64))


def highest(scores: Floats) -> NDArray[np.bool_]:
    """As large a share of the rows as the thesis found outliers, by score, ``[n]``."""
    told = printed().section_5_8_2
    count = round(len(scores) * told.outliers / told.rows)
    chosen = np.zeros(len(scores), dtype=np.bool_)
    # Stable, so that equal scores are taken in the order of the rows on every machine.
    chosen[np.argsort(-scores, kind="stable")[:count]] = True
    return chosen


def without_outliers(fit_predict: FitPredict) -> FitPredict:
    """The same model, fitted without the outliers among its training rows."""

    def fitted(vectors: Floats, watts: Floats, test: Floats) -> Floats:
        kept = ~highest(outlier_scores(vectors, watts))
        return fit_predict(vectors[kept], watts[kept], test)

    return fitted
