"""Is a candidate better than a reference? Ratios of time and energy, how sure they are, and why.

Both sides are predicted by the same models. What those are wrong about two variants of one kernel
largely cancels in the ratio: its spread (``judge.toml``) is calibrated on pairs of public tuning
spaces (``python -m studies judge``), and is far narrower than the interval of either side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wattcast.features.activity.instructions import measure_instructions
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.cfg import build_cfg
from wattcast.features.checked import read_toml
from wattcast.features.errors import AnalysisError
from wattcast.features.gpus import GpuProfile
from wattcast.features.memory import SECTOR_BYTES
from wattcast.models.clocks import ClockPair
from wattcast.models.intervals import Z90
from wattcast.models.speed import NAMES, unit_cycles, unit_seconds
from wattcast.models.time.base import TimePrediction
from wattcast.models.time.beside import beside
from wattcast.models.time.calibration import least_seconds
from wattcast.predictor import parts
from wattcast.predictor.compare import Side, side_of
from wattcast.predictor.messages import Interval
from wattcast.predictor.messages import compare as messages
from wattcast.predictor.messages.compare import ComparedCode
from wattcast.predictor.parts.sources import Source

if TYPE_CHECKING:
    from wattcast.predictor import Predictor

LEVEL = 0.9

LEAST_CHANGE = 0.02
"""Share of the reference's time, or of what it writes, below which a change is none: rounding to
sectors and blocks. A judgement."""


class Spread(NamedTuple):
    """Of ln(measured / predicted) ratios: scale of a logistic distribution (``judge.toml``)."""

    floor: float
    slope: float

    def scale(self, log_ratio: float, beyond: float = 0.0) -> float:
        """At a predicted ratio, with ``beyond`` more on one side, a standard deviation."""
        return math.hypot(self.floor, self.slope * log_ratio, beyond * math.sqrt(3) / math.pi)


@cache
def spreads() -> dict[str, Spread]:
    """The calibrated spread of ratios of ``time`` and ``energy``."""
    found = read_toml(Path(__file__).with_suffix(".toml"))
    return {name: Spread(**one) for name, one in found.items()}


def judge(predictor: Predictor, request: messages.JudgeRequest) -> messages.JudgeAnswer:
    """The verdict on a candidate beside its reference. Nothing is stored.

    Raises what ``compare`` raises (the error tells which side), and AnalysisError for code that is
    not known to end: that gets no verdict.
    """
    gpu = predictor.gpus.load(request.gpu)
    before = _side(predictor, request, request.reference, "reference", gpu)
    after = _side(predictor, request, request.candidate, "candidate", gpu)
    was, now = before.measured, after.measured
    time = _ratio("time", was.time.seconds, now.time.seconds, was.time, now.time)
    energy = _ratio("energy", was.energy.joules, now.energy.joules, was.energy, now.energy)
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
    code: ComparedCode,
    name: str,
    gpu: GpuProfile,
) -> Side:
    with parts.about(name):
        kernel = predictor.sources.read(code, gpu).known.module.kernel(code.kernel)
    side = side_of(predictor, request, code, name, kernel, gpu)
    _, analysis, _ = _told(side)
    with parts.about(name):
        _ends(analysis)
    return side


def _told(side: Side) -> tuple[Source, KernelAnalysis, TimePrediction]:
    assert side.told is not None  # sides of code always are
    return side.told


def _ends(analysis: KernelAnalysis) -> None:
    """Raises AnalysisError where a loop has no way out, or was not seen to end although nothing
    that the caller could give decides it."""
    for name in analysis.counts.functions(None):
        function = analysis.module.function(name)
        assert function is not None
        cfg = analysis.cfg if function is analysis.function else build_cfg(function.body)
        waiting = [block.index for block in cfg.blocks if block.exits or not block.successors]
        ending = set(waiting)
        while waiting:
            new = set(cfg.blocks[waiting.pop()].predecessors) - ending
            ending |= new
            waiting += new
        if endless := sorted(cfg.reachable - ending):
            line = function.body.instructions[cfg.blocks[endless[0]].start].line
            raise AnalysisError(f"the loop at line {line} of the PTX never ends", line=line)
    for trip in analysis.trip_counts:
        if trip.how == "assumed" and not analysis.needs:
            raise AnalysisError(
                f"the loop at line {trip.line} of the PTX was not seen to end: give its trips, or "
                "the arguments and data that decide them",
                line=trip.line,
            )


def _ratio(name: str, was: float, now: float, old: Interval, new: Interval) -> messages.Ratio:
    """What both sides are unsure of alike cancels; what one is unsure of beyond the other stays."""
    spread, middle = spreads()[name], math.log(now / was)
    widths = [math.log(each.high / each.low) / (2 * Z90) for each in (old, new)]
    beyond = math.sqrt(abs(widths[0] ** 2 - widths[1] ** 2))
    scale = spread.scale(middle, beyond)
    half = scale * math.log((1 + LEVEL) / (1 - LEVEL))
    return messages.Ratio(
        ratio=now / was,
        low=math.exp(middle - half),
        high=math.exp(middle + half),
        level=LEVEL,
        less=1 / (1 + math.exp(min(700.0, middle / scale))),
    )


def _judged(side: Side) -> messages.Judged:
    _, analysis, duration = _told(side)
    measured = side.measured
    traffic = analysis.counts.traffic(analysis.counts.factors())
    written = sum(min(one.distinct_sectors, one.unique_store_sectors) for one in traffic.streams)
    return messages.Judged(
        kernel=measured.kernel,
        bound=duration.bound or duration.regime,
        written_bytes=written * SECTOR_BYTES,
        **{unit: getattr(getattr(measured, name), unit) for name, unit in messages.UNITS},
    )


def _flags(
    before: Side,
    after: Side,
    reference: messages.Judged,
    candidate: messages.Judged,
    gpu: GpuProfile,
) -> Iterator[messages.Flag]:
    _, analysis, duration = _told(before)
    moved = analysis.activity.footprint_bytes
    least = least_seconds([analysis.activity], gpu, duration.clocks)
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


def _reasons(before: Side, after: Side, gpu: GpuProfile) -> Iterator[messages.Reason]:
    """Units by how much their work changes, with the line that takes most where there is more."""
    sides = [(_told(side), ClockPair(side.clocks.core_mhz, side.clocks.memory_mhz))
             for side in (before, after)]  # fmt: skip
    was, now = (
        unit_seconds(told[1].activity, gpu, pair, beside(told[1].extras)) for told, pair in sides
    )
    least = LEAST_CHANGE * before.measured.time.seconds
    changed = [unit for unit in NAMES if unit in was and abs(now[unit] - was[unit]) > least]
    changed.sort(key=lambda unit: -abs(now[unit] - was[unit]))
    for unit in changed[: messages.MOST_REASONS]:
        more = int(now[unit] > was[unit])
        (_, analysis, _), pair = sides[more]
        functions = analysis.counts.functions(analysis.counts.factors())
        events = measure_instructions(analysis.module, functions, analysis.activity)
        cycles = unit_cycles(events, analysis.activity, gpu, pair, beside(analysis.extras))
        line = source_line = None
        name = max(cycles, key=lambda each: float(cycles[each].get(unit, np.zeros(1)).max()))
        function = analysis.module.function(name)
        if function is not None and unit in cycles[name]:
            one = function.body.instructions[int(cycles[name][unit].argmax())]
            line, source_line = one.line, one.location.line if one.location else None
        text = parts.line_of(analysis.module.text.splitlines(), line) if line else ""
        yield messages.Reason(
            unit=NAMES[unit],
            reference_seconds=was[unit],
            candidate_seconds=now[unit],
            side="candidate" if more else "reference",
            line=line,
            source_line=source_line,
            text="".join(letter for letter in text if letter.isprintable()),
        )


def _narrower(before: Side, after: Side, time: messages.Ratio) -> Iterator[str]:
    for name, side in (("reference", before), ("candidate", after)):
        source, analysis, _ = _told(side)
        yield from (f"{name}: {need}" for need in parts.needs(source, analysis)[:2])
    if time.low < 1 < time.high:
        yield "measure both: the interval holds a ratio of 1"
