"""Library operators by their shapes: watts, seconds and joules without any code.

asked shape -> columns -> trees of the GPU, else of its kind, else pooled -> power limit -> answer

An answer is ``PredictAnswer`` with ``operator`` filled in. Many are answered in one go: calls of
one operator and GPU share a run of their trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import cache, lru_cache
from itertools import product
from math import exp, hypot, log, nan, prod
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from pydantic import ValidationError

from wattcast.features.errors import LaunchError, ModelError, refused
from wattcast.features.operators import FEATURE_NAMES, Board, Columns, Floats
from wattcast.models import choice, clocks
from wattcast.models.operators import OperatorModel, Told, limited
from wattcast.predictor import Predictor, explain, parts, predict
from wattcast.predictor.messages import ClocksAnswer, KernelName, ModelReference, WarningLine
from wattcast.predictor.messages import operators as messages
from wattcast.predictor.messages import sweep as batches
from wattcast.predictor.messages.predict import (
    OperatorFigures,
    PredictAnswer,
    PredictAnswers,
    Trust,
)
from wattcast.predictor.parts import operators as asking
from wattcast.predictor.parts import power_models, stored, trust
from wattcast.predictor.parts.time_and_power import OVER_LIMIT

MATH_BITS = FEATURE_NAMES.index("math_bits")


def predict_operator(
    predictor: Predictor, request: messages.OperatorRequest, rows: list[Future[None]] | None = None
) -> PredictAnswer | PredictAnswers:
    """The prediction of one GPU, or those of several; stored if there is a store.

    Raises GpuError, ClockError (a limit the board cannot be set to), LaunchError (a call that does
    not fit in the board's memory), ModelError and ServiceError for what the request brings.
    """
    asked = [
        asking.Asked(request.operator, gpu, request) for gpu in predict.gpus_of(predictor, request)
    ]
    answers: list[PredictAnswer] = []
    begun: list[Future[None]] = [] if rows is None else rows
    for one, answer in zip(asked, [*predicted(predictor, asked)], strict=True):
        if isinstance(answer, Exception):
            raise answer
        if request.explain is not None and answer.power is not None:
            told = explain.explained(predictor, answer, "shap", "power")
            answer = answer.model_copy(update={"explanation": told})
        if predictor.store is not None:
            record = stored.PredictionRecord.of(
                answer,
                one.operator.name,
                request.model_dump_json(exclude_defaults=True),
                {str(answer.schema_id): [*answer.features.values()]},
            )
            begun.append(predictor.store.add(record))
        answers.append(answer)
    if rows is None and predictor.store is not None:
        predictor.store.wait(begun)
    if request.gpu is not None:
        return answers[0]
    return predict.several(answers)


def operator_name(operator: messages.Operator) -> KernelName:
    """Its name, and its shape for people."""
    given = operator.model_dump(exclude={"name"}, exclude_defaults=True)
    shape = (f"{name}={value}" for name, value in given.items())
    return KernelName(mangled=operator.name, demangled=" ".join((operator.name, *shape)))


def predict_operators(
    predictor: Predictor, request: messages.OperatorBatchRequest
) -> batches.BatchAnswer:
    """Predictions of many calls on one GPU, in their order; nothing is stored. One that has none
    has its problem in its place. Raises GpuError and ClockError."""
    gpu = predictor.gpus.load(request.gpu)
    predictions: list[batches.BatchPrediction] = []
    model, notes = None, dict[str, WarningLine]()
    for one in _each(predictor, [asking.Asked(one, gpu, request) for one in request.operators]):
        if not isinstance(one, _Row):
            predictions.append(batches.BatchPrediction(problem=batches.LaunchProblem.of(one)))
            continue
        model, warnings = model or one.reference, one.warnings()
        notes = {each.code: each for each in reversed(warnings)} | notes
        codes = [*dict.fromkeys(each.code for each in warnings)]
        predictions.append(batches.BatchPrediction(**one.costs().members, warnings=codes))
    return batches.BatchAnswer(
        gpu=gpu.id,
        kernel=None,
        compiled=None,
        clocks=ClocksAnswer(core_mhz=gpu.core_mhz, memory_mhz=gpu.memory_mhz),
        model=model,
        time_model=None,
        analysis=None,
        predictions=predictions,
        failed=sum(each.problem is not None for each in predictions),
        needs=[],
        warnings=[*notes.values()],
    )


def sweep_operator(
    predictor: Predictor, request: messages.OperatorSweepRequest
) -> messages.OperatorSweepAnswer:
    """Every combination of the values on every GPU, ranked by what a FLOP takes.

    Raises GpuError, ClockError, ServiceError for too many points, and LaunchError where no
    combination is an operator that fits.
    """
    gpus = predict.gpus_of(predictor, request)
    count = len(gpus) * prod(map(len, request.vary.values()))
    if count > batches.MOST_POINTS:
        raise refused(
            f"{count} points are asked for; at most {batches.MOST_POINTS} are taken", "vary"
        )
    combinations = [
        dict(zip(request.vary, each, strict=True)) for each in product(*request.vary.values())
    ]
    operators = [_combined(request.operator, values) for values in combinations]
    asked = [asking.Asked(one, gpu, request) for gpu in gpus for one in operators
             if not isinstance(one, LaunchError)]  # fmt: skip
    answers = predicted(predictor, asked)
    found = [one if isinstance(one, LaunchError) else next(answers)
             for _ in gpus for one in operators]  # fmt: skip
    able = {at: one for at, one in enumerate(found) if isinstance(one, PredictAnswer)}
    if not able and isinstance(found[0], Exception):
        raise found[0]
    # On one GPU points are ranked whatever answered; between GPUs only what can be compared.
    marked = [trust.Ranked.of(one) for one in able.values()]
    whys = trust.incomparable(marked) if len(gpus) > 1 else []
    apart = dict(zip(able, whys, strict=False))
    points = [
        choice.Point(at, one.time.seconds / one.operator.flops, one.power.watts)
        for at, one in able.items()
        if one.time and one.power and one.operator and apart.get(at) is None
    ]
    front = {point.key for point in choice.pareto(points)}
    best = choice.best_points(points, 1.0, choice.Constraints()) if points else {}
    places = product(gpus, combinations)
    return messages.OperatorSweepAnswer(
        operator=request.operator,
        points=[
            messages.OperatorPoint(
                gpu=gpu.id,
                values=values,
                pareto=at in front,
                apart=apart.get(at),
                joules_per_flop=figures.joules_per_flop if figures else None,
                **_one_of_many(answer),
            )
            for at, ((gpu, values), answer) in enumerate(zip(places, found, strict=True))
            for figures in [answer.operator if isinstance(answer, PredictAnswer) else None]
        ],
        best={name: point.key for name, point in best.items()},
        failed=len(found) - len(able),
        warnings=_first_of_each_code([note for one in able.values() for note in one.warnings]),
    )


def _combined(
    base: Mapping[str, object], values: Mapping[str, object]
) -> messages.Operator | LaunchError:
    """The operator with some of its members replaced, or what is wrong with it."""
    try:
        return asking.OPERATOR.validate_python({**base, **values})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"][1:])
        return LaunchError(f"{place}: {first['msg']}".removeprefix(": "), field="operator")


def _first_of_each_code(notes: Sequence[WarningLine]) -> list[WarningLine]:
    return list({one.code: one for one in reversed(notes)}.values())


def _one_of_many(found: PredictAnswer | LaunchError | ModelError) -> dict[str, Any]:
    """Members of an answer as a launch in a batch has it."""
    if isinstance(found, PredictAnswer):
        told = parts.members(found, "power", "time", "energy")
        return {**told, "warnings": list(dict.fromkeys(one.code for one in found.warnings))}
    return {"problem": batches.LaunchProblem.of(found)}


def predicted(
    predictor: Predictor, asked: Sequence[asking.Asked]
) -> Iterator[PredictAnswer | LaunchError | ModelError]:
    """Answers in the order asked, one made at a time: ten thousand kept would busy the collector
    of garbage for longer than they take. An error stands in the place of a call that has none."""
    for one in _each(predictor, asked):
        yield one.answer() if isinstance(one, _Row) else one


def _each(
    predictor: Predictor, asked: Sequence[asking.Asked]
) -> Iterator[_Row | LaunchError | ModelError]:
    found: list[Any] = [None] * len(asked)
    groups: dict[tuple[str, bool, str], list[int]] = {}
    for number, one in enumerate(asked):
        key = asking.kind_of(one.operator), asking.recurs(one.operator), one.gpu.id
        groups.setdefault(key, []).append(number)
    for (kind, recurrence, _), at in groups.items():
        try:
            model = asking.model_of(predictor, kind, asked[at[0]].gpu, recurrence)
        except ModelError as error:
            for number in at:
                found[number] = error
            continue
        gpu = asked[at[0]].gpu
        call = asking.columns(kind, model, [asked[number] for number in at])
        sizes = least_bytes(kind, call, [asked[number].operator for number in at])
        for number, size in zip(at, sizes.tolist(), strict=True):
            found[number] = _unable(asked[number], size)
        able = [row for row, number in enumerate(at) if found[number] is None]
        if not able:
            continue
        if len(able) < len(at):
            call, at = {name: of[able] for name, of in call.items()}, [at[row] for row in able]
        board = predictor.operators.board(gpu)
        power = asking.power_model(predictor, kind, gpu, model)
        told = model.predict(kind, call, board, None if power is model else power)
        told = asking.with_passes(predictor, gpu, [asked[n].operator for n in at], power, told)
        for row, number in enumerate(at):
            found[number] = _Row(asked[number], kind, (model, power), board, call, told, row)
    yield from found


def _unable(one: asking.Asked, size: float) -> LaunchError | None:
    """Why a call cannot be run: the board does not multiply its format, or its operands take more
    than the board's memory."""
    try:
        asking.checked_format(vars(one.operator).get("dtype"), one.gpu)
    except LaunchError as error:
        return error
    have = one.gpu.memory_bytes
    if have is None or size <= have:
        return None
    return LaunchError(
        f"{one.operator.name} keeps {size / 1e9:,.0f} GB; {one.gpu.id} has {have / 1e9:,.0f} GB",
        field="operator",
    )


def least_bytes(kind: str, call: Columns, operators: Sequence[messages.Operator]) -> Floats:
    """Bytes ``[n]`` that lie in device memory at once: weights or cache, inputs and outputs."""
    bits = call["weight_bits"] / 8
    match kind:
        case "gemm":
            rows, columns, depth = call["rows"], call["columns"], call["depth"]
            size = columns * depth * bits + 2.0 * rows * (columns + depth)
            return np.asarray(call["batch"] * size)
        case "prefill" | "decode":
            kept = (call["cached"] + call["new"]) * call["kv_heads"]
            size = 2.0 * kept * bits + 4.0 * call["new"] * call["heads"]
            return np.asarray(call["batch"] * call["head_size"] * size)
        case "moe":
            local = call["experts"] / call["expert_parallel"]
            matrices = (2.0 + call["gated"]) / call["tensor_parallel"]
            weights = local * call["hidden"] * call["inner"] * matrices * bits
            return np.asarray(weights + 4.0 * call["tokens"] * call["hidden"])
        case "quantize":
            each = [max(one.read_bytes, one.write_bytes) if isinstance(one, messages.Stream)
                    else nan for one in operators]  # fmt: skip
            return np.where(np.isnan(each), 3.0 * call["rows"] * call["columns"], each)
        case _:
            size = call["heads"] * call["head_size"] + call["key_heads"] * call["key_size"]
            return np.asarray(4.0 * call["batch"] * call["new"] * size)


class _Costs(NamedTuple):
    """What a call takes at its power limit; ``clock`` is the relative one it leaves."""

    members: dict[str, Any]
    """``time``, ``power`` and ``energy`` as answers hold them."""
    sustained_watts: float
    clock: float
    limit_watts: float


class _Row(NamedTuple):
    """One of the calls that models told together."""

    one: asking.Asked
    kind: str
    models: tuple[OperatorModel, OperatorModel]
    board: Board
    call: Columns
    told: Told
    row: int

    @property
    def reference(self) -> ModelReference:
        """The model of its watts."""
        return _reference(self.models[1])

    @property
    def peak(self) -> float:
        """FLOP/s of its format."""
        math_bits = float(self.told.vectors[self.row, MATH_BITS])
        return self.board.tensor[16 if math_bits >= 16 else 8 if math_bits >= 8 else 4]

    @property
    def bytes(self) -> float:
        """All that has to move once."""
        found = self.told.quantities
        return float(found.moved_bytes[self.row] + found.weight_bytes[self.row])

    def costs(self) -> _Costs:
        """Time, power and energy with their intervals."""
        (model, power_by), told, row, gpu = self.models, self.told, self.row, self.one.gpu
        card, inside = power_by.card, bool(told.inside[row])
        seconds, watts = float(told.seconds[row]), float(told.watts[row])
        sustained = float(told.sustained_watts[row])
        measured_limit = power_by.limit_watts(self.board)
        limit = clocks.checked_limit(self.one.options.power_limit_watts, gpu) or measured_limit
        clock = 1.0
        if watts == watts and limit < measured_limit:
            compute = float(told.quantities.flops[row]) / self.peak
            share = compute / (compute + self.bytes / self.board.bandwidth)
            idle = card.training.idle_watts * measured_limit / card.training.limit_watts
            # What decides is what the board draws all the time, not what a short reading tells.
            drawn = max(watts, sustained) if sustained == sustained else watts
            found = limited(seconds, drawn, idle, share, limit)
            clock, seconds = found.relative_clock, found.seconds
            watts, sustained = min(watts, found.watts), min(sustained, found.watts)
        low, high = model.width(self.kind, "time", inside)
        time = seconds, seconds * low, seconds * high
        told_by = {"level": model.card.intervals.level, "basis": model.basis(inside)}
        members: dict[str, Any] = {
            "time": dict(zip(("seconds", *ENDS), time, strict=True)) | told_by,
            "power": None,
            "energy": None,
        }
        if watts == watts:
            low, high = power_by.width(self.kind, "power", inside)
            most = max(min(watts * high, limit * (1.0 + OVER_LIMIT)), watts)
            power = watts, watts * low, most
            told_by = {"level": card.intervals.level, "basis": power_by.basis(inside)}
            members["power"] = dict(zip(("watts", *ENDS), power, strict=True)) | told_by
            energy = dict(zip(("joules", *ENDS), _energy(power, time), strict=True))
            members["energy"] = energy | told_by
        return _Costs(members, sustained, clock, limit)

    def warnings(self) -> list[WarningLine]:
        """What to know of it."""
        members = vars(self.one.operator)
        format_ = members.get("kv_dtype", members.get("dtype"))
        framework = asking.framework_of(self.kind, self.models[0], self.one.options)
        notes = _notes(self.one.operator.name, format_, framework, self.kind, self.models)
        return [*notes] if self.told.inside[self.row] else [self._outside(), *notes]

    def _outside(self) -> WarningLine:
        """Which values of it lie outside the measured ones."""
        knots = self.models[0].card.operators[self.kind].knots
        given = {name: float(self.call[name][self.row]) for name in knots}
        beyond = [
            f"{name} {given[name]:g} (measured: {known[0]:g} to {known[-1]:g})"
            for name, known in knots.items()
            if not known[0] <= given[name] <= known[-1]
        ]
        return _warning("extrapolated", f"outside the measured sweep: {', '.join(beyond)}")

    def answer(self) -> PredictAnswer:
        """As ``POST /predict`` tells it."""
        (model, power_by), told, row, gpu = self.models, self.told, self.row, self.one.gpu
        members, sustained, clock, limit = self.costs()
        seconds, energy = members["time"]["seconds"], members["energy"]
        flops, size, peak = float(told.quantities.flops[row]), self.bytes, self.peak
        features = {
            name: None if value != value else value
            for name, value in zip(FEATURE_NAMES, told.vectors[row].tolist(), strict=True)
        }
        compute_bound = flops / peak >= size / self.board.bandwidth
        return PredictAnswer(
            **parts.NO_KERNEL,
            id=uuid4(),
            gpu=gpu.id,
            **members,
            clocks=ClocksAnswer(core_mhz=gpu.core_mhz * clock, memory_mhz=gpu.memory_mhz),
            power_limit_watts=limit,
            model=self.reference,
            components=None,
            time_model=None,
            schema=power_by.card.feature_schema.id,
            features=features,
            trust=_trust(power_by.pooled, bool(told.inside[row])),
            warnings=self.warnings(),
            operator=OperatorFigures(
                asked=self.one.operator.model_dump(),
                framework=asking.framework_of(self.kind, model, self.one.options),
                bound="compute" if compute_bound else "memory",
                roofline_seconds=float(told.roofline[row]),
                flops=flops,
                flops_per_second=flops / seconds,
                peak_flops_per_second=peak,
                bytes=size,
                bytes_per_second=max(size - self.board.l2_bytes, 0.0) / seconds,
                peak_bytes_per_second=self.board.bandwidth,
                joules_per_flop=energy["joules"] / flops if energy is not None and flops else None,
                peak_joules_per_flop=power_by.limit_watts(self.board) / peak,
                sustained_watts=sustained if sustained == sustained else None,
            ),
        )


@lru_cache(maxsize=256)
def _reference(model: OperatorModel) -> ModelReference:
    return power_models.reference_of(model.card)


ENDS = ("low", "high")
"""What follows the value where a quantity is three numbers."""


def _energy(power: Sequence[float], time: Sequence[float]) -> tuple[float, float, float]:
    """The product; its ends as those of independent errors in logarithms."""
    value = power[0] * time[0]
    below, above = (hypot(log(power[end] / power[0]), log(time[end] / time[0])) for end in (1, 2))
    return value, value * exp(-below), value * exp(above)


@cache
def _trust(pooled: bool, inside: bool) -> Trust:
    if pooled:
        return Trust(mark="estimated board", why="nobody measured it on boards of this kind")
    more = "" if inside else ", outside what it was fitted on"
    return Trust(mark="measured board", why=f"the model was fitted on boards of this kind{more}")


@lru_cache(maxsize=256)
def _warning(code: str, detail: str) -> WarningLine:
    return WarningLine(code=code, detail=detail, line=None, source_line=None)


@lru_cache(maxsize=256)
def _notes(
    name: str, format_: str | None, framework: str, kind: str,
    models: tuple[OperatorModel, OperatorModel],
) -> Sequence[WarningLine]:  # fmt: skip
    facts, notes = models[0].card.operators[kind], list[tuple[str, str]]()
    passes = kind == "quantize" != name
    if models[0] is not models[1] and not (passes and models[1].pooled):
        notes.append(("stands_in", f"watts of {kind} were measured on other boards alone"))
    if passes:
        physical = "; its watts are the physical model's" * models[1].pooled
        told = f"no {name} was measured; answered as scaling to fp8 with as many bytes{physical}"
        notes.append(("stands_in", told))
    if name == "batched_gemm":
        notes.append(("stands_in", "no batched product was measured; answered from single ones"))
    if framework not in facts.frameworks:
        told = (
            f"{framework} was not measured for {kind} here; its kernels are taken to be as fast as "
            f"those of {', '.join(facts.frameworks)}"
        )
        notes.append(("stands_in", told))
    format_ = "bfloat16" if format_ == "float16" else format_
    if format_ is not None and format_ not in facts.formats:
        measured = ", ".join(facts.formats)
        told = f"{format_} was not measured for {kind} here; measured: {measured}"
        notes.append(("stands_in", told))
    if not models[1].has_power(kind):
        notes.append(("no_power", f"no watts of {kind} were measured"))
    return [_warning(*note) for note in notes]
