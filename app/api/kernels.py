"""The questions about a kernel that are answered in one go: each is a function of
``wattcast.predictor`` with its messages, all under one noun.

    POST /predict /predict/batch /features /analyze /dvfs /sweep /compare /cost /fleet /tunings:
         code in the body
    GET  /predictions/{prediction_id}/hotspots, .../advice: the code of a prediction kept
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Annotated, Any, get_args
from uuid import UUID

from fastapi import Depends, Query, Request
from fastapi.responses import Response

from wattcast.app import metrics, problems
from wattcast.app.api.route import Detail, F, JsonRoute, Router, detail, told
from wattcast.app.services import services_of
from wattcast.app.settings import installed_version
from wattcast.predictor import (
    advise,
    analyze,
    batch,
    compare,
    cost,
    dvfs,
    fleet,
    hotspots,
    language_model,
    sweep,
    tunings,
)
from wattcast.predictor.application import dvfs_of_sent_trace
from wattcast.predictor.messages import analyze as analyses
from wattcast.predictor.messages import operators as bodies
from wattcast.predictor.messages.advise import AdviceAnswer
from wattcast.predictor.messages.application import DvfsBody, TraceDvfsRequest
from wattcast.predictor.messages.compare import CompareAnswer, JudgeAnswer, JudgeRequest
from wattcast.predictor.messages.cost import CostAnswer, CostRequest
from wattcast.predictor.messages.dvfs import CountedRequest, DvfsAnswers
from wattcast.predictor.messages.explain import HotspotsAnswer
from wattcast.predictor.messages.fleet import FleetAnswer, FleetRequest
from wattcast.predictor.messages.language_model import (
    LanguageModelAnswer,
    LanguageModelDvfsRequest,
    LanguageModelRequest,
)
from wattcast.predictor.messages.predict import PredictAnswer, PredictAnswers
from wattcast.predictor.messages.sweep import BatchAnswer, SweepAnswer
from wattcast.predictor.messages.tunings import TuningsAnswer, TuningsRequest
from wattcast.predictor.operators import predict_operator, predict_operators, sweep_operator
from wattcast.predictor.predict import is_quick, predict
from wattcast.predictor.reports.brief import forms, with_brief
from wattcast.predictor.reports.sarif import MEDIA_TYPE
from wattcast.predictor.reports.sarif import sarif as located

router = Router(tags=["prediction"], route_class=JsonRoute)
kept = Router(tags=["prediction"])

BODY_PROBLEMS = (
    f"{problems.JSON_BODY} ptx-syntax too-complex cuda-compile compiler-missing kernel launch"
)
KEPT_PROBLEMS = "unknown-prediction no-explanation analysis validation busy time-limit store"


SarifFile = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=1024,
        description="Path of the code in its repository: answers SARIF 2.1.0 "
        "(application/sarif+json) of its lines, those of the PTX for a `*.ptx`.",
    ),
]


async def _run(
    request: Request, use_case: Callable[..., Any], *asked: object, sarif: str | None = None
) -> Response:
    """Answer by a use case, where the analyses of this process run."""
    services = services_of(request)
    answer = await services.analyses.run(use_case, services, *asked)
    if sarif is not None:
        return Response(located(answer, sarif, installed_version()), media_type=MEDIA_TYPE)
    return told(request, answer)


def _post(path: str, answer: Any, kinds: str, body: str = BODY_PROBLEMS) -> Callable[[F], F]:
    """A route; ``kinds``: its problems beside those of its ``body``, which mostly brings code."""
    short = {each.__name__ for each in get_args(answer) or (answer,)} <= forms().keys()
    more = [Depends(detail)] if short else []
    answer = with_brief(answer) if short else answer
    return router.answers(path, answer, f"{body} {kinds}", method="POST", dependencies=more)


def _kept(path: str, answer: Any) -> Callable[[F], F]:
    """A route to what follows from a prediction that is kept, as SARIF too."""
    path = f"/predictions/{{prediction_id}}/{path}"
    also: dict[int | str, dict[str, Any]] = {200: {"content": {MEDIA_TYPE: {}}}}
    return kept.answers(path, with_brief(answer), KEPT_PROBLEMS, also=also)


@_post("/predict", PredictAnswer | PredictAnswers, "clocks gpu model busy time-limit store")
async def post_predict(request: Request, body: bodies.PredictBody) -> Response:
    """Power, time and energy of a kernel launch.

    With `gpu` the answer is one prediction, with `gpus` a list of them in that order. An
    `operator` takes the place of code and launch: its shape is all that is asked.
    """
    services = services_of(request)
    rows: list[Future[None]] = []
    asked = body.root
    if isinstance(asked, bodies.OperatorRequest):
        answer = await services.analyses.run(predict_operator, services, asked, rows)
    elif is_quick(services, asked):
        answer = predict(services, asked, rows)
    else:
        answer = await services.analyses.run(predict, services, asked, rows)
    if services.store is not None:
        await services.store.committed(rows)
    metrics.predicted(answer.predictions if isinstance(answer, PredictAnswers) else (answer,))
    return told(request, answer)


@_post("/predict/batch", BatchAnswer, "analysis clocks gpu model busy time-limit")
async def post_batch(request: Request, body: bodies.BatchBody) -> Response:
    """Power, time and energy of many launches of a kernel.

    Up to 10,000 launches, worked out symbolically unless asked otherwise, or as many
    `operators`. A launch that cannot run has a `problem` in its place; the others are answered.
    Nothing is stored.
    """
    if isinstance(body.root, bodies.OperatorBatchRequest):
        return await _run(request, predict_operators, body.root)
    return await _run(request, batch.predict_many, body.root)


@_post(
    "/language-models",
    LanguageModelAnswer,
    "model-config launch clocks gpu model busy time-limit",
    body=problems.JSON_BODY,
)
async def post_language_model(request: Request, body: LanguageModelRequest) -> Response:
    """Energy of a language model before it runs.

    Time and energy of prefill and decoding, or of a training step, from the fields of a
    `config.json`: the operators of all layers, summed. Nothing is downloaded or stored.
    """
    return await _run(request, language_model.language_model, body)


@_post("/features", analyses.FeaturesAnswer, "gpu schema busy time-limit")
async def post_features(request: Request, body: analyses.FeaturesRequest) -> Response:
    """Feature vector of a kernel launch.

    The vector of one schema, in its order, with units and sources; null is missing.
    """
    return await _run(request, analyze.features, body)


@_post("/analyze", analyses.AnalyzeAnswer, "gpu busy time-limit")
async def post_analyze(request: Request, body: analyses.AnalyzeRequest) -> Response:
    """Analysis of a kernel launch.

    Loops, memory accesses, instruction mix, occupancy, registers, activity, source lines.
    """
    return await _run(request, analyze.analyze, body)


@_post(
    "/dvfs",
    DvfsAnswers,
    "analysis clocks constraints data gpu launch model model-config busy time-limit",
)
async def post_dvfs(request: Request, body: DvfsBody) -> Response:
    """A kernel at many clocks.

    Time, power and energy at each clock pair, also relative to a reference pair; the Pareto
    set of speed and energy; the best pair by energy, EDP, ED2P, speed and power under
    constraints. Of a kernel's code and launch, or of `counters` measured at one pair; of an
    `operator` or a `language_model` under power limits; of a `trace` at core clocks or under them.
    """
    if isinstance(body.root, bodies.OperatorDvfsRequest):
        return await _run(request, dvfs.dvfs_of_operator, body.root)
    if isinstance(body.root, CountedRequest):
        from wattcast.predictor.counted import dvfs_from_counters

        return await _run(request, dvfs_from_counters, body.root)
    if isinstance(body.root, LanguageModelDvfsRequest):
        return await _run(request, dvfs.dvfs_of_language_model, body.root)
    if isinstance(body.root, TraceDvfsRequest):
        return await _run(request, dvfs_of_sent_trace, body.root)
    return await _run(request, dvfs.dvfs, body.root)


@_post(
    "/sweep",
    SweepAnswer | bodies.OperatorSweepAnswer,
    "analysis clocks constraints gpu model busy time-limit",
)
async def post_sweep(request: Request, body: bodies.SweepBody) -> Response:
    """A kernel at many launch shapes.

    Time, power and energy of each block and grid (total work kept), register count and GPU;
    the Pareto set, the best by energy, EDP, ED2P, speed and power; shapes that cannot be launched
    with the reason. Of an `operator`: every combination of the values in `vary`.
    """
    if isinstance(body.root, bodies.OperatorSweepRequest):
        return await _run(request, sweep_operator, body.root)
    return await _run(request, sweep.sweep, body.root)


@_post("/tunings", TuningsAnswer, "analysis clocks data gpu model busy time-limit")
async def post_tunings(request: Request, body: TuningsRequest) -> Response:
    """A step of a search in a tuning space.

    Predicts a few more configurations of a space and tells, by all that was predicted and
    measured, which to measure next and whether that is worth it. The caller keeps what calls
    answer and sends it with the next one: nothing is stored.
    """
    return await _run(request, tunings.tunings, body)


@_post("/compare", CompareAnswer, "analysis clocks gpu model busy time-limit")
async def post_compare(request: Request, body: bodies.CompareBody) -> Response:
    """Compare old and new code.

    How two versions of the code (or two operators) differ in time, power and energy, kernel by
    kernel and GPU by GPU, whether that is within the limits given, and a table for a pull
    request.
    """
    return await _run(request, compare.compare, body.root)


@_post("/judge", JudgeAnswer, "analysis clocks gpu model busy time-limit")
async def post_judge(request: Request, body: JudgeRequest) -> Response:
    """Judge a candidate beside a reference.

    Ratios of time and energy, how probable it is that the candidate takes less, reasons with
    lines, and flags where it may not do the reference's work. Nothing is stored.
    """
    return await _run(request, compare.judge, body)


@_post("/cost", CostAnswer, "analysis clocks gpu model busy time-limit store")
async def post_cost(request: Request, body: CostRequest) -> Response:
    """Energy, price and CO2 of an application.

    Several kernels with their launches; price and CO2 at the tariff and intensity given.
    """
    return await _run(request, cost.cost, body)


@_post(
    "/fleet",
    FleetAnswer,
    "analysis clocks constraints gpu model model-config busy time-limit missing-extra",
)
async def post_fleet(request: Request, body: FleetRequest) -> Response:
    """Place jobs on a fleet of boards.

    Which runs of each job go on which boards, at which power limits: the least joules within
    the makespan or deadlines given, else the shortest makespan under the power cap. Nothing is
    stored.
    """
    return await _run(request, fleet.fleet, body)


@_kept("hotspots", HotspotsAnswer)
async def get_hotspots(
    request: Request,
    prediction_id: UUID,
    rows: Annotated[
        int,
        Query(ge=1, le=hotspots.MOST_ROWS, description="Rows of each ranking; the rest is summed."),
    ] = hotspots.DEFAULT_ROWS,
    detail: Detail = "full",
    sarif: SarifFile = None,
) -> Response:
    """Energy and time by place in the code.

    The predicted joules and seconds by basic block, PTX line and source line, ranked.
    """
    return await _run(request, hotspots.hotspots, prediction_id, rows, sarif=sarif)


@_kept("advice", AdviceAnswer)
async def get_advice(
    request: Request, prediction_id: UUID, detail: Detail = "full", sarif: SarifFile = None
) -> Response:
    """Suggestions for a launch and what each saves.

    Found in the analysis of the kernel; every saving is the difference of two predictions.
    """
    return await _run(request, advise.advice, prediction_id, sarif=sarif)
