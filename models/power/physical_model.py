"""The physical power model as it serves: parameters from an artifact, intervals from its card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import ValidationError

from wattcast.features.activity import Activity
from wattcast.features.errors import ModelError
from wattcast.features.gpus import GpuProfile
from wattcast.models.cards import ModelCard
from wattcast.models.clocks import ClockPair
from wattcast.models.estimate import Basis, Estimate
from wattcast.models.power.activities import UnitActivities, unit_activities
from wattcast.models.power.physical import (
    PARAMETERS_NAME,
    POOLED,
    PhysicalParameters,
    PowerBreakdown,
    parameters_for,
    predicted_power,
)
from wattcast.models.store import Artifact
from wattcast.models.time.bottleneck import NOTHING_BESIDE, Beside

TOLERANCE = 0.05
"""How far an activity may lie beyond the training rows' before it counts as extrapolated: the
resolution of a prediction, not a measured figure."""

CLOCKS = ("core_mhz", "memory_mhz")
"""Features of a card whose rows ran at few clocks (a calibration's): the range they span."""

SAME_CLOCK = 0.01
"""Clocks this near, relatively, are the same setting: NVML reports the supported step beside the
one asked for."""


@dataclass(frozen=True, slots=True)
class WorkAtTime:
    """One launch, or another case of it: what it does and how long that takes."""

    activity: Activity
    time_seconds: float
    more: Beside = NOTHING_BESIDE


@dataclass(frozen=True, slots=True)
class PhysicalPower:
    """Predicted power with its interval, decomposition and the units' activities.

    ``outside`` names the units that work harder than in any training row, and the clocks that
    no training row ran near (``CLOCKS``).
    """

    estimate: Estimate
    breakdown: PowerBreakdown
    activities: UnitActivities
    outside: tuple[str, ...]


class PhysicalPowerModel:
    """One artifact for one GPU. Stateless; safe to share between threads.

    ``typical_voltage`` tells that the voltage curve is that of other GPUs. Raises ModelError for a
    file that holds no parameters.
    """

    def __init__(self, artifact: Artifact, gpu: GpuProfile) -> None:
        self.card: ModelCard = artifact.card
        path = artifact.file(PARAMETERS_NAME)
        try:
            stored = PhysicalParameters.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise ModelError(f"{path.name} of {self.card.folder}: {error}") from error
        self.pooled = stored.gpu == POOLED
        self.gpu = gpu
        self.parameters = parameters_for(gpu, stored) if self.pooled else stored
        self.typical_voltage = self.pooled or bool(self.card.hyperparameters.get("pooled_voltage"))
        facts = {fact.name: fact for fact in self.card.features}
        self._highest: Mapping[str, float] = {
            name: facts[name].maximum for name in UnitActivities._fields
        }
        self._clocks = {
            name: (facts[name].minimum, facts[name].maximum) for name in CLOCKS if name in facts
        }

    def predict(
        self, work: WorkAtTime, clocks: ClockPair, cases: Sequence[WorkAtTime] = ()
    ) -> PhysicalPower:
        """Power at ``clocks``; the interval spans ``cases``, which the truth may be instead."""
        others = [self._activities(case, clocks) for case in cases]
        return self.of_activities(self._activities(work, clocks), clocks, others)

    def of_activities(
        self, activities: UnitActivities, clocks: ClockPair, cases: Sequence[UnitActivities] = ()
    ) -> PhysicalPower:
        """The same from activities that are known."""
        breakdown = predicted_power(self.parameters, activities, clocks)
        others = [predicted_power(self.parameters, case, clocks).watts for case in cases]
        outside = (*self._busier(activities), *self._other_clocks(clocks))
        low, high = self._bounds(outside, [breakdown.watts, *others])
        basis = self._basis(outside)
        estimate = Estimate(breakdown.watts, low, high, self.card.intervals.level, basis)
        return PhysicalPower(estimate, breakdown, activities, outside)

    def decompose(self, work: WorkAtTime, clocks: ClockPair) -> Mapping[str, float]:
        """Watts of each component (``wattcast.models.power.physical.COMPONENTS``) at ``clocks``.

        They sum to the watts of ``predict``; none is negative.
        """
        return predicted_power(self.parameters, self._activities(work, clocks), clocks).components

    def scale(self, work: WorkAtTime, clocks: ClockPair, at: WorkAtTime, base: ClockPair) -> float:
        """Power of ``work`` at ``clocks`` over that of the same launch ``at`` the base clocks."""
        there = predicted_power(self.parameters, self._activities(work, clocks), clocks)
        here = predicted_power(self.parameters, self._activities(at, base), base)
        return there.watts / here.watts

    def _activities(self, work: WorkAtTime, clocks: ClockPair) -> UnitActivities:
        return unit_activities(work.activity, self.gpu, clocks, work.time_seconds, more=work.more)

    def _busier(self, activities: UnitActivities) -> Iterator[str]:
        for name, value in activities._asdict().items():
            if value > self._highest[name] + TOLERANCE:
                yield name

    def _other_clocks(self, clocks: ClockPair) -> Iterator[str]:
        for name, (low, high) in self._clocks.items():
            if not low * (1 - SAME_CLOCK) <= getattr(clocks, name) <= high * (1 + SAME_CLOCK):
                yield name

    def _basis(self, outside: Sequence[str]) -> Basis:
        if self.pooled:
            return "uncalibrated"
        return "extrapolated" if outside else "unseen_kernel"

    def _bounds(self, outside: Sequence[str], watts: Sequence[float]) -> tuple[float, float]:
        """Ends of the interval over all cases, not below idle."""
        intervals = self.card.intervals
        # A pooled model is calibrated on GPUs left out: its unseen width is that of a new GPU.
        width = intervals.extrapolated if outside else intervals.unseen_kernel
        idle = self.parameters.idle_watts
        low, high = width.around(np.array([min(watts), max(watts)]))
        return max(float(low[0]), min(idle, min(watts))), float(high[1])
