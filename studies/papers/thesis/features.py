"""Feature engineering as in thesis section 5.5, step by step, and what each step does to errors.

1.  derived: totals per SM are dropped where an average latency says the same (5.5.1);
2.  Pearson: of two features correlated at .85 or more, one goes (5.5.2);
3.  Kendall: the same by ranks (5.5.2);
4.  forest: the least important features go while no error grows (5.5.3), checked by SHAP.

Correlation does not say which of two features goes. Where the thesis says which it kept, that
one is preferred (``PREFERRED``), else the one that stands first in Table 5.4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
import xgboost
from sklearn.ensemble import RandomForestRegressor

from studies.evaluation import cross_validate
from studies.papers.thesis.data import (
    Correlation,
    Effort,
    Judged,
    judge,
    median_filled,
    printed,
    rows_of,
)
from studies.papers.thesis.regressors import REGRESSORS, scaled
from wattcast.training.data.cleaning import MODEL_INPUTS
from wattcast.training.evaluation.scores import rmse_watts
from wattcast.training.families import SEED, get_family

TABLE_5_4 = printed().table_5_4
"""Features considered, without ``sm_active``, which the files fill with copies of ``block_size``,
and ``n_warps``, which cleaning leaves out."""
DERIVED_FROM = frozenset(
    f"{part}_{what}_sm" for part in ("comp", "glob", "misc", "shar") for what in ("inst", "lat")
)
"""Totals that step 1 drops."""
PREFERRED = ("inst_issue_cycles", "block_size", "avg_shar_lat")
"""Features that section 5.5.2 says were kept over those they go with."""
LIMIT = 0.85
"""Coefficient from which on one of two features goes, either sign (section 5.5.2)."""
TOLERANCE = 0.005
"""Share by which the error may grow when a feature of no impact goes: half a percent."""
FOREST_TREES = 100

Kind = Literal["pearson", "kendall"]


class Dropped(NamedTuple):
    """A feature that goes, the kept one it goes with, and their coefficient."""

    feature: str
    kept: str
    value: float


class Ranked(NamedTuple):
    """A feature with its share of the forest's importance and of all mean |SHAP| values."""

    feature: str
    forest: float
    shap: float


@dataclass(frozen=True)
class Selection:
    """What each step leaves on the rows of one GPU.

    ``steps`` are the features after each, by its name; ``judged`` is XGBoost on them;
    ``correlations`` those the thesis prints, with ours (NaN where the file lacks a column).
    """

    steps: Mapping[str, tuple[str, ...]]
    pearson: tuple[Dropped, ...]
    kendall: tuple[Dropped, ...]
    ranking: tuple[Ranked, ...]
    correlations: tuple[tuple[Correlation, float], ...]
    judged: Mapping[str, Judged]


THESIS = "thesis' 15"


def select_features(frame: pd.DataFrame, effort: Effort) -> Selection:
    """The four steps on the rows of one GPU, and XGBoost by both protocols after each."""
    given = tuple(name for name in TABLE_5_4 if frame[name].notna().any())
    derived = tuple(name for name in given if name not in DERIVED_FROM)
    after_pearson, pearson = without_correlated(frame, derived, "pearson")
    after_kendall, kendall = without_correlated(frame, after_pearson, "kendall")
    ranking = rank(frame, after_kendall)
    effort.progress("features without impact")
    steps = {
        "all": given,
        "derived": derived,
        "Pearson": after_pearson,
        "Kendall": after_kendall,
        "forest": _without_impact(frame, after_kendall, ranking, effort),
        THESIS: MODEL_INPUTS,
    }
    judged = {}
    for step, features in steps.items():
        effort.progress(f"XGBoost on {len(features)} features ({step})")
        judged[step] = judge(step, rows_of(frame, features), REGRESSORS["xgboost"], effort)
    correlations = tuple((each, _found(frame, each)) for each in printed().correlations)
    return Selection(steps, pearson, kendall, ranking, correlations, judged)


def without_correlated(
    frame: pd.DataFrame, features: Sequence[str], kind: Kind, limit: float = LIMIT
) -> tuple[tuple[str, ...], tuple[Dropped, ...]]:
    """Features without those that go with one kept before, in their own order, and what went.

    A column of one value goes with nothing.
    """
    values = np.nan_to_num(frame[list(features)].corr(method=kind).to_numpy(float))
    at = {name: position for position, name in enumerate(features)}
    kept: list[str] = []
    dropped = []
    for name in sorted(features, key=lambda one: one not in PREFERRED):
        near = [Dropped(name, other, float(values[at[name], at[other]])) for other in kept]
        nearest = max(near, default=None, key=lambda each: abs(each.value))
        if nearest is not None and abs(nearest.value) >= limit:
            dropped.append(nearest)
        else:
            kept.append(name)
    return tuple(name for name in features if name in kept), tuple(dropped)


def rank(frame: pd.DataFrame, features: Sequence[str]) -> tuple[Ranked, ...]:
    """Features by the forest's importance, with XGBoost's SHAP values beside it.

    SHAP values are exact ones of trees (S. Lundberg et al., "From local explanations to global
    understanding with explainable AI for trees", 2020), as XGBoost computes them.
    """
    rows = rows_of(frame, features)
    forest = _forest().fit(median_filled(rows.vectors), rows.watts).feature_importances_
    model = get_family("xgboost").fit(rows.vectors, rows.watts)
    matrix = xgboost.DMatrix(rows.vectors, nthread=1)
    values = np.abs(model.predict(matrix, pred_contribs=True))[:, :-1].mean(axis=0)
    shares = values / values.sum()
    found = [
        Ranked(name, float(impurity), float(share))
        for name, impurity, share in zip(features, forest, shares, strict=True)
    ]
    return tuple(sorted(found, key=lambda each: -each.forest))


def _forest() -> RandomForestRegressor:
    return RandomForestRegressor(FOREST_TREES, max_depth=14, random_state=SEED)


def _without_impact(
    frame: pd.DataFrame, features: Sequence[str], ranking: Sequence[Ranked], effort: Effort
) -> tuple[str, ...]:
    """Drop the least important features in turn until one costs more than ``TOLERANCE``."""

    def error(names: Sequence[str]) -> float:
        rows = rows_of(frame, names)
        judged = cross_validate(rows, scaled(_forest), "random", [0], jobs=effort.jobs)
        return rmse_watts(rows.watts, judged.predicted_watts[0])

    kept, least = tuple(features), error(features)
    for each in reversed(ranking):
        fewer = tuple(name for name in kept if name != each.feature)
        without = error(fewer)
        if without > least * (1 + TOLERANCE):
            break
        kept, least = fewer, min(least, without)
    return kept


def _found(frame: pd.DataFrame, pair: Correlation) -> float:
    one, other = frame[pair.one], frame[pair.other]
    return float(one.corr(other, method=pair.kind))


# --- XGBoost beside CatBoost: importance rankings (thesis Table 5.10) -------------------------
