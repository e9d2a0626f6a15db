"""What to change about a predicted launch."""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter, Request
from fastapi.responses import Response

from wattcast.app import problems
from wattcast.app.api.route import json_response
from wattcast.app.services import services_of
from wattcast.predictor.advise import advice
from wattcast.predictor.messages.advise import AdviceAnswer

router = APIRouter(tags=["prediction"])


@router.get(
    "/predictions/{prediction_id}/advice",
    response_model=AdviceAnswer,
    responses=problems.documented(
        "unknown-prediction",
        "no-explanation",
        "analysis",
        "validation",
        "busy",
        "time-limit",
        "store",
    ),
    summary="Suggestions for a launch and what each saves",
)
async def get_advice(request: Request, prediction_id: UUID) -> Response:
    """Found in the analysis of the kernel; every saving is the difference of two predictions."""
    services = services_of(request)
    return json_response(await services.analyses.run(advice, services, prediction_id))
