"""Why a prediction is what it is: each feature's share of the power."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from app.problems import ServiceError
from app.services.power import PHYSICAL, reference_of
from models.explain import explain_lime, explain_shap
from models.power.boosted import BoostedPowerModel

if TYPE_CHECKING:
    from app.services import Services

Method = Literal["shap", "lime"]


def explain(services: Services, prediction_id: UUID, method: Method) -> dict[str, Any]:
    """``ExplainAnswer`` of a stored prediction, by the very model that made it.

    Raises ServiceError ``unknown-prediction`` or ``no-explanation`` (nothing was predicted),
    and ModelError where the model is gone.
    """
    record = services.store.get(prediction_id) if services.store is not None else None
    if record is None:
        raise ServiceError("unknown-prediction", f"no prediction {prediction_id}")
    reference = json.loads(record.models)
    if reference is None or json.loads(record.result)["power"] is None:
        raise ServiceError(
            "no-explanation", f"prediction {prediction_id} holds no power: nothing to explain"
        )
    if reference["family"] == PHYSICAL:
        if method != "shap":
            raise ServiceError(
                "no-explanation",
                "a physical model is a sum already: method=shap gives its terms, exactly",
            )
        terms = shap_of_components(reference, json.loads(record.result)["components"])
        return {"prediction_id": str(prediction_id), **terms}
    model = services.power.referenced(reference)
    stored = json.loads(record.vectors)[reference["schema"]]
    inputs = np.array([np.nan if v is None else v for v in stored], dtype=np.float32)
    explained = (shap_of if method == "shap" else lime_of)(model, inputs)
    return {"prediction_id": str(prediction_id), **explained}


def shap_of(model: BoostedPowerModel, inputs: NDArray[np.float32]) -> dict[str, Any]:
    """``ShapExplanation``: base plus contributions is the prediction, in watts."""
    found = explain_shap(model, model.card.feature_names, inputs)
    return {
        "method": "shap",
        "target": "power",
        "model": reference_of(model.card),
        "prediction_watts": found.prediction_watts,
        "base_watts": found.base_watts,
        "contributions": [part._asdict() for part in found.contributions],
    }


def shap_of_components(reference: dict[str, Any], components: dict[str, float]) -> dict[str, Any]:
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
            {"feature": name, "value": None, "watts": watts}
            for name, watts in rest
            if name != "idle"
        ],
    }


def lime_of(model: BoostedPowerModel, inputs: NDArray[np.float32]) -> dict[str, Any]:
    """``LimeExplanation``: the same for the same prediction, because its seed is fixed."""
    found = explain_lime(model, inputs)
    return {
        "method": "lime",
        "target": "power",
        "model": reference_of(model.card),
        "prediction_watts": found.prediction_watts,
        "intercept_watts": found.intercept_watts,
        "local_prediction_watts": found.local_prediction_watts,
        "r_squared": found.r_squared,
        "samples": found.samples,
        "seed": found.seed,
        "contributions": [part._asdict() for part in found.weights],
    }
