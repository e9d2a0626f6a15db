"""``POST /dvfs``: a kernel at many clocks."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from wattcast.app import problems
from wattcast.app.api.features import BODY_PROBLEMS
from wattcast.app.api.route import JsonRoute, json_response
from wattcast.app.services import services_of
from wattcast.predictor.dvfs import dvfs
from wattcast.predictor.messages.dvfs import DvfsAnswer, DvfsRequest

router = APIRouter(tags=["prediction"], route_class=JsonRoute)


@router.post(
    "/dvfs",
    response_model=DvfsAnswer,
    responses=problems.documented(
        *BODY_PROBLEMS, "analysis", "clocks", "constraints", "gpu", "model", "busy", "time-limit"
    ),
    summary="A kernel at many clocks",
)
async def post_dvfs(request: Request, body: DvfsRequest) -> Response:
    """Time, power and energy at each clock pair, also relative to a reference pair; the Pareto
    set of speed and energy; the best pair by energy, EDP, ED2P, speed and power under
    constraints."""
    services = services_of(request)
    return json_response(await services.analyses.run(dvfs, services, body))
