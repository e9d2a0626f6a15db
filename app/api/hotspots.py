"""Where a predicted launch spends its energy, and what a whole application costs."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from wattcast.app import problems
from wattcast.app.api.features import BODY_PROBLEMS
from wattcast.app.api.route import JsonRoute, json_response
from wattcast.app.services import services_of
from wattcast.predictor.cost import cost
from wattcast.predictor.hotspots import DEFAULT_ROWS, MOST_ROWS, hotspots
from wattcast.predictor.messages.cost import CostAnswer, CostRequest
from wattcast.predictor.messages.hotspots import HotspotsAnswer

router = APIRouter(tags=["prediction"])
costs = APIRouter(tags=["prediction"], route_class=JsonRoute)


@router.get(
    "/predictions/{prediction_id}/hotspots",
    response_model=HotspotsAnswer,
    responses=problems.documented(
        "unknown-prediction",
        "no-explanation",
        "analysis",
        "validation",
        "busy",
        "time-limit",
        "store",
    ),
    summary="Energy and time by place in the code",
)
async def get_hotspots(
    request: Request,
    prediction_id: UUID,
    rows: Annotated[
        int, Query(ge=1, le=MOST_ROWS, description="Rows of each ranking; the rest is summed.")
    ] = DEFAULT_ROWS,
) -> Response:
    """The predicted joules and seconds by basic block, PTX line and source line, ranked."""
    services = services_of(request)
    return json_response(await services.analyses.run(hotspots, services, prediction_id, rows))


@costs.post(
    "/cost",
    response_model=CostAnswer,
    responses=problems.documented(
        *BODY_PROBLEMS, "analysis", "clocks", "gpu", "model", "busy", "time-limit", "store"
    ),
    summary="Energy, price and CO2 of an application",
)
async def post_cost(request: Request, body: CostRequest) -> Response:
    """Several kernels with their launches; price and CO2 at the tariff and intensity given."""
    services = services_of(request)
    return json_response(await services.analyses.run(cost, services, body))
