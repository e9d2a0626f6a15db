"""Corrects the physical model by a few measured launches of a GPU it was not fitted on.

Pooled weights are right about what draws more than what, and wrong by up to half about how much
of its limit a board draws at all. So a few rows first tell one factor on everything above idle,
held near 1 by ``FACTOR_PULL``, and then move single weights away from it as far as they insist,
held by ``WEIGHT_PULL``. docs/physical.md says what N rows gain.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from wattcast.features.errors import DataError
from wattcast.models.clocks import ClockPair
from wattcast.models.power.activities import UnitActivities
from wattcast.models.power.physical import SHARED_WEIGHTS, WEIGHTS, PhysicalParameters, regressors

Floats = NDArray[np.float64]

FACTOR_PULL = 1.0
"""Rows' worth of belief that the factor is 1."""

WEIGHT_PULL = 1.0
"""Pull of each weight to its scaled prior, in the squared units of the regressors of one row."""


def refitted(
    parameters: PhysicalParameters,
    regressors_of_rows: Floats,
    watts: Floats,
    *,
    factor_pull: float = FACTOR_PULL,
    weight_pull: float = WEIGHT_PULL,
) -> PhysicalParameters:
    """The parameters drawn to measured launches of their GPU; all weights stay >= 0.

    ``regressors_of_rows`` is the launches' ``design`` ``[n, k]``, ``watts`` ``[n]``, n > 0, what
    they drew. ``parameters`` are those of ``models.power.physical.parameters_for`` or fitted ones.
    Raises DataError for a reading that is not positive.
    """
    if not np.all(np.isfinite(watts) & (watts > 0)):
        raise DataError("a measured power is not positive", column="power_watts")
    idle, scale = parameters.idle_watts, parameters.limit_watts - parameters.idle_watts
    rows = regressors_of_rows * (scale / watts)[:, np.newaxis]
    target = (watts - idle) / watts
    prior = weights_of(parameters)
    expected = rows @ prior
    belief = factor_pull * float(np.mean(expected**2))
    factor = max(0.0, float(expected @ target + belief) / float(expected @ expected + belief))
    pull = np.sqrt(weight_pull)
    weights, _ = nnls(
        np.vstack([rows, pull * np.eye(len(prior))]),
        np.concatenate([target, pull * factor * prior]),
    )
    named = dict(zip(_columns(parameters), map(float, weights), strict=True))
    return parameters.model_copy(
        update={
            "weights": {name: named[name] for name in WEIGHTS},
            "own_weights": {name: named[name] for name in parameters.own_weights},
            "highest_watts": max(parameters.highest_watts, float(watts.max())),
        }
    )


def design(
    parameters: PhysicalParameters, launches: Sequence[tuple[UnitActivities, ClockPair]]
) -> Floats:
    """What each weight multiplies ``[n, k]``, by launch, in the order of ``weights_of``."""
    return np.array([_row(parameters, *launch) for launch in launches], dtype=np.float64)


def weights_of(parameters: PhysicalParameters) -> Floats:
    """Weights ``[k]``: those of all GPUs, and what this one has of its own."""
    return np.array([parameters.weight(name) for name in _columns(parameters)], dtype=np.float64)


def _columns(parameters: PhysicalParameters) -> tuple[str, ...]:
    """The weights that are told: those of all GPUs, and what this one has of its own."""
    return (*WEIGHTS, *parameters.own_weights)


def _row(
    parameters: PhysicalParameters, activities: UnitActivities, clocks: ClockPair
) -> list[float]:
    """What each weight multiplies, units that share a weight added up."""
    terms = regressors(activities, clocks, parameters.reference, parameters.voltage)
    own = parameters.own_weights
    shared = {
        name: sum(
            terms[unit]
            for unit, weight in SHARED_WEIGHTS.items()
            if weight == name and unit not in own
        )
        for name in WEIGHTS
    }
    return [terms[name] + shared.get(name, 0.0) for name in _columns(parameters)]
