"""``GET /explain``: why a prediction is what it is."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from app import problems
from app.answers import LimeAnswer, ShapAnswer
from app.api.route import json_response
from app.services import services_of
from app.services.explanation import Method, explain

router = APIRouter(tags=["prediction"])


@router.get(
    "/explain",
    response_model=ShapAnswer | LimeAnswer,
    responses=problems.documented(
        "unknown-prediction",
        "no-explanation",
        "unknown-model",
        "validation",
        "busy",
        "time-limit",
        "store",
    ),
    summary="Why a prediction is what it is",
)
async def get_explain(
    request: Request,
    prediction_id: Annotated[UUID, Query(description="The id that POST /predict answered.")],
    method: Annotated[
        Method, Query(description="`shap`: exact TreeSHAP; `lime`: seeded local linear model.")
    ] = "shap",
    target: Annotated[Literal["power"], Query()] = "power",
    format: Annotated[Literal["json"], Query()] = "json",  # noqa: A002 - the parameter's name
) -> Response:
    """SHAP contributions, in watts, sum with the base to the prediction."""
    services = services_of(request)
    return json_response(await services.analyses.run(explain, services, prediction_id, method))
