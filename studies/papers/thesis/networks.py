"""The neural networks of thesis Table 5.6, as near as scikit-learn's perceptron comes.

The thesis uses Keras with Adam, dropout and regularisation, and prints neither batch size, nor
initial rate, nor decay steps, nor dropout. Here: Adam with Keras' batch of 32, rate 0.01 (the
table's uniform one) that decays by the table's factor every ``DECAY_EPOCHS``, L2 regularisation
(``alpha``) instead of dropout, which ``MLPRegressor`` does not have. Power is standardised for
training, and inputs beyond the training range are set to its ends: without either, single rows far
out carry the squared error away (R2 of -1.3 on Tesla M60 where the thesis prints .73). The rows of
the table that use a variational autoencoder: ``autoencoder.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.feature_selection import SelectKBest, f_regression
from sklearn.impute import SimpleImputer
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from studies.fitting.out_of_fold import FitPredict
from studies.papers.thesis.data import (
    Effort,
    Judged,
    Schedule,
    Size,
    by_size,
    judge,
    printed,
    rows_of,
)
from studies.papers.thesis.data import Network as PrintedNetwork
from wattcast.training.data.cleaning import MODEL_INPUTS
from wattcast.training.evaluation.scores import Floats
from wattcast.training.families import SEED

BATCH = 32
"""Keras' default."""
FIRST_RATE = 0.01
"""The uniform rate of Table 5.6; that of the decaying schedules is not printed."""
DECAY_EPOCHS = 10
"""Epochs after which a schedule has decayed by its factor once; not printed."""
EXPONENTIAL, INVERSE_TIME = 0.9, 0.5
"""The table's rates of the decaying schedules, read as Keras' ``decay_rate``."""
SELECTED = len(MODEL_INPUTS)
"""Features that the automatic selection keeps, as many as feature engineering does."""


def learning_rate(schedule: Schedule, epoch: int) -> float:
    """Rate in an epoch (from 0), as Keras' ExponentialDecay and InverseTimeDecay define it."""
    steps = epoch / DECAY_EPOCHS
    if schedule == "exponential":
        return float(FIRST_RATE * EXPONENTIAL**steps)
    if schedule == "inverse time":
        return FIRST_RATE / (1 + INVERSE_TIME * steps)
    return FIRST_RATE


class Network:
    """Three hidden layers trained for a number of epochs: ``fit`` and ``predict``."""

    def __init__(self, layers: Sequence[int], schedule: Schedule, epochs: int) -> None:
        self.layers, self.schedule, self.epochs = tuple(layers), schedule, epochs
        self.losses: list[float] = []
        """Training loss after every epoch, of standardised power."""

    def fit(self, vectors: Floats, watts: Floats) -> Self:
        """Train on vectors ``[n, k]`` scaled to 0..1 and watts ``[n]``."""
        self._middle, self._scale = float(watts.mean()), float(watts.std()) or 1.0
        targets = (watts - self._middle) / self._scale
        self._model = MLPRegressor(
            hidden_layer_sizes=self.layers,
            batch_size=min(BATCH, len(watts)),
            learning_rate_init=FIRST_RATE,
            alpha=1e-3,
            random_state=SEED,
        )
        self.losses = []
        for epoch in range(self.epochs):
            if epoch:
                # The perceptron's own schedules are for plain gradient descent only; its
                # optimiser, which stays from epoch to epoch, takes a new rate here alone.
                self._model._optimizer.learning_rate_init = learning_rate(self.schedule, epoch)
            self._model.partial_fit(vectors, targets)
            self.losses.append(float(self._model.loss_))
        return self

    def predict(self, vectors: Floats) -> Floats:
        """Watts ``[m]``."""
        targets = np.asarray(self._model.predict(vectors), dtype=np.float64)
        return self._middle + self._scale * targets


@dataclass(frozen=True)
class JudgedNetwork:
    """A row of Table 5.6 on one of the two K20 data sets, beside what the table prints."""

    printed: PrintedNetwork
    size: Size
    judged: Judged


def judge_networks(k20: pd.DataFrame, effort: Effort) -> list[JudgedNetwork]:
    """All rows of Table 5.6 but the autoencoder's, on both data sets.

    One fold assignment whatever was asked: twelve networks take as long as all else of the study.
    """
    once, found = replace(effort, assignments=1), []
    for network in printed().table_5_6:
        for size, frame in by_size(k20).items():
            effort.progress(f"network {network.layers}, {network.schedule}, {size} data")
            automatic = network.features == "automatic"
            columns = candidates(frame) if automatic else MODEL_INPUTS
            judged = judge("ann", rows_of(frame, columns), _network(network, size, automatic), once)
            found.append(JudgedNetwork(network, size, judged))
    return found


def candidates(frame: pd.DataFrame) -> tuple[str, ...]:
    """Every static column of a file that has values: what an automatic selection chooses from."""
    never = {"power_w", "time_us", "n_repeats", "serial", "src_row"}
    return tuple(
        str(name)
        for name in frame.columns
        if name not in never and frame[name].dtype.kind == "f" and frame[name].notna().any()
    )


def _network(network: PrintedNetwork, size: Size, automatic: bool) -> FitPredict:
    epochs = network.trained(size).epochs

    def fit_predict(vectors: Floats, watts: Floats, test: Floats) -> Floats:
        steps: list[Any] = [SimpleImputer(strategy="median"), MinMaxScaler(clip=True)]
        if automatic:
            # The thesis does not say which selection; the strongest linear relations, chosen
            # on the training rows.
            steps.append(SelectKBest(f_regression, k=SELECTED))
        inputs = make_pipeline(*steps)
        model = Network(network.layers, network.schedule, epochs)
        return model.fit(inputs.fit_transform(vectors, watts), watts).predict(
            inputs.transform(test)
        )

    return fit_predict
