"""``POST /predict`` and the predictions it has answered."""

from __future__ import annotations

from concurrent.futures import Future
from uuid import UUID

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from wattcast.app import metrics, problems
from wattcast.app.api.kernels import BODY_PROBLEMS
from wattcast.app.api.route import JsonRoute, json_response
from wattcast.app.services import services_of
from wattcast.features.errors import ServiceError
from wattcast.predictor.messages.predict import PredictAnswer, PredictAnswers, PredictRequest
from wattcast.predictor.predict import is_quick, predict

router = APIRouter(tags=["prediction"], route_class=JsonRoute)
stored = APIRouter(tags=["prediction"])


@router.post(
    "/predict",
    response_model=PredictAnswer | PredictAnswers,
    responses=problems.documented(
        *BODY_PROBLEMS, "clocks", "gpu", "model", "busy", "time-limit", "store"
    ),
    summary="Power, time and energy of a kernel launch",
)
async def post_predict(request: Request, body: PredictRequest) -> Response:
    """With `gpu` the answer is one prediction, with `gpus` a list of them in that order."""
    services = services_of(request)
    rows: list[Future[None]] = []
    if is_quick(services, body):
        answer = predict(services, body, rows)
    else:
        answer = await services.analyses.run(predict, services, body, rows)
    if services.store is not None:
        await services.store.committed(rows)
    metrics.predicted(answer.get("predictions", (answer,)))
    return json_response(answer)


@stored.get(
    "/predictions/{prediction_id}",
    response_model=PredictAnswer,
    responses=problems.documented("unknown-prediction", "validation", "store"),
    summary="An earlier prediction",
)
async def get_prediction(request: Request, prediction_id: UUID) -> Response:
    """Byte for byte what ``POST /predict`` answered."""
    store = services_of(request).store
    assert store is not None
    record = store.recent(prediction_id) or await run_in_threadpool(store.get, prediction_id)
    if record is None:
        raise ServiceError("unknown-prediction", f"no prediction {prediction_id}")
    return Response(record.result, media_type="application/json")
