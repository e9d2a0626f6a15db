"""A few measured launches draw parameters to a board, and never to nonsense."""

from __future__ import annotations

import numpy as np
import pytest

from tests.models.test_power_physical import NOTHING, REFERENCE, parameters
from wattcast.features.errors import DataError
from wattcast.models.clocks import ClockPair
from wattcast.models.power.activities import UnitActivities
from wattcast.models.power.physical import PhysicalParameters, predicted_power
from wattcast.training.calibrated import design, refitted

BUSY = NOTHING._replace(issue=0.5, fma=0.6, dram=0.3)
PRIOR = parameters(base=0.05, clock=0.1, issue=0.2, fma=0.3, dram=0.2)


Launch = tuple[UnitActivities, float]


def recalibrated(prior: PhysicalParameters, launches: list[Launch]) -> PhysicalParameters:
    if not launches:
        return prior
    rows = design(prior, [(activities, REFERENCE) for activities, _ in launches])
    return refitted(prior, rows, np.array([watts for _, watts in launches]))


def test_launches_as_predicted_change_nothing() -> None:
    rows = [(a, predicted_power(PRIOR, a, REFERENCE).watts) for a in (BUSY, NOTHING)]
    assert recalibrated(PRIOR, rows).weights == pytest.approx(PRIOR.weights, abs=1e-9)


def test_a_unit_with_a_weight_of_its_own_keeps_it_and_is_drawn_to_what_it_draws() -> None:
    own = PRIOR.model_copy(update={"own_weights": {"tensor": 0.6}})
    matrix = NOTHING._replace(issue=0.1, tensor=0.8)
    as_said = predicted_power(own, matrix, REFERENCE).watts
    same = recalibrated(own, [(matrix, as_said)])
    assert same.weights == pytest.approx(own.weights, abs=1e-9)
    assert same.own_weights == pytest.approx(own.own_weights, abs=1e-9)
    # What matrix units draw more says something of them, not of FMA.
    found = recalibrated(own, [(matrix, 1.3 * as_said)] * 10)
    assert predicted_power(found, matrix, REFERENCE).watts == pytest.approx(1.3 * as_said, rel=0.05)
    assert found.own_weights["tensor"] > own.own_weights["tensor"]
    assert found.own_weights["tensor"] / 0.6 > found.weights["fma"] / own.weights["fma"]


@pytest.mark.parametrize("share", [0.5, 1.5])
def test_a_board_that_draws_another_share_is_met_the_better_the_more_is_known(share: float) -> None:
    idle = PRIOR.idle_watts
    truth = idle + share * (predicted_power(PRIOR, BUSY, REFERENCE).watts - idle)
    errors = [
        abs(
            predicted_power(recalibrated(PRIOR, [(BUSY, truth)] * n), BUSY, REFERENCE).watts - truth
        )
        for n in (0, 1, 10)
    ]
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


def test_no_weight_falls_below_0_however_little_a_board_draws() -> None:
    found = recalibrated(PRIOR, [(BUSY, 1.0)])
    assert min(found.weights.values()) >= 0
    assert predicted_power(found, NOTHING, ClockPair(800.0, 400.0)).watts >= PRIOR.idle_watts


@pytest.mark.parametrize("watts", [0.0, -3.0, float("nan")])
def test_a_reading_that_is_not_positive_is_refused(watts: float) -> None:
    with pytest.raises(DataError, match="not positive"):
        recalibrated(PRIOR, [(BUSY, watts)])
