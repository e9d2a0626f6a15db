"""Predictions answered before: the list of them, and what was asked."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from pydantic_core import from_json

from wattcast.app.api.route import Before, Limit, Router, json_response, query
from wattcast.app.services import Services, services_of
from wattcast.app.store.predictions import Past, latest
from wattcast.features.errors import ServiceError
from wattcast.predictor.messages import Described
from wattcast.predictor.messages.operators import OperatorRequest
from wattcast.predictor.messages.predict import PredictAnswer, PredictRequest
from wattcast.predictor.parts.stored import is_compiled, record_of, request_of

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
    request: PredictRequest | OperatorRequest
    """For `POST /predict`, for one GPU."""


@router.answers("/predictions", list[PastPrediction], "validation store")
async def list_predictions(request: Request, limit: Limit = 50, before: Before = None) -> Response:
    """Predictions, newest first.

    One page of the predictions of all callers.
    """
    found = await query(request, lambda of: latest(of.database.engine, limit=limit, before=before))
    return json_response([_short(past) for past in found])


@router.answers(
    "/predictions/{prediction_id}", PredictAnswer, "unknown-prediction validation store"
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
