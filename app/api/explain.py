"""``GET /explain``: why a prediction is what it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from wattcast.app import problems
from wattcast.app.api.route import json_response
from wattcast.app.services import Services, services_of
from wattcast.predictor.explain import MOST_SEEDS, Method, Target, explain
from wattcast.predictor.explain.page import POLICY, drawn
from wattcast.predictor.explain.pictures import ChartKind
from wattcast.predictor.messages.explain import (
    LimeAnswer,
    ShapAnswer,
    TimeLimeAnswer,
    TimeShapAnswer,
)
from wattcast.predictor.parts.stored import answer_of, record_of

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
    prediction = answer_of(record_of(services, prediction_id))
    headers = {"Content-Security-Policy": POLICY} if wanted == "html" else None
    content = drawn(found, prediction, wanted, kind)
    return Response(content, media_type=MEDIA[wanted], headers=headers)


def chosen(accept: str | None, offered: Mapping[str, str]) -> str:
    """The key of ``offered`` (names to media types) that ``accept`` prefers (RFC 9110, 12.5.1).

    Of equally wanted ones the first offered; it also answers where nothing offered is wanted,
    which RFC 9110 allows and which tells more than a bare refusal.
    """
    names = list(offered)
    wanted = _ranges(accept or "*/*")
    best = max(names, key=lambda name: (_quality(offered[name], wanted), -names.index(name)))
    return best if _quality(offered[best], wanted) > 0 else names[0]


def _ranges(accept: str) -> Sequence[tuple[str, float]]:
    found = []
    for part in accept.split(",")[:64]:
        media, *parameters = (word.strip().lower() for word in part.split(";"))
        quality = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name.strip() == "q":
                try:
                    quality = min(1.0, max(0.0, float(value)))
                except ValueError:
                    quality = 0.0
        found.append((media, quality))
    return found


def _quality(media: str, wanted: Sequence[tuple[str, float]]) -> float:
    """The quality of the most specific range that holds ``media``; 0 where none does."""
    kind = media.partition("/")[0]
    for candidate in (media, f"{kind}/*", "*/*"):
        for name, quality in wanted:
            if name == candidate:
                return quality
    return 0.0
