"""A kernel at many launch shapes: what each costs, which are best, which cannot be launched.

Every shape is predicted as ``POST /predict`` would (``model`` and ``time_model`` as asked). The
kernel's text is parsed and analysed once for all. Executing each shape costs 5 to 100 ms, working
it out symbolically about 1 ms, but symbols do not know everything of every kernel. Where they do
not, ``analysis: auto`` looks at the reference launch both ways and executes the others only where
the two disagree.

A shape under which the kernel may compute something else is left out, with the reason
(``features.invariance``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from wattcast.features.analysis import KernelAnalysis, Mode
from wattcast.features.diagnostics import Diagnostic
from wattcast.features.errors import AnalysisError, LaunchError, ServiceError, WattcastError
from wattcast.features.gpus import GpuProfile
from wattcast.features.invariance import Doubt, doubt, stores
from wattcast.features.launch import Dim3, Launch, axes_of, covering_grid, usual_blocks
from wattcast.features.occupancy import check_launch
from wattcast.features.places import extra_threads
from wattcast.models.choice import OBJECTIVES, Constraints, Point, best_points, pareto
from wattcast.models.clocks import ClockPair
from wattcast.models.energy import energy
from wattcast.models.time.base import TimePrediction
from wattcast.predictor import parts
from wattcast.predictor.messages import LaunchRequest
from wattcast.predictor.messages.sweep import MOST_POINTS, SweepRequest
from wattcast.predictor.parts.clocks import clocks_of
from wattcast.predictor.parts.limits import cost
from wattcast.predictor.parts.power_models import reference_of
from wattcast.predictor.parts.sources import Source
from wattcast.predictor.parts.trust import apart, incomparable, trust
from wattcast.predictor.parts.watts import Watts

if TYPE_CHECKING:
    from wattcast.predictor import Predictor

AGREEMENT = 0.02
"""How far the symbolic analysis may lie from the executed one in time and power of the reference
launch, relative, to stand in for it: far below what tells shapes apart in practice."""

RESOLUTION = 0.02
"""Relative difference of two shapes below which neither is called better. Within the best of the
tuning spaces measured, times are met to 2.2 % in the median (dedispersion_a100, docs/accuracy.md,
Counts and tuning spaces), and the two analyses count as agreeing within 2 % (``AGREEMENT``)."""

UNPROVEN = "block_size_in_code"
"""Code of the warning that shapes may be another program; told before all others."""


class Shape(NamedTuple):
    """A launch shape on a GPU; ``registers`` is ``None`` where the kernel's own count stands."""

    gpu: GpuProfile
    grid: Dim3
    block: Dim3
    registers: int | None

    def answer(self) -> dict[str, Any]:
        """``wattcast.predictor.messages.sweep.Shape``."""
        return {
            "gpu": self.gpu.id,
            "grid": list(self.grid),
            "block": list(self.block),
            "registers_per_thread": self.registers,
        }


@dataclass(frozen=True, slots=True)
class _Predicted:
    """A shape with its prediction."""

    shape: Shape
    analysis: KernelAnalysis
    time: TimePrediction
    power: Watts
    point: Point[Shape]
    notes: tuple[Diagnostic, ...]
    doubt: Doubt | None = None

    def marked(self) -> dict[str, Any]:
        """What ``parts.trust`` compares answers by."""
        estimate, card = self.power.estimate, self.power.card
        assert estimate is not None
        assert card is not None
        trips = parts.facts(self.analysis)["trip_counts"]
        return {
            "gpu": self.shape.gpu.id,
            "trust": trust(estimate.basis, card, (), trips),
            "model": {"family": card.family, "source": card.source},
            "power": {"basis": estimate.basis},
        }

    def absolute(self) -> dict[str, Any]:
        assert self.power.estimate is not None
        both = energy(self.power.estimate, self.time, self.shape.gpu)
        return {
            "time": parts.estimate(self.time.estimate, "seconds"),
            "power": parts.estimate(self.power.estimate, "watts"),
            "energy": parts.estimate(both, "joules"),
        }


@parts.within_asked_seconds
def sweep(predictor: Predictor, request: SweepRequest) -> dict[str, Any]:
    """``SweepAnswer``.

    Raises what ``predict`` raises for the reference launch, ServiceError for too many shapes,
    ConstraintError where no shape keeps to the constraints, and LaunchError where none can be
    launched.
    """
    names = [request.gpu] if request.gpu is not None else list(request.gpus or ())
    gpus = [predictor.gpus.load(name) for name in dict.fromkeys(names)]
    base = request.launch.launch()
    shapes = list(_shapes(request, base, gpus))
    sweeps = {gpu.id: _Sweep(predictor, request, gpu) for gpu in gpus}
    reference = sweeps[gpus[0].id].reference
    found: list[_Predicted] = []
    refused: list[dict[str, Any]] = []
    left_out: list[dict[str, Any]] = []
    every = request.include_unproven
    doubts = [sweeps[shape.gpu.id].doubt(shape) for shape in shapes]
    tried = [shape for shape, why in zip(shapes, doubts, strict=True) if every or why is None]
    with sweeps[gpus[0].id].announced(tried):
        for shape, why in zip(shapes, doubts, strict=True):
            try:
                _does_the_work(request, base, shape)
                if why is not None:
                    sweeps[shape.gpu.id].check(shape)
                if why is None or every:
                    point = sweeps[shape.gpu.id].at(shape)
                    why = why or sweeps[shape.gpu.id].idle(point)
            except (LaunchError, AnalysisError) as error:
                field = error.context.get("field")
                refused.append({**shape.answer(), "reason": error.detail, "field": field})
                continue
            if why is None or every:
                found.append(replace(point, doubt=why))
            else:
                left_out.append({**shape.answer(), "reason": why.reason, "line": why.line})
    if not found and left_out:
        found = [reference]  # nothing else is shown to be the same program
    if not found:
        first = f": {refused[0]['reason']}" if refused else ""
        raise LaunchError(f"none of {len(shapes)} shapes can be launched{first}", field="blocks")
    constraints = Constraints(**request.constraints.model_dump())
    # On one GPU shapes are ranked whatever answered; between GPUs only what can be compared.
    marked = [each.marked() for each in found] if len(gpus) > 1 else []
    whys = incomparable(marked) or [None] * len(found)
    ranked = [each for each, why in zip(found, whys, strict=True) if why is None]
    if ranked[0].shape.gpu.id != gpus[0].id and len(gpus) > 1:
        reference = sweeps[ranked[0].shape.gpu.id].reference
    points = [each.point for each in ranked]
    front = _told_apart(pareto(points))
    best = best_points(points, reference.point.time_seconds, constraints)
    source = sweeps[gpus[0].id].source
    on_front = {id(point) for point in front}
    notes = (each.notes for each in sweeps.values())
    warnings = parts.warnings(source, reference.analysis, _unproven(found), *notes, _later(found))
    return {
        "kernel": parts.kernel_name(reference.analysis),
        "compiled": parts.compiled(source),
        "models": [each.answer() for each in sweeps.values()],
        "reference": {**reference.shape.answer(), **reference.absolute()},
        "points": [
            {**_point(each, reference, id(each.point) in on_front, constraints), "apart": why}
            for each, why in zip(found, whys, strict=True)
        ],
        "infeasible": refused,
        "left_out": left_out,
        "pareto": [point.key.answer() for point in front],
        "best": {
            name: {
                **point.key.answer(),
                **_saved(point, reference.point),
                "better": _better(name, point, reference.point),
            }
            for name, point in best.items()
        },
        "resolution_percent": 100 * RESOLUTION,
        "apart": apart(marked),
        "warnings": sorted(warnings, key=lambda each: each["code"] != UNPROVEN),
    }


class _Sweep:
    """The shapes of one GPU: same source, clocks, models and kind of analysis."""

    def __init__(self, predictor: Predictor, request: SweepRequest, gpu: GpuProfile) -> None:
        self._predictor, self._request, self._gpu = predictor, request, gpu
        self.source: Source = predictor.sources.read(request, gpu)
        self._clocks: ClockPair
        self._clocks, beside = clocks_of(request.clocks, gpu)
        base = request.launch.launch()
        own = Shape(gpu, base.grid, base.block, None)
        self._mode: Mode = request.analysis
        self.reference = self._at(own, request.analysis)
        self.notes: tuple[Diagnostic, ...] = (*beside, *self.reference.notes)
        ran = self.reference.analysis.activity_how == "executed"
        if request.analysis == "auto" and ran and (quick := self._symbolic(own)) is not None:
            self._mode, self.reference = "symbolic", quick

    def _symbolic(self, own: Shape) -> _Predicted | None:
        """The reference worked out symbolically, if that comes to the same."""
        try:
            quick = self._at(own, "symbolic")
        except WattcastError:
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
        check_launch(self._gpu, launch, known.static_shared_bytes, shape.registers or 1)

    def idle(self, point: _Predicted) -> Doubt | None:
        """Why the threads that a shape has besides those of the launch may do something."""
        launch = point.analysis.launch
        if not self._more(launch) or _stored(point.analysis) == self._stored:
            return None
        return self._may_act(launch)

    def _more(self, launch: Launch) -> bool:
        strides = self._request.grid_stride
        return not strides and extra_threads(self._request.launch.launch(), launch)

    @cached_property
    def _stored(self) -> dict[str, float] | None:
        return _stored(self.reference.analysis)

    def _may_act(self, launch: Launch) -> Doubt:
        base = self.reference.analysis
        more = launch.threads - base.launch.threads
        needed = [f"argument {need.position}" for need in base.needs if need.assumes == "value"]
        hint = f" ({', '.join(needed)} was not given)" if needed else ""
        return Doubt(f"it is not shown that its {more} more threads do nothing{hint}")

    def at(self, shape: Shape) -> _Predicted:
        """The prediction for a shape. Raises LaunchError and AnalysisError."""
        return self._at(shape, self._mode)

    def _launch(self, shape: Shape) -> LaunchRequest:
        changed = {"grid": list(shape.grid), "block": list(shape.block)}
        return LaunchRequest.model_construct(**{**dict(self._request.launch), **changed})

    def _at(self, shape: Shape, mode: Mode) -> _Predicted:
        changes: dict[str, Any] = {"launch": self._launch(shape), "analysis": mode}
        if shape.registers is not None:
            changes["registers_per_thread"] = shape.registers
        asked = self._request.model_copy(update=changes)
        analysis = parts.analysed(self._predictor, asked, self.source, self._gpu, ptxas=True)
        found = cost(
            self._predictor,
            asked,
            analysis,
            self._gpu,
            self._clocks,
            self._request.power_limit_watts,
            self._request.board or "",
        )
        time, watts, _ = found.told()
        point = Point(shape, time.estimate.value, watts.value)
        notes = (*found.notes, *found.power.diagnostics)
        return _Predicted(shape, analysis, time, found.power, point, notes)

    def answer(self) -> dict[str, Any]:
        """``wattcast.predictor.messages.sweep.SweepModel``."""
        card = self.reference.power.card
        assert card is not None
        return {
            "gpu": self._gpu.id,
            "clocks": self._clocks._asdict(),
            "model": reference_of(card),
            "time_model": self.reference.time.family,
            "analysis": self.reference.analysis.activity_how,
        }


def _shapes(request: SweepRequest, base: Launch, gpus: Sequence[GpuProfile]) -> Iterator[Shape]:
    """Every shape asked for, each once. Raises LaunchError, and ServiceError for too many."""
    blocks = (
        usual_blocks(axes_of(base))
        if request.blocks is None
        else tuple(Launch.of(1, block).block for block in request.blocks)
    )
    registers: Sequence[int | None] = request.registers or [None]
    grids = len(request.grids) if request.grids is not None else 1
    count = len(gpus) * len(blocks) * grids * len(registers)
    if count > MOST_POINTS:
        raise ServiceError(
            "validation",
            f"{count} shapes are asked for; at most {MOST_POINTS} are taken",
            field="blocks",
        )
    seen: set[tuple[str, Dim3, Dim3, int | None]] = set()
    for gpu in gpus:
        for block in blocks:
            wanted = (
                [covering_grid(base, block)]
                if request.grids is None
                else [Launch.of(grid, block).grid for grid in request.grids]
            )
            for grid in wanted:
                for count_of_registers in registers:
                    key = gpu.id, grid, block, count_of_registers
                    if key not in seen:
                        seen.add(key)
                        yield Shape(gpu, grid, block, count_of_registers)


def _does_the_work(request: SweepRequest, base: Launch, shape: Shape) -> None:
    """Raises LaunchError for a shape that leaves work undone."""
    threads = prod(shape.grid) * prod(shape.block)
    if threads < base.threads and not request.grid_stride:
        raise LaunchError(
            f"it launches {threads} of {base.threads} threads: part of the work would not be done "
            "(grid_stride says that the kernel loops over the rest)",
            field="grids",
        )


def _stored(analysis: KernelAnalysis) -> dict[str, float] | None:
    """How often each function's instructions that change memory do, over all threads of the
    launch; ``None`` where that is not exactly known."""
    try:
        result = analysis.symbolic
    except WattcastError:
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


def _spills(each: _Predicted, reference: _Predicted) -> bool:
    """Whether a shape's registers are fewer than the kernel needs on its GPU at the least."""
    if each.shape.registers is None:
        return False
    known = reference.analysis.static.registers(each.shape.gpu)
    return each.shape.registers < known.low


def _point(
    each: _Predicted, reference: _Predicted, on_front: bool, constraints: Constraints
) -> dict[str, Any]:
    analysis, point = each.analysis, each.point
    return {
        **each.shape.answer(),
        "threads": analysis.launch.threads,
        "occupancy": analysis.occupancy.occupancy,
        "limiter": analysis.occupancy.limiter,
        "waves": analysis.waves,
        **each.absolute(),
        "edp_joule_seconds": point.edp,
        **_saved(point, reference.point),
        "regime": each.time.regime,
        "spills": _spills(each, reference),
        "pareto": on_front,
        "feasible": not constraints.violated(point, reference.point.time_seconds),
        "unproven": None if each.doubt is None else each.doubt.reason,
    }


def _saved(point: Point[Shape], reference: Point[Shape]) -> dict[str, float]:
    return {
        "energy_saved_percent": 100 * (1 - point.energy_joules / reference.energy_joules),
        "time_saved_percent": 100 * (1 - point.time_seconds / reference.time_seconds),
    }


def _told_apart(front: Sequence[Point[Shape]]) -> list[Point[Shape]]:
    """A Pareto set without points whose energy is not told apart from that of a faster one."""
    kept: list[Point[Shape]] = []
    for point in front:
        if not kept or point.energy_joules < kept[-1].energy_joules * (1 - RESOLUTION):
            kept.append(point)
    return kept


def _better(objective: str, point: Point[Shape], reference: Point[Shape]) -> bool:
    cost = OBJECTIVES[objective]
    return cost(point) < cost(reference) * (1 - RESOLUTION)


def _unproven(found: Sequence[_Predicted]) -> list[Diagnostic]:
    """What was asked for although it may be another program."""
    doubtful = [each.doubt for each in found if each.doubt is not None]
    if not doubtful:
        return []
    shapes = "shape is" if len(doubtful) == 1 else "shapes are"
    detail = (
        f"{len(doubtful)} {shapes} not shown to compute what the launch computes: "
        f"{doubtful[0].reason}. Check before you use one"
    )
    return [Diagnostic(UNPROVEN, detail, doubtful[0].line)]


def _later(found: Sequence[_Predicted]) -> list[Diagnostic]:
    """Warnings of single shapes, each kind once."""
    first: dict[str, Diagnostic] = {}
    for each in found:
        for note in each.notes:
            first.setdefault(note.code, note)
    return list(first.values())
