"""How each time model makes a time of its parts, and what each part adds to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import factorial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattcast.features.checked import Strict, Text, checked, read_toml
from wattcast.features.errors import ModelError
from wattcast.features.schemas import get_schema
from wattcast.models.clocks import HELD_BACK
from wattcast.models.time.base import TIME_MODELS, get_time_model
from wattcast.models.time.calibration import PART as CALIBRATION

# --- explanations of models that combine named terms: seconds of resources, watts of components
# What a term adds is asked by leaving it out: a term that is out counts as nothing. The Shapley
# value (L. S. Shapley, 1953) is the mean of what a term adds over all orders in which terms can be
# put in; with the few terms of these models it is worked out exactly from all subsets. LIME (M. T.
# Ribeiro, S. Singh and C. Guestrin, 2016, section 3.2) fits a weighted linear model to subsets: to
# all of them where they are few, else to some drawn at random.


Floats = NDArray[np.float64]

Combine = Callable[[Mapping[str, Floats]], Floats]
"""The model: values ``[n]`` from terms ``[n]`` by name; a term that is out is 0."""

MOST_TERMS = 16
"""Terms of which every subset is looked at: 65,536 subsets, some ten milliseconds."""

TERM_SAMPLES = 4096
"""Subsets of one LIME explanation: all of up to 12 terms, so that chance plays no part there."""

KERNEL_WIDTH = 0.5
"""Nearness of a subset is exp(-d^2 / width^2), with d the share of terms that are out: without a
quarter of them it counts 0.78, without half 0.37."""


@dataclass(frozen=True, slots=True)
class TermWeights:
    """A local linear model of terms: ``intercept`` plus all weights is ``local_prediction``.

    ``r_squared`` is the share of the model's variance over the subsets, weighted by nearness, that
    it explains.
    """

    weights: Mapping[str, float]
    intercept: float
    local_prediction: float
    r_squared: float
    samples: int
    seed: int


def shapley_values(terms: Mapping[str, float], combine: Combine) -> dict[str, float]:
    """What each term adds, exactly: with ``combine`` of nothing they sum to that of all.

    A term that is 0 adds nothing. Raises ModelError for more than ``MOST_TERMS`` others.
    """
    used = [name for name, value in terms.items() if value]
    count = len(used)
    if count > MOST_TERMS:
        raise ModelError(f"{count} terms are too many for exact Shapley values")
    subsets = np.arange(1 << count)
    inside = (subsets[:, None] >> np.arange(count)) & 1 == 1
    values = combine(_masked(terms, used, inside))
    sizes = inside.sum(axis=1)
    orders = np.array(
        [factorial(size) * factorial(count - size - 1) for size in range(count)] or [1], dtype=float
    ) / factorial(count)
    found = dict.fromkeys(terms, 0.0)
    for at, name in enumerate(used):
        without = subsets[~inside[:, at]]
        added = values[without | (1 << at)] - values[without]
        found[name] = float((orders[sizes[without]] * added).sum())
    return found


def lime_terms(
    terms: Mapping[str, float],
    combine: Combine,
    *,
    samples: int = TERM_SAMPLES,
    seed: int = 0,
) -> TermWeights:
    """A local linear model of the terms that are not 0. The same seed gives the same weights.

    Raises ModelError for fewer than 10 samples.
    """
    # lime brings scikit-learn: nobody pays for it who does not ask.
    from lime.lime_base import LimeBase
    from sklearn.linear_model import LinearRegression

    if samples < 10:
        raise ModelError(f"{samples} samples are too few for a local model; at least 10")
    used = [name for name, value in terms.items() if value]
    random = np.random.RandomState(seed)
    if 1 << len(used) <= samples:
        samples = 1 << len(used)
        inside = (np.arange(samples)[::-1, None] >> np.arange(len(used))) & 1 == 1
    else:
        inside = random.random_sample((samples, len(used))) < 0.5
    inside[0] = True  # the prediction itself: lime takes it from the first row
    values = combine(_masked(terms, used, inside))
    out = 1.0 - inside.mean(axis=1) if used else np.zeros(samples)
    base = LimeBase(lambda distance: np.exp(-((distance / KERNEL_WIDTH) ** 2)), random_state=random)
    # lime's own ridge would give the weakest terms a sign for no reason where subsets are few.
    intercept, fitted, score, local = base.explain_instance_with_data(
        inside.astype(float),
        values.reshape(-1, 1),
        out,
        0,
        max(1, len(used)),
        feature_selection="none",
        model_regressor=LinearRegression(),
    )
    weights = dict.fromkeys(terms, 0.0)
    for at, weight in fitted:
        weights[used[int(at)]] = float(weight)
    return TermWeights(
        weights=weights,
        intercept=float(intercept),
        local_prediction=float(np.ravel(local)[0]),
        r_squared=float(score),
        samples=samples,
        seed=seed,
    )


def _masked(
    terms: Mapping[str, float], used: list[str], inside: NDArray[np.bool_]
) -> dict[str, Floats]:
    columns = {name: np.zeros(len(inside)) for name in terms}
    for at, name in enumerate(used):
        columns[name] = np.where(inside[:, at], terms[name], 0.0)
    return columns


# --- how each time model makes a time of its parts, and what each part adds to it -------------


ON_TOP = ("launch", CALIBRATION, "known", HELD_BACK)
"""Parts that every model adds to what the others come to: starting the launch, and corrections by
launches measured on the board and by ones of the very kernel."""

TOLERANCE = 1e-6
"""How far the parts may come from the prediction, relative: rounding of sums."""


def combine_of(family: str, parts: Mapping[str, float], seconds: float) -> Combine:
    """How ``parts`` make ``seconds``, as a function of any of them left out.

    Raises ModelError for a model whose form is not known here, or whose parts do not make up the
    prediction.
    """
    if family not in TIME_MODELS:
        raise ModelError(f"how {family} makes its time of its parts is not known")
    form = get_time_model(family).combined

    def combine(given: Mapping[str, Floats]) -> Floats:
        own = {name: part for name, part in given.items() if name not in ON_TOP}
        return form(own) + sum(given[name] for name in ON_TOP if name in given)

    made = float(combine({name: np.array([part]) for name, part in parts.items()})[0])
    if abs(made - seconds) > TOLERANCE * seconds:
        raise ModelError(f"the parts of {family} make {made:g} s, not the predicted {seconds:g} s")
    return combine


# What the parts of an explanation mean, in plain sentences, and what a programmer can change.
#
# ``meaning_of`` answers for features of the published schemas, components of power and resources of
# the time models alike.


class Meaning(NamedTuple):
    """A sentence that says what it is, and how the programmer changes it (``None``: cannot)."""

    sentence: str
    change: str | None

    @property
    def changeable(self) -> bool:
        """Whether the programmer can change it."""
        return self.change is not None


_CODE = "change the kernel's code"


class Words(Strict):
    """What a part is, in the middle of a sentence, and how to change it."""

    what: Text
    change: Text | None = None


class _Tables(Strict):
    features: Mapping[str, Words]
    components: Mapping[str, Words]
    resources: Mapping[str, Words]


_FILE = Path(__file__).with_name("explain_words.toml")
_TABLES = checked(_Tables, read_toml(_FILE), _FILE.name)
FEATURES, COMPONENTS, RESOURCES = _TABLES.features, _TABLES.components, _TABLES.resources


def meaning_of(name: str, target: str, schema_id: str | None = None) -> Meaning:
    """What a part of an explanation of ``power`` or ``time`` means.

    ``schema_id`` is that of a model on features; their schemas tell what is not listed here.
    """
    if schema_id is not None and name in FEATURES:
        return _sentence(FEATURES[name].what, FEATURES[name].change)
    if schema_id is not None:
        for field in get_schema(schema_id).fields:
            if field.name == name:
                described = field.description[:1].lower() + field.description[1:]
                return _sentence(described, _CODE if field.changeable else None)
    known = (RESOURCES if target == "time" else COMPONENTS).get(name)
    if known is None:
        return Meaning(f"{name.replace('_', ' ')}, a part of the model.", None)
    return _sentence(known.what, known.change)


def _sentence(what: str, change: str | None) -> Meaning:
    told = f"{what[:1].upper()}{what[1:]}. "
    if change is None:
        return Meaning(f"{told}The programmer cannot change it.", None)
    return Meaning(f"{told}The programmer can change it: {change}.", change)
