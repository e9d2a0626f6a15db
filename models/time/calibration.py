"""The default time model corrected by launches measured on a GPU's board.

What the model misses of a board (its driver's overheads, an optimistic bandwidth) it misses in
nearly the same proportion at every launch, or at every launch that the same thing bounds. So the
correction is a factor on the predicted seconds: one, or one for each ``regime``.
``training/retrain/launch_time.py`` fits it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import exp

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wattcast.features.errors import ModelError
from wattcast.features.gpus import GpuProfile
from wattcast.models.cards import CardPart
from wattcast.models.clocks import ClockPair
from wattcast.models.estimate import Basis, Estimate
from wattcast.models.store import Artifact
from wattcast.models.time.base import Regime, TimePrediction
from wattcast.models.time.bottleneck_interval import interval_of
from wattcast.models.time.card import AnyTimeCard

FAMILY = "bottleneck"
PARAMETERS_NAME = "model.json"
PART = "calibration"
"""Of a corrected prediction's ``parts``: the seconds that the correction adds."""

REGIMES: tuple[Regime, ...] = ("compute", "memory", "latency", "launch")

FEATURES = ("predicted_seconds", "core_mhz", "memory_mhz", *REGIMES)
"""What a card tells the measured range of: 1 for the regime of a launch, 0 for the others."""

SAME = 0.01
"""This near to the measured range, relatively, is inside: a clock's supported step, rounding."""


class TimeCorrection(BaseModel):
    """Natural logarithms of factors on predicted seconds.

    ``log_factor`` holds for every launch but those whose regime is in ``by_regime``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gpu: str
    log_factor: float = Field(allow_inf_nan=False)
    by_regime: dict[Regime, float] = {}

    def of(self, regime: Regime) -> float:
        """ln of the factor of a regime."""
        return self.by_regime.get(regime, self.log_factor)


class TimeBoard(CardPart):
    """Which board a correction is for (empty: uploads without a label), and the ids of the uploads
    it was fitted on."""

    label: str = Field(max_length=64)
    batches: tuple[str, ...]


class TimeCorrectionCard(AnyTimeCard):
    """Card of a correction. Groups count as programs: an upload tells kernels apart, no more."""

    board: TimeBoard


class CorrectedTimes:
    """One artifact. Stateless; safe to share between threads.

    Raises ModelError for a file that holds no correction.
    """

    def __init__(self, artifact: Artifact[TimeCorrectionCard]) -> None:
        self.card = artifact.card
        path = artifact.file(PARAMETERS_NAME)
        try:
            self.correction = TimeCorrection.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise ModelError(f"{path.name} of {self.card.folder}: {error}") from error
        self._ranges = {fact.name: (fact.minimum, fact.maximum) for fact in self.card.features}

    def seconds(self, regime: Regime, predicted_seconds: float) -> float:
        """Corrected seconds of a launch that the default model predicts."""
        return predicted_seconds * exp(self.correction.of(regime))

    def corrected(self, found: TimePrediction, gpu: GpuProfile) -> TimePrediction:
        """The default time model's prediction, corrected, with the interval measured for that.

        The interval still spans the cases of a launch that the prediction's spans. Outside the
        clocks, regimes and times that were measured the basis is ``extrapolated``. Raises
        ModelError for the prediction of another model.
        """
        if found.family != FAMILY or found.regime is None:
            raise ModelError(f"a correction of {FAMILY} does not fit {found.family}")
        estimate, before = found.estimate, interval_of(gpu)[0]
        seconds = self.seconds(found.regime, estimate.value)
        factor = seconds / estimate.value
        outside = any(self._outside(found.regime, estimate.value, found.clocks))
        basis: Basis = "extrapolated" if outside else "unseen_kernel"
        intervals = self.card.intervals
        width = intervals.extrapolated if outside else intervals.unseen_kernel
        low = factor * min(estimate.low / before.low_factor, estimate.value) * width.low_factor
        high = factor * max(estimate.high / before.high_factor, estimate.value) * width.high_factor
        return replace(
            found,
            estimate=Estimate(seconds, low, high, intervals.level, basis),
            parts={**found.parts, PART: seconds - estimate.value},
            card=self.card,
        )

    def _outside(self, regime: Regime, seconds: float, clocks: ClockPair) -> Iterator[bool]:
        values = dict(zip(FEATURES, features_of(regime, seconds, clocks), strict=True))
        for name, (low, high) in self._ranges.items():
            yield not low * (1 - SAME) <= values[name] <= high * (1 + SAME)


def features_of(regime: Regime, seconds: float, clocks: ClockPair) -> tuple[float, ...]:
    """``FEATURES`` of a launch that the default model predicts to take ``seconds``."""
    return (seconds, *clocks, *(float(regime == one) for one in REGIMES))
