"""How much a prediction saves as a pre-filter: runs that a top-k choice would not have needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattcast.features.errors import DataError

Floats = NDArray[np.float64]

NEAR = 0.05
"""How far above the best measured value still counts as found, relative."""


@dataclass(frozen=True, slots=True)
class Preselection:
    """What measuring the ``k`` configurations that are predicted best would have come to.

    ``loss``: their best measured value over that of all, less 1. ``runs_saved`` of
    ``configurations``. ``runs_needed``: the least k that holds one within ``near`` of the best,
    ``runs_needed_random``: how many draws without a prediction that takes on average.
    ``rank_correlation`` is Spearman's, 1 where the order is the same.
    """

    configurations: int
    k: int
    loss: float
    runs_saved: int
    near: float
    runs_needed: int
    runs_needed_random: float
    rank_correlation: float


def preselection(
    predicted: Sequence[float], measured: Sequence[float], k: int, near: float = NEAR
) -> Preselection:
    """Judge predictions by measurements of the same configurations; less is better in both.

    Raises DataError for fewer than two configurations, or values that are not above 0.
    """
    guess, truth = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    if guess.shape != truth.shape or guess.size < 2:
        raise DataError("a ranking needs at least two configurations that were measured")
    if not (np.isfinite(truth).all() and (truth > 0).all() and np.isfinite(guess).all()):
        raise DataError("measured values must be finite and above 0")
    chosen = max(1, min(k, guess.size))
    order = np.argsort(guess, kind="stable")
    best = float(truth.min())
    found = np.flatnonzero(truth[order] <= best * (1 + near))
    return Preselection(
        configurations=guess.size,
        k=chosen,
        loss=float(truth[order[:chosen]].min()) / best - 1,
        runs_saved=guess.size - chosen,
        near=near,
        runs_needed=int(found[0]) + 1,
        # The mean place of the first of m marked ones among n in random order.
        runs_needed_random=(guess.size + 1) / (found.size + 1),
        rank_correlation=_spearman(guess, truth),
    )


def _spearman(one: Floats, other: Floats) -> float:
    """Pearson's correlation of ranks, ties at their mean; 0 where either does not vary."""
    ranks = np.array([_ranks(one), _ranks(other)])
    if (np.ptp(ranks, axis=1) == 0).any():
        return 0.0
    return float(np.corrcoef(ranks)[0, 1])


def _ranks(values: Floats) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: Floats = (last - (counts - 1) / 2)[inverse]
    return means
