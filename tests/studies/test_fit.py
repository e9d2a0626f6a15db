"""Training writes artifacts that load, the same every time; scores reach what they must."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from studies.card_tables import feature_table, interval_table, score_table
from studies.fitting.trees.boosted import Plan, train
from studies.fitting.trees.compact import compact, save_compact
from studies.fitting.trees.tables import THESIS_FILES, training_table
from studies.fitting.trees.train import main
from tests.needs import needs_data
from wattcast.features.errors import DataError, ModelError
from wattcast.models.cards import ModelCard, sha256_of
from wattcast.models.store import PACKAGED_ARTIFACTS, ArtifactStore
from wattcast.training.families import FAMILIES, Xgboost, get_family, library_versions
from wattcast.training.provenance import summarise

QUICK = Plan(assignments=1, nested_seeds=(0,), jobs=1)


@needs_data
def test_training_twice_gives_the_same_model_and_the_same_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")  # 2026-01-01
    few_trees = {**FAMILIES["xgboost"].hyperparameters, "n_estimators": 20}
    monkeypatch.setattr(Xgboost, "hyperparameters", few_trees)
    said: list[str] = []
    cards = [
        train(["tesla-v100"], ["xgboost"], tmp_path / name, said.append, plan=QUICK)[0]
        for name in ("one", "two")
    ]
    assert cards[0] == cards[1]
    assert cards[0].created.isoformat() == "2026-01-01"
    assert any("nested folds" in line for line in said)


@needs_data
@pytest.mark.parametrize("name", FAMILIES)
def test_the_packaged_files_come_from_this_code(name: str, tmp_path: Path) -> None:
    packaged = ArtifactStore().find("tesla-v100", "power", name, "alavani2023")
    table = training_table("tesla-v100")
    if packaged.card.sources[0].used_sha256 != table.clean.sha256:
        pytest.skip("the artifact was trained on another copy of the upstream file")
    family, rows = get_family(name), table.rows["as_recomputed"]
    model = family.fit(rows.vectors, rows.watts)
    save_compact(family, model, tmp_path, rows.vectors.shape[1])
    if packaged.card.libraries == library_versions((family.library,)):
        for path in tmp_path.iterdir():
            assert sha256_of(path) == packaged.card.files[path.name], path.name


@needs_data
def test_a_wrong_request_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="unknown family 'forest'"):
        train(["tesla-k20"], ["forest"], tmp_path)
    with pytest.raises(ModelError, match="no family"):
        train(["tesla-k20"], [], tmp_path)
    with pytest.raises(DataError, match="no thesis rows for 'gtx-1050'"):
        train(["gtx-1050"], ["xgboost"], tmp_path)


def test_the_report_prints_every_card(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--report"]) == 0
    text = capsys.readouterr().out
    for gpu in THESIS_FILES:
        for family in ("xgboost", "catboost", "average"):
            assert text.count(f"| {gpu} | {family} |") == 1 + 4 + 3  # summary, scores, intervals


def _card() -> ModelCard:
    path = PACKAGED_ARTIFACTS / "tesla-m60" / "power" / "average-alavani2023-thesis" / "1"
    return ModelCard.model_validate_json((path / "card.json").read_bytes())


def test_tables_quote_the_card() -> None:
    card = _card()
    mae = card.score("as_recomputed", "grouped").model["mae_watts"]
    baseline = card.score("as_recomputed", "grouped").baseline["mae_watts"]
    cell = f"| {mae.mean:.2f} ± {mae.std:.2f} ({baseline.mean:.2f}) |"
    assert cell in score_table([card])
    width = card.intervals.unseen_kernel
    assert str(width) in interval_table([card])
    assert "| reg_thread |" in feature_table(card)


def _points(count: int = 300, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return np.column_stack(
        [generator.integers(0, 50, count), generator.random(count), generator.normal(0, 1e6, count)]
    ).astype(np.float32)


@pytest.mark.parametrize("name", FAMILIES)
def test_missing_values_go_the_same_way_in_both_files(name: str, tmp_path: Path) -> None:
    import onnxruntime

    family = get_family(name)
    vectors = _points().astype(float)
    watts = 50 + vectors[:, 0] + 10 * vectors[:, 1]
    vectors[::4, 1] = np.nan
    model = family.fit(vectors, watts)
    family.save(model, tmp_path, 3)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    rows = vectors.astype(np.float32)
    found = session.run(None, {session.get_inputs()[0].name: rows})[0].reshape(-1)
    assert np.abs(found - family.predict(model, rows)).max() <= 0.001


def test_compacting_changes_no_prediction_and_saves_space(tmp_path: Path) -> None:
    import onnxruntime

    family = get_family("catboost")
    vectors = _points().astype(float)
    model = family.fit(vectors, 50 + vectors[:, 0])
    plain, small = tmp_path / "plain.onnx", tmp_path / "small.onnx"
    for path in (plain, small):
        model.save_model(str(path), format="onnx")
    compact(small)
    assert small.stat().st_size < plain.stat().st_size / 2
    rows = _points(seed=4)
    answers = []
    for path in (plain, small):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # the plain export warns of its output shape
        session = onnxruntime.InferenceSession(str(path), options)
        answers.append(session.run(None, {"features": rows})[0].reshape(-1))
    np.testing.assert_array_equal(answers[0], answers[1])
    compact(small)  # and once more finds nothing to do
    assert onnx.load(small).graph.node[0].op_type == "TreeEnsembleRegressor"


def test_only_one_tree_ensemble_is_compacted(tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "g", [value], [out])
    onnx.save(helper.make_model(graph), tmp_path / "abs.onnx")
    with pytest.raises(ValueError, match="0 tree ensembles"):
        compact(tmp_path / "abs.onnx")


def test_summary_keeps_shape_and_correlation_without_rows() -> None:
    generator = np.random.default_rng(2)
    x = generator.normal(0, 1, 2000)
    vectors = np.column_stack([x, -3 * x + 0.1 * generator.normal(0, 1, 2000), np.full(2000, 7.0)])
    vectors[0, 0] = np.nan
    background = summarise(vectors, ["a", "b", "constant"])
    points = background.matrix()
    assert np.corrcoef(points[:, 0], points[:, 1])[0, 1] < -0.9
    assert set(points[:, 2].tolist()) == {7.0}
    assert [part.count for part in background.features[2].bins] == [2000]
    assert sum(part.count for part in background.features[0].bins) == 1999
    assert summarise(vectors, ["a", "b", "constant"]) == background
    assert not {tuple(p) for p in points} & {tuple(v) for v in vectors.astype(np.float32)}
