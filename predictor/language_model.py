"""Joules of a language model before it runs: the operators of its layers, summed.

config.json -> decoder -> operators of each phase -> models of operators -> sums with intervals

A decoding step differs from the next by the length of the cache alone, so attention is answered at
a few lengths and summed between them as a line. Watts are what NVML reads while a call is repeated
(``models/operators``); between calls of a model there is no pause either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, hypot, log
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from wattcast.features import errors, gpus
from wattcast.features.operators import roofline_seconds
from wattcast.models import clocks, operators
from wattcast.models.intervals import BASIS_ORDER, Basis, quantity
from wattcast.predictor import Predictor, parts
from wattcast.predictor.decoder import Decoder, Part, decoder_of
from wattcast.predictor.messages import Energy, Power, Time, WarningLine
from wattcast.predictor.messages import language_model as messages
from wattcast.predictor.messages.operators import Operator, OperatorOptions
from wattcast.predictor.messages.predict import Trust
from wattcast.predictor.parts import operators as asking

NODES = 9
"""Lengths of the cache at which decoding is answered. Attention's time is close to a line in the
length: nine are within 0.5 % of the sum over all steps (tests/app/test_language_model.py)."""

BYTES_EACH = {"bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "fp8_block": 1.03, "nvfp4": 0.5625}
"""Of a weight with its scales: one of 4 bytes for 128 x 128 or 1 x 128, one of 1 byte for 16
(``features/operators.py``, FORMATS)."""

BACKWARD = {"gemm": 2.0, "batched_gemm": 2.0, "moe": 2.0, "attention": 2.5}
"""How much more the backward pass computes: two products for each of the forward pass; attention
has five for two (Dao 2023, FlashAttention-2, section 3.1). Streams count twice: a gradient comes
in beside the values that were kept."""

OPTIMIZER_BYTES = {"read": 14, "write": 14}
"""Of a weight in AdamW with 16-bit weights and gradients and 32-bit state: gradient, weight and
both moments in, all but the gradient and a 16-bit copy out (Rajbhandari et al. 2020, ZeRO,
section 3.1: 16 bytes of state a weight)."""

STATE_BYTES = 16
"""A weight's weight, gradient, and optimizer state in memory (ZeRO, section 3.1)."""

LEVEL, SURE = 0.9, 0.9
"""Nominal coverage of operators' intervals; share of the energy that the mark of trust is for."""

SHARED = {False: 0.25, True: 1.0}
"""Of the squared half widths of operators, what is common to all of a sum: on a board that was
measured, and on one that was not (True: all of it, an assumption: its errors are the board's). By
models that saw none of their shapes, random sums of operators on H200 and B200 are held to 90 %
from 0.1 (times) and 0.05 (powers; of one operator at like tokens too) on; 0.25 holds 95 to 100 %.
``python -m studies language-models CONFIGS --errors``."""

WORTH_TELLING = 1.15
"""Energy without pauses over that of readings, from which it is told: the goal for sums is 15 %."""

NOT_INCLUDED = ("the host and its CPU", "tokenising, sampling and scheduling")


@dataclass(frozen=True, slots=True)
class _Sum:
    """One operator of a phase: totals over its launches, and its kind for what errors share."""

    phase: messages.Phase
    role: str
    operator: str
    kind: str
    launches: int
    seconds: float
    joules: float
    sustained_joules: float
    time_width: tuple[float, float]
    power_width: tuple[float, float]
    energy_width: tuple[float, float]
    basis: Basis


def language_model(
    predictor: Predictor, request: messages.LanguageModelRequest
) -> messages.LanguageModelAnswer:
    """The forecast. The same request gives the same answer.

    Raises ModelConfigError (a field of the config), LaunchError (weights and cache that do not fit
    in memory, GPUs that do not divide the heads), GpuError and ModelError.
    """
    gpu, decoder = _fitting(predictor, request)
    facts = _facts(decoder, gpu, request)
    curve = _asked_of_curve(request)
    fitting = [each for each in curve if not _too_large(_facts(decoder, gpu, each), gpu, each)]
    (sums, steps), *points = _sums(predictor, gpu, decoder, [request, *fitting])
    whole = _total(sums)
    tokens = _tokens(request)
    return messages.LanguageModelAnswer(
        gpu=gpu.id,
        gpus=request.tensor_parallel,
        model=facts,
        **whole,
        sustained_watts=_sustained(sums),
        tokens=tokens,
        tokens_per_second=tokens / whole["time"].seconds,
        joules_per_token=whole["energy"].joules / tokens,
        phases=[_phase(sums, phase, request) for phase in dict.fromkeys(s.phase for s in sums)],
        operators=_rows(sums),
        steps=steps,
        curve=_curve(
            curve, {id(each): sums for each, (sums, _) in zip(fitting, points, strict=True)}
        ),
        trust=_trust(gpu, sums),
        not_included=_not_included(request),
        warnings=parts.plain_warnings(_notes(decoder, request, sums)),
    )


def forecasts(
    predictor: Predictor,
    request: messages.LanguageModelDvfsRequest,
    limits: Sequence[float | None],
) -> tuple[list[dict[str, Any]], list[WarningLine]]:
    """``time``, ``power`` and ``energy`` under each power limit of the GPUs, and what to warn of.
    Raises as ``language_model`` does."""
    work, on = request.language_model, {"gpu": request.gpu}
    told = {**dict(work), **on, "tensor_parallel": request.tensor_parallel}
    asked = messages.LanguageModelRequest.model_construct(**told)
    gpu, decoder = _fitting(predictor, asked)
    each = [asked.model_copy(update={"power_limit_watts": limit}) for limit in limits]
    sums = [found for found, _ in _sums(predictor, gpu, decoder, each)]
    notes = parts.plain_warnings(_notes(decoder, asked, sums[0]))
    return [_total(found) for found in sums], notes


def _fitting(
    predictor: Predictor, request: messages.LanguageModelRequest
) -> tuple[gpus.GpuProfile, Decoder]:
    """The GPU and the model, where one fits the other. Raises as ``language_model`` does."""
    gpu = predictor.gpus.load(request.gpu)
    asking.checked_format(request.dtype, gpu)
    decoder = decoder_of(request.config)
    if decoder.heads % request.tensor_parallel:
        raise errors.LaunchError(
            f"tensor_parallel, {request.tensor_parallel}, does not divide the "
            f"{decoder.heads} heads of the model",
            field="tensor_parallel",
        )
    facts = _facts(decoder, gpu, request)
    if why := _too_large(facts, gpu, request):
        weights_fit = facts.weight_bytes <= (facts.memory_bytes or 0)
        raise errors.LaunchError(why, field="batch" if weights_fit else "tensor_parallel")
    return gpu, decoder


def _facts(
    decoder: Decoder, gpu: gpus.GpuProfile, request: messages.LanguageModelRequest
) -> messages.ModelFacts:
    share, parameters = request.tensor_parallel, decoder.parameters()
    tokens = request.prompt + (0 if request.train else request.generate)
    numbers = decoder.cached_numbers * decoder.cached_tokens(tokens)
    kv_share = min(share, decoder.kv_heads) if decoder.latent is None else 1
    each = STATE_BYTES if request.train else BYTES_EACH[request.dtype]
    cache = 0.0 if request.train else request.batch * numbers * BYTES_EACH[request.kv_dtype]
    return messages.ModelFacts(
        family=decoder.family,
        parameters=parameters,
        layers=sum(count for _, count in decoder.layers),
        weight_bytes=parameters * each / share,
        cache_bytes=cache / kv_share,
        memory_bytes=gpu.memory_bytes,
    )


def _too_large(
    facts: messages.ModelFacts, gpu: gpus.GpuProfile, request: messages.LanguageModelRequest
) -> str | None:
    """Why a model does not fit into the memory of a GPU, if it does not."""
    have = facts.memory_bytes
    if have is None or facts.weight_bytes + facts.cache_bytes <= have:
        return None
    what = "weights with optimizer state" if request.train else "weights"
    return (
        f"{what} of {facts.weight_bytes / 1e9:,.1f} GB and a cache of "
        f"{facts.cache_bytes / 1e9:,.1f} GB do not fit into {have / 1e9:,.1f} GB "
        f"of {gpu.id}. Take a smaller batch, a smaller dtype or more GPUs (tensor_parallel)"
    )


EVERY = -1
"""In the place of a length of the cache: what each step of decoding does alike."""

Asking = tuple[messages.Phase, int, Part]
"""A phase, the length of the cache, and an operator of one pass."""


def _asked(decoder: Decoder, request: messages.LanguageModelRequest) -> list[Asking]:
    """Operators of all phases."""
    given = parts.members(request, "dtype", "kv_dtype", "tensor_parallel")
    passes: list[tuple[messages.Phase, int, list[Part]]] = []
    if request.train:
        forward = decoder.forward(request.batch, request.prompt, 0, **given, all_logits=True)
        optimizer = {
            "name": "elementwise",
            **{
                f"{way}_bytes": size * decoder.parameters() // request.tensor_parallel
                for way, size in OPTIMIZER_BYTES.items()
            },
        }
        passes = [
            ("forward", 0, forward),
            ("backward", 0, forward),
            ("optimizer", 0, [Part("adamw", optimizer, 1)]),
        ]
    else:
        passes = [("prefill", 0, decoder.forward(request.batch, request.prompt, 0, **given))]
        lengths, one = _lengths(request), (request.batch, 1)
        if lengths:
            alike = decoder.forward(*one, lengths[0], **given)
            passes.append(("decode", EVERY, [p for p in alike if p.role != "attention"]))
        passes += [("decode", at, decoder.attention(*one, at, *given.values())) for at in lengths]
    return [(phase, at, part) for phase, at, found in passes for part in found]


def _sums(
    predictor: Predictor,
    gpu: gpus.GpuProfile,
    decoder: Decoder,
    requests: Sequence[messages.LanguageModelRequest],
) -> list[tuple[list[_Sum], list[messages.StepPoint]]]:
    """Operators of all phases with their totals, and single steps of decoding, of each request.
    Operators that are the same, in whatever step or request, are answered once."""
    asked = [_asked(decoder, request) for request in requests]
    parts = {part.key: part for each in asked for _, _, part in each}
    calls = operator_calls(predictor, gpu, [checked_operator(part) for part in parts.values()])
    told = dict(zip(parts, calls, strict=True))
    found = []
    for request, each in zip(requests, asked, strict=True):
        limit = clocks.checked_limit(request.power_limit_watts, gpu)
        held = told
        if limit is not None:
            held = {key: told[key].under(limit) for key in {part.key for _, _, part in each}}
        found.append(_added([(one, held[one[2].key]) for one in each], request))
    return found


def checked_operator(part: Part) -> Operator:
    """The operator of a part. Raises LaunchError for sizes beyond those that are answered."""
    try:
        return asking.OPERATOR.validate_python(dict(part.operator))
    except ValidationError as error:
        what = error.errors(include_url=False)[0]
        raise errors.LaunchError(
            f"{part.role} of {what['loc'][-1]} {what['input']}: {what['msg']}", field="batch"
        ) from None


def _lengths(request: messages.LanguageModelRequest) -> list[int]:
    """Lengths of the cache at which steps are answered; the first token comes of the prompt."""
    steps = request.generate - 1
    if request.train or steps < 1:
        return []
    first, last = request.prompt, request.prompt + steps - 1
    return sorted({round(at) for at in np.linspace(first, last, min(NODES, steps))})


def _added(
    told: Sequence[tuple[Asking, Call]], request: messages.LanguageModelRequest
) -> tuple[list[_Sum], list[messages.StepPoint]]:
    lengths = _lengths(request)
    weights = {**_weights(lengths, request.generate - 1), EVERY: float(request.generate - 1)}
    steps = {at: [0.0, 0.0] for at in (*lengths, EVERY)}
    totals: dict[tuple[messages.Phase, str, str], list[tuple[float, float, Call, float]]] = (
        defaultdict(list)
    )
    scale = (1.0 + request.overhead_share) * request.tensor_parallel
    for (phase, at, part), call in told:
        name = str(part.operator["name"])
        times = float(part.count)
        if phase == "backward":
            times *= BACKWARD.get(name, 2.0)
        if phase == "decode":
            steps[at][0] += times * call.seconds * (1.0 + request.overhead_share)
            steps[at][1] += times * call.seconds * call.watts * scale
            times *= weights[at]
        seconds = times * call.seconds * (1.0 + request.overhead_share)
        joules = times * call.seconds * call.watts * scale
        launches = part.count * (weights[at] if phase == "decode" else 1.0)
        totals[phase, part.role, name].append((seconds, joules, call, launches))
    sums = []
    for (phase, role, name), each in totals.items():
        worst = max(
            (call for _, _, call, _ in each), key=lambda call: BASIS_ORDER.index(call.basis)
        )
        sums.append(
            _Sum(
                phase=phase,
                role=role,
                operator=name,
                kind=worst.kind,
                launches=round(sum(count for _, _, _, count in each)),
                seconds=sum(seconds for seconds, _, _, _ in each),
                joules=sum(joules for _, joules, _, _ in each),
                sustained_joules=sum(
                    joules * call.sustained_watts / call.watts for _, joules, call, _ in each
                ),
                time_width=worst.time_width,
                power_width=worst.power_width,
                energy_width=_product(worst.time_width, worst.power_width),
                basis=worst.basis,
            )
        )
    points = [
        messages.StepPoint(cached_tokens=at, seconds=seconds, watts=joules / seconds, joules=joules)
        for at in lengths
        for seconds, joules in [(a + b for a, b in zip(steps[at], steps[EVERY], strict=True))]
    ]
    return sums, points


def _product(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    """Factors of the ends of a product whose factors err apart."""
    low, high = (hypot(log(a), log(b)) for a, b in zip(first, second, strict=True))
    return exp(-low), exp(high)


def _weights(lengths: Sequence[int], steps: int) -> dict[int, float]:
    """How many of the steps each answered length stands for: the sum over all steps of the line
    through the answers is the sum of the answers times these."""
    weights = dict.fromkeys(lengths, 0.0)
    if len(lengths) == 1:
        return {lengths[0]: float(steps)}
    for low, high in pairwise(lengths):
        # Steps low .. high - 1 between two answers, each a mixture of both.
        inner, span = np.arange(high - low), high - low
        weights[low] += float((1 - inner / span).sum())
        weights[high] += float((inner / span).sum())
    if lengths:
        weights[lengths[-1]] += 1.0
    return weights


def _ends(sums: Iterable[_Sum], value: str, width: str) -> tuple[float, float]:
    """Ends of a sum. An operator errs alike in all phases; of the squared half widths ``SHARED`` is
    common to all operators."""
    own: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    total, shared = 0.0, 0.0
    for each in sums:
        part, (low, high) = getattr(each, value), getattr(each, width)
        total += part
        shared = max(shared, SHARED[each.basis == "uncalibrated"])
        own[each.kind, each.role][0] += part * (1.0 - low)
        own[each.kind, each.role][1] += part * (high - 1.0)
    halves = ([ends[side] for ends in own.values()] for side in (0, 1))
    below, above = (
        hypot(shared**0.5 * sum(one), (1 - shared) ** 0.5 * hypot(*one)) for one in halves
    )
    return max(total - below, 0.0), total + above


def _total(sums: Sequence[_Sum]) -> dict[str, Any]:
    """Time, power and energy of some operators together. A reading of a short call is low, so the
    upper ends hold what the calls draw without a pause, too."""
    seconds, joules = sum(each.seconds for each in sums), sum(each.joules for each in sums)
    sustained = _sustained(sums) * seconds
    basis = max((each.basis for each in sums), key=BASIS_ORDER.index)
    low, high = _ends(sums, "seconds", "time_width")
    time = Time(seconds=seconds, low=low, high=high, level=LEVEL, basis=basis)
    low, high = _ends(sums, "joules", "energy_width")
    high = max(high, sustained)
    energy = Energy(joules=joules, low=low, high=high, level=LEVEL, basis=basis)
    low, high = _ends(sums, "joules", "power_width")
    low, high = low / seconds, max(high, sustained) / seconds
    power = Power(watts=joules / seconds, low=low, high=high, level=LEVEL, basis=basis)
    return {"time": time, "power": power, "energy": energy}


def _sustained(sums: Sequence[_Sum]) -> float:
    """Watts of some operators together, without pauses between their calls."""
    return sum(each.sustained_joules for each in sums) / sum(each.seconds for each in sums)


def _tokens(request: messages.LanguageModelRequest) -> int:
    """Tokens that figures are counted by: those generated, or those trained on or read."""
    return request.batch * (
        request.prompt if request.train or not request.generate else request.generate
    )


def _phase(
    sums: Sequence[_Sum], phase: messages.Phase, request: messages.LanguageModelRequest
) -> messages.PhaseAnswer:
    own = [each for each in sums if each.phase == phase]
    whole = _total(own)
    each = request.generate - 1 if phase == "decode" else request.prompt
    tokens = request.batch * each
    return messages.PhaseAnswer(
        phase=phase,
        **whole,
        sustained_watts=_sustained(own),
        tokens=tokens,
        tokens_per_second=tokens / whole["time"].seconds,
        joules_per_token=whole["energy"].joules / tokens,
    )


def _rows(sums: Sequence[_Sum]) -> list[messages.OperatorRow]:
    joules = sum(each.joules for each in sums)
    return [
        messages.OperatorRow.from_attributes(each, energy_share=each.joules / joules)
        for each in sorted(sums, key=lambda each: -each.joules)
    ]


def _asked_of_curve(request: messages.LanguageModelRequest) -> list[messages.LanguageModelRequest]:
    """A request for each batch size or power limit, in order."""
    changes: list[dict[str, float]] = [{"batch": batch} for batch in {*request.batches}]
    changes += [{"power_limit_watts": limit} for limit in {*request.power_limits_watts}]
    ordered = sorted(changes, key=lambda change: [*change.values()])
    return [request.model_copy(update=change) for change in ordered]


def _curve(
    asked: Sequence[messages.LanguageModelRequest], sums_of: Mapping[int, Sequence[_Sum]]
) -> list[messages.CurvePoint]:
    """Tokens a second and joules a token; ``sums_of`` by the id of requests that fit in memory."""
    points = []
    for each in asked:
        rate = cost = watts = None
        if (sums := sums_of.get(id(each))) is not None:
            seconds, joules = sum(one.seconds for one in sums), sum(one.joules for one in sums)
            rate, cost, watts = _tokens(each) / seconds, joules / _tokens(each), joules / seconds
        points.append((each.batch, each.power_limit_watts, rate, cost, watts))
    known = [
        (rate, cost) for _, _, rate, cost, _ in points if rate is not None and cost is not None
    ]
    return [
        messages.CurvePoint(
            batch=batch,
            power_limit_watts=limit,
            tokens_per_second=rate,
            joules_per_token=cost,
            watts=watts,
            pareto=rate is not None
            and cost is not None
            and not any(faster > rate and less < cost for faster, less in known),
        )
        for batch, limit, rate, cost, watts in points
    ]


def _trust(gpu: gpus.GpuProfile, sums: Sequence[_Sum]) -> Trust:
    joules = sum(each.joules for each in sums)
    known = sum(each.joules for each in sums if each.basis != "uncalibrated") / joules
    if known >= SURE:
        why = f"{known:.0%} of the energy is of operators measured on {gpu.id}"
        return Trust(mark="measured board", why=why)
    return Trust(mark="estimated board", why=f"no watts of operators were measured on {gpu.id}")


def _not_included(request: messages.LanguageModelRequest) -> list[str]:
    if request.overhead_share:
        return []
    between = ["communication between the GPUs"] if request.tensor_parallel > 1 else []
    return [*NOT_INCLUDED, *between]


def _notes(
    decoder: Decoder, request: messages.LanguageModelRequest, sums: Sequence[_Sum]
) -> Iterator[errors.Diagnostic]:
    seconds, watts = sum(each.seconds for each in sums), _sustained(sums)
    if watts * seconds > WORTH_TELLING * sum(each.joules for each in sums):
        detail = (
            "watts are as NVML read them, low for short calls after a pause; without pauses they "
            f"would be {watts:,.0f} W, {quantity(watts * seconds, 'J')} in all"
        )
        yield errors.Diagnostic("short_calls", detail)
    if far := sorted({each.role for each in sums if each.basis == "extrapolated"}):
        detail = f"beyond the measured shapes: {', '.join(far)}; their intervals are wider"
        yield errors.Diagnostic("operator_extrapolated", detail)
    if decoder.latent is not None:
        detail = "latent attention was not measured; it is answered as attention of its size"
        yield errors.Diagnostic("latent_attention", detail)
    if request.train:
        yield errors.Diagnostic(
            "training_assumed",
            "the backward pass is counted as twice the products of the forward pass, attention "
            "as 2.5 times; memory for activations is not checked",
        )


class Call(NamedTuple):
    """One call of an operator: ``watts`` as NVML read them (low where it is short and came after a
    pause), ``sustained_watts`` of such calls without a pause, no less. ``idle_watts`` and
    ``limit_watts`` are the board's, ``core_share`` that of the time that goes with its clock."""

    kind: str
    seconds: float
    watts: float
    sustained_watts: float
    time_width: tuple[float, float]
    power_width: tuple[float, float]
    basis: Basis
    idle_watts: float
    limit_watts: float
    core_share: float

    def under(self, limit_watts: float) -> Call:
        """The call with the board's power limited."""
        if limit_watts >= self.limit_watts:
            return self
        drawn, share = self.sustained_watts, self.core_share
        held = operators.limited(self.seconds, drawn, self.idle_watts, share, limit_watts)
        watts = min(self.watts, held.watts)
        return self._replace(seconds=held.seconds, watts=watts, sustained_watts=held.watts)


def operator_calls(
    predictor: Predictor, gpu: gpus.GpuProfile, operators: Sequence[Operator]
) -> list[Call]:
    """All calls in one go: those of one kind share a run of its trees. Watts come of the pooled
    model where none were measured on the GPU. Of two frameworks the faster one counts in formats
    below 16 bits, where vLLM's calls were measured at 150 us and more on B200, however small they
    are (a host that cannot launch faster). Raises ModelError where nothing tells them."""
    together: dict[str, list[int]] = defaultdict(list)
    for number, operator in enumerate(operators):
        together[asking.kind_of(operator)].append(number)
    calls: dict[int, Call] = {}
    board = predictor.operators.board(gpu)
    options = OperatorOptions(framework=None, power_limit_watts=None)
    for kind, at in together.items():
        model = asking.model_of(predictor, kind, gpu)
        call = asking.columns(
            kind, model, [asking.Asked(operators[number], gpu, options) for number in at]
        )
        source = asking.power_model(predictor, kind, gpu, model)
        if not source.has_power(kind):
            raise errors.ModelError(f"no watts of {kind} are known on {gpu.id}", gpu=gpu.id)
        told = model.predict(kind, call, board, None if source is model else source)
        told = asking.with_passes(
            predictor, gpu, [operators[number] for number in at], source, told
        )
        narrow = call["math_bits"] < 16
        if narrow.any() and not model.pooled and len(model.card.operators[kind].frameworks) > 1:
            other = model.predict(kind, {**call, "framework": 1.0 - call["framework"]}, board)
            faster = narrow & (other.seconds < told.seconds)
            watts = np.where(faster & (source is model), other.watts, told.watts)
            told = told._replace(seconds=np.where(faster, other.seconds, told.seconds), watts=watts)
        training = source.card.training
        most = gpu.tdp_watts if source.pooled else training.limit_watts
        idle = training.idle_watts * most / training.limit_watts
        compute, memory = roofline_seconds(told.quantities, call["math_bits"], board)
        widths = {
            inside: (
                model.width(kind, "time", inside),
                source.width(kind, "power", inside),
                max(model.basis(inside), source.basis(inside), key=BASIS_ORDER.index),
            )
            for inside in (False, True)
        }
        steady = np.fmax(told.watts, told.sustained_watts)
        values = told.seconds, told.watts, steady, told.inside, compute / (compute + memory)
        rows = zip(at, *(each.tolist() for each in values), strict=True)
        for number, seconds, drawn, held, inside, share in rows:
            calls[number] = Call(kind, seconds, drawn, held, *widths[inside], idle, most, share)
    return [calls[number] for number in range(len(operators))]
