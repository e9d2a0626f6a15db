"""Corrects the physical model by a few measured launches of a GPU it was not fitted on.

Pooled weights are right about what draws more than what, and wrong by up to half about how much
of its limit a board draws at all. So a few rows first tell one factor on everything above idle,
held near 1 by ``FACTOR_PULL``, and then move single weights away from it as far as they insist,
held by ``WEIGHT_PULL``. docs/physical.md says what N rows gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from features.errors import DataError
from models.clocks import ClockPair
from models.power.activities import UnitActivities
from models.power.physical import SHARED_WEIGHTS, WEIGHTS, PhysicalParameters, regressors

FACTOR_PULL = 1.0
"""Rows' worth of belief that the factor is 1."""

WEIGHT_PULL = 1.0
"""Pull of each weight to its scaled prior, in the squared units of the regressors of one row."""


@dataclass(frozen=True, slots=True)
class MeasuredLaunch:
    """Activities of a launch at the PREDICTED time at ``clocks``, and the watts it drew there."""

    activities: UnitActivities
    clocks: ClockPair
    power_watts: float


def recalibrated(
    parameters: PhysicalParameters,
    measured: Sequence[MeasuredLaunch],
    *,
    factor_pull: float = FACTOR_PULL,
    weight_pull: float = WEIGHT_PULL,
) -> PhysicalParameters:
    """The parameters drawn to measured launches of their GPU; all weights stay >= 0.

    ``parameters`` are those of ``models.power.physical.parameters_for`` or fitted ones. Without
    rows they come back as they are. Raises DataError for a reading that is not positive.
    """
    if not measured:
        return parameters
    if not all(np.isfinite(one.power_watts) and one.power_watts > 0 for one in measured):
        raise DataError("a measured power is not positive", column="power_watts")
    idle, scale = parameters.idle_watts, parameters.limit_watts - parameters.idle_watts
    watts = np.array([one.power_watts for one in measured])
    rows = np.array([_row(parameters, one) for one in measured]) * (scale / watts)[:, np.newaxis]
    target = (watts - idle) / watts
    prior = np.array([parameters.weight(name) for name in _columns(parameters)])
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


def _columns(parameters: PhysicalParameters) -> tuple[str, ...]:
    """The weights that are told: those of all GPUs, and what this one has of its own."""
    return (*WEIGHTS, *parameters.own_weights)


def _row(parameters: PhysicalParameters, one: MeasuredLaunch) -> list[float]:
    """What each weight multiplies, units that share a weight added up."""
    terms = regressors(one.activities, one.clocks, parameters.reference, parameters.voltage)
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
