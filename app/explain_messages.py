"""What ``GET /explain`` answers of a predicted time."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from pydantic import BaseModel, Field

from wattcast.app.answers import LimeStability, _Explained


class TimeModelReference(BaseModel):
    """The time model that answered; it has no artifact."""

    family: str


class TimeContribution(_Explained):
    """What a part of the time model adds to the time."""

    seconds: float


class TimeShare(TimeContribution):
    """A part's Shapley value."""

    binding_seconds: float | None = Field(
        description="Seconds that the launch would lose first were this part faster (its value "
        "times the derivative of the time); these sum to the time too. Null where the model "
        "tells no derivative."
    )


class LocalTimeContribution(TimeContribution):
    """A part's weight in the local linear model."""

    condition: str
    spread: float | None = None


class TimeShapAnswer(BaseModel):
    """Exact Shapley values: ``base_seconds`` plus all contributions is ``prediction_seconds``."""

    prediction_id: UUID
    method: Literal["shap"]
    target: Literal["time"]
    model: TimeModelReference
    prediction_seconds: float
    base_seconds: float = Field(description="Of nothing at all: 0.")
    contributions: list[TimeShare] = Field(description="Largest first.")


class TimeLimeAnswer(BaseModel):
    """LIME: intercept plus all contributions is ``local_prediction_seconds``."""

    prediction_id: UUID
    method: Literal["lime"]
    target: Literal["time"]
    model: TimeModelReference
    prediction_seconds: float
    intercept_seconds: float
    local_prediction_seconds: float
    r_squared: float
    samples: int
    seed: int
    stability: LimeStability | None = None
    contributions: list[LocalTimeContribution] = Field(description="Largest first.")
