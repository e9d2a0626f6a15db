"""Time and power of a launch at other core clocks, over those at the clocks of the trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wattcast.features.analysis import KernelAnalysis
from wattcast.features.errors import AnalysisError
from wattcast.features.gpus import GpuProfile
from wattcast.models.clocks import ClockPair
from wattcast.predictor.parts.time_and_power import Chosen, time_and_power

if TYPE_CHECKING:
    from wattcast.predictor import Predictor

Floats = NDArray[np.float64]

MOST_CLOCKS = 12
"""Core clocks that are tried, beside those of the trace."""

MODELS = Chosen("auto", "physical")


def tried(gpu: GpuProfile, clocks: ClockPair) -> list[ClockPair]:
    """Some of the clocks that the GPU has up to these, the last; empty where it tells none."""
    cores = [core for core in gpu.supported_core_mhz if core <= clocks.core_mhz]
    if not cores:
        return []
    every = max(1, -(-len(cores) // MOST_CLOCKS))
    chosen = sorted({*cores[::-1][::every], clocks.core_mhz})
    return [ClockPair(core, clocks.memory_mhz) for core in chosen]


def scales(
    predictor: Predictor, analysis: KernelAnalysis, gpu: GpuProfile, pairs: Sequence[ClockPair]
) -> Floats | None:
    """Time and power at each pair over those at the last, ``[n, 2]``; ``None`` where the models
    tell none."""
    try:
        found = [time_and_power(predictor, MODELS, analysis, gpu, pair).told() for pair in pairs]
    except AnalysisError:
        return None
    told = np.array([(time.estimate.value, watts.value) for time, watts, _ in found])
    return np.asarray(told / told[-1]) if len(told) else None
