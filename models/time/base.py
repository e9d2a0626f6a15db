"""What every time model answers, and the interface they share.

    predict(analysis, gpu, clocks) -> TimePrediction

The models differ in what they believe limits a kernel; ``parts`` shows each one's reasoning in
its own terms, so that two answers can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from wattcast.features.analysis import KernelAnalysis
from wattcast.features.diagnostics import Diagnostic
from wattcast.features.errors import ModelError
from wattcast.features.gpus import GpuProfile
from wattcast.models.cards import Card
from wattcast.models.clocks import ClockPair
from wattcast.models.estimate import Estimate

Regime = Literal["compute", "memory", "latency", "launch"]
"""What bounds a launch: an SM's pipes and caches, device memory, waiting, or its start."""


@dataclass(frozen=True, slots=True)
class TimePrediction:
    """Seconds of one launch at ``clocks``, with its interval and how they come about.

    ``parts`` are named seconds of the model's own terms: bounds of which the largest counts
    (``bottleneck``), or summands (``scheduling``); each model's docstring says which.
    ``regime`` is ``None`` where a model does not tell, and so is ``bound``, what binds the launch
    in words; ``card`` is that of a correction by
    measurements of the GPU (``wattcast.models.time.calibration``), if one was made.

    Raises ModelError where the model comes to no time above 0: it counts nothing of what the
    kernel does (a roofline counts no integers), which does not mean that the launch takes none.
    """

    family: str
    estimate: Estimate
    clocks: ClockPair
    parts: Mapping[str, float]
    regime: Regime | None = None
    bound: str | None = None
    diagnostics: tuple[Diagnostic, ...] = field(default=())
    card: Card | None = None

    def __post_init__(self) -> None:
        seconds = self.estimate.value
        if not (seconds > 0 and isfinite(self.estimate.high)):
            raise ModelError(
                f"the time model {self.family} cannot predict the time of this launch: it counts "
                f"{', '.join(self.parts)}, which comes to {seconds:g} s here; ask for another "
                "time model (time_model), such as bottleneck",
                field="time_model",
            )


Floats = NDArray[np.float64]


def summed(parts: Mapping[str, Floats]) -> Floats:
    """Parts that are summands."""
    found: Floats = np.sum(list(parts.values()), axis=0)
    return found


def largest(parts: Mapping[str, Floats]) -> Floats:
    """Parts that are bounds, of which the largest counts."""
    found: Floats = np.max(list(parts.values()), axis=0)
    return found


class TimeModel(Protocol):
    """A time model. Stateless; safe to share between threads."""

    @property
    def family(self) -> str:
        """Name under which ``time_model`` of a request selects it."""

    def predict(
        self, analysis: KernelAnalysis, gpu: GpuProfile, clocks: ClockPair | None = None
    ) -> TimePrediction:
        """Time of the analysed launch at ``clocks``, or at the profile's default ones.

        Raises ModelError where the GPU's profile lacks what the model needs and where the model
        counts nothing of what the kernel does, LaunchError for clocks that are not above 0.
        """

    @staticmethod
    def combined(parts: Mapping[str, Floats]) -> Floats:
        """Seconds that the model's own ``parts`` come to, but for what is paid on top."""
