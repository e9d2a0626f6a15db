"""Answers of ``GET /explain``, for power and for time."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from wattcast.predictor.messages import Answer, ModelReference
from wattcast.predictor.reports import Block, Line


class _Explained(Answer):
    """What a part of an explanation is."""

    feature: str
    value: float | None
    """The feature's value; null is missing."""
    meaning: str
    """What it is, in one sentence."""
    changeable: bool
    """Whether the programmer can change it."""


class Contribution(_Explained):
    """One feature's share: watts it adds to (or takes from) the base value."""

    watts: float
    joules: float | None
    """Watts over the predicted time; null without one."""


class LocalContribution(Contribution):
    """One feature's weight in the local linear model, for the range ``condition``."""

    condition: str
    spread: float | None = None
    """Standard deviation of the weight over the seeds, in watts."""


class ShapExplanation(Answer):
    """Exact SHAP: ``base_watts`` plus all contributions is ``prediction_watts``."""

    method: Literal["shap"]
    target: Literal["power"]
    model: ModelReference
    prediction_watts: float
    base_watts: float
    contributions: list[Contribution]
    """Largest first."""

    def lines(self, most: int = 6) -> list[Block]:
        """The features that move the prediction most, in watts."""
        of_features = self.model.family != "physical"  # components have watts and no value
        lines: list[Block] = [Line(f"base {self.base_watts:.2f} W")]
        for part in self.contributions[:most]:
            value = "missing" if part.value is None else f"{part.value:g}"
            named = f"{part.feature} = {value}" if of_features else part.feature
            lines.append(Line(f"  {part.watts:+8.2f} W  {named}"))
        if rest := self.contributions[most:]:
            total = sum(part.watts for part in rest)
            lines.append(Line(f"  {total:+8.2f} W  {len(rest)} other features"))
        return lines


class LimeStability(Answer):
    """How far other seeds say the same."""

    seeds: int
    top: int
    """Features that count as the strongest."""
    selection: float
    """Share of the strongest features that two seeds have in common, mean over all pairs (variables
    stability index)."""
    sign_agreement: float
    """Share of seeds that give a strong feature its usual sign, mean over features."""


class LimeExplanation(Answer):
    """LIME: intercept plus all contributions is ``local_prediction_watts``, an approximation."""

    method: Literal["lime"]
    target: Literal["power"]
    model: ModelReference
    prediction_watts: float
    """The model's own answer."""
    intercept_watts: float
    local_prediction_watts: float
    r_squared: float
    """How well the local linear model fits."""
    samples: int
    seed: int
    stability: LimeStability | None = None
    """Null unless several seeds are asked for."""
    contributions: list[LocalContribution]
    """Largest first."""


class ShapAnswer(ShapExplanation):
    """Answer of ``GET /explain?method=shap``."""

    prediction_id: UUID


class LimeAnswer(LimeExplanation):
    """Answer of ``GET /explain?method=lime``."""

    prediction_id: UUID


class TimeModelReference(Answer):
    """The time model that answered; it has no artifact."""

    family: str


class TimeContribution(_Explained):
    """What a part of the time model adds to the time."""

    seconds: float


class TimeShare(TimeContribution):
    """A part's Shapley value."""

    binding_seconds: float | None
    """Seconds that the launch would lose first were this part faster (its value times the
    derivative of the time); these sum to the time too. Null where the model tells no derivative."""


class LocalTimeContribution(TimeContribution):
    """A part's weight in the local linear model."""

    condition: str
    spread: float | None = None


class TimeShapAnswer(Answer):
    """Exact Shapley values: ``base_seconds`` plus all contributions is ``prediction_seconds``."""

    prediction_id: UUID
    method: Literal["shap"]
    target: Literal["time"]
    model: TimeModelReference
    prediction_seconds: float
    base_seconds: float
    """0 if there is no work."""
    contributions: list[TimeShare]
    """Largest first."""


class TimeLimeAnswer(Answer):
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
    contributions: list[LocalTimeContribution]
    """Largest first."""


Explanation = ShapAnswer | LimeAnswer | TimeShapAnswer | TimeLimeAnswer
"""Answers of ``GET /explain``."""
