"""Wang and Chu's model behind the interface of all time models: ``queueing``, ``queueing-cases``.

Times of other core and memory clocks are what it is for: device memory runs at the one, the
SMs and L2 at the other, and each form says what follows from that.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np

from wattcast.features.analysis import KernelAnalysis
from wattcast.features.errors import DataError
from wattcast.features.gpus import GpuProfile
from wattcast.models.clocks import ClockPair, checked, default_clocks
from wattcast.models.estimate import Basis, Estimate
from wattcast.models.intervals import EXTRAPOLATED_WIDENING, IntervalWidth
from wattcast.models.time.base import Floats, Regime, TimePrediction, summed
from wattcast.models.time.queueing import FormTime, network_form
from wattcast.models.time.queueing_cases import Case, case_form
from wattcast.models.time.queueing_gpu import gpu_parameters
from wattcast.models.time.queueing_inputs import launch_of
from wattcast.models.time.work import executed_span, work_of

LEVEL = 0.9
SPREAD_FILE = Path(__file__).with_name("queueing_spread.csv")
ANY_GPU = "any"

_SERVERS: Mapping[str, Regime] = {
    "sm": "compute",
    "texture": "compute",
    "l2": "compute",
    "dram": "memory",
    "latency": "latency",
}
_CASES: Mapping[Case, Regime] = {
    "no global memory": "compute",
    "compute (9)": "compute",
    "memory (11)": "memory",
    "few warps, short (13)": "latency",
    "few warps, long (15)": "latency",
    "shared, infrequent (17)": "memory",
    "shared, intensive (21)": "compute",
}


@lru_cache(maxsize=64)
def spread(family: str, gpu_id: str) -> tuple[IntervalWidth, Basis]:
    """Interval factors at 90 % for a GPU, and what they rest on.

    A GPU with measured times gets its own (``unseen_kernel``: nothing was fitted to them), any
    other those of all, ``EXTRAPOLATED_WIDENING`` times as wide in logarithms (``extrapolated``).
    ``queueing_spread.csv`` is made by ``python -m studies queueing --write``.
    Raises DataError
    where the file has no factors of the family.
    """
    with SPREAD_FILE.open(encoding="utf-8", newline="") as file:
        found = {row["gpu"]: row for row in csv.DictReader(file) if row["family"] == family}
    row = found.get(gpu_id) or found.get(ANY_GPU)
    if row is None:
        raise DataError(f"{SPREAD_FILE.name} has no factors of {family}", file=SPREAD_FILE.name)
    width = IntervalWidth(
        low_factor=float(row["low_factor"]), high_factor=float(row["high_factor"])
    )
    if row["gpu"] == gpu_id:
        return width, "unseen_kernel"
    return width.widened(EXTRAPOLATED_WIDENING), "extrapolated"


class QueueingTimeModel:
    """The max form with servers that wait for each other (``network_form``). Stateless.

    ``parts`` are seconds: ``sm``, ``texture``, ``l2`` and ``dram`` what each server needs alone,
    ``overlap`` what they add by waiting, ``latency`` the latency of every round; the sum of the
    largest server, ``overlap`` and ``latency`` counts, but no less than ``chain``, one warp after
    the other. ``launch``, the start of the kernel, comes on top. More blocks or a lower clock
    of either kind never shorten a prediction.
    """

    family = "queueing"

    @staticmethod
    def combined(parts: Mapping[str, Floats]) -> Floats:
        """``network_form``: the busiest server, waiting, latency; or the chain."""
        busiest = np.max([parts[name] for name in ("sm", "texture", "l2", "dram")], axis=0)
        found: Floats = np.maximum(busiest + parts["overlap"] + parts["latency"], parts["chain"])
        return found

    def predict(
        self, analysis: KernelAnalysis, gpu: GpuProfile, clocks: ClockPair | None = None
    ) -> TimePrediction:
        """Time of an analysed launch; see ``TimeModel``.

        Raises ModelError for matrix instructions on a GPU without tensor cores.
        """
        pair = checked(clocks or default_clocks(gpu))
        parameters = gpu_parameters(gpu)
        launch = launch_of(analysis, gpu, parameters.gpu.shared_latency)
        found = network_form(launch, parameters.gpu, pair)
        start = parameters.gpu.launch_seconds
        parts = {name: cycles / pair.core_hz for name, cycles in found.parts.items()}
        return TimePrediction(
            family=self.family,
            estimate=_estimate(self.family, found.seconds + start, analysis, gpu),
            clocks=pair,
            parts={**parts, "launch": start},
            regime=_regime(found, start),
            diagnostics=parameters.diagnostics,
        )


class QueueingCasesTimeModel:
    """The published case distinction, corrected (``case_form``). Stateless.

    ``parts`` are summands in seconds: ``active``, T_active over all rounds, under the name of its
    case, and ``launch``. A chain of one transaction at a time: it knows no parallel
    requests of a warp and overestimates kernels that do not saturate memory. Where one case gives
    way to another a higher core clock can lengthen a prediction a little (docs/frequency.md).
    """

    family = "queueing-cases"
    combined = staticmethod(summed)

    def predict(
        self, analysis: KernelAnalysis, gpu: GpuProfile, clocks: ClockPair | None = None
    ) -> TimePrediction:
        """Time of an analysed launch; see ``TimeModel``."""
        pair = checked(clocks or default_clocks(gpu))
        parameters = gpu_parameters(gpu)
        launch = launch_of(analysis, gpu, parameters.gpu.shared_latency)
        found = case_form(launch, parameters.gpu, pair)
        start = parameters.gpu.launch_seconds
        return TimePrediction(
            family=self.family,
            estimate=_estimate(self.family, found.seconds + start, analysis, gpu),
            clocks=pair,
            parts={found.case: found.seconds, "launch": start},
            regime="launch" if start > found.seconds else _CASES[found.case],
            diagnostics=parameters.diagnostics,
        )


def _estimate(family: str, seconds: float, analysis: KernelAnalysis, gpu: GpuProfile) -> Estimate:
    """The interval also holds what uncertain trip counts would execute."""
    width, basis = spread(family, gpu.id)
    less, more = executed_span(work_of(analysis))
    return Estimate(
        seconds,
        seconds * less * width.low_factor,
        seconds * more * width.high_factor,
        LEVEL,
        basis,
    )


def _regime(found: FormTime, start_seconds: float) -> Regime:
    if start_seconds > found.seconds:
        return "launch"
    if found.cycles <= found.parts["chain"]:
        return "latency"
    name = max(_SERVERS, key=lambda each: found.parts[each])
    return _SERVERS[name]
