"""``POST /features``: the vector a model would see."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from wattcast.app import problems
from wattcast.app.api.route import JsonRoute, json_response
from wattcast.app.services import services_of
from wattcast.predictor.features import features
from wattcast.predictor.messages.features import FeaturesAnswer, FeaturesRequest

router = APIRouter(tags=["prediction"], route_class=JsonRoute)

BODY_PROBLEMS = (
    "json",
    "too-large",
    "media-type",
    "validation",
    "ptx-syntax",
    "too-complex",
    "cuda-compile",
    "compiler-missing",
    "kernel",
    "launch",
)


@router.post(
    "/features",
    response_model=FeaturesAnswer,
    responses=problems.documented(*BODY_PROBLEMS, "gpu", "schema", "busy", "time-limit"),
    summary="Feature vector of a kernel launch",
)
async def post_features(request: Request, body: FeaturesRequest) -> Response:
    """The vector of one schema, in its order, with units and sources; null is missing."""
    services = services_of(request)
    return json_response(await services.analyses.run(features, services, body))
