"""The same launch of old and new code: what changes in time, power and energy.

Both sides are predicted by the same models, so that what those are wrong about largely cancels in
the ratio. Kernels are matched by name; a single kernel on either side needs no common one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wattcast.features import cfg, checked, errors, gpus, loops, memory
from wattcast.features.activity.instructions import measure_instructions
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.ptx.ir import Function
from wattcast.models import clocks, energy, speed
from wattcast.models.time import base, calibration
from wattcast.models.time.beside import beside
from wattcast.predictor import Predictor, parts, reports
from wattcast.predictor.messages import (
    ClocksAnswer,
    Interval,
    KernelTiming,
    ModelReference,
    WarningLine,
)
from wattcast.predictor.messages import compare as messages
from wattcast.predictor.parts import power_models, sources, time_and_power, trust

if TYPE_CHECKING:
    from wattcast.predictor.messages.operators import ComparedOperator, OperatorCompareRequest


def compare(
    predictor: Predictor, request: messages.CompareRequest | OperatorCompareRequest
) -> messages.CompareAnswer:
    """What changes from old to new code, kernel by kernel and GPU by GPU, or from one operator to
    another. Nothing is stored.

    Raises what ``predict`` raises (the error tells which side), KernelError where no kernel is on
    both sides, and ServiceError for too many.
    """
    gpus = [predictor.gpus.load(name) for name in dict.fromkeys(request.names())]
    if (like := getattr(request, "like", None)) is not None:
        gpus = [parts.made_up(gpu, like) for gpu in gpus]
    comparisons: list[messages.Comparison] = []
    warnings: list[WarningLine] = []
    ranked: list[trust.Ranked] = []
    beside: Iterable[Sequence[Side]]
    if isinstance(request, messages.CompareRequest):
        kernels, source = _pairs(*_kernels(predictor, request, gpus[0])), "the PTX"
        code = {"old": request.old, "new": request.new.beside(request.old)}
        beside = (
            [
                side_of(predictor, request, side, name, kernel, gpu).side
                for (name, side), kernel in zip(code.items(), both, strict=True)
            ]
            for both in kernels.both
            for gpu in gpus
        )
    else:
        kernels, source = _Pairs([]), "shapes"
        shapes = {"old": request.old, "new": request.new}
        beside = (
            [_operator(predictor, request, side, name, gpu) for name, side in shapes.items()]
            for gpu in gpus
        )
    for before, after in beside:
        warnings += after.warnings
        ranked.append(after.ranked)
        comparisons.append(_comparison(request.limits, before, after))
    return messages.CompareAnswer(
        comparisons=comparisons,
        added=[parts.kernel_name(function) for function in kernels.added],
        removed=[parts.kernel_name(function) for function in kernels.removed],
        passed=not any(each.exceeded for each in comparisons),
        apart=trust.apart(ranked),
        markdown=markdown(comparisons, request.limits, kernels.added, kernels.removed, source),
        warnings=parts.distinct(warnings),
    )


class _Pairs(NamedTuple):
    """Kernels on both sides, and those on one."""

    both: list[tuple[Function, Function]]
    added: Sequence[Function] = ()
    removed: Sequence[Function] = ()


def _kernels(
    predictor: Predictor, request: messages.CompareRequest, gpu: gpus.GpuProfile
) -> tuple[Sequence[Function], Sequence[Function]]:
    found = []
    for side, name in ((request.old, "old"), (request.new, "new")):
        with parts.about(name):
            module = predictor.sources.read(side, gpu).known.module
            wanted = [module.kernel(side.kernel)] if side.kernel else list(module.kernels)
            if not wanted:
                module.kernel(None)  # raises: there is none
            if len(wanted) > (most := messages.MOST_KERNELS):
                detail = f"{len(wanted)} kernels; at most {most} are compared: name one"
                raise errors.refused(detail, "kernel")
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
        raise errors.KernelError(
            "old and new have no kernel of the same name", known=[each.demangled for each in new]
        )
    return pairs


class Side(NamedTuple):
    """What one side takes; ``joules`` are by component, where the model knows components."""

    measured: messages.Measured
    clocks: ClocksAnswer
    model: ModelReference
    ranked: trust.Ranked
    joules: dict[str, float] | None
    warnings: list[WarningLine]


class CodeSide(NamedTuple):
    """A side of code, and what it was told from."""

    side: Side
    source: sources.Source
    analysis: KernelAnalysis
    duration: base.TimePrediction


def side_of(
    predictor: Predictor,
    request: messages.CompareRequest | messages.JudgeRequest,
    code: messages.ComparedCode,
    side: str,
    kernel: Function,
    gpu: gpus.GpuProfile,
) -> CodeSide:
    """One side of code, by the models that the request names. Raises as ``compare`` does."""
    asked: KernelTiming = code.model_copy(update={"kernel": kernel.name})
    with parts.about(side), parts.asked_seconds(predictor, asked):
        source: sources.Source = predictor.sources.read(asked, gpu)
        analysis = parts.analysed(predictor, asked, source, gpu, ptxas=True)
        clocks, beside = parts.clocks_of(request.clocks, gpu)
        chosen = asked.time_model, request.model, request.board or ""
        models = time_and_power.BoardModels(predictor.power, gpu, *chosen)
        found = models.limited(analysis, clocks, request.power_limit_watts)
        duration, _, card = found.told()
    seconds, power = duration.estimate.value, found.power
    side_taken = Side(
        messages.Measured(kernel=parts.kernel_name(analysis.function), **found.costs(gpu)),
        ClocksAnswer.from_attributes(found.clocks),
        power_models.reference_of(card),
        found.ranked(gpu, analysis),
        None
        if power.components is None
        else {name: watts * seconds for name, watts in power.components.items()},
        parts.warnings(source, analysis, power.diagnostics, beside, found.notes),
    )
    return CodeSide(side_taken, source, analysis, duration)


def _operator(
    predictor: Predictor,
    request: OperatorCompareRequest,
    side: ComparedOperator,
    name: str,
    gpu: gpus.GpuProfile,
) -> Side:
    from wattcast.predictor import operators  # here: verdicts on code need none of it
    from wattcast.predictor.parts.operators import Asked

    (answer,) = operators.predicted(predictor, [Asked(side.operator, gpu, request)])
    with parts.about(name):
        if isinstance(answer, Exception):
            raise answer
        if not (answer.power and answer.time and answer.energy and answer.model):
            raise errors.ModelError(f"no model tells the power of {answer.name} on {gpu.id}")
    kernel = operators.operator_name(side.operator)
    measured = messages.Measured.from_attributes(answer, kernel=kernel)
    ranked = trust.Ranked.of(answer)
    return Side(measured, answer.clocks, answer.model, ranked, None, answer.warnings)


def _comparison(limits: messages.Limits, old: Side, new: Side) -> messages.Comparison:
    def percent(after: float, before: float) -> float:
        return 100 * (after / before - 1)

    was, now = old.measured, new.measured
    change = messages.Change(
        time_percent=percent(now.time.seconds, was.time.seconds),
        power_percent=percent(now.power.watts, was.power.watts),
        energy_percent=percent(now.energy.joules, was.energy.joules),
    )
    components = None
    if old.joules is not None and new.joules is not None:
        joules = {name: new.joules[name] - old.joules[name] for name in new.joules}
        components = dict(sorted(joules.items(), key=lambda part: -abs(part[1])))
    return messages.Comparison(
        gpu=new.ranked.gpu,
        clocks=new.clocks,
        model=new.model,
        old=was,
        new=now,
        change=change,
        components=components,
        exceeded=[
            name
            for name in messages.LIMITS
            if (bound := getattr(limits, name)) is not None
            and getattr(change, name.removeprefix("max_")) > bound
        ],
    )


# --- Markdown ------------------------------------------------------------------------------


def markdown(
    comparisons: Sequence[messages.Comparison],
    limits: messages.Limits,
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
    table = messages.compared(
        comparisons, reports.markdown_name, lambda each: "beyond the limit" if each.exceeded else ""
    )
    lines.append(reports.markdown(table))
    for what, functions in (("Added", added), ("Removed", removed)):
        if functions:
            named = ", ".join(reports.markdown_name(each.demangled) for each in functions)
            lines += ["", f"{what}: {named}"]
    lines += ["", f"Predicted by Wattcast from {source}; nothing was run."]
    return "\n".join(lines) + "\n"


# Is a candidate better than a reference? Ratios of time and energy, how sure they are, and why.
#
# Both sides are predicted by the same models. What those are wrong about two variants of one kernel
# largely cancels in the ratio, the more the less they differ in what takes their time: its spread
# (``judge.toml``) grows with that, and is calibrated on pairs of public tuning spaces (``python -m
# studies judge``). ln(measured ratio) follows Student's distribution with two degrees of freedom
# around ln(predicted ratio): how far pairs spread differs from kernel to kernel, and a mixture of
# many widths has tails as heavy.

LEVEL = 0.9
HALF = LEVEL * math.sqrt(2 / (1 - LEVEL**2))
"""Half of its interval at that level, in scales."""

NOISE = 0.003
"""Scale of two measurements of the same code, in logarithms (``python -m studies judge``)."""

LEAST_CHANGE = 0.02
"""Share of the reference's time, or of what it writes, below which a change is none: rounding to
sectors and blocks. A judgement."""


class Spread(NamedTuple):
    """Scale of ln(measured / predicted) ratios: over how far apart two sides lie in what takes
    their time, and over the predicted logarithm (``judge.toml``)."""

    mix: float
    slope: float

    def scale(self, log_ratio: float, apart: float, beyond: float = 0.0) -> float:
        """At a predicted ratio of sides so far ``apart``; ``beyond``: half an interval, in
        logarithms, that one side has more."""
        return math.hypot(NOISE, self.mix * apart, self.slope * log_ratio, beyond / HALF)


@cache
def spreads() -> dict[str, Spread]:
    """The calibrated spread of ratios of ``time`` and ``energy``."""
    found = checked.read_toml(Path(__file__).with_name("judge.toml"))
    return {name: Spread(**one) for name, one in found.items()}


def judge(predictor: Predictor, request: messages.JudgeRequest) -> messages.JudgeAnswer:
    """The verdict on a candidate beside its reference. Nothing is stored.

    Raises what ``compare`` raises (the error tells which side), and AnalysisError for code that is
    not known to end: that gets no verdict.
    """
    gpu = predictor.gpus.load(request.gpu)
    code = request.reference, request.candidate.beside(request.reference)
    with parts.assembled_ahead(predictor, code, gpu):
        before = _side(predictor, request, code[0], "reference", gpu)
        after = _side(predictor, request, code[1], "candidate", gpu)
    was, now = before.side.measured, after.side.measured
    mixes = [_shares(each, gpu) for each in (before, after)]
    apart = math.dist(*([mix.get(name, 0.0) for name in {**mixes[0], **mixes[1]}] for mix in mixes))
    longer = _beyond(after) - _beyond(before)
    more = _half(now.power) ** 2 - _half(was.power) ** 2 + longer
    time = _ratio("time", was.time.seconds, now.time.seconds, abs(longer), apart)
    joules = was.energy.joules, now.energy.joules
    energy = _ratio("energy", *joules, abs(more), apart)
    reference, candidate = _judged(before), _judged(after)
    flags = list(_flags(before, after, reference, candidate, gpu))
    kept = request.min_speedup is None or 1 / time.ratio >= request.min_speedup
    saves = request.min_saving is None or 100 * (1 - energy.ratio) >= request.min_saving
    return messages.JudgeAnswer(
        gpu=gpu.id,
        accepted=kept and saves and not flags,
        time=time,
        energy=energy,
        reference=reference,
        candidate=candidate,
        reasons=list(_reasons(before, after, gpu)),
        flags=flags,
        narrower=list(_narrower(before, after, time)),
    )


def _side(
    predictor: Predictor,
    request: messages.JudgeRequest,
    code: messages.ComparedCode,
    name: str,
    gpu: gpus.GpuProfile,
) -> CodeSide:
    with parts.about(name):
        kernel = predictor.sources.read(code, gpu).known.module.kernel(code.kernel)
    found = side_of(predictor, request, code, name, kernel, gpu)
    with parts.about(name):
        _ends(found.analysis)
    return found


def _ends(analysis: KernelAnalysis) -> None:
    """Raises AnalysisError where a loop has no way out, or was not seen to end although nothing
    that the caller could give decides it."""
    for name in analysis.counts.functions(None):
        function = analysis.module.function(name)
        assert function is not None
        for one in loops.natural_loops(cfg.build_cfg(function.body)).diagnostics:
            if one.code == "endless_loop":
                raise errors.AnalysisError(one.detail, line=one.line)
    for trip in analysis.trip_counts:
        if trip.how == "assumed" and not analysis.needs:
            raise errors.AnalysisError(
                f"the loop at line {trip.line} of the PTX was not seen to end: give its trips, or "
                "the arguments and data that decide them",
                line=trip.line,
            )


def _shares(code: CodeSide, gpu: gpus.GpuProfile) -> dict[str, float]:
    """Seconds that each resource would need alone over the predicted time, by the default model."""
    found = code.duration
    if found.family != base.DEFAULT:
        found = base.get_time_model(base.DEFAULT).predict(code.analysis, gpu, found.clocks)
    return {name: part / found.estimate.value for name, part in found.parts.items()}


def _half(interval: Interval) -> float:
    return math.log(interval.high / max(interval.low, energy.LEAST_SHARE * interval.high)) / 2


def _beyond(code: CodeSide) -> float:
    """Square of what a time's half width has beyond its model's own, by what is assumed."""
    width = code.duration.width
    own = math.log(width.high_factor / width.low_factor) / 2 if width else 0.0
    return max(0.0, _half(code.side.measured.time) ** 2 - own**2)


def _ratio(name: str, was: float, now: float, beyond: float, apart: float) -> messages.Ratio:
    """What both sides are unsure of alike cancels, and so do the model's own widths, which pairs
    have calibrated; what one is unsure of ``beyond`` the other, a square, stays."""
    middle = math.log(now / was)
    scale = spreads()[name].scale(middle, apart, math.sqrt(beyond))
    below = -middle / scale
    return messages.Ratio(
        ratio=now / was,
        low=math.exp(middle - HALF * scale),
        high=math.exp(middle + HALF * scale),
        level=LEVEL,
        less=0.5 + below / (2 * math.hypot(math.sqrt(2), below)),
    )


def _judged(code: CodeSide) -> messages.Judged:
    measured, duration, counts = code.side.measured, code.duration, code.analysis.counts
    traffic = counts.traffic(counts.factors())
    written = sum(min(one.distinct_sectors, one.unique_store_sectors) for one in traffic.streams)
    return messages.Judged(
        kernel=measured.kernel,
        bound=duration.bound or duration.regime,
        written_bytes=written * memory.SECTOR_BYTES,
        **{unit: getattr(getattr(measured, name), unit) for name, unit in messages.UNITS},
    )


def _flags(
    before: CodeSide, after: CodeSide, reference: messages.Judged, candidate: messages.Judged,
    gpu: gpus.GpuProfile,
) -> Iterator[messages.Flag]:  # fmt: skip
    was, now = (
        {each.detail: each.line for each in side.side.warnings if each.code == "unknown_opcode"}
        for side in (before, after)
    )
    if lines := [line for opcode, line in now.items() if opcode not in was]:
        yield messages.Flag(
            code="unknown_instructions",
            detail=f"PTX does not know {len(lines)} of the candidate's opcodes, the first in line "
            f"{lines[0]}: what they take is not counted",
        )
    activity = before.analysis.activity
    moved = activity.footprint_bytes
    least = calibration.least_seconds([activity], gpu, before.duration.clocks)
    if candidate.seconds < least and moved > gpu.l2_bytes:
        yield messages.Flag(
            code="above_speed_of_light",
            detail=f"to touch the {moved:.4g} bytes and do the arithmetic of the reference takes "
            f"{least:.3g} s at peak rates; the candidate is predicted to take less",
        )
    share = candidate.written_bytes / reference.written_bytes if reference.written_bytes else 1.0
    told = f"{candidate.written_bytes:.10g} bytes; the reference {reference.written_bytes:.10g}"
    if share < 1 - LEAST_CHANGE:
        yield messages.Flag(code="writes_less", detail=f"the candidate writes {told}")
    elif share > 1 + LEAST_CHANGE or (candidate.written_bytes and not reference.written_bytes):
        yield messages.Flag(code="other_result_size", detail=f"the candidate writes {told}")


def _reasons(before: CodeSide, after: CodeSide, gpu: gpus.GpuProfile) -> Iterator[messages.Reason]:
    """Units by how much their work changes, with the line that takes most where there is more."""
    sides = [
        (each.analysis, clocks.ClockPair(each.side.clocks.core_mhz, each.side.clocks.memory_mhz))
        for each in (before, after)
    ]
    was, now = (
        speed.unit_seconds(analysis.activity, gpu, pair, beside(analysis.extras))
        for analysis, pair in sides
    )
    least = LEAST_CHANGE * before.side.measured.time.seconds
    changed = [unit for unit in speed.NAMES if unit in was and abs(now[unit] - was[unit]) > least]
    changed.sort(key=lambda unit: -abs(now[unit] - was[unit]))
    for unit in changed[: messages.MOST_REASONS]:
        more = int(now[unit] > was[unit])
        analysis, pair = sides[more]
        functions = analysis.counts.functions(analysis.counts.factors())
        events = measure_instructions(analysis.module, functions, analysis.activity)
        cycles = speed.unit_cycles(events, analysis.activity, gpu, pair, beside(analysis.extras))
        line = source_line = None
        name = max(cycles, key=lambda each: float(cycles[each].get(unit, np.zeros(1)).max()))
        function = analysis.module.function(name)
        if function is not None and unit in cycles[name]:
            one = function.body.instructions[int(cycles[name][unit].argmax())]
            line, source_line = one.line, one.location.line if one.location else None
        text = parts.line_of(analysis.module.text.splitlines(), line) if line else ""
        yield messages.Reason(
            unit=speed.NAMES[unit],
            reference_seconds=was[unit],
            candidate_seconds=now[unit],
            side="candidate" if more else "reference",
            line=line,
            source_line=source_line,
            text="".join(letter for letter in text if letter.isprintable()),
        )


def _narrower(before: CodeSide, after: CodeSide, time: messages.Ratio) -> Iterator[str]:
    for name, code in (("reference", before), ("candidate", after)):
        needs = parts.needs(code.source, code.analysis)
        yield from (f"{name}: {need}" for need in needs[:2])
    if time.low < 1 < time.high:
        yield "measure both: the interval holds a ratio of 1"
