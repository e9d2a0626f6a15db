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
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from sklearn.ensemble import ExtraTreesRegressor, GradientBoostingRegressor, RandomForestRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.svm import SVR
from sklearn.tree import DecisionTreeRegressor

from studies.fitting.out_of_fold import FitPredict, OutOfFold
from studies.papers.thesis.data import PROTOCOLS, Effort, Judged, judge, rows_of
from wattcast.models.cards import ScoreName, Spread
from wattcast.training.evaluation.scores import Floats, Protocol, point_scores, spread_of
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


LAYERS = (64, 64, 128)
EPOCHS = 120
BATCH = 32
"""Keras' default."""


class Network:
    """Three hidden layers of scikit-learn's perceptron: ``fit`` and ``predict``.

    The thesis uses Keras with Adam, dropout and regularisation, and prints neither batch size nor
    dropout. Here: Adam with Keras' batch of 32, the rate .01 of Table 5.6, L2 regularisation
    (``alpha``) instead of dropout. Power is standardised for training, and inputs beyond the
    training range are set to its ends: without either, single rows far out carry the squared error
    away (R2 of -1.3 on Tesla M60 where the thesis prints .73).
    """

    def fit(self, vectors: Floats, watts: Floats) -> Self:
        """Train on vectors ``[n, k]`` scaled to 0..1 and watts ``[n]``."""
        self._middle, self._scale = float(watts.mean()), float(watts.std()) or 1.0
        targets = (watts - self._middle) / self._scale
        self._model = MLPRegressor(
            hidden_layer_sizes=LAYERS,
            batch_size=min(BATCH, len(watts)),
            learning_rate_init=0.01,
            alpha=1e-3,
            random_state=SEED,
        )
        for _ in range(EPOCHS):
            self._model.partial_fit(vectors, targets)
        return self

    def predict(self, vectors: Floats) -> Floats:
        """Watts ``[m]``."""
        targets = np.asarray(self._model.predict(vectors), dtype=np.float64)
        return self._middle + self._scale * targets


_TREES = {"random_state": SEED, "n_jobs": 1}
REGRESSORS: Mapping[str, FitPredict] = MappingProxyType({
    "random-forest": scaled(partial(RandomForestRegressor, 500, max_depth=14, **_TREES)),
    "extra-trees": scaled(partial(ExtraTreesRegressor, 220, max_depth=16, **_TREES)),
    "gradient-boosting": scaled(partial(GradientBoostingRegressor, n_estimators=250, max_depth=5,
                                        learning_rate=0.17, random_state=SEED)),
    "xgboost": boosted("xgboost"),
    "catboost": boosted("catboost"),
    "decision-tree": scaled(partial(DecisionTreeRegressor, max_depth=14, min_samples_split=5,
                                    random_state=SEED)),
    "svr": scaled(partial(SVR, C=200.0, gamma=0.5, epsilon=1.0), StandardScaler),
    "ann": scaled(Network, partial(MinMaxScaler, clip=True)),
})  # fmt: skip
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


# --- Repeated runs of XGBoost: thesis Table 5.9 ------------------------------------------------


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


def mean_of_folds(predicted: OutOfFold) -> dict[ScoreName, Spread]:
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
