"""``GET /explain``: why a prediction is what it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from wattcast.app.api.route import Router, json_response
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

router = Router(tags=["prediction"])

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


class Asked(BaseModel):
    """What is to be explained, and how."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    prediction_id: UUID
    """The id that POST /predict answered."""
    method: Method = "shap"
    """`shap`: exact; `lime`: seeded local linear model."""
    target: Target = "power"
    """What is explained."""
    format: Format | None = None
    """Default: from the Accept header, else JSON."""
    chart: ChartKind = "waterfall"
    """Chart in pictures: from base to prediction, or plain bars."""
    seeds: int = Field(1, ge=1, le=MOST_SEEDS)
    """LIME seeds; several also give the stability."""


@router.answers(
    "/explain",
    ShapAnswer | LimeAnswer | TimeShapAnswer | TimeLimeAnswer,
    "unknown-prediction no-explanation unknown-model validation busy time-limit store",
    also=_FORMATS,
)
async def get_explain(request: Request, asked: Annotated[Asked, Query()]) -> Response:
    """Explain a prediction.

    SHAP contributions sum with the base to the prediction, in watts or seconds. A physical
    power model is explained by component (with joules), a time by the model's own parts.
    """
    services = services_of(request)
    wanted = asked.format or chosen(request.headers.get("accept"), MEDIA)
    made = await services.analyses.run(_explained, services, asked, wanted)
    made.headers["Vary"] = "Accept"
    return made


def _explained(services: Services, asked: Asked, wanted: str) -> Response:
    found = explain(services, asked.prediction_id, asked.method, asked.target, asked.seeds)
    if wanted == "json":
        return json_response(found)
    prediction = answer_of(record_of(services, asked.prediction_id))
    headers = {"Content-Security-Policy": POLICY} if wanted == "html" else None
    content = drawn(found, prediction, wanted, asked.chart)
    return Response(content, media_type=MEDIA[wanted], headers=headers)


def chosen(accept: str | None, offered: Mapping[str, str]) -> str:
    """The key of ``offered`` (names to media types) that ``accept`` prefers (RFC 9110, 12.5.1).

    Of equally wanted ones the first offered; it also answers where nothing offered is wanted,
    which RFC 9110 allows and which tells more than a bare refusal.
    """
    wanted = _ranges(accept or "*/*")
    qualities = {name: _quality(media, wanted) for name, media in offered.items()}
    return max(qualities, key=qualities.__getitem__)


def _ranges(accept: str) -> Mapping[str, float]:
    """Qualities by range; of one that is named twice the first."""
    found: dict[str, float] = {}
    for part in accept.split(",")[:64]:
        media, *parameters = (word.strip().lower() for word in part.split(";"))
        told = {name.strip(): value for name, _, value in (p.partition("=") for p in parameters)}
        try:
            quality = min(1.0, max(0.0, float(told.get("q", 1.0))))
        except ValueError:
            quality = 0.0
        found.setdefault(media, quality)
    return found


def _quality(media: str, wanted: Mapping[str, float]) -> float:
    """The quality of the most specific range that holds ``media``; 0 where none does."""
    ranges = (media, f"{media.partition('/')[0]}/*", "*/*")
    return next((wanted[each] for each in ranges if each in wanted), 0.0)
