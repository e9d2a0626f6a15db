"""The same launch of old and new code: what changes in time, power and energy.

Both sides are predicted by the same models, so that what those are wrong about largely cancels in
the ratio. Kernels are matched by name; a single kernel on either side needs no common one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from wattcast.features.analysis import KernelAnalysis
from wattcast.features.errors import KernelError, ModelError, refused
from wattcast.features.gpus import GpuProfile
from wattcast.features.ptx.ir import Function
from wattcast.models.time.base import TimePrediction
from wattcast.predictor import parts, reports
from wattcast.predictor.messages import ClocksAnswer, KernelTiming, ModelReference, WarningLine
from wattcast.predictor.messages.compare import (
    LIMITS,
    MOST_KERNELS,
    Change,
    CompareAnswer,
    ComparedCode,
    CompareRequest,
    Comparison,
    Limits,
    Measured,
    compared,
)
from wattcast.predictor.messages.operators import ComparedOperator, OperatorCompareRequest
from wattcast.predictor.operators import operator_name, predicted
from wattcast.predictor.parts.operators import Asked
from wattcast.predictor.parts.power_models import reference_of
from wattcast.predictor.parts.sources import Source
from wattcast.predictor.parts.time_and_power import Chosen, limited_time_and_power
from wattcast.predictor.parts.trust import Ranked, apart

if TYPE_CHECKING:
    from wattcast.predictor import Predictor
    from wattcast.predictor.messages.compare import JudgeRequest


def compare(
    predictor: Predictor, request: CompareRequest | OperatorCompareRequest
) -> CompareAnswer:
    """What changes from old to new code, kernel by kernel and GPU by GPU, or from one operator to
    another. Nothing is stored.

    Raises what ``predict`` raises (the error tells which side), KernelError where no kernel is on
    both sides, and ServiceError for too many.
    """
    like = getattr(request, "like", None)
    named = dict.fromkeys(request.names())
    gpus = [parts.made_up(predictor.gpus.load(name), like) for name in named]
    comparisons: list[Comparison] = []
    warnings: list[WarningLine] = []
    ranked: list[Ranked] = []
    beside: Iterable[Sequence[Side]]
    if isinstance(request, OperatorCompareRequest):
        kernels, source = _Pairs([]), "shapes"
        shapes = {"old": request.old, "new": request.new}
        beside = (
            [_operator(predictor, request, side, name, gpu) for name, side in shapes.items()]
            for gpu in gpus
        )
    else:
        kernels, source = _pairs(*_kernels(predictor, request, gpus[0])), "the PTX"
        code = {"old": request.old, "new": request.new}
        beside = (
            [
                side_of(predictor, request, side, name, kernel, gpu)
                for (name, side), kernel in zip(code.items(), both, strict=True)
            ]
            for both in kernels.both
            for gpu in gpus
        )
    for before, after in beside:
        warnings += after.warnings
        ranked.append(after.ranked)
        comparisons.append(_comparison(request.limits, before, after))
    return CompareAnswer(
        comparisons=comparisons,
        added=[parts.kernel_name(function) for function in kernels.added],
        removed=[parts.kernel_name(function) for function in kernels.removed],
        passed=not any(each.exceeded for each in comparisons),
        apart=apart(ranked),
        markdown=markdown(comparisons, request.limits, kernels.added, kernels.removed, source),
        warnings=parts.distinct(warnings),
    )


class _Pairs(NamedTuple):
    """Kernels on both sides, and those on one."""

    both: list[tuple[Function, Function]]
    added: Sequence[Function] = ()
    removed: Sequence[Function] = ()


def _kernels(
    predictor: Predictor, request: CompareRequest, gpu: GpuProfile
) -> tuple[Sequence[Function], Sequence[Function]]:
    found = []
    for side, name in ((request.old, "old"), (request.new, "new")):
        with parts.about(name):
            module = predictor.sources.read(side, gpu).known.module
            wanted = [module.kernel(side.kernel)] if side.kernel else list(module.kernels)
            if not wanted:
                module.kernel(None)  # raises: there is none
            if len(wanted) > MOST_KERNELS:
                raise refused(
                    f"{len(wanted)} kernels; at most {MOST_KERNELS} are compared: name one",
                    "kernel",
                )
            found.append(wanted)
    return found[0], found[1]


def _pairs(old: Sequence[Function], new: Sequence[Function]) -> _Pairs:
    """Raises KernelError where nothing can be compared."""
    if len(old) == len(new) == 1:
        return _Pairs([(old[0], new[0])])
    before, after = {each.name: each for each in old}, {each.name for each in new}
    pairs = _Pairs(
        both=[(before[each.name], each) for each in new if each.name in before],
        added=[each for each in new if each.name not in before],
        removed=[each for each in old if each.name not in after],
    )
    if not pairs.both:
        raise KernelError(
            "old and new have no kernel of the same name", known=[each.demangled for each in new]
        )
    return pairs


class Side(NamedTuple):
    """What one side takes; ``joules`` are by component, where the model knows components. Of code
    also what it was told from."""

    measured: Measured
    clocks: ClocksAnswer
    model: ModelReference
    ranked: Ranked
    joules: dict[str, float] | None
    warnings: list[WarningLine]
    told: tuple[Source, KernelAnalysis, TimePrediction] | None = None


def side_of(
    predictor: Predictor,
    request: CompareRequest | JudgeRequest,
    code: ComparedCode,
    side: str,
    kernel: Function,
    gpu: GpuProfile,
) -> Side:
    """Of one side of code, by the models that the request names. Raises as ``compare`` does."""
    asked: KernelTiming = code.model_copy(update={"kernel": kernel.name})
    with parts.about(side), parts.asked_seconds(predictor, asked):
        source: Source = predictor.sources.read(asked, gpu)
        analysis = parts.analysed(predictor, asked, source, gpu, ptxas=True)
        clocks, beside = parts.clocks_of(request.clocks, gpu)
        models = Chosen(asked.time_model, request.model, request.board)
        limit = request.power_limit_watts
        found = limited_time_and_power(predictor, models, analysis, gpu, clocks, limit)
        duration, _, card = found.told()
    seconds, power = duration.estimate.value, found.power
    return Side(
        Measured(kernel=parts.kernel_name(analysis.function), **found.costs(gpu)),
        parts.clocks(found.clocks),
        reference_of(card),
        found.ranked(gpu, analysis),
        None
        if power.components is None
        else {name: watts * seconds for name, watts in power.components.items()},
        parts.warnings(source, analysis, power.diagnostics, beside, found.notes),
        (source, analysis, duration),
    )


def _operator(
    predictor: Predictor,
    request: OperatorCompareRequest,
    side: ComparedOperator,
    name: str,
    gpu: GpuProfile,
) -> Side:
    (answer,) = predicted(predictor, [Asked(side.operator, gpu, request)])
    with parts.about(name):
        if isinstance(answer, Exception):
            raise answer
        if not (answer.power and answer.time and answer.energy and answer.model):
            raise ModelError(f"no model tells the power of {answer.name} on {gpu.id}")
    kernel = operator_name(side.operator)
    measured = Measured.from_attributes(answer, kernel=kernel)
    ranked = Ranked.of(answer)
    return Side(measured, answer.clocks, answer.model, ranked, None, answer.warnings)


def _comparison(limits: Limits, old: Side, new: Side) -> Comparison:
    def percent(after: float, before: float) -> float:
        return 100 * (after / before - 1)

    was, now = old.measured, new.measured
    change = Change(
        time_percent=percent(now.time.seconds, was.time.seconds),
        power_percent=percent(now.power.watts, was.power.watts),
        energy_percent=percent(now.energy.joules, was.energy.joules),
    )
    components = None
    if old.joules is not None and new.joules is not None:
        joules = {name: new.joules[name] - old.joules[name] for name in new.joules}
        components = dict(sorted(joules.items(), key=lambda part: -abs(part[1])))
    return Comparison(
        gpu=new.ranked.gpu,
        clocks=new.clocks,
        model=new.model,
        old=was,
        new=now,
        change=change,
        components=components,
        exceeded=[
            name
            for name in LIMITS
            if (bound := getattr(limits, name)) is not None
            and getattr(change, name.removeprefix("max_")) > bound
        ],
    )


# --- Markdown ------------------------------------------------------------------------------


def markdown(
    comparisons: Sequence[Comparison],
    limits: Limits,
    added: Sequence[Function] = (),
    removed: Sequence[Function] = (),
    source: str = "the PTX",
) -> str:
    """A table for a pull request; names are written so that none becomes markup."""
    bounds = [
        f"{name.removeprefix('max_').removesuffix('_percent')} {bound:+g} %"
        for name, bound in limits.model_dump().items()
        if bound is not None
    ]
    broken = sum(bool(each.exceeded) for each in comparisons)
    verdict = f"**{broken} of {len(comparisons)} beyond the limit.**" if broken else "Within it."
    lines = ["### Predicted energy", ""]
    if bounds:
        lines += [f"Limit: {', '.join(bounds)}. {verdict}", ""]
    table = compared(
        comparisons, reports.markdown_name, lambda each: "beyond the limit" if each.exceeded else ""
    )
    lines.append(reports.markdown(table))
    for what, functions in (("Added", added), ("Removed", removed)):
        if functions:
            named = ", ".join(reports.markdown_name(each.demangled) for each in functions)
            lines += ["", f"{what}: {named}"]
    lines += ["", f"Predicted by Wattcast from {source}; nothing was run."]
    return "\n".join(lines) + "\n"
