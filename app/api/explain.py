"""``GET /explain``: why a prediction is what it is."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from wattcast.app import problems
from wattcast.app.api.negotiation import chosen
from wattcast.app.api.route import json_response
from wattcast.app.services import Services, services_of
from wattcast.predictor.explain import MOST_SEEDS, Method, Target, explain
from wattcast.predictor.explain.page import POLICY, chart_of, page
from wattcast.predictor.explain.pictures import ChartKind, draw, png, svg
from wattcast.predictor.messages.explain import (
    LimeAnswer,
    ShapAnswer,
    TimeLimeAnswer,
    TimeShapAnswer,
)
from wattcast.predictor.parts.stored import record_of

router = APIRouter(tags=["prediction"])

Format = Literal["json", "svg", "png", "html"]

MEDIA: dict[str, str] = {
    "json": "application/json",
    "svg": "image/svg+xml",
    "png": "image/png",
    "html": "text/html",
}
"""In the order of preference where a request takes several alike."""

_FORMATS: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            "image/svg+xml": {"schema": {"type": "string"}},
            "image/png": {"schema": {"type": "string", "format": "binary"}},
            "text/html": {"schema": {"type": "string"}},
        }
    }
}


@router.get(
    "/explain",
    response_model=ShapAnswer | LimeAnswer | TimeShapAnswer | TimeLimeAnswer,
    responses=_FORMATS
    | problems.documented(
        "unknown-prediction",
        "no-explanation",
        "unknown-model",
        "validation",
        "busy",
        "time-limit",
        "store",
    ),
    summary="Explain a prediction",
)
async def get_explain(
    request: Request,
    prediction_id: Annotated[UUID, Query(description="The id that POST /predict answered.")],
    method: Annotated[
        Method, Query(description="`shap`: exact; `lime`: seeded local linear model.")
    ] = "shap",
    target: Annotated[Target, Query(description="What is explained.")] = "power",
    format: Annotated[  # noqa: A002 - the parameter's name
        Format | None, Query(description="Default: from the Accept header, else JSON.")
    ] = None,
    chart: Annotated[
        ChartKind,
        Query(description="Chart in pictures: from base to prediction, or plain bars."),
    ] = "waterfall",
    seeds: Annotated[
        int,
        Query(
            ge=1,
            le=MOST_SEEDS,
            description="LIME seeds; several also give the stability.",
        ),
    ] = 1,
) -> Response:
    """SHAP contributions sum with the base to the prediction, in watts or seconds. A physical
    power model is explained by component (with joules), a time by the model's own parts."""
    services = services_of(request)
    wanted = format or chosen(request.headers.get("accept"), MEDIA)
    made = await services.analyses.run(
        _explained, services, prediction_id, method, target, seeds, wanted, chart
    )
    made.headers["Vary"] = "Accept"
    return made


def _explained(
    services: Services,
    prediction_id: UUID,
    method: Method,
    target: Target,
    seeds: int,
    wanted: str,
    kind: ChartKind,
) -> Response:
    found = explain(services, prediction_id, method, target, seeds)
    if wanted == "json":
        return json_response(found)
    prediction = json.loads(record_of(services, prediction_id).result)
    if wanted == "html":
        headers = {"Content-Security-Policy": POLICY}
        return Response(page(found, prediction, kind), media_type=MEDIA[wanted], headers=headers)
    drawing = draw(chart_of(found, prediction), kind)
    content: str | bytes = svg(drawing) if wanted == "svg" else png(drawing)
    return Response(content, media_type=MEDIA[wanted])
