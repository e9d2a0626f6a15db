"""Table 5.7 looked for: the eight regressors tuned by nested cross-validation.

The thesis tunes on the folds it scores (section 5.7.8: the best combination of all splits is scored
on the same splits again). Here the choice is made inside the training rows of each fold, among
values around the printed ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import pandas as pd
from catboost import CatBoostRegressor
from sklearn.ensemble import ExtraTreesRegressor, GradientBoostingRegressor, RandomForestRegressor
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.svm import SVR
from sklearn.tree import DecisionTreeRegressor
from xgboost import XGBRegressor

from studies.evaluation import evaluate
from studies.thesis.ann import Network
from studies.thesis.data import rows_of
from studies.thesis.judged import PROTOCOLS, Effort, Judged
from studies.thesis.nested import choose, tuned
from studies.thesis.regressors import scaled
from wattcast.training.evaluation.splits import Fit, plain
from wattcast.training.families import SEED

INNER_FOLDS = 3

_TREES = {"random_state": SEED, "n_jobs": 1}
_MAKERS: Mapping[str, tuple[Any, Mapping[str, Any], Mapping[str, tuple[Any, ...]]]] = {
    "random-forest": (RandomForestRegressor, {"n_estimators": 500, **_TREES},
                      {"max_depth": (8, 14, None)}),
    "extra-trees": (ExtraTreesRegressor, {"n_estimators": 220, **_TREES},
                    {"max_depth": (8, 16, None)}),
    "gradient-boosting": (GradientBoostingRegressor, {"n_estimators": 250, "random_state": SEED},
                          {"max_depth": (3, 5), "learning_rate": (0.05, 0.17)}),
    "xgboost": (XGBRegressor,
                {"n_estimators": 500, "colsample_bytree": 0.7, "subsample": 0.7, **_TREES},
                {"max_depth": (4, 6), "learning_rate": (0.05, 0.15)}),
    "catboost": (CatBoostRegressor,
                 {"iterations": 270, "random_seed": SEED, "thread_count": 1, "verbose": False,
                  "allow_writing_files": False},
                 {"depth": (6, 8)}),
    "decision-tree": (DecisionTreeRegressor, {"random_state": SEED},
                      {"max_depth": (6, 10, 14), "min_samples_split": (2, 5)}),
    "svr": (SVR, {"epsilon": 1.0, "kernel": "rbf"},
            {"C": (20.0, 200.0, 2000.0), "gamma": (0.05, 0.5)}),
    "ann": (partial(Network, (64, 64, 128)), {},
            {"schedule": ("uniform", "inverse time"), "epochs": (50, 120)}),
}  # fmt: skip
"""Regressor -> what makes it, what stays as Table 5.7 has it, and what is tried."""

PRINTED: Mapping[str, Mapping[str, Any]] = {
    "random-forest": {"max_depth": 14},
    "extra-trees": {"max_depth": 16},
    "gradient-boosting": {"max_depth": 5, "learning_rate": 0.17},
    "xgboost": {"max_depth": 6, "learning_rate": 0.05},
    "catboost": {"depth": 8},
    "decision-tree": {"max_depth": 14, "min_samples_split": 5},
    "svr": {"C": 200.0, "gamma": 0.5},
    "ann": {"schedule": "uniform", "epochs": 120},
}
"""Table 5.7, and Table 5.6's network of Table 5.8."""

TUNED = tuple(_MAKERS)


@dataclass(frozen=True)
class Tuned:
    """A regressor tuned inside each fold, and what all rows would have it choose."""

    judged: Judged
    chosen: Mapping[str, str]

    @property
    def printed(self) -> str:
        """The parameters of Table 5.7, of those tried."""
        return _named(PRINTED[self.judged.model])


def tune(frame: pd.DataFrame, model: str, effort: Effort) -> Tuned:
    """One regressor on the rows of one GPU, one fold assignment whatever was asked."""
    once, rows = replace(effort, assignments=1), rows_of(frame)
    candidates = _candidates(model)
    found = {
        protocol: evaluate(
            rows, tuned(candidates, protocol, folds=INNER_FOLDS), protocol, once.seeds,
            jobs=effort.jobs,
        )
        for protocol in PROTOCOLS
    }  # fmt: skip
    chosen: dict[str, str] = {}
    for protocol in PROTOCOLS:
        losses = choose(rows, candidates, protocol, folds=INNER_FOLDS, jobs=effort.jobs)
        chosen[protocol] = min(losses, key=lambda name: losses[name])
    return Tuned(Judged(model, found["random"], found["grouped"]), chosen)


def _candidates(model: str) -> dict[str, Fit]:
    make, fixed, tried = _MAKERS[model]
    scaler = {"svr": StandardScaler, "ann": partial(MinMaxScaler, clip=True)}.get(
        model, MinMaxScaler
    )
    combinations = [dict(zip(tried, values, strict=True)) for values in product(*tried.values())]
    return {
        _named(one): plain(scaled(partial(make, **fixed, **one), scaler)) for one in combinations
    }


def _named(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in parameters.items())
