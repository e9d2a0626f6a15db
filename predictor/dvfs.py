"""A kernel at many clocks: scaling, Pareto set, the best pair under constraints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from wattcast.features.analysis import KernelAnalysis
from wattcast.features.diagnostics import Diagnostic
from wattcast.features.errors import AnalysisError, ModelError, ServiceError
from wattcast.features.gpus import GpuProfile
from wattcast.models.choice import Constraints, Point, best_points, pareto
from wattcast.models.clocks import (
    ClockPair,
    admitted,
    crossed,
    default_clocks,
    highest_pair,
    is_supported,
    one_memory_clock,
    stepped,
    supported_pairs,
)
from wattcast.models.estimate import Estimate, energy
from wattcast.models.time.base import TimePrediction
from wattcast.predictor import parts
from wattcast.predictor.messages import Clocks
from wattcast.predictor.messages.dvfs import MOST_PAIRS, ClockRange, DvfsRequest
from wattcast.predictor.parts.power_models import reference_of
from wattcast.predictor.parts.timing import timed
from wattcast.predictor.parts.watts import Watts, predicted_watts

if TYPE_CHECKING:
    from wattcast.predictor import Predictor


class _AtClocks:
    """Time and power of one launch at one pair."""

    def __init__(
        self,
        predictor: Predictor,
        request: DvfsRequest,
        analysis: KernelAnalysis,
        gpu: GpuProfile,
        pair: ClockPair,
    ) -> None:
        self.pair = pair
        found, self.notes = timed(predictor, request.time_model, analysis, gpu, pair)
        seconds = found.estimate.value if found is not None else None
        power = predicted_watts(predictor, request.model, analysis, gpu, pair, time_seconds=seconds)
        if found is None or power.estimate is None:
            why = [note.detail for note in (*self.notes, *power.diagnostics)]
            raise AnalysisError("; ".join(why) or "neither time nor power can be told")
        self.time: TimePrediction = found
        self.power: Watts = power
        self.watts: Estimate = power.estimate
        self.energy = energy(self.watts, found.estimate)
        self.point = Point(pair, found.estimate.value, self.watts.value)

    def absolute(self) -> dict[str, Any]:
        return {
            "time": parts.estimate(self.time.estimate, "seconds"),
            "power": parts.estimate(self.watts, "watts"),
            "energy": parts.estimate(self.energy, "joules"),
        }


@parts.within_asked_seconds
def dvfs(predictor: Predictor, request: DvfsRequest) -> dict[str, Any]:
    """``DvfsAnswer``.

    Raises what ``predict`` raises, ClockError for clocks far from what the GPU supports,
    ConstraintError where no pair keeps to the constraints, and AnalysisError where the kernel
    cannot be analysed.
    """
    gpu = predictor.gpus.load(request.gpu)
    pairs = admitted(wanted_pairs(request.clocks, gpu), gpu)
    reference = highest_pair(gpu) if request.reference is None else request.reference.pair(gpu)
    admitted([reference], gpu)
    source = predictor.sources.read(request, gpu)
    analysis = parts.analysed(predictor, request, source, gpu, ptxas=True)
    base = _AtClocks(predictor, request, analysis, gpu, reference)
    found = [
        base if pair == reference else _AtClocks(predictor, request, analysis, gpu, pair)
        for pair in pairs
    ]
    card = base.power.card
    if card is None:
        raise ModelError(f"no power model for {gpu.id}", gpu=gpu.id)
    constraints = Constraints(**request.constraints.model_dump())
    points = [each.point for each in found]
    front = pareto(points)
    best = best_points(points, base.point.time_seconds, constraints)
    return {
        "gpu": gpu.id,
        "kernel": parts.kernel_name(analysis),
        "compiled": parts.compiled(source),
        "model": reference_of(card),
        "reference": {**reference._asdict(), **base.absolute()},
        "points": [_point(each, base, front, constraints, gpu) for each in found],
        "pareto": [point.key._asdict() for point in front],
        "best": {name: _best(point, base.point) for name, point in best.items()},
        "assumptions": {
            "trip_counts_guessed": analysis.trips_assumed,
            "activity": analysis.activity_how,
            **parts.facts(analysis),
            "voltage_curve": "typical"
            if predictor.power.physical(gpu).typical_voltage
            else "fitted",
            "one_memory_clock": one_memory_clock(gpu),
            "time_model": base.time.family,
        },
        "warnings": parts.warnings(
            source,
            analysis,
            _about_clocks(pairs, gpu),
            base.notes,
            base.power.diagnostics,
            _later(base, found),
        ),
    }


def wanted_pairs(
    clocks: Clocks | list[Clocks] | ClockRange | str | None, gpu: GpuProfile
) -> Sequence[ClockPair]:
    """The pairs a request means. Raises ClockError for an empty range, ServiceError for too
    many pairs."""
    if clocks is None:
        return [default_clocks(gpu)]
    if isinstance(clocks, Clocks):
        return [clocks.pair(gpu)]
    if isinstance(clocks, list):
        return [each.pair(gpu) for each in clocks]
    if isinstance(clocks, str):
        return supported_pairs(gpu)
    core = stepped(*clocks.core, "core_mhz")
    memory = (gpu.memory_mhz,) if clocks.memory is None else stepped(*clocks.memory, "memory_mhz")
    if len(core) * len(memory) > MOST_PAIRS:
        raise ServiceError(
            "validation",
            f"clocks: {len(core)} x {len(memory)} pairs; at most {MOST_PAIRS} are taken",
            field="clocks",
        )
    return crossed(core, memory)


def _point(
    found: _AtClocks,
    base: _AtClocks,
    front: Sequence[Point[ClockPair]],
    constraints: Constraints,
    gpu: GpuProfile,
) -> dict[str, Any]:
    point, reference = found.point, base.point
    scale = {
        "time": point.time_seconds / reference.time_seconds,
        "power": point.power_watts / reference.power_watts,
        "energy": point.energy_joules / reference.energy_joules,
    }
    return {
        **found.pair._asdict(),
        "scale": scale,
        "speedup": 1 / scale["time"],
        "energy_saved_percent": 100 * (1 - scale["energy"]),
        **found.absolute(),
        "edp_joule_seconds": point.edp,
        "regime": found.time.regime,
        "pareto": any(point is each for each in front),
        "feasible": not constraints.violated(point, reference.time_seconds),
        "extrapolated": not is_supported(found.pair, gpu),
    }


def _best(point: Point[ClockPair], reference: Point[ClockPair]) -> dict[str, Any]:
    return {
        **point.key._asdict(),
        "time_penalty_percent": 100 * (point.time_seconds / reference.time_seconds - 1),
        "energy_saved_percent": 100 * (1 - point.energy_joules / reference.energy_joules),
    }


def _about_clocks(pairs: Iterable[ClockPair], gpu: GpuProfile) -> list[Diagnostic]:
    notes = []
    beside = [pair for pair in pairs if not is_supported(pair, gpu)]
    if beside:
        named = ", ".join(f"{pair.core_mhz:g}/{pair.memory_mhz:g}" for pair in beside[:3])
        more = f" and {len(beside) - 3} more" if len(beside) > 3 else ""
        detail = f"{named}{more} MHz: no pairs that {gpu.id} is known to run at"
        notes.append(Diagnostic("clocks_extrapolated", detail))
    if one_memory_clock(gpu):
        detail = f"the profile of {gpu.id} knows one memory clock; only the core clock is a choice"
        notes.append(Diagnostic("one_memory_clock", detail))
    return notes


def _later(base: _AtClocks, found: Sequence[_AtClocks]) -> list[Diagnostic]:
    """Warnings that only other pairs bring, each kind once."""
    seen = {note.code for note in (*base.notes, *base.power.diagnostics)}
    later: dict[str, Diagnostic] = {}
    for each in found:
        for note in (*each.notes, *each.power.diagnostics):
            if note.code not in seen:
                later.setdefault(note.code, note)
    return list(later.values())
