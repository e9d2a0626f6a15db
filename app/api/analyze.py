"""``POST /analyze``: what the launch does, and how each part is known."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from wattcast.app import problems
from wattcast.app.api.features import BODY_PROBLEMS
from wattcast.app.api.route import JsonRoute, json_response
from wattcast.app.services import services_of
from wattcast.predictor.analyze import analyze
from wattcast.predictor.messages.analyze import AnalyzeAnswer, AnalyzeRequest

router = APIRouter(tags=["prediction"], route_class=JsonRoute)


@router.post(
    "/analyze",
    response_model=AnalyzeAnswer,
    responses=problems.documented(*BODY_PROBLEMS, "gpu", "busy", "time-limit"),
    summary="Analysis of a kernel launch",
)
async def post_analyze(request: Request, body: AnalyzeRequest) -> Response:
    """Loops, memory accesses, instruction mix, occupancy, registers, activity, source lines."""
    services = services_of(request)
    return json_response(await services.analyses.run(analyze, services, body))
