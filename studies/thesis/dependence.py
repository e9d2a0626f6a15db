"""Partial dependence of XGBoost's prediction on single features: thesis Figures 5.15 and 5.17.

The mean prediction over all rows with one feature set to a value: what the model makes of that
feature, not what the GPU does. Values are the rows' own quantiles, so that a curve stays where
there are rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from studies.thesis.data import rows_of
from wattcast.training.data.cleaning import MODEL_INPUTS
from wattcast.training.evaluation.rows import Floats
from wattcast.training.families import get_family

POINTS = 15
"""Quantiles at which a curve is computed, repeated values once."""


class Curve(NamedTuple):
    """Mean predicted watts at each value of a feature, and the share of rows at or below it."""

    values: Floats
    quantiles: Floats
    watts: Floats

    @property
    def span_watts(self) -> float:
        """Highest less lowest."""
        return float(self.watts.max() - self.watts.min())


def partial_dependence(
    frame: pd.DataFrame, features: tuple[str, ...] = MODEL_INPUTS
) -> Mapping[str, Curve]:
    """Feature -> its curve, by XGBoost fitted on all rows of one GPU; the widest span first."""
    rows, family = rows_of(frame, features), get_family("xgboost")
    model = family.fit(rows.vectors, rows.watts)
    curves = {}
    for at, name in enumerate(features):
        values, quantiles = grid(rows.vectors[:, at])
        asked = np.tile(rows.vectors, (len(values), 1))
        asked[:, at] = np.repeat(values, len(rows))
        watts = family.predict(model, asked).reshape(len(values), -1).mean(axis=1)
        curves[name] = Curve(values, quantiles, watts)
    return dict(sorted(curves.items(), key=lambda each: -each[1].span_watts))


def grid(column: Floats) -> tuple[Floats, Floats]:
    """Distinct values at even quantiles of a column, and the share of rows at or below each."""
    known = column[~np.isnan(column)]
    values = np.unique(np.quantile(known, np.linspace(0, 1, POINTS), method="nearest"))
    return values, np.searchsorted(np.sort(known), values, side="right") / len(known)
