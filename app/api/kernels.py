"""The questions about a kernel that are answered in one go: each is a function of
``wattcast.predictor`` with its messages, all under one noun.

    POST /predict /predict/batch /features /analyze /dvfs /sweep /compare /cost /fleet /tunings:
         code in the body
    GET  /predictions/{prediction_id}/hotspots, .../advice: the code of a prediction kept
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Annotated, Any, TypeVar
from uuid import UUID

from fastapi import Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Discriminator, RootModel, Tag

from wattcast.app import metrics, problems, settings
from wattcast.app.api.route import F, JsonRoute, Router, told
from wattcast.app.services import services_of
from wattcast.features.checked import read_toml
from wattcast.predictor import advise, hotspots, messages, operators
from wattcast.predictor.answering import answer
from wattcast.predictor.messages import analyze as analyses
from wattcast.predictor.messages import operators as bodies
from wattcast.predictor.messages.advise import AdviceAnswer
from wattcast.predictor.messages.application import DvfsBody
from wattcast.predictor.messages.compare import (
    CompareAnswer,
    CompareRequest,
    JudgeAnswer,
    JudgeRequest,
)
from wattcast.predictor.messages.cost import CostAnswer, CostRequest
from wattcast.predictor.messages.dvfs import DvfsAnswers
from wattcast.predictor.messages.explain import HotspotsAnswer
from wattcast.predictor.messages.fleet import FleetAnswer, FleetRequest
from wattcast.predictor.messages.language_model import LanguageModelAnswer, LanguageModelRequest
from wattcast.predictor.messages.predict import PredictAnswer, PredictAnswers, PredictRequest
from wattcast.predictor.messages.sweep import (
    BatchAnswer,
    BatchRequest,
    SweepAnswer,
    SweepRequest,
)
from wattcast.predictor.messages.tunings import TuningsAnswer, TuningsRequest
from wattcast.predictor.predict import is_quick, predict
from wattcast.predictor.reports.sarif import MEDIA_TYPE
from wattcast.predictor.reports.sarif import sarif as located

router = Router(tags=["prediction"], route_class=JsonRoute)
kept = Router(tags=["prediction"])

BODY_PROBLEMS = (
    f"{problems.JSON_BODY} ptx-syntax too-complex cuda-compile compiler-missing kernel launch"
)
KEPT_PROBLEMS = "unknown-prediction no-explanation analysis validation busy time-limit store"


def _form(given: Any) -> str:
    """Tells requests of operators from those of code."""
    for name in ("operator", "operators", "old", "new"):
        told = given.get(name) if isinstance(given, dict) else getattr(given, name, None)
        if name in ("old", "new"):
            told = told.get("operator") if isinstance(told, dict) else None
        if told is not None:
            return "operator"
    return "kernel"


K = TypeVar("K")
O = TypeVar("O")  # noqa: E741
_Either = Annotated[
    Annotated[K, Tag("kernel")] | Annotated[O, Tag("operator")], Discriminator(_form)
]


class PredictBody(RootModel[_Either[PredictRequest, bodies.OperatorRequest]]):
    """A kernel's code and launch, or an operator."""

    model_config = messages.examples("PredictRequest")


class BatchBody(RootModel[_Either[BatchRequest, bodies.OperatorBatchRequest]]):
    """A kernel's code and its launches, or operators."""

    model_config = messages.examples("BatchRequest")


class SweepBody(RootModel[_Either[SweepRequest, bodies.OperatorSweepRequest]]):
    """A kernel's code and its shapes, or an operator and its values."""

    model_config = messages.examples("SweepRequest")


class CompareBody(RootModel[_Either[CompareRequest, bodies.OperatorCompareRequest]]):
    """Old and new code, or two operators."""

    model_config = messages.examples("CompareRequest")


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
    found = await services.analyses.run(use_case, services, *asked)
    if sarif is not None:
        return Response(located(found, sarif, settings.installed_version()), media_type=MEDIA_TYPE)
    return told(request, found)


def _post(path: str, answered: Any, kinds: str, body: str = BODY_PROBLEMS) -> Callable[[F], F]:
    """A route; ``kinds``: its problems beside those of its ``body``, which mostly brings code."""
    return router.answers(path, answered, f"{body} {kinds}", method="POST")


def _kept(path: str, answered: Any) -> Callable[[F], F]:
    """A route to what follows from a prediction that is kept, as SARIF too."""
    path = f"/predictions/{{prediction_id}}/{path}"
    also: dict[int | str, dict[str, Any]] = {200: {"content": {MEDIA_TYPE: {}}}}
    return kept.answers(path, answered, KEPT_PROBLEMS, also=also)


@_post("/predict", PredictAnswer | PredictAnswers, "clocks gpu model busy time-limit store")
async def post_predict(request: Request, body: PredictBody) -> Response:
    """Power, time and energy of a kernel launch.

    With `gpu` the answer is one prediction, with `gpus` a list of them in that order. An
    `operator` takes the place of code and launch: its shape is all that is asked.
    """
    services = services_of(request)
    rows: list[Future[None]] = []
    asked = body.root
    if isinstance(asked, bodies.OperatorRequest):
        found = await services.analyses.run(operators.predict_operator, services, asked, rows)
    elif is_quick(services, asked):
        found = predict(services, asked, rows)
    else:
        found = await services.analyses.run(predict, services, asked, rows)
    if services.store is not None:
        await services.store.committed(rows)
    metrics.predicted(found.predictions if isinstance(found, PredictAnswers) else (found,))
    return told(request, found)


def _declare() -> None:
    """The routes of ``kernels.toml``: body and answer of each stand in ``ASKED``."""
    told = read_toml(Path(__file__).with_suffix(".toml"))
    for name, (asked, answered) in ASKED.items():
        about = told[name]
        body = BODY_PROBLEMS if about.get("code", True) else problems.JSON_BODY
        _post(about["path"], answered, about["problems"], body)(_endpoint(name, asked, about))


def _endpoint(name: str, asked: type[BaseModel], about: Mapping[str, str]) -> Callable[..., Any]:
    async def ask(request: Request, body: Any) -> Response:
        return await _run(request, answer, body.root if isinstance(body, RootModel) else body)

    ask.__name__, ask.__doc__ = f"post_{name}", f"{about['summary']}\n\n{about['told']}"
    ask.__annotations__["body"] = asked
    return ask


ASKED: Mapping[str, tuple[type[BaseModel], Any]] = {
    "batch": (BatchBody, BatchAnswer),
    "language_model": (LanguageModelRequest, LanguageModelAnswer),
    "features": (analyses.FeaturesRequest, analyses.FeaturesAnswer),
    "analyze": (analyses.AnalyzeRequest, analyses.AnalyzeAnswer),
    "dvfs": (DvfsBody, DvfsAnswers),
    "sweep": (SweepBody, SweepAnswer | bodies.OperatorSweepAnswer),
    "tunings": (TuningsRequest, TuningsAnswer),
    "compare": (CompareBody, CompareAnswer),
    "judge": (JudgeRequest, JudgeAnswer),
    "cost": (CostRequest, CostAnswer),
    "fleet": (FleetRequest, FleetAnswer),
}
"""What each of the questions takes, and how it is answered."""

_declare()


@_kept("hotspots", HotspotsAnswer)
async def get_hotspots(
    request: Request,
    prediction_id: UUID,
    rows: Annotated[
        int,
        Query(ge=1, le=hotspots.MOST_ROWS, description="Rows of each ranking; the rest is summed."),
    ] = hotspots.DEFAULT_ROWS,
    sarif: SarifFile = None,
) -> Response:
    """Energy and time by place in the code.

    The predicted joules and seconds by basic block, PTX line and source line, ranked.
    """
    return await _run(request, hotspots.hotspots, prediction_id, rows, sarif=sarif)


@_kept("advice", AdviceAnswer)
async def get_advice(request: Request, prediction_id: UUID, sarif: SarifFile = None) -> Response:
    """Suggestions for a launch and what each saves.

    Found in the analysis of the kernel; every saving is the difference of two predictions.
    """
    return await _run(request, advise.advice, prediction_id, sarif=sarif)
