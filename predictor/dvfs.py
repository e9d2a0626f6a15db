"""A kernel at many clocks and power limits: scaling, Pareto set, the best under constraints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from wattcast.features.analysis import KernelAnalysis
from wattcast.features.errors import Diagnostic, ModelError, ServiceError, refused
from wattcast.features.gpus import GpuProfile
from wattcast.models import clocks as clocking
from wattcast.models.choice import Constraints, Point, best_points, outweighs, pareto
from wattcast.models.intervals import EXTRAPOLATED_WIDENING
from wattcast.predictor import Predictor, operators, parts, reports
from wattcast.predictor.messages import CODE_MODELS, Clocks, KernelName, language_model
from wattcast.predictor.messages import dvfs as messages
from wattcast.predictor.messages.operators import OperatorDvfsRequest
from wattcast.predictor.parts.operators import Asked
from wattcast.predictor.parts.power_models import reference_of
from wattcast.predictor.parts.time_and_power import BoardModels, TimeAndPower

if TYPE_CHECKING:
    from wattcast.models.papers.scaling.code import ServedCode


class Operating(NamedTuple):
    """Clocks that are set, and the power limit under which the board runs at them or below."""

    core_mhz: float
    memory_mhz: float
    power_limit_watts: float


@dataclass
class At:
    """Time and power at one operating point."""

    point: Point[Operating]
    costs: dict[str, Any]
    runs_at_core_mhz: float | None
    regime: str | None
    extrapolated: bool


class _AtClocks(At):
    """Those of one launch at one pair, under one power limit."""

    def __init__(self, pair: clocking.ClockPair, found: TimeAndPower, gpu: GpuProfile) -> None:
        self.pair, self.operating = pair, found
        self.time, watts, self.card = found.told()
        key = Operating(*pair, found.limit_watts or gpu.tdp_watts)
        super().__init__(
            Point(key, self.time.estimate.value, watts.value),
            found.costs(gpu),
            found.clocks.core_mhz,
            self.time.regime,
            extrapolated=not clocking.is_supported(pair, gpu),
        )


@parts.within_asked_seconds
def dvfs(predictor: Predictor, request: messages.DvfsRequest) -> messages.DvfsAnswer:
    """Time, power and energy at each pair of clocks and under each limit.

    Raises what ``predict`` raises, ClockError for clocks far from what the GPU supports,
    ConstraintError where no pair keeps to the constraints, and AnalysisError where the kernel
    cannot be analysed.
    """
    gpu = predictor.gpus.load(request.gpu)
    code = _code_model(gpu.id, request.model) if request.model in CODE_MODELS else None
    pairs = clocking.admitted(wanted_pairs(request.clocks, gpu), gpu)
    if code is not None and request.clocks == "grid":
        pairs = tuple(pair for pair in pairs if code.scaling.parameters.holds(pair))
    limits = _limits(request.power_limit_watts)
    if len(pairs) * len(limits) > messages.MOST_PAIRS:
        raise _too_many(f"{len(pairs)} pairs x {len(limits)} power limits")
    highest = clocking.highest_pair(gpu) if code is None else code.scaling.parameters.reference
    reference = highest if request.reference is None else request.reference.pair(gpu)
    clocking.admitted([reference], gpu)
    source = predictor.sources.read(request, gpu)
    analysis = parts.analysed(predictor, request, source, gpu, ptxas=True)
    family = request.model if code is None else "physical"
    chosen = request.time_model, family, request.board or ""
    models = BoardModels(predictor.power, gpu, *chosen)

    # All clocks at once, and those that limits leave once each.
    told = dict(zip(pairs, models.at(analysis, pairs), strict=True)) if code is None else {}
    lower = cache(lambda pair: models.at(analysis, [pair])[0])

    def free(pair: clocking.ClockPair) -> TimeAndPower:
        return told.get(pair) or lower(pair)

    def at(pair: clocking.ClockPair, limit: float | None) -> _AtClocks:
        return _AtClocks(pair, models.within_limit(free, pair, limit), gpu)

    base = at(reference, None)
    if code is None:
        found = [
            base if pair == reference and limit is None else at(pair, limit)
            for pair in pairs
            for limit in limits
        ]
    else:
        found = _by_code(code, analysis, base, pairs, gpu)
    one_in_ten = one_in_ten_of(predictor, gpu) if code is None else code.one_in_ten
    return messages.DvfsAnswer(
        gpu=gpu.id,
        **parts.code_of(source, analysis.function),
        model=reference_of(base.card if code is None else code.card),
        **choice(found, base, request.constraints, one_in_ten),
        assumptions=messages.Assumptions(
            trip_counts_guessed=analysis.trips_assumed,
            activity=analysis.activity_how,
            **parts.resources(analysis),
            voltage_curve="typical" if predictor.power.physical(gpu).typical_voltage else "fitted",
            one_memory_clock=clocking.one_memory_clock(gpu),
            time_model=base.time.family if code is None else request.model,
        ),
        warnings=parts.warnings(
            source,
            analysis,
            _about_clocks(pairs, gpu),
            base.operating.warnings,
            parts.later((each.operating for each in found), base.operating),
        ),
    )


def dvfs_of_operator(predictor: Predictor, request: OperatorDvfsRequest) -> messages.DvfsAnswer:
    """Time, power and energy of a library operator under each power limit, at the default clocks.

    The reference is the board's own limit; nine limits from half of it on are tried where none is
    given. Raises what ``predict_operator`` raises, ConstraintError where no limit keeps to the
    constraints, and ModelError for an operator whose watts nobody measured.
    """
    gpu = predictor.gpus.load(request.gpu)

    def under(*limits: float | None) -> list[Any]:
        options = [request.model_copy(update={"power_limit_watts": each}) for each in limits]
        asked = [Asked(request.operator, gpu, each) for each in options]
        found = [*operators.predicted(predictor, asked)]
        for each in found:
            if isinstance(each, Exception):
                raise each
            if each.power is None:
                raise ModelError(f"no watts of {request.operator.name} were measured", gpu=gpu.id)
        return found

    (usual,) = under(None)
    limits = tried_limits(request.power_limit_watts, gpu, usual.power_limit_watts)
    base, *found = (
        _at_limit(
            gpu,
            each.power_limit_watts,
            parts.members(each, "time", "power", "energy"),
            each.clocks.core_mhz,
            each.operator.bound,
            any(one.code == "extrapolated" for one in each.warnings),
        )
        for each in (usual, *under(*limits))
    )
    return messages.DvfsAnswer(
        gpu=gpu.id,
        kernel=operators.operator_name(request.operator),
        model=usual.model,
        **choice(found, base, request.constraints, TYPICAL_ONE_IN_TEN),
        assumptions=None,
        warnings=usual.warnings,
    )


def _at_limit(gpu: GpuProfile, limit: float, costs: dict[str, Any], *more: Any) -> At:
    """At the default clocks under a power limit."""
    key = Operating(gpu.core_mhz, gpu.memory_mhz, limit)
    return At(Point(key, costs["time"].seconds, costs["power"].watts), costs, *more)


def dvfs_of_language_model(
    predictor: Predictor, request: language_model.LanguageModelDvfsRequest
) -> messages.DvfsAnswer:
    """Time, power and energy of a language model's inference or training step under each power
    limit, all GPUs together. Raises what ``language_model`` raises, and ConstraintError."""
    from wattcast.predictor.language_model import forecasts

    gpu = predictor.gpus.load(request.gpu)
    own = gpu.tdp_watts
    limits = tried_limits(request.power_limit_watts, gpu, own)
    told, warnings = forecasts(predictor, request, [None, *limits])
    base, *found = (
        _at_limit(gpu, limit or own, costs, None, None, costs["energy"].basis == "extrapolated")
        for costs, limit in zip(told, [None, *limits], strict=True)
    )
    name = str(request.language_model.config.get("model_type") or "language model")
    return messages.DvfsAnswer(
        gpu=gpu.id,
        kernel=KernelName(mangled=name, demangled=name),
        model=None,
        **choice(found, base, request.constraints, TYPICAL_ONE_IN_TEN),
        assumptions=None,
        warnings=warnings,
    )


def tried_limits(
    asked: float | list[float] | None, gpu: GpuProfile, own: float
) -> tuple[float | None, ...]:
    """The limits asked for; nine from half the board's own one on where none is."""
    limits = _limits(asked)
    if limits != (None,):
        return limits
    low, high = gpu.limit_range_watts or (0.0, own)
    return _limits([min(max(round(own * n / 16, 0), low), high) for n in range(8, 17)])


def _limits(asked: float | list[float] | None) -> tuple[float | None, ...]:
    """The power limits asked for, each once; ``None`` is the board's own."""
    return tuple(sorted(set(asked))) if isinstance(asked, list) else (asked,)


ONE_IN_TEN = MappingProxyType({"gtx-1080-ti": 1.049, "gtx-980": 1.176, "gtx-titan-x": 1.197,
                               "tesla-p100": 1.127, "tesla-v100": 1.162})  # fmt: skip
ANY_BOARD = 1.14
"""What measured energy scales exceed of one kernel in ten, asked as users ask and left out of the
power model: thirteen public programs on each board, fourteen applications on the Titan X; and of
all five boards (``python -m studies applications --boards``, docs/frequency.md)."""
TYPICAL_ONE_IN_TEN = ANY_BOARD**EXTRAPOLATED_WIDENING
"""Where the typical curve of voltage tells how work without code follows clocks and limits."""


def one_in_ten_of(predictor: Predictor, gpu: GpuProfile) -> float:
    """Wider, as intervals are, on boards without a power model of their own."""
    factor = ONE_IN_TEN.get(gpu.id, ANY_BOARD)
    wider = EXTRAPOLATED_WIDENING if predictor.power.physical(gpu).typical_voltage else 1.0
    return float(factor**wider)


@lru_cache(maxsize=32)
def _code_model(gpu: str, family: clocking.CodeModel) -> ServedCode:
    """Opened once: reading and checking all cards takes 16 ms, and packaged ones do not change."""
    from wattcast.models.papers.scaling.card import scaling_store
    from wattcast.models.papers.scaling.code import code_scaling

    return code_scaling(scaling_store(), gpu, family)


def _by_code(
    code: ServedCode,
    analysis: KernelAnalysis,
    base: _AtClocks,
    pairs: Sequence[clocking.ClockPair],
    gpu: GpuProfile,
) -> list[_AtClocks]:
    """Time and power of the reference, scaled to each pair by a model that reads code."""
    from wattcast.models.papers.scaling.code import stream_of

    scales = code.scaling.scales([stream_of(analysis)], pairs, base.pair)
    duration, watts, _ = base.operating.told()
    found = []
    for pair, scale in zip(pairs, scales, strict=True):
        assert scale.power is not None, "both quantities were measured"
        time = code.scaled(duration.estimate, "time", scale.time)
        power = code.scaled(watts, "power", scale.power)
        there = replace(
            base.operating,
            clocks=pair,
            duration=replace(duration, clocks=pair, estimate=time, parts={}, regime=None),
            power=replace(base.operating.power, estimate=power, components=None),
        )
        found.append(base if pair == base.pair else _AtClocks(pair, there, gpu))
    return found


def wanted_pairs(
    clocks: Clocks | list[Clocks] | messages.ClockRange | str | None, gpu: GpuProfile
) -> Sequence[clocking.ClockPair]:
    """The pairs a request means. Raises ClockError for an empty range, ServiceError for too
    many pairs."""
    if clocks is None:
        return [clocking.default_clocks(gpu)]
    if isinstance(clocks, Clocks):
        return [clocks.pair(gpu)]
    if isinstance(clocks, list):
        return [each.pair(gpu) for each in clocks]
    if isinstance(clocks, str):
        return clocking.supported_pairs(gpu)
    core = clocking.stepped(*clocks.core, "core_mhz")
    memory = (
        (gpu.memory_mhz,)
        if clocks.memory is None
        else clocking.stepped(*clocks.memory, "memory_mhz")
    )
    if len(core) * len(memory) > messages.MOST_PAIRS:
        raise _too_many(f"{len(core)} x {len(memory)} pairs")
    return clocking.crossed(core, memory)


def _too_many(asked: str) -> ServiceError:
    return refused(f"clocks: {asked}; at most {messages.MOST_PAIRS} are taken", "clocks")


def choice(
    found: Sequence[At], base: At, asked: messages.ConstraintsRequest, one_in_ten: float
) -> dict[str, Any]:
    """Members of an answer: the points beside the reference, and which of them to run at."""
    constraints = Constraints(**asked.model_dump())
    points, reference = [each.point for each in found], base.point
    front = pareto(points)
    best = best_points(points, reference.time_seconds, constraints)
    return {
        "reference": messages.Reference(**reference.key._asdict(), **base.costs),
        "points": [_point(each, reference, front, constraints) for each in found],
        "pareto": [messages.OperatingLimit(**point.key._asdict()) for point in front],
        "best": messages.Best.model_validate(
            {name: best_pair(at, reference) for name, at in best.items()}
        ),
        "proposal": proposal(best["min_energy"], reference, one_in_ten, constraints),
    }


def _point(
    found: At,
    reference: Point[Operating],
    front: Sequence[Point[Operating]],
    constraints: Constraints,
) -> messages.OperatingPoint:
    point = found.point
    scale = messages.Scale(
        time=point.time_seconds / reference.time_seconds,
        power=point.power_watts / reference.power_watts,
        energy=point.energy_joules / reference.energy_joules,
    )
    return messages.OperatingPoint(
        **point.key._asdict(),
        **parts.members(found, "runs_at_core_mhz", "regime", "extrapolated"),
        scale=scale,
        speedup=1 / scale.time,
        energy_saved_percent=100 * (1 - scale.energy),
        **found.costs,
        edp_joule_seconds=point.edp,
        pareto=any(point is each for each in front),
        feasible=not constraints.violated(point, reference.time_seconds),
    )


def best_pair(point: Point[Any], reference: Point[Any]) -> dict[str, Any]:
    """Members of the message of a best point, of operating points or clock pairs."""
    return dict(
        **point.key._asdict(),
        time_penalty_percent=100 * (point.time_seconds / reference.time_seconds - 1),
        energy_saved_percent=100 * (1 - point.energy_joules / reference.energy_joules),
    )


def proposal(
    best: Point[Any], reference: Point[Any], one_in_ten: float, constraints: Constraints
) -> messages.Proposal:
    """Whether to run at the point of least energy (``models.choice.outweighs``), and why.

    A reference that breaks the constraints is never stayed at.
    """
    scale = best.energy_joules / reference.energy_joules
    saved, cost = 100 * (1 - scale), 100 * (scale * one_in_ten - 1)
    broken = constraints.violated(reference, reference.time_seconds)
    stay = best.key == reference.key or not (broken or outweighs(scale, one_in_ten))
    there, here = (
        reports.megahertz(key) + "".join(f" under {watts:g} W" for watts in key[2:])
        for key in (best.key, reference.key)
    )
    risk = f"costs over {cost:.1f} % more" if cost > 0 else f"saves below {-cost:.1f} %"
    least = f"save {saved:.1f} % energy" if saved > 0 else f"cost {-saved:.1f} % more energy"
    why = f"{there} is expected to {least}, but one kernel in ten {risk}"
    if stay:
        told = why if saved > 0 else "nothing else is expected to save energy"
        why = f"stay at {here}: {told}"
    elif broken:
        why += f"; {here} breaks the constraints"
    return messages.Proposal(
        **(reference if stay else best).key._asdict(),
        stay=stay,
        energy_saved_percent=saved,
        cost_percent=cost,
        why=why,
    )


def _about_clocks(pairs: Iterable[clocking.ClockPair], gpu: GpuProfile) -> Iterator[Diagnostic]:
    unknown = (pair for pair in pairs if not clocking.is_supported(pair, gpu))
    beside = [reports.megahertz(pair, unit=False) for pair in unknown]
    if beside:
        more = f" and {len(beside) - 3} more" if len(beside) > 3 else ""
        told = f"{', '.join(beside[:3])}{more} MHz; these are extrapolated"
        yield Diagnostic("clocks_extrapolated", f"{gpu.id} is not known to run at {told}")
    if clocking.one_memory_clock(gpu):
        detail = f"the profile of {gpu.id} has one memory clock, so only the core clock was varied"
        yield Diagnostic("one_memory_clock", detail)
