"""How unlike anything in training a launch is: what a range check of single features cannot see.

Each feature is placed among the training rows' quantiles, so that 0 is the least and 1 the
greatest value seen, and beyond them by the share of the range it lies outside. The novelty of a
vector is its distance (root mean square over features) to the nearest synthetic point of the
model's background, in units of what separates such points from each other: 1 is as far as the
95th percentile of them. Only summaries are needed; no training row goes with a model.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wattcast.features.errors import ModelError
from wattcast.models.background import Background

Floats = NDArray[np.float64]

USUAL = 0.95
"""Share of the synthetic points whose novelty among the others is at most 1."""

NOVEL = 1.5
"""Novelty beyond which an answer counts as extrapolated. On kernels left out of training, launches
above 1 err more than the others on each of three GPUs, by 5 % (K20) to twofold (V100); below it
the error does not follow the score, so that the width does not either (docs/power.md)."""

MOST_OVERSHOOT = 2.0
"""Farthest that one feature counts beyond its range, in ranges: it shall not drown the others."""


class Novelty:
    """Scores vectors ``[n, k]`` against the background of one model."""

    def __init__(self, background: Background) -> None:
        quantiles = np.array([feature.quantiles for feature in background.features], np.float64)
        levels = np.linspace(0, 1, quantiles.shape[1])
        self._scales = [_distinct(each, levels) for each in quantiles]
        self._low, self._high = quantiles[:, 0], quantiles[:, -1]
        least = 1e-9 * np.maximum(1.0, np.abs(self._high))
        self._span = np.maximum(self._high - self._low, least)
        self._points = self._places(background.matrix())
        among = _distances(self._points, self._points)
        np.fill_diagonal(among, np.inf)
        unit = float(np.quantile(among.min(axis=1), USUAL)) if len(among) > 1 else 0.0
        self._unit = unit if unit > 0 else 1.0

    def score(self, x: ArrayLike) -> Floats:
        """Novelty ``[n]``; a missing value counts as the nearest point's own.

        Raises ModelError for vectors of another length.
        """
        vectors = np.asarray(x, dtype=np.float64)
        width = len(self._scales)
        if vectors.ndim != 2 or vectors.shape[1] != width:
            raise ModelError(f"vectors must be [n, {width}], not {list(vectors.shape)}")
        if not len(vectors):
            return np.zeros(0)
        nearest = _distances(self._places(vectors), self._points).min(axis=1)
        return np.asarray(nearest / self._unit)

    def _places(self, vectors: NDArray[np.floating]) -> Floats:
        values = vectors.astype(np.float64)
        inside = np.empty_like(values)
        for at, (quantiles, places) in enumerate(self._scales):
            inside[:, at] = np.interp(values[:, at], quantiles, places)
        below = np.clip((self._low - values) / self._span, 0, MOST_OVERSHOOT)
        above = np.clip((values - self._high) / self._span, 0, MOST_OVERSHOOT)
        return np.asarray(inside - below + above)


def _distinct(quantiles: Floats, levels: Floats) -> tuple[Floats, Floats]:
    """Each quantile once, at the middle of its levels: a constant feature lies at one half."""
    values, index = np.unique(quantiles, return_inverse=True)
    return values, np.bincount(index, weights=levels) / np.bincount(index)


def _distances(one: Floats, other: Floats) -> Floats:
    steps = (one[:, None, :] - other[None, :, :]) ** 2
    return np.asarray(np.sqrt(np.nanmean(steps, axis=-1)))
