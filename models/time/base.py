"""What every time model answers, and the interface they share.

    predict(analysis, gpu, clocks) -> TimePrediction

The models differ in what they believe limits a kernel; ``parts`` shows each one's reasoning in
its own terms, so that two answers can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from math import isfinite
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wattcast.features.analysis import KernelAnalysis
from wattcast.features.errors import Diagnostic, ModelError
from wattcast.features.gpus import GpuProfile
from wattcast.models.cards import Card
from wattcast.models.clocks import ClockPair
from wattcast.models.intervals import Estimate, IntervalWidth

Regime = Literal["compute", "memory", "latency", "launch"]
"""What bounds a launch: an SM's pipes and caches, device memory, waiting, or its start."""


@dataclass(frozen=True, slots=True)
class TimePrediction:
    """Seconds of one launch at ``clocks``, with its interval and how they come about.

    ``parts`` are named seconds of the model's own terms: bounds of which the largest counts
    (``bottleneck``), or summands (``scheduling``); each model's docstring says which.
    ``regime`` is ``None`` where a model does not tell, and so is ``bound``, what binds the launch
    in words, worked out by ``binds`` when it is asked for: answers of many clocks do not ask.
    ``width`` is what the model itself misses, beside what is assumed of the launch.
    ``card`` is that of a correction by measurements of the GPU
    (``wattcast.models.time.calibration``), if one was made.

    Raises ModelError where the model comes to no time above 0: it counts nothing of what the
    kernel does (a roofline counts no integers), which does not mean that the launch takes none.
    """

    family: str
    estimate: Estimate
    clocks: ClockPair
    parts: Mapping[str, float]
    regime: Regime | None = None
    binds: Callable[[], str] | None = field(default=None, repr=False, compare=False)
    diagnostics: tuple[Diagnostic, ...] = field(default=())
    card: Card | None = None
    width: IntervalWidth | None = None

    def __post_init__(self) -> None:
        seconds = self.estimate.value
        if not (seconds > 0 and isfinite(self.estimate.high)):
            raise ModelError(
                f"the time model {self.family} cannot predict the time of this launch: it counts "
                f"{', '.join(self.parts)}, which comes to {seconds:g} s here; ask for another "
                "time model (time_model), such as bottleneck",
                field="time_model",
            )

    @property
    def bound(self) -> str | None:
        """What binds the launch, in words."""
        return self.binds and self.binds()


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


# Every time model by name: the default one, and those of papers (``wattcast.models.papers``).
#
# This table is the one way to the papers' models: a module is imported when it is first asked for.


class Entry(NamedTuple):
    """Where a time model is defined, and what it is, for people."""

    module: str
    name: str
    help: str


DEFAULT = "bottleneck"

TIME_MODELS: Mapping[str, Entry] = {
    DEFAULT: Entry("time.bottleneck", "BottleneckTimeModel", "the slowest resource of the launch"),
    "scheduling": Entry(
        "papers.thesis.scheduling", "SchedulingTimeModel", "the thesis' schedule, Algorithms 6-8"
    ),
    "delay": Entry("papers.thesis.delay", "DelayTimeModel", "the thesis' delays, Algorithms 4-5"),
    "queueing": Entry(
        "papers.wang_chu.model", "QueueingTimeModel", "Wang and Chu, servers in a network"
    ),
    "queueing-cases": Entry(
        "papers.wang_chu.model", "QueueingCasesTimeModel", "Wang and Chu, by cases"
    ),
    "roofline": Entry("papers.roofline", "RooflineTimeModel", "peak rates: a lower bound"),
    "volkov": Entry("papers.volkov", "VolkovTimeModel", "Volkov's throughput and latency bounds"),
}
"""Every time model: what HTTP, command line, page and docs offer. One more is one more line."""


@lru_cache(maxsize=len(TIME_MODELS))
def get_time_model(name: str) -> TimeModel:
    """The model of a family, its module imported when it is first asked for.

    Raises ModelError listing the known names (``known``).
    """
    if name not in TIME_MODELS:
        known = sorted(TIME_MODELS)
        raise ModelError(f"unknown time model {name!r}; known: {', '.join(known)}", known=known)
    entry = TIME_MODELS[name]
    module = import_module(f"wattcast.models.{entry.module}")
    model: TimeModel = getattr(module, entry.name)()
    return model
