"""Why a prediction is what it is: each feature's share of the power."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from app.problems import ServiceError
from app.services.power import reference_of
from models.power.boosted import BoostedPowerModel

if TYPE_CHECKING:
    from app.services import Services

Method = Literal["shap"]


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
    model = services.power.referenced(reference)
    stored = json.loads(record.vectors)[reference["schema"]]
    inputs = np.array([np.nan if v is None else v for v in stored], dtype=np.float32)
    return {"prediction_id": str(prediction_id), **shap_of(model, inputs)}


def shap_of(model: BoostedPowerModel, inputs: NDArray[np.float32]) -> dict[str, Any]:
    """``Explanation`` by exact TreeSHAP: base plus contributions is the prediction, in watts."""
    base, contributions = model.shap(inputs.reshape(1, -1))
    watts = contributions[0]
    names = model.card.feature_names
    order = sorted(range(len(names)), key=lambda at: -abs(watts[at]))
    return {
        "method": "shap",
        "target": "power",
        "model": reference_of(model.card),
        "base_watts": base,
        "prediction_watts": base + float(watts.sum()),
        "contributions": [
            {"feature": names[at], "value": float(inputs[at]), "watts": float(watts[at])}
            for at in order
        ],
    }
