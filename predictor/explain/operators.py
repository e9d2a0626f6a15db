"""Why an operator's time or power is what it is: shares of the features of its shape.

Trees tell logarithms, so contributions are carried to watts or seconds by one factor: base plus all
shares is the prediction. Between two shapes of the measured sweep they are those of its neighbours
there, weighted as the answer is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wattcast.features.errors import ServiceError
from wattcast.features.operators import Board, Floats, features, operator_schema
from wattcast.models.explain import Background, LimeWeight, Stability, explain_lime, stability
from wattcast.models.operators import LAUNCH_SECONDS, OperatorModel, Trees
from wattcast.predictor import parts
from wattcast.predictor.messages import explain as messages
from wattcast.predictor.messages.operators import OperatorOptions, OperatorRequest
from wattcast.predictor.parts.operators import Asked, columns, kind_of, model_of, power_model
from wattcast.predictor.parts.power_models import reference_of

if TYPE_CHECKING:
    from wattcast.predictor import Predictor
    from wattcast.predictor.messages.predict import OperatorFigures, PredictAnswer

UNITS = {"power": "watts", "time": "seconds"}


class _Local:
    """Trees of one quantity around one call, in watts or seconds, as LIME asks them."""

    def __init__(self, trees: Trees, scale: float) -> None:
        self._trees, self._scale = trees, scale

    @property
    def background(self) -> Background:
        return self._trees.background

    def predict_watts(self, x: ArrayLike, /) -> NDArray[np.float64]:
        return np.exp(self._trees.score_inputs(np.asarray(x, dtype=np.float32))) * self._scale


def explain_operator(
    predictor: Predictor,
    answer: PredictAnswer,
    method: Literal["shap", "lime"] = "shap",
    target: Literal["power", "time"] = "power",
    seeds: int = 1,
) -> messages.Explanation:
    """Explanation of the prediction of an operator. Raises ServiceError ``no-explanation``
    where the quantity was not predicted."""
    gpu = predictor.gpus.load(answer.gpu)
    figures = answer.operator
    assert figures is not None
    assert answer.time is not None
    request = OperatorRequest.model_validate({"operator": figures.asked, "gpu": gpu.id})
    kind = kind_of(request.operator)
    model = model_of(predictor, kind, gpu.id)
    if target == "power":
        model = power_model(predictor, kind, model)
    trees = model.trees(kind, target)
    estimate = answer.power if target == "power" else answer.time
    if trees is None or estimate is None:
        raise ServiceError("no-explanation", f"{answer.id} has no {target} to explain")
    options = OperatorOptions.model_validate({"framework": figures.framework})
    call = columns(kind, model, [Asked(request.operator, gpu, options)])
    around = model.corners(kind, call)
    board = predictor.operators.board(gpu)
    near, _ = features(kind, around.call, board)
    unit = UNITS[target]
    prediction = float(getattr(estimate, unit))
    value, seconds = answer.features, answer.time.seconds
    fields = {field.name: field for field in operator_schema().fields}
    named = reference_of(model.card) if target == "power" else {"family": "operator"}
    told = {"prediction_id": answer.id, "method": method, "target": target, "model": named,
            f"prediction_{unit}": prediction}  # fmt: skip

    def share(name: str, amount: float) -> dict[str, Any]:
        field = fields[name]
        found: dict[str, Any] = {
            "feature": name, "value": value[name], "meaning": f"{field.description} ({field.unit})",
            "changeable": field.changeable, unit: amount,
        }  # fmt: skip
        if target == "power":
            found["joules"] = amount * seconds
        return found

    scale = _scale(model, target, figures, board)
    if method == "shap":
        base, amounts = _shap(trees, near, around.weights, scale, prediction)
        found = [share(n, a) for n, a in zip(trees.fitted.inputs, amounts, strict=True)]
        if target == "time":
            found = [{**one, "binding_seconds": None} for one in found]
        exact = {**told, f"base_{unit}": base, "contributions": _largest_first(found, unit)}
        if target == "power":
            return messages.ShapAnswer.model_validate(exact)
        return messages.TimeShapAnswer.model_validate(exact)
    nearest = near[int(around.weights.argmax())]
    runs = [
        explain_lime(_Local(trees, scale), nearest[trees.at], seed=seed) for seed in range(seeds)
    ]
    agreed: Stability | None = None
    if seeds > 1:
        agreed = stability([{w.feature: w.watts for w in run.weights} for run in runs])
    first = runs[0]

    def local(weight: LimeWeight) -> dict[str, Any]:
        spread = None if agreed is None else agreed.spread[weight.feature]
        return {
            **share(weight.feature, weight.watts),
            "condition": weight.condition,
            "spread": spread,
        }

    names = ("seeds", "top", "selection", "sign_agreement")
    near_by = {
        **told,
        f"intercept_{unit}": first.intercept_watts,
        f"local_prediction_{unit}": first.local_prediction_watts,
        **parts.members(first, "r_squared", "samples", "seed"),
        "stability": None if agreed is None else parts.members(agreed, *names),
        "contributions": [local(weight) for weight in first.weights],
    }
    if target == "power":
        return messages.LimeAnswer.model_validate(near_by)
    return messages.TimeLimeAnswer.model_validate(near_by)


def _scale(model: OperatorModel, target: str, figures: OperatorFigures, board: Board) -> float:
    """What the exponential of the trees' answer is multiplied by."""
    if target == "time":
        return figures.roofline_seconds + LAUNCH_SECONDS
    return model.limit_watts(board)


def _shap(
    trees: Trees, near: NDArray[np.float32], weights: Floats, scale: float, prediction: float
) -> tuple[float, list[float]]:
    base_log, parts_log = trees.shap(near)
    shares = weights @ parts_log
    base = float(np.exp(base_log)) * scale
    total = float(shares.sum())
    factor = (prediction - base) / total if abs(total) > 1e-9 else 0.0
    return base, [float(one) * factor for one in shares]


def _largest_first(found: list[dict[str, Any]], unit: str) -> list[dict[str, Any]]:
    return sorted(found, key=lambda one: -abs(one[unit]))
