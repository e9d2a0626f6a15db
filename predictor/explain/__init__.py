"""Why a prediction is what it is: shares of the power, and parts of the time.

boosted power   features: TreeSHAP, and LIME on quartile bins
physical power  components: they sum to the power, so each one's share is itself
time            parts of the model: exact Shapley values, and LIME on parts left out
operators       features of the shape: TreeSHAP and LIME of trees that tell logarithms

Contributions of operators are carried to watts or seconds by one factor: base plus all shares is
the prediction. Between two shapes of the measured sweep they are those of its neighbours there,
weighted as the answer is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar
from uuid import UUID

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wattcast.features.errors import ModelError, ServiceError
from wattcast.features.operators import features, operator_schema
from wattcast.models import explain as explaining
from wattcast.models import explain_time, operators, power
from wattcast.models.power.boosted import BoostedPowerModel
from wattcast.models.time.bottleneck import resource_shares
from wattcast.predictor import Predictor
from wattcast.predictor.messages import ModelReference, TimeModel
from wattcast.predictor.messages import explain as messages
from wattcast.predictor.messages.operators import OperatorOptions, OperatorRequest
from wattcast.predictor.messages.predict import PredictAnswer
from wattcast.predictor.parts import members, power_models, stored, watts
from wattcast.predictor.parts import operators as asking

Method = Literal["shap", "lime"]
Target = Literal["power", "time"]

MOST_SEEDS = 20
"""Seeds of one LIME explanation; each costs as much as the first."""

T = TypeVar("T")

UNITS = {"power": "watts", "time": "seconds"}
KINDS: Mapping[tuple[Method, Target], type[messages.Explanation]] = {
    ("shap", "power"): messages.ShapAnswer,
    ("lime", "power"): messages.LimeAnswer,
    ("shap", "time"): messages.TimeShapAnswer,
    ("lime", "time"): messages.TimeLimeAnswer,
}


def explain(
    predictor: Predictor, prediction_id: UUID, method: Method, target: Target, seeds: int
) -> messages.Explanation:
    """An explanation of a stored prediction, by the very model that made it.

    ``seeds`` above 1 repeat LIME with other seeds and tell how far they agree. Raises ServiceError
    ``unknown-prediction`` or ``no-explanation`` (nothing was predicted), and ModelError where the
    model is gone.
    """
    answer = stored.answer_of(stored.record_of(predictor, prediction_id))
    return explained(predictor, answer, method, target, seeds)


def explained(
    predictor: Predictor, answer: PredictAnswer, method: Method, target: Target, seeds: int = 1
) -> messages.Explanation:
    """``explain`` of a prediction, stored or not."""
    if answer.operator is not None:
        found = _of_operator(predictor, answer, method, target, seeds)
    elif target == "time":
        found = _of_time(answer, method, seeds)
    elif answer.model is None or answer.power is None:
        raise ServiceError("no-explanation", f"prediction {answer.id} has no power to explain")
    elif answer.model.family == power.PHYSICAL:
        found = _of_components(answer, method, seeds)
    else:
        model = predictor.power.referenced(answer.model)
        values = (answer.features[name] for name in model.card.feature_names)
        inputs = np.array([np.nan if v is None else v for v in values], dtype=np.float32)
        found = _of_trees(model, inputs, answer, method, seeds)
    return KINDS[method, target](prediction_id=answer.id, **found)


def shap_of(answer: PredictAnswer, power: watts.Watts | None = None) -> messages.ShapExplanation:
    """Exact SHAP of a prediction that is being made, whose ``power`` trees may tell."""
    if power is not None and power.boosted is not None and power.vector is not None:
        found = _of_trees(power.boosted, power.vector.model_inputs(), answer, "shap", 1)
    else:
        found = _of_components(answer, "shap", 1)
    return messages.ShapExplanation(**found)


class _Subject(NamedTuple):
    """What is explained: the ``amount`` that ``model`` predicted. ``about`` tells what a part is:
    its value, meaning and whether it can be changed."""

    answer: PredictAnswer
    target: Target
    model: ModelReference | messages.TimeModelReference
    amount: float
    about: Callable[[str], dict[str, Any]]

    def shap(
        self,
        base: float,
        shares: Iterable[tuple[str, float]],
        binding: Mapping[str, float] | None = None,
    ) -> dict[str, Any]:
        """Members of an exact explanation: base plus shares is the amount."""
        parts = [self._part(*share) for share in shares]
        if self.target == "time":
            for part in parts:
                part["binding_seconds"] = None if binding is None else binding[part["feature"]]
        return {**self._told("shap"), f"base_{UNITS[self.target]}": base, "contributions": parts}

    def lime(
        self,
        run: explaining.LimeExplanation | explain_time.TermWeights,
        ends: tuple[float, float],
        parts: Iterable[tuple[str, float, str]],
        agreed: explaining.Stability | None,
        factor: float = 1.0,
    ) -> dict[str, Any]:
        """Members of a local linear model: its intercept and answer, and the name, amount and
        condition of each part; ``factor`` carries the run's weights to the amount's clocks."""
        unit, names = UNITS[self.target], ("seeds", "top", "selection", "sign_agreement")
        return {
            **self._told("lime"),
            f"intercept_{unit}": ends[0],
            f"local_prediction_{unit}": ends[1],
            **members(run, "r_squared", "samples", "seed"),
            "stability": None if agreed is None else members(agreed, *names),
            "contributions": [
                {
                    **self._part(name, amount),
                    "condition": condition,
                    "spread": None if agreed is None else factor * agreed.spread[name],
                }
                for name, amount, condition in parts
            ],
        }

    def _told(self, method: Method) -> dict[str, Any]:
        told = {"method": method, "target": self.target, "model": self.model}
        return {**told, f"prediction_{UNITS[self.target]}": self.amount}

    def _part(self, name: str, amount: float) -> dict[str, Any]:
        part = {"feature": name, **self.about(name), UNITS[self.target]: amount}
        if self.target == "power":
            time = self.answer.time
            part["joules"] = None if time is None else amount * time.seconds
        return part


def _about(
    name: str, value: float | None, target: Target, schema_id: str | None = None
) -> dict[str, Any]:
    meaning = explain_time.meaning_of(name, target, schema_id)
    known = {"value": None if value != value else value}
    return {**known, "meaning": meaning.sentence, "changeable": meaning.changeable}


def _of_trees(
    model: BoostedPowerModel,
    inputs: NDArray[np.float32],
    answer: PredictAnswer,
    method: Method,
    seeds: int,
) -> dict[str, Any]:
    """Of a boosted model. What carries its own watts to the answer's clocks is a number: the shares
    of f times a number are those of f, times the number."""
    schema = model.card.feature_schema.id

    def subject(own_watts: float, values: Mapping[str, float | None]) -> tuple[float, _Subject]:
        scaled = any(warning.code == "power_scaled" for warning in answer.warnings)
        factor = answer.power.watts / own_watts if scaled and answer.power is not None else 1.0
        return factor, _Subject(
            answer,
            "power",
            power_models.reference_of(model.card),
            factor * own_watts,
            lambda name: _about(name, values[name], "power", schema),
        )

    if method == "shap":
        exact = explaining.explain_shap(model, model.card.feature_names, inputs)
        values = {part.feature: part.value for part in exact.contributions}
        factor, told = subject(exact.prediction_watts, values)
        shares = ((part.feature, factor * part.watts) for part in exact.contributions)
        return told.shap(factor * exact.base_watts, shares)

    def around(run: explaining.LimeExplanation) -> tuple[float, _Subject]:
        return subject(run.prediction_watts, {part.feature: part.value for part in run.weights})

    return _lime_of_trees(model, inputs, seeds, around)


def _lime_of_trees(
    model: Any,
    inputs: NDArray[np.float32],
    seeds: int,
    around: Callable[[explaining.LimeExplanation], tuple[float, _Subject]],
) -> dict[str, Any]:
    """LIME on bins of the inputs; ``around`` tells what is explained, and the factor to it."""
    run, agreed = _seeded(
        lambda seed: explaining.explain_lime(model, inputs, seed=seed),
        lambda run: {part.feature: part.watts for part in run.weights},
        seeds,
    )
    factor, told = around(run)
    ends = factor * run.intercept_watts, factor * run.local_prediction_watts
    parts = ((part.feature, factor * part.watts, part.condition) for part in run.weights)
    return told.lime(run, ends, parts, agreed, factor)


def _of_components(answer: PredictAnswer, method: Method, seeds: int) -> dict[str, Any]:
    """Of a physical model, by component.

    At the predicted time its power is a sum with one term for each component, so the Shapley
    value of a component, against a GPU that idles, is its term.
    """
    assert answer.model is not None
    assert answer.components is not None
    components = answer.components
    total, idle = sum(components.values()), components["idle"]
    terms = {name: watts for name, watts in components.items() if name != "idle"}
    told = _Subject(answer, "power", answer.model, total, lambda name: _about(name, None, "power"))

    def combine(given: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        total: NDArray[np.float64] = idle + np.sum(list(given.values()), axis=0)
        return total

    if method == "shap":
        return told.shap(idle, _largest_first(terms))
    return _lime_of_terms(told, terms, combine, seeds, "at work")


def _of_time(answer: PredictAnswer, method: Method, seeds: int) -> dict[str, Any]:
    timing = answer.time_model
    if answer.time is None or timing is None:
        raise ServiceError("no-explanation", f"prediction {answer.id} has no time to explain")
    parts, seconds = timing.parts, answer.time.seconds
    try:
        combine = explain_time.combine_of(timing.family, parts, seconds)
    except ModelError as error:
        raise ServiceError("no-explanation", error.detail) from error
    reference = messages.TimeModelReference(family=timing.family)
    told = _Subject(
        answer, "time", reference, seconds, lambda name: _about(name, parts[name], "time")
    )
    if method == "shap":
        shares = _largest_first(explain_time.shapley_values(parts, combine))
        return told.shap(0.0, shares, _binding(timing))
    return _lime_of_terms(told, parts, combine, seeds, "counts")


def _binding(timing: TimeModel) -> Mapping[str, float] | None:
    """Seconds that the launch would lose first were each part faster."""
    if timing.family != "bottleneck":
        return None
    on_top = {name: timing.parts[name] for name in explain_time.ON_TOP if name in timing.parts}
    inside = {name: part for name, part in timing.parts.items() if name not in on_top}
    return {**dict.fromkeys(timing.parts, 0.0), **resource_shares(inside), **on_top}


def _lime_of_terms(
    told: _Subject,
    terms: Mapping[str, float],
    combine: explain_time.Combine,
    seeds: int,
    works: str,
) -> dict[str, Any]:
    """LIME on terms that are there or left out."""
    run, agreed = _seeded(
        lambda seed: explain_time.lime_terms(terms, combine, seed=seed),
        lambda run: run.weights,
        seeds,
    )
    parts = (
        (name, weight, f"{name} {works if terms[name] else 'unused'}")
        for name, weight in _largest_first(run.weights)
    )
    return told.lime(run, (run.intercept, run.local_prediction), parts, agreed)


class _Local:
    """Trees of one quantity around one call, in watts or seconds, as LIME asks them."""

    def __init__(self, trees: operators.Trees, scale: float) -> None:
        self._trees, self._scale = trees, scale

    @property
    def background(self) -> explaining.Background:
        return self._trees.background

    def predict_watts(self, x: ArrayLike, /) -> NDArray[np.float64]:
        return np.exp(self._trees.score_inputs(np.asarray(x, dtype=np.float32))) * self._scale


def _of_operator(
    predictor: Predictor, answer: PredictAnswer, method: Method, target: Target, seeds: int
) -> dict[str, Any]:
    gpu = predictor.gpus.load(answer.gpu)
    figures = answer.operator
    assert figures is not None
    request = OperatorRequest.model_validate({"operator": figures.asked, "gpu": gpu.id})
    kind = asking.kind_of(request.operator)
    model = asking.model_of(predictor, kind, gpu, asking.recurs(request.operator))
    if target == "power":
        model = asking.power_model(predictor, kind, gpu, model)
    trees = model.trees(kind, target)
    estimate = answer.power if target == "power" else answer.time
    if trees is None or estimate is None:
        raise ServiceError("no-explanation", f"{answer.id} has no {target} to explain")
    options = OperatorOptions.model_validate({"framework": figures.framework})
    call = asking.columns(kind, model, [asking.Asked(request.operator, gpu, options)])
    around = model.corners(kind, call)
    board = predictor.operators.board(gpu)
    near, _ = features(kind, around.call, board)
    fields = {field.name: field for field in operator_schema().fields}

    def about(name: str) -> dict[str, Any]:
        field = fields[name]
        return {
            "value": answer.features[name],
            "meaning": f"{field.description} ({field.unit})",
            "changeable": field.changeable,
        }

    amount = float(getattr(estimate, UNITS[target]))
    reference: ModelReference | messages.TimeModelReference = power_models.reference_of(model.card)
    scale = model.limit_watts(board)  # what the exponential of the trees' answer is multiplied by
    if target == "time":
        reference = messages.TimeModelReference(family="operator")
        scale = amount / float(np.exp(around.weights @ trees.score(near)))
    told = _Subject(answer, target, reference, amount, about)
    if method == "shap":
        base_log, parts_log = trees.shap(near)
        shares = around.weights @ parts_log
        base, total = float(np.exp(base_log)) * scale, float(shares.sum())
        factor = (amount - base) / total if abs(total) > 1e-9 else 0.0
        amounts = {
            name: float(one) * factor for name, one in zip(trees.fitted.inputs, shares, strict=True)
        }
        return told.shap(base, _largest_first(amounts))
    nearest = near[int(around.weights.argmax())][trees.at]
    return _lime_of_trees(_Local(trees, scale), nearest, seeds, lambda run: (1.0, told))


def _seeded(
    make: Callable[[int], T], weights: Callable[[T], Mapping[str, float]], seeds: int
) -> tuple[T, explaining.Stability | None]:
    """The run of the first seed, and how far those of others agree with it."""
    runs = [make(seed) for seed in range(seeds)]
    return runs[0], explaining.stability([weights(run) for run in runs]) if seeds > 1 else None


def _largest_first(weights: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(weights.items(), key=lambda part: -abs(part[1]))
