"""Shapley values and LIME of models that combine terms; stability; plain words."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from wattcast.features.errors import ModelError
from wattcast.features.schemas import get_schema
from wattcast.models.explain import stability, strongest
from wattcast.models.explain_time import (
    COMPONENTS,
    RESOURCES,
    combine_of,
    lime_terms,
    meaning_of,
    shapley_values,
)
from wattcast.models.power.physical import COMPONENTS as POWER_COMPONENTS
from wattcast.models.time.bottleneck import combined_seconds

Floats = NDArray[np.float64]

seconds = st.floats(0, 1e3).map(lambda value: 0.0 if value < 1e-6 else value)
parts_of_a_bottleneck = st.dictionaries(
    st.sampled_from(["dram", "l2", "fma", "alu", "sfu", "latency"]), seconds, min_size=1
)


def largest(parts: Mapping[str, Floats]) -> Floats:
    found: Floats = np.max(list(parts.values()), axis=0)
    return found


def test_shapley_values_of_the_larger_of_two_by_hand() -> None:
    """max(6, 2): alone 6 adds 6 or, after the other, 4: 5. 2 adds 2 or nothing: 1."""
    assert shapley_values({"a": 6.0, "b": 2.0, "c": 0.0}, largest) == pytest.approx(
        {"a": 5.0, "b": 1.0, "c": 0.0}
    )


@given(parts_of_a_bottleneck)
def test_shapley_values_sum_to_the_time_and_are_the_mean_over_all_orders(
    parts: dict[str, float],
) -> None:
    launch = {"launch": 2.5}
    whole = combined_seconds(parts) + 2.5
    combine = combine_of("bottleneck", {**parts, **launch}, whole)
    found = shapley_values({**parts, **launch}, combine)
    assert sum(found.values()) == pytest.approx(whole)
    assert found["launch"] == pytest.approx(2.5)
    if len(parts) <= 4:
        for name in parts:
            added = []
            for order in permutations(parts):
                before = dict.fromkeys(parts, 0.0)
                for other in order[: order.index(name)]:
                    before[other] = parts[other]
                after = {**before, name: parts[name]}
                added.append(combined_seconds(after) - combined_seconds(before))
            assert found[name] == pytest.approx(float(np.mean(added)), abs=1e-9 * whole)


def test_lime_of_a_sum_is_the_sum_and_agrees_in_sign_with_shapley_elsewhere() -> None:
    terms = {"idle": 30.0, "dram": 40.0, "fp32": 2.5, "tensor": 0.0}
    found = lime_terms(terms, lambda parts: np.sum(list(parts.values()), axis=0))
    assert dict(found.weights) == pytest.approx(terms)
    assert found.r_squared == pytest.approx(1)
    assert found.intercept + sum(found.weights.values()) == pytest.approx(found.local_prediction)
    bounds = {"dram": 5.0, "l2": 4.0, "fma": 3.0, "alu": 2.0, "latency": 1.0, "sfu": 0.5}
    combine = combine_of("bottleneck", bounds, combined_seconds(bounds))
    shares = shapley_values(bounds, combine)
    weights = lime_terms(bounds, combine).weights
    assert all(weights[name] * shares[name] > 0 for name in strongest(weights))


def test_lime_of_many_terms_draws_and_repeats_itself() -> None:
    terms = {f"term{number}": 1.0 + number for number in range(15)}

    def combine(parts: Mapping[str, Floats]) -> Floats:
        return largest(parts)

    first, same, other = (lime_terms(terms, combine, seed=seed) for seed in (3, 3, 4))
    assert first == same
    assert first.weights != other.weights
    with pytest.raises(ModelError, match="too few"):
        lime_terms(terms, combine, samples=5)
    with pytest.raises(ModelError, match="too many"):
        shapley_values({f"term{number}": 1.0 for number in range(17)}, combine)


def test_parts_that_do_not_make_the_prediction_are_refused() -> None:
    assert combine_of("scheduling", {"schedule": 2.0, "launch_overhead": 1.0}, 3.0)
    with pytest.raises(ModelError, match="not the predicted"):
        combine_of("scheduling", {"schedule": 2.0}, 3.0)
    with pytest.raises(ModelError, match="not known"):
        combine_of("oracle", {"schedule": 2.0}, 2.0)


def test_stability_by_hand() -> None:
    """Three runs, two strongest each: {a,b}, {a,b}, {a,c}: pairs share 1, .5, .5. a is positive
    in all, b in one of three, negative in two; c positive in all."""
    runs = [
        {"a": 5.0, "b": 2.0, "c": 1.0},
        {"a": 5.0, "b": -2.0, "c": 1.0},
        {"a": 5.0, "b": -1.0, "c": 2.0},
    ]
    found = stability(runs, top=2)
    assert found.selection == pytest.approx(2 / 3)
    assert found.sign_agreement == pytest.approx((1 + 2 / 3 + 1) / 3)
    assert found.spread["a"] == 0
    assert found.spread["b"] == pytest.approx(np.std([2, -2, -1]))
    assert strongest({"a": 0.0, "b": -1.0}) == {"b"}
    with pytest.raises(ModelError):
        stability(runs[:1])


def test_every_component_resource_and_feature_has_a_sentence() -> None:
    assert set(POWER_COMPONENTS) <= set(COMPONENTS)
    for schema in ("alavani2023", "powerquant2026", "powerquant2026r"):
        for field in get_schema(schema).fields:
            told = meaning_of(field.name, "power", schema)
            assert told.sentence.endswith(".")
            assert told.changeable == field.changeable, field.name
    for name in RESOURCES:
        assert "programmer" in meaning_of(name, "time").sentence
    assert not meaning_of("idle", "power").changeable
    assert meaning_of("fp64", "power").changeable
    assert meaning_of("few warps, short (13)", "time").sentence.startswith("few warps")
