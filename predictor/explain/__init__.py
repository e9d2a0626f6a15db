"""Why a prediction is what it is: shares of the power, and parts of the time.

boosted power   features: TreeSHAP, and LIME on quartile bins
physical power  components: they sum to the power, so each one's share is itself
time            parts of the model: exact Shapley values, and LIME on parts left out
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from wattcast.features.errors import ModelError, ServiceError
from wattcast.models.explain import (
    Stability,
    explain_lime,
    explain_shap,
    stability,
)
from wattcast.models.explain_time import (
    ON_TOP,
    Combine,
    combine_of,
    lime_terms,
    shapley_values,
)
from wattcast.models.explain_words import Meaning, meaning_of
from wattcast.models.power import PHYSICAL
from wattcast.models.power.boosted import BoostedPowerModel
from wattcast.models.time.bottleneck import resource_shares
from wattcast.predictor.parts import members
from wattcast.predictor.parts.power_models import reference_of
from wattcast.predictor.parts.stored import record_of

if TYPE_CHECKING:
    from wattcast.predictor import Predictor

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
) -> dict[str, Any]:
    """An explanation of a stored prediction, by the very model that made it.

    ``seeds`` above 1 repeat LIME with other seeds and tell how far they agree. Raises ServiceError
    ``unknown-prediction`` or ``no-explanation`` (nothing was predicted), and ModelError where the
    model is gone.
    """
    answer = json.loads(record_of(predictor, prediction_id).result)
    return explained(predictor, answer, method, target, seeds)


def explained(
    predictor: Predictor,
    answer: Mapping[str, Any],
    method: Method = "shap",
    target: Target = "power",
    seeds: int = 1,
) -> dict[str, Any]:
    """``explain`` of a ``PredictAnswer``, stored or not."""
    found = (_power if target == "power" else _time)(predictor, answer, method, seeds)
    return {"prediction_id": answer["id"], **found}


# --- power -------------------------------------------------------------------------------


def _power(
    predictor: Predictor, answer: Mapping[str, Any], method: Method, seeds: int
) -> dict[str, Any]:
    reference = answer["model"]
    if reference is None or answer["power"] is None:
        raise ServiceError("no-explanation", f"prediction {answer['id']} has no power to explain")
    seconds = seconds_of(answer)
    if reference["family"] == PHYSICAL:
        if method == "shap":
            return shap_of_components(reference, answer["components"], seconds)
        return _lime_of_components(reference, answer["components"], seconds, seeds)
    model = predictor.power.referenced(reference)
    values = (answer["features"][name] for name in model.card.feature_names)
    inputs = np.array([np.nan if v is None else v for v in values], dtype=np.float32)
    if method == "shap":
        return shap_of(model, inputs, answer)
    return lime_of(model, inputs, answer, seeds)


def seconds_of(answer: Mapping[str, Any]) -> float | None:
    """The predicted time of an answer; ``None`` where there is none."""
    return None if answer["time"] is None else float(answer["time"]["seconds"])


def _factor(answer: Mapping[str, Any], own_watts: float) -> float:
    """What carries a boosted model's own watts to the answer's clocks, 1 at those it knows.
    The shares of f times a number are those of f, times the number."""
    scaled = any(warning["code"] == "power_scaled" for warning in answer["warnings"])
    return float(answer["power"]["watts"]) / own_watts if scaled else 1.0


def shap_of(
    model: BoostedPowerModel, inputs: NDArray[np.float32], answer: Mapping[str, Any]
) -> dict[str, Any]:
    """``ShapExplanation``: base plus contributions is the prediction, in watts."""
    found = explain_shap(model, model.card.feature_names, inputs)
    factor, seconds = _factor(answer, found.prediction_watts), seconds_of(answer)
    schema = model.card.feature_schema.id
    return {
        "method": "shap",
        "target": "power",
        "model": reference_of(model.card),
        "prediction_watts": factor * found.prediction_watts,
        "base_watts": factor * found.base_watts,
        "contributions": [
            _watts(part.feature, part.value, factor * part.watts, seconds, schema)
            for part in found.contributions
        ],
    }


def shap_of_components(
    reference: dict[str, Any], components: Mapping[str, float], seconds: float | None
) -> dict[str, Any]:
    """``ShapExplanation`` of a physical model, in watts by component.

    At the predicted time its power is a sum with one term for each component, so the Shapley
    value of a component, against a GPU that idles, is its term.
    """
    rest = sorted(components.items(), key=lambda part: -abs(part[1]))
    return {
        "method": "shap",
        "target": "power",
        "model": reference,
        "prediction_watts": sum(components.values()),
        "base_watts": components["idle"],
        "contributions": [
            _watts(name, None, watts, seconds) for name, watts in rest if name != "idle"
        ],
    }


def lime_of(
    model: BoostedPowerModel,
    inputs: NDArray[np.float32],
    answer: Mapping[str, Any],
    seeds: int = 1,
) -> dict[str, Any]:
    """``LimeExplanation``: the same for the same prediction, because its seeds are fixed."""
    runs, agreed = _seeded(
        lambda seed: explain_lime(model, inputs, seed=seed),
        lambda run: {part.feature: part.watts for part in run.weights},
        seeds,
    )
    found, schema = runs[0], model.card.feature_schema.id
    factor, seconds = _factor(answer, found.prediction_watts), seconds_of(answer)
    return {
        "method": "lime",
        "target": "power",
        "model": reference_of(model.card),
        "prediction_watts": factor * found.prediction_watts,
        "intercept_watts": factor * found.intercept_watts,
        "local_prediction_watts": factor * found.local_prediction_watts,
        **members(found, "r_squared", "samples", "seed"),
        "stability": _stability(agreed),
        "contributions": [
            {
                **_watts(part.feature, part.value, factor * part.watts, seconds, schema),
                "condition": part.condition,
                "spread": _spread(agreed, part.feature, factor),
            }
            for part in found.weights
        ],
    }


def _lime_of_components(
    reference: dict[str, Any], components: Mapping[str, float], seconds: float | None, seeds: int
) -> dict[str, Any]:
    terms = {name: watts for name, watts in components.items() if name != "idle"}

    def combine(given: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        total: NDArray[np.float64] = components["idle"] + np.sum(list(given.values()), axis=0)
        return total

    def told(name: str, watts: float) -> dict[str, Any]:
        return _watts(name, None, watts, seconds)

    prediction = sum(components.values())
    return _lime_of_terms("power", reference, prediction, terms, combine, seeds, told)


def _watts(
    name: str,
    value: float | None,
    watts: float,
    seconds: float | None,
    schema_id: str | None = None,
) -> dict[str, Any]:
    """``wattcast.predictor.messages.explain.Contribution``."""
    meaning = meaning_of(name, "power", schema_id)
    joules = None if seconds is None else watts * seconds
    return {**_explained(name, value, meaning), "watts": watts, "joules": joules}


# --- time --------------------------------------------------------------------------------


def _time(
    _predictor: Predictor, answer: Mapping[str, Any], method: Method, seeds: int
) -> dict[str, Any]:
    seconds, timing = seconds_of(answer), answer["time_model"]
    if seconds is None or timing is None:
        raise ServiceError("no-explanation", f"prediction {answer['id']} has no time to explain")
    parts = {name: float(part) for name, part in timing["parts"].items()}
    try:
        combine = combine_of(timing["family"], parts, seconds)
    except ModelError as error:
        raise ServiceError("no-explanation", error.detail) from error
    reference = {"family": timing["family"]}
    if method == "shap":
        return _shap_of_time(reference, parts, combine, seconds)

    def told(name: str, weight: float) -> dict[str, Any]:
        return _seconds(name, parts[name], weight)

    return _lime_of_terms("time", reference, seconds, parts, combine, seeds, told)


def _shap_of_time(
    reference: dict[str, Any], parts: Mapping[str, float], combine: Combine, seconds: float
) -> dict[str, Any]:
    binding: Mapping[str, float] | None = None
    if reference["family"] == "bottleneck":
        on_top = {name: parts[name] for name in ON_TOP if name in parts}
        inside = {name: part for name, part in parts.items() if name not in on_top}
        binding = {**dict.fromkeys(parts, 0.0), **resource_shares(inside), **on_top}
    shares = shapley_values(parts, combine)
    return {
        "method": "shap",
        "target": "time",
        "model": reference,
        "prediction_seconds": seconds,
        "base_seconds": 0.0,
        "contributions": [
            {
                **_seconds(name, parts[name], share),
                "binding_seconds": None if binding is None else binding[name],
            }
            for name, share in _largest_first(shares)
        ],
    }


def _seconds(name: str, value: float, seconds: float) -> dict[str, Any]:
    """``wattcast.predictor.messages.explain.TimeContribution``."""
    return {**_explained(name, value, meaning_of(name, "time")), "seconds": seconds}


def _explained(name: str, value: float | None, meaning: Meaning) -> dict[str, Any]:
    known = {"feature": name, "value": value}
    return {**known, "meaning": meaning.sentence, "changeable": meaning.changeable}


# --- LIME over seeds -----------------------------------------------------------------------


def _lime_of_terms(
    target: Target,
    reference: dict[str, Any],
    prediction: float,
    terms: Mapping[str, float],
    combine: Combine,
    seeds: int,
    told: Callable[[str, float], dict[str, Any]],
) -> dict[str, Any]:
    runs, agreed = _seeded(
        lambda seed: lime_terms(terms, combine, seed=seed), lambda run: run.weights, seeds
    )
    found = runs[0]
    unit, works = ("watts", "at work") if target == "power" else ("seconds", "counts")
    return {
        "method": "lime",
        "target": target,
        "model": reference,
        f"prediction_{unit}": prediction,
        f"intercept_{unit}": found.intercept,
        f"local_prediction_{unit}": found.local_prediction,
        **members(found, "r_squared", "samples", "seed"),
        "stability": _stability(agreed),
        "contributions": [
            {
                **told(name, weight),
                "condition": f"{name} {works if terms[name] else 'unused'}",
                "spread": _spread(agreed, name),
            }
            for name, weight in _largest_first(found.weights)
        ],
    }


def _seeded(
    make: Callable[[int], T], weights: Callable[[T], Mapping[str, float]], seeds: int
) -> tuple[list[T], Stability | None]:
    runs = [make(seed) for seed in range(seeds)]
    return runs, stability([weights(run) for run in runs]) if seeds > 1 else None


def _stability(found: Stability | None) -> dict[str, Any] | None:
    """``wattcast.predictor.messages.explain.LimeStability``."""
    names = ("seeds", "top", "selection", "sign_agreement")
    return None if found is None else members(found, *names)


def _spread(found: Stability | None, name: str, factor: float = 1.0) -> float | None:
    return None if found is None else factor * found.spread[name]


def _largest_first(weights: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(weights.items(), key=lambda part: -abs(part[1]))
