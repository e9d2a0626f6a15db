"""The thesis' second time model (``scheduling.py``) behind the interface of all time models."""

from __future__ import annotations

from wattcast.features.analysis import KernelAnalysis
from wattcast.features.diagnostics import Diagnostic
from wattcast.features.gpus import GpuProfile
from wattcast.models.clocks import ClockPair, checked, default_clocks
from wattcast.models.time.base import TimePrediction, summed
from wattcast.models.time.scheduling import SchedulingTimeModel
from wattcast.models.time.work import work_of


class ThesisTimeModel:
    """``SchedulingTimeModel`` as a ``TimeModel``: the same numbers, terms in seconds.

    ``parts`` are summands, the terms of equation 4.8: ``schedule``, ``global_penalty``,
    ``shared_penalty``, ``cache_penalty``, ``launch_overhead``. The memory clock has no place in
    its equations; another than the default leaves a warning.
    """

    family = "scheduling"
    combined = staticmethod(summed)

    def predict(
        self, analysis: KernelAnalysis, gpu: GpuProfile, clocks: ClockPair | None = None
    ) -> TimePrediction:
        """Time of an analysed launch; see ``TimeModel``.

        Raises ModelError for a GPU without published latencies, LaunchError for clocks that are
        not above 0.
        """
        pair = checked(clocks or default_clocks(gpu))
        result = SchedulingTimeModel().predict(work_of(analysis), gpu, pair.core_mhz)
        return TimePrediction(
            family=self.family,
            estimate=result.estimate,
            clocks=pair,
            parts={name: cycles / pair.core_hz for name, cycles in result.cycles._asdict().items()},
            diagnostics=(*result.diagnostics, *_unused_clock(pair, gpu)),
        )


def _unused_clock(clocks: ClockPair, gpu: GpuProfile) -> tuple[Diagnostic, ...]:
    if clocks.memory_mhz == gpu.memory_mhz:
        return ()
    return (
        Diagnostic(
            "memory_clock_unused",
            f"the scheduling model knows memory at {gpu.memory_mhz:g} MHz alone; "
            f"{clocks.memory_mhz:g} MHz changes nothing in it",
        ),
    )
