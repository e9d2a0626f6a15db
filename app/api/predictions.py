"""Predictions answered before: the list of them, what was asked, and why each is what it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json

from wattcast.app.api.route import Before, Limit, Router, json_response, query, told
from wattcast.app.services import Services, services_of
from wattcast.app.store.predictions import Past, latest
from wattcast.features.errors import ServiceError
from wattcast.predictor.explain import MOST_SEEDS, Method, Target, explain, page, pictures
from wattcast.predictor.messages import Described, predict
from wattcast.predictor.messages.explain import Explanation
from wattcast.predictor.messages.operators import OperatorRequest
from wattcast.predictor.parts.stored import answer_of, is_compiled, record_of, request_of

router = Router(tags=["prediction"])


class PastPrediction(Described):
    """An earlier prediction, in short."""

    id: UUID
    created: str
    gpu: str
    kernel: str | None
    """Demangled, or an operator's name; null for measured work."""
    grid: list[int] | None
    """Blocks; null for measured work."""
    block: list[int] | None
    """Threads per block; null for measured work, and where the kernel fixes it."""
    core_mhz: float | None
    memory_mhz: float | None
    watts: float | None
    seconds: float | None
    joules: float | None


class Asked(Described):
    """What a prediction answered."""

    compiled: bool
    """Whether it came as CUDA; `request` holds the PTX of it."""
    request: predict.PredictRequest | OperatorRequest
    """For `POST /predict`, for one GPU."""


@router.answers("/predictions", list[PastPrediction], "validation store")
async def list_predictions(request: Request, limit: Limit = 50, before: Before = None) -> Response:
    """Predictions, newest first.

    One page of the predictions of all callers.
    """
    found = await query(request, lambda of: latest(of.database.engine, limit=limit, before=before))
    return json_response([_short(past) for past in found])


@router.answers(
    "/predictions/{prediction_id}", predict.PredictAnswer, "unknown-prediction validation store"
)
async def get_prediction(request: Request, prediction_id: UUID) -> Response:
    """An earlier prediction.

    Byte for byte what ``POST /predict`` answered.
    """
    store = services_of(request).store
    assert store is not None
    record = store.recent(prediction_id) or await run_in_threadpool(store.get, prediction_id)
    if record is None:
        raise ServiceError("unknown-prediction", f"no prediction {prediction_id}")
    if request.query_params.get("detail") == "brief":
        return told(request, answer_of(record))
    return Response(record.result, media_type="application/json")


@router.answers(
    "/predictions/{prediction_id}/request",
    Asked,
    "unknown-prediction no-explanation validation store",
)
async def get_request(request: Request, prediction_id: UUID) -> Response:
    """The request of a prediction.

    The request with its PTX, to be repeated or changed. CUDA source is not stored; its PTX is
    shown instead. Measured work has no code, so it has no request to show.
    """
    return json_response(await run_in_threadpool(_asked, services_of(request), prediction_id))


def _asked(services: Services, prediction_id: UUID) -> dict[str, Any]:
    record = record_of(services, prediction_id)
    told = from_json(record.request)
    if "operator" in told:
        asked_one = OperatorRequest.model_validate({**told, "gpu": record.gpu, "gpus": None})
        return {"compiled": False, "request": asked_one.model_dump(exclude_defaults=True)}
    request = request_of(services, record).model_dump(mode="json", exclude_defaults=True)
    return {"compiled": is_compiled(record), "request": request}


def _short(past: Past) -> dict[str, Any]:
    answer = from_json(past.result)
    request = from_json(past.request)
    launch = request.get("launch") or {}
    clocks = answer.get("clocks") or {}
    kernel, power, time, energy = (answer[x] for x in ("kernel", "power", "time", "energy"))
    return {
        "id": past.id,
        "created": past.created.isoformat(),
        "gpu": answer["gpu"],
        "kernel": kernel["demangled"] if kernel else request.get("operator", {}).get("name"),
        "grid": _dimensions(launch.get("grid")),
        "block": _dimensions(launch.get("block")),
        "core_mhz": clocks.get("core_mhz"),
        "memory_mhz": clocks.get("memory_mhz"),
        "watts": power["watts"] if power else None,
        "seconds": time["seconds"] if time else None,
        "joules": energy["joules"] if energy else None,
    }


def _dimensions(given: int | list[int] | None) -> list[int] | None:
    """A launch's dimensions, which a caller may give as one number."""
    return [given] if isinstance(given, int) else given


# --- ``GET /explain``: why a prediction is what it is ---

explaining = Router(tags=["prediction"])

Format = Literal["json", "svg", "png", "html"]

MEDIA: dict[str, str] = {
    "json": "application/json",
    "svg": "image/svg+xml",
    "png": "image/png",
    "html": "text/html",
}
"""In the order of preference where a request takes several alike."""

_FORMATS: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            "image/svg+xml": {"schema": {"type": "string"}},
            "image/png": {"schema": {"type": "string", "format": "binary"}},
            "text/html": {"schema": {"type": "string"}},
        }
    }
}


class ExplainQuery(BaseModel):
    """What is to be explained, and how."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    prediction_id: UUID
    """The id that POST /predict answered."""
    method: Method = "shap"
    """`shap`: exact; `lime`: seeded local linear model."""
    target: Target = "power"
    """What is explained."""
    format: Format | None = None
    """Default: from the Accept header, else JSON."""
    chart: pictures.ChartKind = "waterfall"
    """Chart in pictures: from base to prediction, or plain bars."""
    seeds: int = Field(1, ge=1, le=MOST_SEEDS)
    """LIME seeds; several also give the stability."""


@explaining.answers(
    "/explain",
    Explanation,
    "unknown-prediction no-explanation unknown-model validation busy time-limit store",
    also=_FORMATS,
)
async def get_explain(request: Request, asked: Annotated[ExplainQuery, Query()]) -> Response:
    """Explain a prediction.

    SHAP contributions sum with the base to the prediction, in watts or seconds. A physical
    power model is explained by component (with joules), a time by the model's own parts.
    """
    services = services_of(request)
    wanted = asked.format or chosen(request.headers.get("accept"), MEDIA)
    made = await services.analyses.run(_explained, request, services, asked, wanted)
    made.headers["Vary"] = "Accept"
    return made


def _explained(request: Request, services: Services, asked: ExplainQuery, wanted: str) -> Response:
    found = explain(services, asked.prediction_id, asked.method, asked.target, asked.seeds)
    if wanted == "json":
        return told(request, found)
    prediction = answer_of(record_of(services, asked.prediction_id))
    headers = {"Content-Security-Policy": page.POLICY} if wanted == "html" else None
    content = page.drawn(found, prediction, wanted, asked.chart)
    return Response(content, media_type=MEDIA[wanted], headers=headers)


def chosen(accept: str | None, offered: Mapping[str, str]) -> str:
    """The key of ``offered`` (names to media types) that ``accept`` prefers (RFC 9110, 12.5.1).

    Of equally wanted ones the first offered; it also answers where nothing offered is wanted,
    which RFC 9110 allows and which tells more than a bare refusal.
    """
    wanted = _ranges(accept or "*/*")
    qualities = {name: _quality(media, wanted) for name, media in offered.items()}
    return max(qualities, key=qualities.__getitem__)


def _ranges(accept: str) -> Mapping[str, float]:
    """Qualities by range; of one that is named twice the first."""
    found: dict[str, float] = {}
    for part in accept.split(",")[:64]:
        media, *parameters = (word.strip().lower() for word in part.split(";"))
        told = {name.strip(): value for name, _, value in (p.partition("=") for p in parameters)}
        try:
            quality = min(1.0, max(0.0, float(told.get("q", 1.0))))
        except ValueError:
            quality = 0.0
        found.setdefault(media, quality)
    return found


def _quality(media: str, wanted: Mapping[str, float]) -> float:
    """The quality of the most specific range that holds ``media``; 0 where none does."""
    ranges = (media, f"{media.partition('/')[0]}/*", "*/*")
    return next((wanted[each] for each in ranges if each in wanted), 0.0)
