"""Fits the trees that correct the physical scaling model, and chooses how many by nested folds.

Candidates run from none to many trees. Inside the training kernels, groups of programs are left
out in turn; the candidate with the least mean absolute error of the scale wins, and "none" wins
where trees do not help kernels they have not seen. The kernels a score is told of take no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from studies.fitting.scaling.rows import Bools, Floats, Integers
from studies.fitting.trees.compact import save_compact
from wattcast.models.papers.scaling.card import RISING
from wattcast.models.papers.scaling.residual import POWER_EXPONENT, Float32s, Trees, corrected_power
from wattcast.training.families import SEED, get_family

INNER_FOLDS = 5
LEAST_GAIN = 0.1
"""Share of the physical model's error that trees must save before they are worth their files."""


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """Hyperparameters of one candidate; ``trees`` 0 leaves the physical model as it is."""

    trees: int
    depth: int = 2
    learning_rate: float = 0.05
    least_rows: int = 5
    l2: float = 5.0
    row_share: float = 0.7
    column_share: float = 0.7


CANDIDATES: tuple[TreeSettings, ...] = (
    TreeSettings(0),
    TreeSettings(60),
    TreeSettings(200, depth=3),
    TreeSettings(400, depth=5, least_rows=20),
)
"""From nothing to what the 6464 rows of Titan X's microbenchmarks bear."""


@dataclass(frozen=True, eq=False)
class ResidualRows:
    """What trees of power are fitted on: inputs ``[n, k]``, and per row ``[n]`` the log
    ratio to explain, the physical and measured scale, weight, program, and its reference row."""

    vectors: Float32s
    physical: Floats
    measured: Floats
    weights: Floats
    groups: np.ndarray
    reference_rows: Integers

    @property
    def log_ratio(self) -> Floats:
        """log of measured over physical, of its power."""
        return np.asarray(np.log(self.measured) - POWER_EXPONENT * np.log(self.physical))

    def predict(self, trees: Trees | None, rows: Bools) -> Floats:
        """Corrected scales of some rows; the physical ones without trees."""
        if trees is None:
            return np.asarray(self.physical[rows])
        correction = trees.score(self.vectors[rows]) - trees.score(
            self.vectors[self.reference_rows[rows]]
        )
        return corrected_power(self.physical[rows], correction)


def choose(
    rows: ResidualRows,
    train: Bools,
    candidates: Sequence[TreeSettings] = CANDIDATES,
) -> TreeSettings:
    """The candidate with the least error on groups left out inside the training rows.

    The first candidate, no trees, stays unless another errs ``LEAST_GAIN`` less.
    """
    errors = inner_errors(rows, train, candidates)
    best = int(np.argmin(errors))
    return candidates[best if errors[best] <= (1 - LEAST_GAIN) * errors[0] else 0]


def inner_errors(
    rows: ResidualRows, train: Bools, candidates: Sequence[TreeSettings]
) -> list[float]:
    """Mean absolute error of each candidate, in points, on groups left out of the training rows."""
    groups = np.unique(rows.groups[train])
    folds = min(INNER_FOLDS, len(groups))
    fold_of = dict(zip(groups, np.arange(len(groups)) % folds, strict=True))
    fold = np.array([fold_of.get(group, -1) for group in rows.groups])
    total = float(rows.weights[train].sum())
    return [
        100 / total * sum(_error(rows, train, fold == at, one) for at in range(folds))
        for one in candidates
    ]


def fit_trees(rows: ResidualRows, train: Bools, settings: TreeSettings) -> FittedTrees | None:
    """Trees of the training rows; ``None`` for no trees."""
    if settings.trees == 0:
        return None
    weights = rows.weights[train] / rows.weights[train].mean()
    rising = [int(at < len(RISING)) for at in range(rows.vectors.shape[1])]
    return _fit_catboost(rows.vectors[train], rows.log_ratio[train], weights, rising, settings)


@dataclass(frozen=True, eq=False)
class FittedTrees:
    """Fitted trees of CatBoost."""

    model: Any

    def score(self, vectors: Float32s) -> Floats:
        """Predictions ``[n]``."""
        return np.asarray(self.model.predict(vectors, thread_count=1), dtype=np.float64)

    def save(self, folder: Path, features: int) -> None:
        """Write the native and the ONNX file."""
        save_compact(get_family("catboost"), self.model, folder, features)


def hyperparameters(settings: TreeSettings) -> dict[str, bool | int | float | str]:
    """CatBoost's parameters, as the card records them."""
    return {
        "iterations": settings.trees,
        "depth": settings.depth,
        "learning_rate": settings.learning_rate,
        "l2_leaf_reg": settings.l2,
        "rsm": settings.column_share,
        "subsample": settings.row_share,
        "bootstrap_type": "Bernoulli",
        "rising_inputs": len(RISING),
        "random_seed": SEED,
    }


def _fit_catboost(
    vectors: Float32s, target: Floats, weights: Floats, rising: list[int], settings: TreeSettings
) -> FittedTrees:
    import catboost

    model = catboost.CatBoostRegressor(
        iterations=settings.trees,
        depth=settings.depth,
        learning_rate=settings.learning_rate,
        l2_leaf_reg=settings.l2,
        rsm=settings.column_share,
        subsample=settings.row_share,
        bootstrap_type="Bernoulli",
        monotone_constraints=rising,
        random_seed=SEED,
        logging_level="Silent",
        thread_count=1,
        allow_writing_files=False,
    )
    model.fit(vectors, target, sample_weight=weights)
    return FittedTrees(model)


def _error(rows: ResidualRows, train: Bools, left_out: Bools, settings: TreeSettings) -> float:
    """Weighted sum of absolute errors on the training rows left out."""
    test = train & left_out
    trees = fit_trees(rows, train & ~left_out, settings)
    error = np.abs(rows.predict(trees, test) - rows.measured[test])
    return float(np.sum(error * rows.weights[test]))
