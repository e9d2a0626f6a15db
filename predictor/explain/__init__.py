"""Why a prediction is what it is: shares of the power, and parts of the time.

boosted power   features: TreeSHAP, and LIME on quartile bins
physical power  components: they sum to the power, so each one's share is itself
time            parts of the model: exact Shapley values, and LIME on parts left out
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from wattcast.features.errors import ModelError, ServiceError
from wattcast.models import explain_time
from wattcast.models.explain import (
    Stability,
    explain_lime,
    explain_shap,
    stability,
)
from wattcast.models.explain_time import Meaning, meaning_of
from wattcast.models.power import PHYSICAL
from wattcast.models.power.boosted import BoostedPowerModel
from wattcast.models.time.bottleneck import resource_shares
from wattcast.predictor.explain.operators import explain_operator
from wattcast.predictor.messages import ModelReference, TimeModel
from wattcast.predictor.messages import explain as messages
from wattcast.predictor.parts import members
from wattcast.predictor.parts.power_models import reference_of
from wattcast.predictor.parts.stored import answer_of, record_of

if TYPE_CHECKING:
    from wattcast.predictor import Predictor
    from wattcast.predictor.messages.predict import PredictAnswer

Method = Literal["shap", "lime"]
Target = Literal["power", "time"]

MOST_SEEDS = 20
"""Seeds of one LIME explanation; each costs as much as the first."""

T = TypeVar("T")


def explain(
    predictor: Predictor,
    prediction_id: UUID,
    method: Method = "shap",
    target: Target = "power",
    seeds: int = 1,
) -> messages.Explanation:
    """An explanation of a stored prediction, by the very model that made it.

    ``seeds`` above 1 repeat LIME with other seeds and tell how far they agree. Raises ServiceError
    ``unknown-prediction`` or ``no-explanation`` (nothing was predicted), and ModelError where the
    model is gone.
    """
    answer = answer_of(record_of(predictor, prediction_id))
    return explained(predictor, answer, method, target, seeds)


def explained(
    predictor: Predictor,
    answer: PredictAnswer,
    method: Method = "shap",
    target: Target = "power",
    seeds: int = 1,
) -> messages.Explanation:
    """``explain`` of a prediction, stored or not."""
    if answer.operator is not None:
        return explain_operator(predictor, answer, method, target, seeds)
    if target == "time":
        return _of_time(answer, method, seeds)
    power = _of_power(predictor, answer, method, seeds)
    kind = (
        messages.ShapAnswer if isinstance(power, messages.ShapExplanation) else messages.LimeAnswer
    )
    return kind(prediction_id=answer.id, **dict(power))


# --- power -------------------------------------------------------------------------------


def _of_power(
    predictor: Predictor, answer: PredictAnswer, method: Method, seeds: int
) -> messages.ShapExplanation | messages.LimeExplanation:
    if answer.model is None or answer.power is None:
        raise ServiceError("no-explanation", f"prediction {answer.id} has no power to explain")
    if answer.model.family == PHYSICAL:
        if method == "shap":
            return shap_of_components(answer)
        return _lime_of_components(answer, seeds)
    model = predictor.power.referenced(answer.model)
    values = (answer.features[name] for name in model.card.feature_names)
    inputs = np.array([np.nan if v is None else v for v in values], dtype=np.float32)
    if method == "shap":
        return shap_of(model, inputs, answer)
    return lime_of(model, inputs, answer, seeds)


def _seconds_of(answer: PredictAnswer) -> float | None:
    return None if answer.time is None else answer.time.seconds


def _factor(answer: PredictAnswer, own_watts: float) -> float:
    """What carries a boosted model's own watts to the answer's clocks, 1 at those it knows.
    The shares of f times a number are those of f, times the number."""
    scaled = any(warning.code == "power_scaled" for warning in answer.warnings)
    return answer.power.watts / own_watts if scaled and answer.power is not None else 1.0


def shap_of(
    model: BoostedPowerModel, inputs: NDArray[np.float32], answer: PredictAnswer
) -> messages.ShapExplanation:
    """Exact SHAP: base plus contributions is the prediction, in watts."""
    found = explain_shap(model, model.card.feature_names, inputs)
    factor, seconds = _factor(answer, found.prediction_watts), _seconds_of(answer)
    schema = model.card.feature_schema.id
    return messages.ShapExplanation(
        method="shap",
        target="power",
        model=reference_of(model.card),
        prediction_watts=factor * found.prediction_watts,
        base_watts=factor * found.base_watts,
        contributions=[
            messages.Contribution(
                **_watts(part.feature, part.value, factor * part.watts, seconds, schema)
            )
            for part in found.contributions
        ],
    )


def shap_of_components(answer: PredictAnswer) -> messages.ShapExplanation:
    """The same of a physical model, in watts by component.

    At the predicted time its power is a sum with one term for each component, so the Shapley
    value of a component, against a GPU that idles, is its term.
    """
    reference, components, seconds = _components(answer)
    rest = sorted(components.items(), key=lambda part: -abs(part[1]))
    return messages.ShapExplanation(
        method="shap",
        target="power",
        model=reference,
        prediction_watts=sum(components.values()),
        base_watts=components["idle"],
        contributions=[
            messages.Contribution(**_watts(name, None, watts, seconds))
            for name, watts in rest
            if name != "idle"
        ],
    )


def _components(
    answer: PredictAnswer,
) -> tuple[ModelReference, Mapping[str, float], float | None]:
    assert answer.model is not None
    assert answer.components is not None
    return answer.model, answer.components, _seconds_of(answer)


def lime_of(
    model: BoostedPowerModel,
    inputs: NDArray[np.float32],
    answer: PredictAnswer,
    seeds: int = 1,
) -> messages.LimeExplanation:
    """LIME: the same for the same prediction, because its seeds are fixed."""
    runs, agreed = _seeded(
        lambda seed: explain_lime(model, inputs, seed=seed),
        lambda run: {part.feature: part.watts for part in run.weights},
        seeds,
    )
    found, schema = runs[0], model.card.feature_schema.id
    factor, seconds = _factor(answer, found.prediction_watts), _seconds_of(answer)
    return messages.LimeExplanation(
        method="lime",
        target="power",
        model=reference_of(model.card),
        prediction_watts=factor * found.prediction_watts,
        intercept_watts=factor * found.intercept_watts,
        local_prediction_watts=factor * found.local_prediction_watts,
        **members(found, "r_squared", "samples", "seed"),
        stability=_stability(agreed),
        contributions=[
            messages.LocalContribution(
                **_watts(part.feature, part.value, factor * part.watts, seconds, schema),
                condition=part.condition,
                spread=_spread(agreed, part.feature, factor),
            )
            for part in found.weights
        ],
    )


def _lime_of_components(answer: PredictAnswer, seeds: int) -> messages.LimeExplanation:
    reference, components, seconds = _components(answer)
    terms = {name: watts for name, watts in components.items() if name != "idle"}

    def combine(given: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        total: NDArray[np.float64] = components["idle"] + np.sum(list(given.values()), axis=0)
        return total

    found = _lime_of_terms(terms, combine, seeds, "at work")
    return messages.LimeExplanation(
        method="lime",
        target="power",
        model=reference,
        prediction_watts=sum(components.values()),
        intercept_watts=found.run.intercept,
        local_prediction_watts=found.run.local_prediction,
        **found.members(),
        contributions=[
            messages.LocalContribution(**_watts(name, None, watts, seconds), **found.local(name))
            for name, watts in _largest_first(found.run.weights)
        ],
    )


def _watts(
    name: str,
    value: float | None,
    watts: float,
    seconds: float | None,
    schema_id: str | None = None,
) -> dict[str, Any]:
    """Members of a ``Contribution``."""
    meaning = meaning_of(name, "power", schema_id)
    joules = None if seconds is None else watts * seconds
    return {**_explained(name, value, meaning), "watts": watts, "joules": joules}


# --- time --------------------------------------------------------------------------------


def _of_time(answer: PredictAnswer, method: Method, seeds: int) -> messages.Explanation:
    seconds, timing = _seconds_of(answer), answer.time_model
    if seconds is None or timing is None:
        raise ServiceError("no-explanation", f"prediction {answer.id} has no time to explain")
    parts = timing.parts
    try:
        combine = explain_time.combine_of(timing.family, parts, seconds)
    except ModelError as error:
        raise ServiceError("no-explanation", error.detail) from error
    shared: dict[str, Any] = {
        "prediction_id": answer.id,
        "target": "time",
        "model": messages.TimeModelReference(family=timing.family),
        "prediction_seconds": seconds,
    }
    if method == "shap":
        binding = _binding(timing)
        return messages.TimeShapAnswer(
            **shared,
            method="shap",
            base_seconds=0.0,
            contributions=[
                messages.TimeShare(
                    **_explained(name, parts[name], meaning_of(name, "time")),
                    seconds=share,
                    binding_seconds=None if binding is None else binding[name],
                )
                for name, share in _largest_first(explain_time.shapley_values(parts, combine))
            ],
        )
    found = _lime_of_terms(parts, combine, seeds, "counts")
    return messages.TimeLimeAnswer(
        **shared,
        method="lime",
        intercept_seconds=found.run.intercept,
        local_prediction_seconds=found.run.local_prediction,
        **found.members(),
        contributions=[
            messages.LocalTimeContribution(
                **_explained(name, parts[name], meaning_of(name, "time")),
                seconds=weight,
                **found.local(name),
            )
            for name, weight in _largest_first(found.run.weights)
        ],
    )


def _binding(timing: TimeModel) -> Mapping[str, float] | None:
    """Seconds that the launch would lose first were each part faster."""
    if timing.family != "bottleneck":
        return None
    on_top = {name: timing.parts[name] for name in explain_time.ON_TOP if name in timing.parts}
    inside = {name: part for name, part in timing.parts.items() if name not in on_top}
    return {**dict.fromkeys(timing.parts, 0.0), **resource_shares(inside), **on_top}


def _explained(name: str, value: float | None, meaning: Meaning) -> dict[str, Any]:
    known = {"feature": name, "value": None if value != value else value}
    return {**known, "meaning": meaning.sentence, "changeable": meaning.changeable}


# --- LIME over seeds -----------------------------------------------------------------------


class _Local(NamedTuple):
    """LIME on terms that are there or left out: the first seed's run, and how far others agree."""

    run: explain_time.TermWeights
    agreed: Stability | None
    terms: Mapping[str, float]
    works: str

    def members(self) -> dict[str, Any]:
        """What both kinds of answers tell of it."""
        fit = members(self.run, "r_squared", "samples", "seed")
        return {**fit, "stability": _stability(self.agreed)}

    def local(self, name: str) -> dict[str, Any]:
        """What both tell of one term."""
        condition = f"{name} {self.works if self.terms[name] else 'unused'}"
        return {"condition": condition, "spread": _spread(self.agreed, name)}


def _lime_of_terms(
    terms: Mapping[str, float], combine: explain_time.Combine, seeds: int, works: str
) -> _Local:
    runs, agreed = _seeded(
        lambda seed: explain_time.lime_terms(terms, combine, seed=seed),
        lambda run: run.weights,
        seeds,
    )
    return _Local(runs[0], agreed, terms, works)


def _seeded(
    make: Callable[[int], T], weights: Callable[[T], Mapping[str, float]], seeds: int
) -> tuple[list[T], Stability | None]:
    runs = [make(seed) for seed in range(seeds)]
    return runs, stability([weights(run) for run in runs]) if seeds > 1 else None


def _stability(agreed: Stability | None) -> messages.LimeStability | None:
    return None if agreed is None else messages.LimeStability.from_attributes(agreed)


def _spread(found: Stability | None, name: str, factor: float = 1.0) -> float | None:
    return None if found is None else factor * found.spread[name]


def _largest_first(weights: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(weights.items(), key=lambda part: -abs(part[1]))
