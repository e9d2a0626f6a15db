"""The eight regressors of thesis Table 5.8, with the hyperparameters of Table 5.7.

Inputs of all but XGBoost and CatBoost are scaled to 0..1 on the training rows, as the thesis
does (section 5.7.8), and missing values (one occupancy of Tesla M60) set to the training median.
The support vector machine's are standardised instead: with a gamma of .5 on 0..1 it would see all
rows as one (R2 .40 on Tesla K20, where the thesis prints .70; standardised .73).
XGBoost and CatBoost are the families that also make the served models; trees do not care for
scale, and both know missing values.

``max_features = auto`` of the table is scikit-learn's old name for all features of a regressor;
``silent`` and ``logging_level`` say nothing about the model. Gradient boosting's ``friedman_mse``
is what scikit-learn does without being told (the parameter is deprecated).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingRegressor,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.svm import SVR
from sklearn.tree import DecisionTreeRegressor

from studies.thesis.ann import Network
from studies.thesis.data import rows_of
from studies.thesis.judged import Effort, Judged, judge
from wattcast.training.evaluation.splits import FitPredict, Floats
from wattcast.training.families import SEED, get_family

Make = Callable[[], Any]
"""An untrained estimator with ``fit`` and ``predict``."""


def scaled(make: Make, scaler: Make = MinMaxScaler) -> FitPredict:
    """A scikit-learn estimator on scaled inputs (to 0..1), gaps filled with the median."""

    def fit_predict(vectors: Floats, watts: Floats, test: Floats) -> Floats:
        inputs, model = make_pipeline(SimpleImputer(strategy="median"), scaler()), make()
        model.fit(inputs.fit_transform(vectors), watts)
        return np.asarray(model.predict(inputs.transform(test)), dtype=np.float64)

    return fit_predict


def boosted(name: str) -> FitPredict:
    """A family of ``wattcast.training.families``, which has the parameters of Table 5.7."""
    family = get_family(name)

    def fit_predict(vectors: Floats, watts: Floats, test: Floats) -> Floats:
        return family.predict(family.fit(vectors, watts), test)

    return fit_predict


def _random_forest() -> Any:
    return RandomForestRegressor(500, max_depth=14, random_state=SEED)


def _extra_trees() -> Any:
    return ExtraTreesRegressor(220, max_depth=16, random_state=SEED)


def _gradient_boosting() -> Any:
    return GradientBoostingRegressor(
        n_estimators=250,
        max_depth=5,
        learning_rate=0.17,
        random_state=SEED,
    )


def _decision_tree() -> Any:
    return DecisionTreeRegressor(max_depth=14, min_samples_split=5, random_state=SEED)


def _svr() -> Any:
    return SVR(C=200, epsilon=1, gamma=0.5, kernel="rbf")


def _ann() -> Any:
    # Table 5.8's score on Tesla K20 is that of this row of Table 5.6 (smaller data: 150 epochs).
    return Network((64, 64, 128), "uniform", epochs=120)


REGRESSORS: Mapping[str, FitPredict] = MappingProxyType(
    {
        "random-forest": scaled(_random_forest),
        "extra-trees": scaled(_extra_trees),
        "gradient-boosting": scaled(_gradient_boosting),
        "xgboost": boosted("xgboost"),
        "catboost": boosted("catboost"),
        "decision-tree": scaled(_decision_tree),
        "svr": scaled(_svr, StandardScaler),
        "ann": scaled(_ann, partial(MinMaxScaler, clip=True)),
    }
)
"""In the order of Table 5.8."""

LINEAR = "linear"
"""Multi-linear regression (section 5.7): least squares on the same inputs."""


def judge_regressors(
    tables: Mapping[str, pd.DataFrame],
    effort: Effort,
    models: Sequence[str] = tuple(REGRESSORS),
) -> dict[str, dict[str, Judged]]:
    """GPU -> model -> its predictions of rows and of kernels left out (Table 5.8)."""
    found: dict[str, dict[str, Judged]] = {}
    for gpu, frame in tables.items():
        rows = rows_of(frame)
        found[gpu] = {}
        for model in models:
            effort.progress(f"{gpu}: {model}")
            found[gpu][model] = judge(model, rows, REGRESSORS[model], effort)
    return found


def judge_linear(tables: Mapping[str, pd.DataFrame], effort: Effort) -> dict[str, Judged]:
    """GPU -> multi-linear regression on the selected features."""
    return {
        gpu: judge(LINEAR, rows_of(frame), scaled(LinearRegression), effort)
        for gpu, frame in tables.items()
    }
