"""A prediction: PTX and launch in; watts, seconds and joules with intervals out.

read PTX -> analyse per GPU -> time, power over the registers' range -> energy -> store
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import replace
from uuid import uuid4

from pydantic_core import from_json, to_json

from wattcast.features import checked, errors, schemas
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.gpus import GpuProfile
from wattcast.models.clocks import ClockPair
from wattcast.models.power import PHYSICAL
from wattcast.models.time.base import DEFAULT, TimePrediction
from wattcast.models.time.beside import beside
from wattcast.predictor import Predictor, parts
from wattcast.predictor.messages import Coverage
from wattcast.predictor.messages import predict as messages
from wattcast.predictor.messages.operators import OnGpus
from wattcast.predictor.parts import sources, stored, work
from wattcast.predictor.parts.arguments import by_position
from wattcast.predictor.parts.known_launches import KnownLaunches
from wattcast.predictor.parts.time_and_power import BoardModels, TimeAndPower, narrowed
from wattcast.predictor.parts.trust import Ranked, apart, trust

QUICK_SECONDS = 0.004
"""A prediction below this runs on the event loop: others wait no longer than for a big answer."""


LONG_PTX = 2**20
"""Characters beyond which looking a text up takes more than a moment of the event loop."""


@parts.within_asked_seconds
def predict(
    predictor: Predictor, request: messages.PredictRequest, rows: list[Future[None]] | None = None
) -> messages.PredictAnswer | messages.PredictAnswers:
    """The prediction of one GPU, or those of several; stored if there is a store.

    Returns once all rows are committed; or sooner, where the caller gives a list ``rows`` that
    takes them, to be waited for before the answer is handed out.

    Raises PtxError, CompileError, CompilerMissingError, KernelError, LaunchError, GpuError,
    ModelError or DataError (implausible known launches) for what the request brings,
    ServiceError for limits and StoreError when the prediction cannot be kept.
    """
    gpus = gpus_of(predictor, request)
    begun: list[Future[None]] = [] if rows is None else rows
    answers = [_predicted(predictor, request, gpu, begun) for gpu in gpus]
    if rows is None and predictor.store is not None:
        predictor.store.wait(begun)
    return answers[0] if request.gpu is not None else several(answers)


MOST_GPUS = 16
"""GPUs of one request; each is an answer of its own."""


def gpus_of(predictor: Predictor, request: messages.PredictRequest | OnGpus) -> list[GpuProfile]:
    """Those named. Raises GpuError, and ServiceError for too many."""
    names = request.names()
    if len(names) > MOST_GPUS:
        raise errors.refused(f"gpus: {len(names)} named; at most {MOST_GPUS} are taken", "gpus")
    gpus, like = [predictor.gpus.load(name) for name in names], getattr(request, "like", None)
    return gpus if like is None else [parts.made_up(gpu, like) for gpu in gpus]


def predict_one(
    predictor: Predictor, request: messages.PredictRequest, rows: list[Future[None]] | None = None
) -> messages.PredictAnswer:
    """``predict`` where the request names one GPU."""
    answer = predict(predictor, request, rows)
    assert isinstance(answer, messages.PredictAnswer)
    return answer


def several(answers: list[messages.PredictAnswer]) -> messages.PredictAnswers:
    """Predictions of several GPUs, and which of them are not to be ranked together."""
    return messages.PredictAnswers(
        predictions=answers, apart=apart([Ranked.of(each) for each in answers])
    )


def is_quick(predictor: Predictor, request: messages.PredictRequest) -> bool:
    """Whether a prediction like this one took so little time that a thread costs more.

    Such a prediction runs on the event loop itself; everything else goes to a thread, above all
    what may be compiled or executed.
    """
    if request.ptx is None or request.gpu is None or request.explain is not None:
        return False
    if request.analysis == "executed" or request.known:
        return False
    if request.launch.arguments and not _never_runs(request):
        return False  # they may decide how long its blocks run
    if len(request.ptx) > LONG_PTX:
        return False
    known = predictor.modules.known(request.ptx)
    return known is not None and known.fastest(_kind(request, request.gpu)) < QUICK_SECONDS


def _kind(request: messages.PredictRequest, gpu: str) -> Hashable:
    """Predictions that cost alike: loops without trip counts are worked out, and registers are
    asked of the compiler once for a GPU."""
    loops = len(request.loops), "default" in request.loops
    models, asked = (request.time_model, request.model), request.registers_per_thread is None
    return request.kernel, gpu, request.analysis, loops, asked, models


def _never_runs(request: messages.PredictRequest) -> bool:
    """Whether no arguments can make the kernel run: published schemas and given trips only."""
    published = request.time_model in parts.PUBLISHED and request.model not in ("auto", PHYSICAL)
    return published and "default" in request.loops


def _predicted(
    predictor: Predictor,
    request: messages.PredictRequest,
    gpu: GpuProfile,
    rows: list[Future[None]],
) -> messages.PredictAnswer:
    if request.work is not None:
        return work.predict_work(predictor, request, request.work, gpu, rows)
    doubts: list[errors.Diagnostic] = []
    for number, known in enumerate(request.known):
        measured = parts.members(known, "power_watts", "time_seconds")
        doubts += checked.check_measured(gpu, **measured, where=f"known[{number}]")
    source = predictor.sources.read(request, gpu)
    start = time.perf_counter()
    clocks, nearby = parts.clocks_of(request.clocks, gpu)
    analysis, point = launched(predictor, request, source, gpu, clocks)
    duration, power = point.duration, point.power
    resources = parts.resources(analysis)
    trips, needs = resources["trip_counts"], narrowed(parts.needs(source, analysis), duration, gpu)
    vector, card = power.vector, power.card
    answer = messages.PredictAnswer(
        id=uuid4(),
        **parts.code_of(source, analysis.function),
        **point.members(gpu),
        l2=analysis.launch.l2,
        features=parts.values(vector) if vector else {},
        schema=vector.schema_id if vector else None,
        **resources,
        waves=analysis.waves,
        needs=needs,
        trust=trust(power.estimate.basis, card, needs, trips) if power.estimate and card else None,
        coverage=coverage_of(analysis, point),
        warnings=parts.warnings(
            source,
            analysis,
            vector.diagnostics if vector else (),
            power.diagnostics,
            nearby,
            point.notes,
            doubts,
        ),
    )
    more: dict[str, object] = {}
    if request.explain is not None and power.estimate:
        from wattcast.predictor.explain import shap_of

        more["explanation"] = shap_of(answer, power)
    if request.details and duration is not None:
        more["speed_of_light"] = _speed_of_light(analysis, gpu, point.clocks, duration)
    if request.like is not None and (told := answer.trust) is not None:
        more["trust"] = told.model_copy(update={"why": f"a made-up board; {told.why}"})
    if more:
        answer = answer.model_copy(update=more)
    if predictor.store is not None and request.like is None:
        vectors = {vector.schema_id: vector.model_inputs().tolist()} if vector else {}
        name = analysis.function.name
        asked = _asked(request, source, name)
        record = stored.PredictionRecord.of(answer, name, asked, vectors, source.known)
        rows.append(predictor.store.add(record))
    source.known.took(_kind(request, request.gpu or gpu.id), time.perf_counter() - start)
    return answer


def launched(
    predictor: Predictor,
    request: messages.PredictRequest,
    source: sources.Source,
    gpu: GpuProfile,
    clocks: ClockPair,
    *,
    keep: bool = True,
) -> tuple[KernelAnalysis, TimeAndPower]:
    """Time and power of the request's launch; ``keep`` its analysis for later requests."""
    analysis = parts.analysed(predictor, request, source, gpu, ptxas=True, keep=keep)
    models = BoardModels.of(predictor, request, gpu)
    known = KnownLaunches(predictor, request, source, models) if request.known else None

    def at(pair: ClockPair) -> TimeAndPower:
        (found,) = models.at(analysis, [pair], known.time if known else None)
        if pair == clocks:
            predictor.drift.saw(gpu.id, found.power)
        return replace(found, power=known.power(found.power)) if known else found

    return analysis, models.within_limit(at, clocks, request.power_limit_watts)


def coverage_of(analysis: KernelAnalysis, point: TimeAndPower) -> Coverage | None:
    """How the launch's work is known, where counts of its activity are in the answer: published
    schemas need none."""
    timed_by_it = point.duration is not None and point.duration.family == DEFAULT
    schema = point.power.vector.schema_id if point.power.vector else None
    if not timed_by_it and schema != schemas.activity_schema().id:
        return None
    return Coverage.from_attributes(analysis.coverage)


def _speed_of_light(
    analysis: KernelAnalysis, gpu: GpuProfile, clocks: ClockPair, duration: TimePrediction
) -> messages.SpeedOfLight:
    """How near the launch comes to what the hardware can do."""
    from wattcast.models.speed import NAMES, speed_of_light  # only where it is asked for

    speed = speed_of_light(
        analysis.activity,
        analysis.operations,
        gpu,
        clocks,
        duration.estimate.value,
        beside(analysis.extras),
    )
    points = [messages.RooflinePoint.from_attributes(point) for point in speed.points]
    return messages.SpeedOfLight(
        bound=duration.bound,
        seconds=speed.seconds,
        units=[
            messages.UnitSpeed.from_attributes(unit, name=NAMES[unit.unit]) for unit in speed.units
        ],
        roofline=messages.Roofline.from_attributes(speed, points=points),
    )


def _asked(request: messages.PredictRequest, source: sources.Source, kernel: str) -> str:
    """The request as stored: its PTX is a row of its own, CUDA source is kept as its hash.

    Without the source nobody knows C names: arguments are kept by position.
    """
    code = {"ptx", "cuda", "headers", "compiler_options"}
    asked = request.model_dump_json(exclude=code, exclude_defaults=True)
    if source.cuda is None:
        return asked
    body = from_json(asked)
    if given := body["launch"].get("arguments"):
        module, kernels = source.known.module, source.cuda.kernels
        function = module.kernel(kernel)
        values = request.launch.launch().arguments
        body["launch"]["arguments"] = {
            position: given[name]
            for name, value in values.items()
            for position in by_position(function, {name: value}, kernels, module)
        }
    return to_json({**body, "cuda_sha256": source.cuda.sha256}).decode()
