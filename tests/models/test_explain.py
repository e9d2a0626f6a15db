"""SHAP and LIME explanations: they add up, they repeat, and they point at what matters."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pytest
import xgboost
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray
from scipy.stats import truncnorm

from wattcast.features.errors import ModelError
from wattcast.models.explain import Background, Bin, LimeExplanation, explain_lime, explain_shap
from wattcast.training.provenance import summarise

NAMES = ("waves", "branch", "n_warps", "occupancy")


def made_up_rows() -> NDArray[np.float64]:
    generator = np.random.default_rng(7)
    return np.column_stack(
        [
            generator.gamma(2.0, 50.0, 400),
            generator.integers(0, 9, 400).astype(float),
            np.full(400, 32.0),  # constant: one bin, no spread
            np.where(generator.random(400) < 0.9, 1.0, 0.5),  # quartiles all the same
        ]
    )


class LinearModel:
    """20 + 0.3 waves - 2 branch: contributions are known exactly."""

    weights = np.array([0.3, -2.0, 0.0, 0.0])
    means = np.array([100.0, 4.0, 32.0, 1.0])

    @cached_property
    def background(self) -> Background:
        return summarise(made_up_rows(), NAMES)

    def predict_watts(self, x: ArrayLike) -> NDArray[np.float64]:
        return np.asarray(20.0 + np.nan_to_num(np.asarray(x, dtype=float)) @ self.weights)

    def shap(self, x: ArrayLike) -> tuple[float, NDArray[np.float64]]:
        base = float(20.0 + self.means @ self.weights)
        return base, (np.asarray(x, dtype=float) - self.means) * self.weights


class Watched(LinearModel):
    """Keeps what it was asked."""

    def __init__(self) -> None:
        self.seen: list[NDArray[np.float32]] = []

    def predict_watts(self, x: ArrayLike) -> NDArray[np.float64]:
        self.seen.append(np.asarray(x))
        return super().predict_watts(x)


class TreeModel:
    """A small XGBoost model on made-up rows, blind to the constant feature."""

    def __init__(self) -> None:
        rows = made_up_rows()
        watts = 40.0 + 30.0 * (rows[:, 0] > 90) + 1.5 * rows[:, 1]
        self.background = summarise(rows, NAMES)
        self._booster = xgboost.train(
            {"max_depth": 3, "eta": 0.3, "nthread": 1, "seed": 0},
            xgboost.DMatrix(rows.astype(np.float32), watts),
            num_boost_round=30,
        )

    def predict_watts(self, x: ArrayLike) -> NDArray[np.float64]:
        matrix = xgboost.DMatrix(np.asarray(x, dtype=np.float32), nthread=1)
        return np.asarray(self._booster.predict(matrix), dtype=np.float64)

    def shap(self, x: ArrayLike) -> tuple[float, NDArray[np.float64]]:
        matrix = xgboost.DMatrix(np.asarray(x, dtype=np.float32), nthread=1)
        parts = np.asarray(self._booster.predict(matrix, pred_contribs=True), dtype=np.float64)
        return float(parts[0, -1]), parts[:, :-1]


@pytest.fixture(scope="module")
def tree() -> TreeModel:
    return TreeModel()


VECTOR = np.array([150.0, 3.0, 32.0, 1.0])


# --- SHAP ---------------------------------------------------------------------------------


def test_shap_of_a_linear_model() -> None:
    """base 20 + 0.3 x 100 - 2 x 4 = 42; waves 0.3 x 50 = 15, branch -2 x -1 = 2: 59 W."""
    explained = explain_shap(LinearModel(), NAMES, VECTOR)
    assert explained.base_watts == pytest.approx(42)
    assert explained.prediction_watts == pytest.approx(59)
    assert [(c.feature, c.value) for c in explained.contributions[:2]] == [
        ("waves", 150.0),
        ("branch", 3.0),
    ]
    assert [c.watts for c in explained.contributions] == pytest.approx([15, 2, 0, 0])


@given(st.lists(st.floats(0, 500, width=32), min_size=4, max_size=4))
def test_shap_adds_up_to_the_prediction(tree: TreeModel, values: list[float]) -> None:
    explained = explain_shap(tree, NAMES, values)
    total = explained.base_watts + sum(c.watts for c in explained.contributions)
    assert total == pytest.approx(explained.prediction_watts, abs=1e-9)
    assert total == pytest.approx(float(tree.predict_watts([values])[0]), abs=1e-3)
    sizes = [abs(c.watts) for c in explained.contributions]
    assert sizes == sorted(sizes, reverse=True)
    assert {c.feature for c in explained.contributions} == set(NAMES)


# --- LIME ---------------------------------------------------------------------------------


def lime_sum(explained: LimeExplanation) -> float:
    return explained.intercept_watts + sum(weight.watts for weight in explained.weights)


def test_lime_finds_the_feature_that_matters(tree: TreeModel) -> None:
    explained = explain_lime(tree, VECTOR)
    first = explained.weights[0]
    assert first.feature == "waves"
    # waves 150 lies in the highest quartile, where the model adds 30 W over the lowest half
    quartile = tree.background.features[0].quartiles[2]
    assert first.condition == f"waves > {quartile:.2f}"
    assert 5 < first.watts < 30
    constant = next(w for w in explained.weights if w.feature == "n_warps")
    assert constant.watts == pytest.approx(0, abs=1e-9)
    assert 0.3 < explained.r_squared <= 1


def test_lime_adds_up_and_repeats(tree: TreeModel) -> None:
    explained = explain_lime(tree, VECTOR, samples=500, seed=3)
    assert lime_sum(explained) == pytest.approx(explained.local_prediction_watts, abs=1e-6)
    assert explained.prediction_watts == pytest.approx(float(tree.predict_watts([VECTOR])[0]))
    assert explain_lime(tree, VECTOR, samples=500, seed=3) == explained
    assert explain_lime(tree, VECTOR, samples=500, seed=4) != explained
    assert (explained.samples, explained.seed) == (500, 3)


def test_lime_scores_all_perturbed_vectors_in_one_batch() -> None:
    model = Watched()
    explain_lime(model, VECTOR, samples=800)
    (batch,) = model.seen
    assert batch.shape == (800, 4)
    assert batch.dtype == np.float32
    np.testing.assert_allclose(batch[0], VECTOR)  # the first is the vector itself
    rows = made_up_rows()
    assert batch[:, 0].min() >= rows[:, 0].min() - 1e-3
    assert batch[:, 0].max() <= rows[:, 0].max() + 1e-3
    np.testing.assert_allclose(batch[:, 2], 32.0, rtol=1e-6)  # one value in training: it stays


def test_perturbed_values_follow_a_normal_cut_off_at_each_bin() -> None:
    """Mean and spread in every quartile bin against scipy's truncated normal."""
    model = Watched()
    explain_lime(model, VECTOR, samples=20_000)
    values = model.seen[0][1:, 0].astype(float)
    feature = model.background.features[0]
    edges = np.array(feature.quartiles)
    for part in feature.bins:
        drawn = values[np.searchsorted(edges, values) == part.index]
        expected = truncnorm(
            (part.minimum - part.mean) / part.std,
            (part.maximum - part.mean) / part.std,
            loc=part.mean,
            scale=part.std,
        )
        assert len(drawn) == pytest.approx(5000, rel=0.1)
        assert drawn.mean() == pytest.approx(expected.mean(), abs=0.05 * part.std)
        assert drawn.std() == pytest.approx(expected.std(), rel=0.05)


def test_lime_leaves_a_missing_value_missing() -> None:
    model = Watched()
    explained = explain_lime(model, np.array([150.0, np.nan, 32.0, 1.0]), samples=400)
    assert np.isnan(model.seen[0][:, 1]).all()
    missing = next(w for w in explained.weights if w.feature == "branch")
    assert missing.watts == 0
    assert missing.condition == "branch is missing"
    assert np.isnan(missing.value)
    assert lime_sum(explained) == pytest.approx(explained.local_prediction_watts, abs=1e-6)


def test_a_bin_without_rows_keeps_its_place() -> None:
    """Values 0 and 100 only, and a quartile between them: the bin from 0 to 50 is empty."""
    model = Watched()
    first = model.background.features[0]
    low, high = (
        Bin(index=at, count=50, mean=value, std=0, minimum=value, maximum=value)
        for at, value in ((0, 0.0), (2, 100.0))
    )
    quantiles = tuple([0.0] * 10 + [50.0] + [100.0] * 10)
    gap = first.model_copy(update={"bins": (low, high), "quantiles": quantiles})
    model.background = model.background.model_copy(
        update={"features": (gap, *model.background.features[1:])}
    )
    explain_lime(model, np.array([100.0, 3.0, 32.0, 1.0]), samples=200)
    assert set(np.round(model.seen[0][:, 0], 3)) == {0.0, 100.0}


# --- what cannot be explained ----------------------------------------------------------------


@pytest.mark.parametrize("vector", [[1.0], [[1.0, 2.0, 3.0, 4.0]], []])
def test_a_vector_of_another_shape(vector: list[float]) -> None:
    with pytest.raises(ModelError, match=r"one vector \[4\]"):
        explain_shap(LinearModel(), NAMES, vector)
    with pytest.raises(ModelError, match=r"one vector \[4\]"):
        explain_lime(LinearModel(), vector)


def test_too_few_samples() -> None:
    with pytest.raises(ModelError, match="at least 10"):
        explain_lime(LinearModel(), VECTOR, samples=9)
