"""What the published rows allow where the kernel is known: a blend that is measured, not shipped.

Boosted trees and extra trees, half of the answer each, on the schema's inputs and the launch
(``LAUNCH_FEATURES``). On kernels left out it is no better than the shipped models (docs/power.md),
and it would take an estimated 20 MB for three GPUs; so it only tells how far scores of random folds
can be driven up.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from wattcast.training.evaluation.rows import Fit, Floats, plain
from wattcast.training.families import SEED
from wattcast.training.power.pooled import filled

BOOSTED: Mapping[str, Any] = MappingProxyType(
    {
        "max_depth": 7,
        "learning_rate": 0.03,
        "colsample_bynode": 0.5,
        "subsample": 0.7,
        "tree_method": "hist",
        "seed": SEED,
        "nthread": 1,
    }
)
"""Slower and deeper than thesis Table 5.7; chosen by hand on two of the fold assignments."""
ROUNDS = 900
EXTRA: Mapping[str, Any] = MappingProxyType(
    {"n_estimators": 40, "max_features": 1.0, "random_state": SEED, "n_jobs": 1}
)
"""Leaves of one row: a repeated launch is then answered by its own watts."""


def blend(vectors: Floats, watts: Floats, test: Floats) -> Floats:
    """Watts of test vectors ``[m, k]`` by both, fitted on vectors ``[n, k]`` and watts ``[n]``."""
    import xgboost
    from sklearn.ensemble import ExtraTreesRegressor

    booster = xgboost.train(dict(BOOSTED), xgboost.DMatrix(vectors, watts, nthread=1), ROUNDS)
    boosted = booster.predict(xgboost.DMatrix(test, nthread=1))
    extra = ExtraTreesRegressor(**EXTRA).fit(_single(filled(vectors, vectors)), watts)
    return np.asarray((boosted + extra.predict(_single(filled(test, vectors)))) / 2)


def seen_fit() -> Fit:
    """The blend as protocols take it."""
    return plain(blend)


def _single(vectors: Floats) -> Any:
    return np.asarray(vectors, dtype=np.float32)
