"""``POST /sweep``: a kernel at many launch shapes."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from wattcast.app import problems
from wattcast.app.api.features import BODY_PROBLEMS
from wattcast.app.api.route import JsonRoute, json_response
from wattcast.app.services import services_of
from wattcast.predictor.messages.sweep import SweepAnswer, SweepRequest
from wattcast.predictor.sweep import sweep

router = APIRouter(tags=["prediction"], route_class=JsonRoute)


@router.post(
    "/sweep",
    response_model=SweepAnswer,
    responses=problems.documented(
        *BODY_PROBLEMS, "analysis", "clocks", "constraints", "gpu", "model", "busy", "time-limit"
    ),
    summary="A kernel at many launch shapes",
)
async def post_sweep(request: Request, body: SweepRequest) -> Response:
    """Time, power and energy of each block and grid (total work kept), register count and GPU;
    the Pareto set, the best by energy, EDP, ED2P, speed and power; shapes that cannot be launched
    with the reason."""
    services = services_of(request)
    return json_response(await services.analyses.run(sweep, services, body))
