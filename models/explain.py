"""Why a model predicts what it does: exact SHAP contributions and a local linear model (LIME).

SHAP (S. Lundberg and S.-I. Lee, 2017; exact for trees: Lundberg et al., 2020) splits a
prediction into one share per feature; base and shares sum to it. LIME (M. T. Ribeiro, S. Singh
and C. Guestrin, 2016) asks which quartile of each feature matters around the prediction: it fits
a linear model on perturbed vectors, so its weights are approximate and ``r_squared`` says
how well they describe the model there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from statistics import fmean, pstdev
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from wattcast.features.checked import Frozen
from wattcast.features.errors import ModelError

# Background statistics kept with a model: what LIME perturbs within and SHAP compares to.
#
# Statistics and synthetic points only. The licence of the training data does not allow its rows
# to be handed on, so no row of it is stored.

BACKGROUND_NAME = "background.json"


class Bin(Frozen):
    """Training values that fall into one quartile bin of a feature (LIME's discretisation)."""

    index: int = Field(ge=0, le=3)
    count: int = Field(ge=1)
    mean: float
    std: float = Field(ge=0)
    minimum: float
    maximum: float


class FeatureStatistics(Frozen):
    """One feature over the training rows, missing values left out.

    ``quantiles`` are those at 0, 5, ... 100 %; ``bins`` those between the quartiles.
    """

    name: str
    mean: float
    std: float = Field(ge=0)
    quantiles: tuple[float, ...] = Field(min_length=21, max_length=21)
    bins: tuple[Bin, ...] = Field(min_length=1)

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """The 25, 50 and 75 % quantiles: edges of the bins."""
        return self.quantiles[5], self.quantiles[10], self.quantiles[15]


class Background(Frozen):
    """Statistics of all features and synthetic points drawn from them.

    ``points`` ``[n, k]`` come from a Gaussian copula with the training rows' rank
    correlation, mapped onto each feature's quantiles and rounded: no training row.
    """

    features: tuple[FeatureStatistics, ...] = Field(min_length=1)
    points: tuple[tuple[float, ...], ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _rectangular(self) -> Background:
        if any(len(point) != len(self.features) for point in self.points):
            raise ValueError("a point has another length than there are features")
        return self

    def matrix(self) -> NDArray[np.float32]:
        """Synthetic points as ``[n, k]``, in the order of ``features``."""
        return np.array(self.points, dtype=np.float32)


LIME_SAMPLES = 3000
"""Perturbed vectors of one LIME explanation: what fits its 100 ms (docs/design.md, budgets)."""

_LEAST_WIDTH = 1e-9
"""Relative width given to a bin that holds a single value: lime divides by its spread."""


class ShapModel(Protocol):
    """What SHAP needs of a model: base watts and contributions ``[n, k]`` of vectors ``[n, k]``."""

    def shap(self, x: ArrayLike, /) -> tuple[float, NDArray[np.float64]]: ...


class LimeModel(Protocol):
    """What LIME needs of a model: watts ``[n]`` of vectors ``[n, k]``, and its background."""

    @property
    def background(self) -> Background: ...

    def predict_watts(self, x: ArrayLike, /) -> NDArray[np.float64]: ...


class Contribution(NamedTuple):
    """A feature's share of the prediction in watts; ``value`` NaN is a missing one."""

    feature: str
    value: float
    watts: float


@dataclass(frozen=True, slots=True)
class ShapExplanation:
    """``base_watts`` plus all contributions is ``prediction_watts``; largest first."""

    base_watts: float
    prediction_watts: float
    contributions: tuple[Contribution, ...]


class LimeWeight(NamedTuple):
    """What it adds in watts, locally, that a feature meets ``condition``.

    ``condition`` is the quartile bin the value lies in (``120.00 < waves <= 300.00``), or
    ``waves is missing``, which lime cannot perturb: its weight is 0.
    """

    feature: str
    value: float
    condition: str
    watts: float


@dataclass(frozen=True, slots=True)
class LimeExplanation:
    """A local linear model: ``intercept_watts`` plus all weights is ``local_prediction_watts``.

    ``prediction_watts`` is the model's own answer, ``r_squared`` the share of its variance over
    the ``samples`` perturbed vectors (weighted by nearness) that the linear model explains.
    """

    intercept_watts: float
    local_prediction_watts: float
    prediction_watts: float
    r_squared: float
    samples: int
    seed: int
    weights: tuple[LimeWeight, ...]


def explain_shap(model: ShapModel, feature_names: Sequence[str], x: ArrayLike) -> ShapExplanation:
    """Exact contributions to the prediction for one vector ``[k]``, named in its order.

    Raises ModelError for a vector of another length, and whatever the model refuses.
    """
    vector = _vector(x, len(feature_names))
    base, parts = model.shap(vector.reshape(1, -1))
    watts = np.asarray(parts, dtype=np.float64)[0]
    contributions = [
        Contribution(name, float(value), float(share))
        for name, value, share in zip(feature_names, vector, watts, strict=True)
    ]
    return ShapExplanation(
        base_watts=float(base),
        prediction_watts=float(base) + float(watts.sum()),
        contributions=tuple(sorted(contributions, key=lambda part: -abs(part.watts))),
    )


def explain_lime(
    model: LimeModel, x: ArrayLike, *, samples: int = LIME_SAMPLES, seed: int = 0
) -> LimeExplanation:
    """A local linear model around one vector ``[k]``, by the ``lime`` library.

    Perturbed vectors come from the background statistics kept with the model and are scored in
    one batch. The same vector, model and seed give the same explanation.
    Raises ModelError for a vector of another length or fewer than 10 samples.
    """
    # lime brings scikit-learn and matplotlib: two seconds nobody pays who does not ask for it.
    from lime.lime_tabular import LimeTabularExplainer

    if samples < 10:
        raise ModelError(f"{samples} samples are too few for a local model; at least 10")
    background = model.background
    names = [feature.name for feature in background.features]
    vector = _vector(x, len(names))
    missing = np.isnan(vector)

    def watts_of(perturbed: NDArray[Any]) -> NDArray[np.float64]:
        vectors = perturbed.astype(np.float32)
        vectors[:, missing] = np.nan
        return np.asarray(model.predict_watts(vectors), dtype=np.float64)

    statistics = _lime_statistics(background)
    # The training data themselves are not kept; lime takes only their width from this.
    stand_in = np.array([[feature.mean for feature in background.features]])
    explainer = LimeTabularExplainer(
        stand_in,
        mode="regression",
        feature_names=names,
        training_data_stats=statistics,
        feature_selection="none",
        random_state=seed,
    )
    explainer.discretizer.get_undiscretize_values = _sampler(statistics, explainer.random_state)
    # A missing value has no bin; any number stands in, since `watts_of` puts the gap back.
    row = np.where(missing, stand_in[0], vector).astype(np.float64)
    with _blas().limit(limits=1, user_api="blas"):
        found = explainer.explain_instance(
            row, watts_of, num_features=len(names), num_samples=samples
        )
    fitted = {int(at): float(watts) for at, watts in found.local_exp[1]}
    # With the model blind to them, what these features got is noise of the fit.
    noise = sum(fitted[int(at)] for at in np.flatnonzero(missing))
    conditions = found.domain_mapper.discretized_feature_names
    weights = [
        LimeWeight(
            name,
            float(vector[at]),
            f"{name} is missing" if missing[at] else conditions[at],
            0.0 if missing[at] else fitted[at],
        )
        for at, name in enumerate(names)
    ]
    return LimeExplanation(
        intercept_watts=float(found.intercept[1]) + noise,
        local_prediction_watts=float(np.ravel(found.local_pred)[0]),
        prediction_watts=float(found.predicted_value),
        r_squared=float(found.score),
        samples=samples,
        seed=seed,
        weights=tuple(sorted(weights, key=lambda part: -abs(part.watts))),
    )


@cache
def _blas() -> Any:
    """What sets the threads of BLAS, once lime has brought it.

    lime's fit multiplies a matrix of a few thousand rows by twenty columns: handing that to
    several threads takes longer than doing it, and on a busy machine many times longer.
    """
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _sampler(
    statistics: dict[str, dict[int, list[float]]], random: np.random.RandomState
) -> Callable[[int, NDArray[np.int64]], NDArray[np.float64]]:
    """Draws a value of a feature for each bin index: a normal cut off at the bin's bounds.

    The distribution is lime's own; drawn by inverting the cumulative normal, which takes a tenth
    of the time of the general routine lime calls.
    """
    # scipy comes with lime and ships no types.
    from scipy.special import ndtr, ndtri

    def draw(feature: int, bins: NDArray[np.int64]) -> NDArray[np.float64]:
        mean, std, low, high = (
            np.array(statistics[key][feature])[bins] for key in ("means", "stds", "mins", "maxs")
        )
        below, above = ndtr((low - mean) / std), ndtr((high - mean) / std)
        z = ndtri(below + random.random_sample(len(bins)) * (above - below))
        return np.asarray(np.clip(mean + std * z, low, high))

    return draw


def _vector(x: ArrayLike, width: int) -> NDArray[np.float32]:
    vector = np.asarray(x, dtype=np.float32)
    if vector.shape != (width,):
        raise ModelError(f"one vector [{width}] is explained at a time, not {list(vector.shape)}")
    return vector


def _lime_statistics(background: Background) -> dict[str, dict[int, list[float]]]:
    """``training_data_stats`` of ``LimeTabularExplainer``, made safe for lime's two assumptions.

    lime looks means and bounds up by bin index, so a bin without rows must keep its place, and
    it divides by a bin's spread, so a bin of one value gets a little of it.
    """
    names = ("means", "stds", "mins", "maxs", "feature_values", "feature_frequencies", "bins")
    statistics: dict[str, dict[int, list[float]]] = {name: {} for name in names}
    for at, feature in enumerate(background.features):
        present = {part.index: part for part in feature.bins}
        # An absent bin is never drawn: its frequency is not listed.
        parts = [present.get(index, feature.bins[0]) for index in range(max(present) + 1)]
        least = [_LEAST_WIDTH * max(1.0, abs(one.minimum), abs(one.maximum)) for one in parts]
        widened = list(zip(parts, least, strict=True))
        statistics["means"][at] = [one.mean for one in parts]
        statistics["stds"][at] = [max(one.std, width) for one, width in widened]
        statistics["mins"][at] = [one.minimum for one in parts]
        statistics["maxs"][at] = [max(one.maximum, one.minimum + width) for one, width in widened]
        statistics["feature_values"][at] = [float(part.index) for part in feature.bins]
        statistics["feature_frequencies"][at] = [float(part.count) for part in feature.bins]
        statistics["bins"][at] = sorted(set(feature.quartiles))
    return statistics


# --- how far an explanation made with chance says the same again with another seed ------------
# Index of selection: Visani, Bagli, Chesani, Poluzzi and Capuzzo, Statistical stability indices for
# LIME, Journal of the Operational Research Society 73 (2022), their Variables Stability Index.


TOP = 5
"""Features that count as the strongest."""


@dataclass(frozen=True, slots=True)
class Stability:
    """Agreement of several explanations of one prediction.

    ``selection``: share of the ``top`` strongest features that two runs have in common, mean over
    all pairs. ``sign_agreement``: over features among the strongest of any run, the share of runs
    that give the sign most of them give. ``spread``: standard deviation of each feature's weight,
    in its unit.
    """

    seeds: int
    top: int
    selection: float
    sign_agreement: float
    spread: Mapping[str, float]


def stability(runs: Sequence[Mapping[str, float]], top: int = TOP) -> Stability:
    """Stability of ``runs``: weights by feature, one mapping for each seed.

    Raises ModelError for fewer than two runs.
    """
    if len(runs) < 2:
        raise ModelError("stability needs at least two seeds")
    chosen = [strongest(run, top) for run in runs]
    common = [
        len(one & other) / max(len(one), len(other), 1) for one, other in combinations(chosen, 2)
    ]
    signs = []
    for name in set().union(*chosen):
        positive = sum(run.get(name, 0.0) > 0 for run in runs)
        negative = sum(run.get(name, 0.0) < 0 for run in runs)
        signs.append(max(positive, negative) / len(runs))
    spread = {name: pstdev([run.get(name, 0.0) for run in runs]) for name in runs[0]}
    return Stability(len(runs), top, fmean(common), fmean(signs) if signs else 1.0, spread)


def strongest(weights: Mapping[str, float], top: int = TOP) -> frozenset[str]:
    """The features of largest absolute weight, without those of none."""
    ordered = sorted(weights, key=lambda name: -abs(weights[name]))
    return frozenset(name for name in ordered[:top] if weights[name])
