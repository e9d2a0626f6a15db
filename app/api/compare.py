"""``POST /compare``: the same launch of old and new code."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from wattcast.app import problems
from wattcast.app.api.features import BODY_PROBLEMS
from wattcast.app.api.route import JsonRoute, json_response
from wattcast.app.services import services_of
from wattcast.predictor.compare import compare
from wattcast.predictor.messages.compare import CompareAnswer, CompareRequest

router = APIRouter(tags=["prediction"], route_class=JsonRoute)


@router.post(
    "/compare",
    response_model=CompareAnswer,
    responses=problems.documented(
        *BODY_PROBLEMS, "analysis", "clocks", "gpu", "model", "busy", "time-limit"
    ),
    summary="Compare old and new code",
)
async def post_compare(request: Request, body: CompareRequest) -> Response:
    """How two versions of the code differ in time, power and energy, kernel by kernel and GPU by
    GPU, whether that is within the limits given, and a table for a pull request."""
    services = services_of(request)
    return json_response(await services.analyses.run(compare, services, body))
