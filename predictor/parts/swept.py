"""The shapes of a sweep on one GPU: each predicted as ``POST /predict`` would, and what speaks
against its being the same program."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from wattcast.features import errors, occupancy, places
from wattcast.features.analysis import KernelAnalysis, Mode
from wattcast.features.gpus import GpuProfile
from wattcast.features.invariance import Doubt, doubt, stores
from wattcast.features.launch import Dim3, Launch
from wattcast.features.needs import with_guards
from wattcast.models.choice import Point
from wattcast.models.clocks import ClockPair
from wattcast.predictor import Predictor, parts
from wattcast.predictor.messages import ClocksAnswer, LaunchRequest
from wattcast.predictor.messages.sweep import SweepModel, SweepRequest
from wattcast.predictor.parts import power_models, sources, time_and_power
from wattcast.predictor.variants import Variant

AGREEMENT = 0.02
"""How far the symbolic analysis may lie from the executed one in time and power of the reference
launch, relative, to stand in for it: far below what tells shapes apart in practice."""


class Shape(NamedTuple):
    """A launch shape on a GPU; ``registers`` is ``None`` where the kernel's own count stands."""

    gpu: GpuProfile
    grid: Dim3
    block: Dim3
    registers: int | None
    variant: Variant = ()

    def members(self) -> dict[str, Any]:
        """What answers tell of it."""
        return {
            "gpu": self.gpu.id,
            "grid": list(self.grid),
            "block": list(self.block),
            "registers_per_thread": self.registers,
            "defines": dict(self.variant) or None,
        }


@dataclass(frozen=True, slots=True)
class Predicted:
    """A shape with its prediction."""

    shape: Shape
    analysis: KernelAnalysis
    found: time_and_power.TimeAndPower
    point: Point[Shape]
    doubt: Doubt | None = None


class Swept:
    """The shapes of one GPU: same source, clocks, models and kind of analysis."""

    def __init__(
        self, predictor: Predictor, request: SweepRequest, gpu: GpuProfile, variant: Variant = ()
    ) -> None:
        self._predictor, self._request, self._gpu = predictor, request, gpu
        self.source: sources.Source = predictor.sources.read(request, gpu)
        self._clocks: ClockPair
        self._clocks, beside = parts.clocks_of(request.clocks, gpu)
        base = request.launch.launch()
        own = Shape(gpu, base.grid, base.block, None, variant)
        self._mode: Mode = request.analysis
        self._assumed: dict[str, Any] = {}
        self.reference = self._at(own, request.analysis)
        # The other shapes do the work of this launch, also where that is assumed.
        known = self.reference.analysis
        filled = with_guards(known.function, known.launch).arguments
        self._assumed = {k: v for k, v in filled.items() if k not in known.launch.arguments}
        self.notes: tuple[errors.Diagnostic, ...] = (*beside, *self.reference.found.warnings)
        ran = self.reference.analysis.activity_how == "executed"
        if request.analysis == "auto" and ran and (quick := self._symbolic(own)) is not None:
            self._mode, self.reference = "symbolic", quick

    def _symbolic(self, own: Shape) -> Predicted | None:
        """The reference worked out symbolically, if that comes to the same."""
        try:
            quick = self._at(own, "symbolic")
        except errors.WattcastError:
            return None
        slow = self.reference.point
        agrees = all(
            abs(one - other) <= AGREEMENT * other
            for one, other in (
                (quick.point.time_seconds, slow.time_seconds),
                (quick.point.power_watts, slow.power_watts),
            )
        )
        same = quick.analysis.trip_counts == self.reference.analysis.trip_counts
        return quick if agrees and same else None

    def announced(self, shapes: Sequence[Shape]) -> AbstractContextManager[None]:
        """Shapes that are predicted inside: what can be worked out for many at once is."""
        function = self.source.known.module.kernel(self._request.kernel)
        return parts.announced(self.source, function, map(self._launch, shapes))

    def doubt(self, shape: Shape) -> Doubt | None:
        """Why a shape may compute something else than the request's launch, by its text."""
        module = self.source.known.module
        function = module.kernel(self._request.kernel)
        base = self._request.launch.launch()
        other = Launch(shape.grid, shape.block)
        found = doubt(module, function, base, other, strides=self._request.grid_stride)
        if found is None and self._more(other) and self._stored is None:
            return self._may_act(other)  # nothing that is worked out of it could show it
        return found

    def check(self, shape: Shape) -> None:
        """Raises LaunchError for a shape that its GPU never launches."""
        known = self.reference.analysis
        launch = replace(known.launch, grid=shape.grid, block=shape.block)
        occupancy.check_launch(self._gpu, launch, known.static_shared_bytes, shape.registers or 1)

    def idle(self, point: Predicted) -> Doubt | None:
        """Why the threads that a shape has besides those of the launch may do something."""
        launch = point.analysis.launch
        if not self._more(launch) or stored(point.analysis) == self._stored:
            return None
        return self._may_act(launch)

    def _more(self, launch: Launch) -> bool:
        strides = self._request.grid_stride
        return not strides and places.extra_threads(self._request.launch.launch(), launch)

    @cached_property
    def _stored(self) -> dict[str, float] | None:
        return stored(self.reference.analysis)

    def _may_act(self, launch: Launch) -> Doubt:
        base = self.reference.analysis
        more = launch.threads - base.launch.threads
        needed = [f"argument {need.position}" for need in base.needs if need.assumes == "value"]
        hint = f" ({', '.join(needed)} was not given)" if needed else ""
        return Doubt(f"it is not shown that its {more} more threads do nothing{hint}")

    def at(self, shape: Shape) -> Predicted:
        """The prediction for a shape. Raises LaunchError and AnalysisError."""
        return self._at(shape, self._mode)

    def _launch(self, shape: Shape) -> LaunchRequest:
        asked = self._request.launch
        changed = {
            "grid": list(shape.grid),
            "block": list(shape.block),
            "arguments": {**self._assumed, **asked.arguments},
        }
        return asked.model_copy(update=changed).beside(asked)

    def _at(self, shape: Shape, mode: Mode) -> Predicted:
        changes: dict[str, Any] = {"launch": self._launch(shape), "analysis": mode}
        if shape.registers is not None:
            changes["registers_per_thread"] = shape.registers
        asked = self._request.model_copy(update=changes)
        analysis = parts.analysed(self._predictor, asked, self.source, self._gpu, ptxas=True)
        models = time_and_power.BoardModels.of(self._predictor, asked, self._gpu)
        found = models.limited(analysis, self._clocks, asked.power_limit_watts)
        time, watts, _ = found.told()
        return Predicted(shape, analysis, found, Point(shape, time.estimate.value, watts.value))

    def answer(self) -> SweepModel:
        """What answered for the GPU."""
        time, _, card = self.reference.found.told()
        return SweepModel(
            gpu=self._gpu.id,
            clocks=ClocksAnswer.from_attributes(self._clocks),
            model=power_models.reference_of(card),
            time_model=time.family,
            analysis=self.reference.analysis.activity_how,
        )


def stored(analysis: KernelAnalysis) -> dict[str, float] | None:
    """How often each function's instructions that change memory do, over all threads of the
    launch; ``None`` where that is not exactly known."""
    try:
        result = analysis.symbolic
    except errors.WattcastError:
        return None
    if not (result.complete and result.sampling.exact):
        return None
    found = {}
    for name, counts in result.functions.items():
        function = analysis.module.function(name)
        places = [] if function is None else stores(function)
        if function is None or not counts.counts_known[places].all():
            return None
        found[name] = float(counts.active_lanes[places].sum())
    return found
