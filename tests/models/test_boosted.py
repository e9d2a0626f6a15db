"""The packaged power models: ONNX equals native, SHAP adds up, inputs are checked."""

from __future__ import annotations

import numpy as np
import pytest

from studies.fitting.trees.tables import training_table
from tests.needs import needs_data
from wattcast.features.errors import ModelError
from wattcast.features.schemas import get_schema
from wattcast.models.intervals import Estimate
from wattcast.models.power import BOOSTED_FAMILIES
from wattcast.models.power.boosted import LAUNCH_FEATURES, BoostedPowerModel
from wattcast.models.store import ArtifactStore

GPUS = ("tesla-k20", "tesla-m60", "tesla-v100")
STORE = ArtifactStore()
CARDS = [card for card in STORE.list() if card.family in BOOSTED_FAMILIES]
THESIS_CARDS = [card for card in CARDS if card.source == "thesis"]


def load(gpu: str, family: str) -> BoostedPowerModel:
    return BoostedPowerModel(STORE.find(gpu, "power", family, "alavani2023"))


def test_every_packaged_artifact_passes_its_checks() -> None:
    assert STORE.problems() == ()
    found = {(card.gpu, card.family) for card in STORE.list()}
    assert found >= {(gpu, family) for gpu in GPUS for family in BOOSTED_FAMILIES}


def test_cards_name_the_inputs_of_the_schema() -> None:
    for card in CARDS:
        schema = get_schema(card.feature_schema.id)
        launch = LAUNCH_FEATURES if card.family == "extratrees" else ()
        assert card.feature_names == (*schema.model_fields, *launch)


def test_cards_state_what_the_intervals_hold() -> None:
    for card in THESIS_CARDS:
        unseen, seen = card.intervals.unseen_kernel, card.intervals.seen_kernel
        assert unseen.coverage is not None
        assert seen.coverage is not None
        assert unseen.coverage.kernels >= 0.85
        assert 0.87 <= seen.coverage.rows <= 0.93
        assert unseen.coverage.mean_width_watts > 2 * seen.coverage.mean_width_watts


@needs_data
@pytest.mark.parametrize("gpu", GPUS)
def test_the_cards_describe_the_data_at_hand(gpu: str) -> None:
    table = training_table(gpu)
    card = load(gpu, "xgboost").card
    if card.sources[0].used_sha256 != table.clean.sha256:
        pytest.skip("the artifact was trained on another copy of the upstream file")
    assert card.training == table.facts
    assert card.features == table.features
    # Nothing in the rows the model was fitted on lies outside the range the card states.
    outside = load(gpu, "xgboost").outside_training_range(table.rows["as_recomputed"].vectors)
    assert not any(outside)


def native_watts(model: BoostedPowerModel, vectors: np.ndarray) -> np.ndarray:
    """As ``predict_watts``, by the libraries that trained the model."""
    each = [one.native.score(vectors.astype(np.float32)) for one in model._singles]
    return model.card.watts_factor * np.mean(each, axis=0)


def _points(gpu: str, family: str = "xgboost") -> np.ndarray:
    """Synthetic points of a family's own inputs; an average has its members' (and no file)."""
    return load(gpu, "xgboost" if family == "average" else family).background.matrix()


@pytest.mark.parametrize("family", BOOSTED_FAMILIES)
@pytest.mark.parametrize("gpu", GPUS)
def test_onnx_equals_native_between_the_training_rows(gpu: str, family: str) -> None:
    model, points = load(gpu, family), _points(gpu, family)
    assert np.abs(model.predict_watts(points) - native_watts(model, points)).max() <= 0.001


@pytest.mark.parametrize("family", BOOSTED_FAMILIES)
@pytest.mark.parametrize("gpu", GPUS)
def test_shap_sums_to_the_prediction(gpu: str, family: str) -> None:
    model, points = load(gpu, family), _points(gpu, family)[:25]
    base, contributions = model.shap(points)
    assert contributions.shape == points.shape
    total = base + contributions.sum(axis=1)
    # XGBoost adds a forest's shares in single precision: 5e-5 of the power at most.
    np.testing.assert_allclose(total, model.predict_watts(points), rtol=5e-5, atol=0.001)


def test_an_estimate_says_what_it_rests_on() -> None:
    model = load("tesla-k20", "average")
    inside = model.background.matrix()[0]
    found = model.estimate(inside)
    assert isinstance(found, Estimate)
    assert found.basis == "unseen_kernel"
    assert found.value == pytest.approx(float(model.predict_watts([inside])[0]))
    assert found.low >= model.card.intervals.floor_watts

    beyond = inside.copy()
    beyond[model.card.feature_names.index("cache_penalty")] = 1e30
    assert model.outside_training_range([inside, beyond]) == ((), ("cache_penalty",))
    far = model.estimate(beyond)
    assert far.basis == "extrapolated"
    assert far.high / far.value > found.high / found.value


def test_alternatives_widen_the_interval_and_keep_the_value() -> None:
    model = load("tesla-k20", "xgboost")
    points = model.background.matrix()
    alone = model.estimate(points[0])
    several = model.estimate(points[0], points[1:20])
    assert several.value == alone.value
    assert several.low == min(model.estimate(point).low for point in points[:20])
    assert several.high == max(model.estimate(point).high for point in points[:20])
    with pytest.raises(ModelError, match="one vector"):
        model.estimate(points[:2])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_training_never_had_is_refused(bad: float) -> None:
    model = load("tesla-k20", "catboost")
    point = model.background.matrix()[:1].copy()
    point[0, model.card.feature_names.index("occupancy")] = bad
    for call in (model.predict_watts, model.shap):
        with pytest.raises(ModelError, match="feature occupancy is") as caught:
            call(point)
        assert caught.value.context["field"] == "occupancy"


@pytest.mark.parametrize("shape", [(15,), (1, 14), (2, 16), (1, 1, 15)])
def test_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=r"vectors must be \[n, 15\]"):
        load("tesla-k20", "average").predict_watts(np.zeros(shape))


@needs_data
@pytest.mark.parametrize("gpu", GPUS)
def test_no_training_row_is_among_the_synthetic_points(gpu: str) -> None:
    rows = training_table(gpu).rows["as_recomputed"].vectors
    known = {tuple(row) for row in rows.astype(np.float32)}
    assert not known & {tuple(point) for point in load(gpu, "average").background.matrix()}
