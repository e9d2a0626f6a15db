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

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any, NamedTuple

from wattcast.features import cuda, launch
from wattcast.features.errors import (
    AnalysisError,
    Diagnostic,
    KernelError,
    LaunchError,
    PtxError,
    refused,
)
from wattcast.features.gpus import GpuProfile
from wattcast.models.choice import OBJECTIVES, Constraints, Point, best_points, pareto
from wattcast.predictor import Predictor, parts
from wattcast.predictor.messages import sweep as messages
from wattcast.predictor.parts import swept, trust
from wattcast.predictor.variants import Variant, dimensions, variants, with_macros

RESOLUTION = 0.02
"""Relative difference of two shapes below which neither is called better. Within the best of the
tuning spaces measured, times are met to 2.2 % in the median (dedispersion_a100, docs/accuracy.md,
Counts and tuning spaces), and the two analyses count as agreeing within 2 % (``AGREEMENT``)."""

_TIMES = {"min_edp": 2, "min_ed2p": 3}
"""How often time is a factor of an objective: that often its error counts. Energy has it once."""

UNPROVEN = "block_size_in_code"
VARIANTS = "variants_not_compared"
"""Codes of the warnings that shapes may be, or are, other programs; told before all others."""


@parts.within_asked_seconds
def sweep(predictor: Predictor, request: messages.SweepRequest) -> messages.SweepAnswer:
    """Every shape's time, power and energy, and the best of them.

    Raises what ``predict`` raises for the reference launch, ServiceError for too many shapes,
    ConstraintError where no shape keeps to the constraints, and LaunchError where none can be
    launched. Of variants of a source, the first that can be launched is the reference.
    """
    gpus = [predictor.gpus.load(name) for name in dict.fromkeys(request.names())]
    tried = (_tried_variants if request.defines else _tried_shapes)(predictor, request, gpus)
    sweeps, found = tried.sweeps, tried.found
    reference = sweeps[found[0].shape.gpu.id].reference
    constraints = Constraints(**request.constraints.model_dump())
    # On one GPU shapes are ranked whatever answered; between GPUs only what can be compared.
    several = found if len(gpus) > 1 else []
    marked = [each.found.ranked(each.shape.gpu, each.analysis) for each in several]
    whys = trust.incomparable(marked) or [None] * len(found)
    ranked = [each for each, why in zip(found, whys, strict=True) if why is None]
    if ranked[0].shape.gpu.id != gpus[0].id and len(gpus) > 1:
        reference = sweeps[ranked[0].shape.gpu.id].reference
    points = [each.point for each in ranked]
    front = _told_apart(pareto(points))
    best = best_points(points, reference.point.time_seconds, constraints)
    source = sweeps[reference.shape.gpu.id].source
    on_front = {id(point) for point in front}
    notes = (each.notes for each in sweeps.values())
    later = parts.later(each.found for each in found)
    warnings = parts.warnings(source, reference.analysis, _unproven(found), *notes, later)
    return messages.SweepAnswer(
        **parts.code_of(source, reference.analysis.function),
        models=[each.answer() for each in sweeps.values()],
        reference=messages.SweepReference(
            **reference.shape.members(), **reference.found.costs(reference.shape.gpu)
        ),
        points=[
            _point(each, reference, id(each.point) in on_front, constraints, why)
            for each, why in zip(found, whys, strict=True)
        ],
        infeasible=tried.refused,
        left_out=tried.left_out,
        pareto=[messages.Shape(**point.key.members()) for point in front],
        best=messages.BestShapes(
            **{
                name: messages.BestShape(
                    **point.key.members(),
                    **_saved(point, reference.point),
                    no_difference=_alike(name, point, reference.point),
                )
                for name, point in best.items()
            }
        ),
        resolution_percent=100 * RESOLUTION,
        apart=trust.apart(marked),
        warnings=sorted(warnings, key=lambda each: each.code not in (UNPROVEN, VARIANTS)),
    )


class _Tried(NamedTuple):
    """What came of all that was asked for. ``sweeps``: by GPU, the reference's variant."""

    sweeps: dict[str, swept.Swept]
    found: list[swept.Predicted]
    refused: list[messages.InfeasibleShape]
    left_out: list[messages.LeftOut]


def _tried_shapes(
    predictor: Predictor, request: messages.SweepRequest, gpus: Sequence[GpuProfile]
) -> _Tried:
    base = request.launch.launch()
    shapes = _shapes(request, base, gpus)
    sweeps = {gpu.id: swept.Swept(predictor, request, gpu) for gpu in gpus}
    found: list[swept.Predicted] = []
    refused: list[messages.InfeasibleShape] = []
    left_out: list[messages.LeftOut] = []
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
                refused.append(
                    messages.InfeasibleShape(
                        **shape.members(), reason=error.detail, field=error.about
                    )
                )
                continue
            if why is None or every:
                found.append(replace(point, doubt=why))
            else:
                left_out.append(
                    messages.LeftOut(**shape.members(), reason=why.reason, line=why.line)
                )
    if not found and left_out:
        found = [sweeps[gpus[0].id].reference]  # nothing else is shown to be the same program
    if not found:
        first = f": {refused[0].reason}" if refused else ""
        raise LaunchError(f"none of {len(shapes)} shapes can be launched{first}", field="blocks")
    return _Tried(sweeps, found, refused, left_out)


def _tried_variants(
    predictor: Predictor, request: messages.SweepRequest, gpus: Sequence[GpuProfile]
) -> _Tried:
    """Each variant of the source compiled, analysed and predicted; what fails is listed."""
    tried = _Tried({}, [], [], [])
    assert request.defines is not None
    for gpu, variant in product(gpus, variants(request.defines, len(gpus))):
        try:
            one = swept.Swept(predictor, _of_variant(request, variant), gpu, variant)
            counts: Sequence[int | None] = request.registers or [None]
            for registers in counts:
                shape = one.reference.shape._replace(registers=registers)
                tried.found.append(one.reference if registers is None else one.at(shape))
            tried.sweeps.setdefault(gpu.id, one)
        except (cuda.CompileError, PtxError, KernelError, LaunchError, AnalysisError) as error:
            tried.refused.append(
                messages.InfeasibleShape(
                    gpu=gpu.id,
                    grid=[],
                    block=[],
                    registers_per_thread=None,
                    defines=dict(variant),
                    reason=error.detail,
                    field=error.about,
                )
            )
    if not tried.found:
        reason = tried.refused[0].reason
        count = len(tried.refused)
        raise LaunchError(f"none of {count} variants can be launched: {reason}", field="defines")
    return tried


def _of_variant(request: messages.SweepRequest, variant: Variant) -> messages.SweepRequest:
    """The request for one variant: its source and its launch."""
    assert request.cuda is not None
    known = {
        name: value
        for name, value in (*request.launch.arguments.items(), *variant)
        if isinstance(value, int | float)
    }
    changed = {}
    for field, formulas in (("grid", request.grid_formula), ("block", request.block_formula)):
        if formulas is not None:
            changed[field] = dimensions(field, formulas, known)
    launch = request.launch.model_copy(update=changed)
    source = with_macros(request.cuda, variant)
    return request.model_copy(update={"cuda": source, "launch": launch, "defines": None})


def _shapes(
    request: messages.SweepRequest, base: launch.Launch, gpus: Sequence[GpuProfile]
) -> list[swept.Shape]:
    """Every shape asked for, each once. Raises LaunchError, and ServiceError for too many."""
    blocks = (
        launch.usual_blocks(launch.axes_of(base))
        if request.blocks is None
        else tuple(launch.Launch.of(1, block).block for block in request.blocks)
    )
    registers: Sequence[int | None] = request.registers or [None]
    grids = len(request.grids) if request.grids is not None else 1
    count, most = len(gpus) * len(blocks) * grids * len(registers), messages.MOST_POINTS
    if count > most:
        raise refused(f"{count} shapes are asked for; at most {most} are taken", "blocks")
    found = {
        (gpu.id, grid, block, number): swept.Shape(gpu, grid, block, number)
        for gpu in gpus
        for block in blocks
        for grid in (
            [launch.covering_grid(base, block)]
            if request.grids is None
            else [launch.Launch.of(grid, block).grid for grid in request.grids]
        )
        for number in registers
    }
    return list(found.values())


def _does_the_work(request: messages.SweepRequest, base: launch.Launch, shape: swept.Shape) -> None:
    """Raises LaunchError for a shape that leaves work undone."""
    threads = prod(shape.grid) * prod(shape.block)
    if threads < base.threads and not request.grid_stride:
        raise LaunchError(
            f"it launches {threads} of {base.threads} threads: part of the work would not be done "
            "(grid_stride says that the kernel loops over the rest)",
            field="grids",
        )


def _spills(each: swept.Predicted) -> bool:
    """Whether a shape's registers are fewer than the kernel needs on its GPU at the least."""
    registers, gpu = each.shape.registers, each.shape.gpu
    return registers is not None and registers < each.analysis.static.registers(gpu).low


def _point(
    each: swept.Predicted,
    reference: swept.Predicted,
    on_front: bool,
    constraints: Constraints,
    apart: str | None,
) -> messages.SweepPoint:
    analysis, point = each.analysis, each.point
    return messages.SweepPoint(
        **each.shape.members(),
        threads=analysis.launch.threads,
        **parts.members(analysis.occupancy, "occupancy", "limiter"),
        waves=analysis.waves,
        **each.found.costs(each.shape.gpu),
        edp_joule_seconds=point.edp,
        **_saved(point, reference.point),
        regime=each.found.told()[0].regime,
        spills=_spills(each),
        pareto=on_front,
        feasible=not constraints.violated(point, reference.point.time_seconds),
        apart=apart,
        unproven=None if each.doubt is None else each.doubt.reason,
    )


def _saved(point: Point[swept.Shape], reference: Point[swept.Shape]) -> dict[str, Any]:
    return {
        "energy_saved_percent": 100 * (1 - point.energy_joules / reference.energy_joules),
        "time_saved_percent": 100 * (1 - point.time_seconds / reference.time_seconds),
    }


def _told_apart(front: Sequence[Point[swept.Shape]]) -> list[Point[swept.Shape]]:
    """A Pareto set without points whose energy is not told apart from that of a faster one."""
    kept: list[Point[swept.Shape]] = []
    for point in front:
        if not kept or point.energy_joules < kept[-1].energy_joules * (1 - RESOLUTION):
            kept.append(point)
    return kept


def _alike(objective: str, point: Point[swept.Shape], reference: Point[swept.Shape]) -> bool:
    """Whether two points are not told apart by an objective."""
    cost, times = OBJECTIVES[objective], _TIMES.get(objective, 1)
    return abs(cost(point) / cost(reference) - 1) <= times * RESOLUTION


def _unproven(found: Sequence[swept.Predicted]) -> list[Diagnostic]:
    """What was asked for although it may be another program."""
    if any(each.shape.variant != found[0].shape.variant for each in found):
        detail = "each variant is another program; whether all compute the same is not checked"
        return [Diagnostic(VARIANTS, detail)]
    doubtful = [each.doubt for each in found if each.doubt is not None]
    if not doubtful:
        return []
    shapes = "shape is" if len(doubtful) == 1 else "shapes are"
    detail = (
        f"{len(doubtful)} {shapes} not shown to compute what the launch computes: "
        f"{doubtful[0].reason}. Check before you use one"
    )
    return [Diagnostic(UNPROVEN, detail, doubtful[0].line)]
