"""Pooled extra trees: files that agree, no kernel known from another board, kept predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from studies.fitting.trees.pooled import (
    Part,
    as_booster,
    fit_pooled,
    grow,
    left_out,
    pooled_fit,
    save,
)
from wattcast.training.evaluation.scores import Rows


def _part(gpu: str = "tesla-k20", seed: int = 0, kernels: int = 8, shift: float = 0.0) -> Part:
    generator = np.random.default_rng(seed)
    groups = np.repeat([f"k{at:02d}" for at in range(kernels)], 12)
    vectors = np.column_stack(
        [
            np.repeat(np.arange(kernels), 12),
            generator.integers(0, 50, len(groups)),
            generator.normal(0, 1e6, len(groups)),
        ]
    ).astype(np.float32)
    watts = 60 + shift + 5 * vectors[:, 0] + vectors[:, 1]
    return Part(gpu, vectors.astype(float), watts.astype(float), groups)


def test_native_file_and_onnx_answer_what_the_forest_does(tmp_path: Path) -> None:
    import onnxruntime
    import xgboost

    part = _part()
    forest = fit_pooled(part, [])
    save(forest, tmp_path, 3)
    booster = xgboost.Booster(model_file=str(tmp_path / "model.ubj"))
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    for vectors in (part.vectors, _part(seed=5).vectors + 0.5):
        single = vectors.astype(np.float32)
        expected = forest.predict(single)
        native = booster.predict(xgboost.DMatrix(single))
        assert np.abs(native - expected).max() <= 0.001
        assert np.abs(session.run(None, {"features": single})[0].ravel() - native).max() <= 0.001
        parts = booster.predict(xgboost.DMatrix(single), pred_contribs=True)
        assert np.abs(parts.sum(axis=1) - native).max() <= 0.001


def test_thresholds_part_the_very_values_they_were_found_between() -> None:
    # Neighbouring single-precision values: a threshold rounded the wrong way swaps them.
    low = np.float32(1.0)
    values = np.array([low, np.nextafter(low, np.float32(2))], dtype=np.float32)
    vectors = np.repeat(values, 20).reshape(-1, 1)
    log_watts = np.repeat(np.log([50.0, 100.0]), 20)
    settings = {"n_estimators": 5, "random_state": 0}
    forest = grow(vectors, log_watts, np.ones(40), settings)
    import xgboost

    found = as_booster(forest, 1).predict(xgboost.DMatrix(vectors))
    np.testing.assert_allclose(found, forest.predict(vectors), atol=1e-4)


def test_a_kernel_left_out_is_left_out_of_every_gpu() -> None:
    own, peer = _part(), _part("tesla-m60", seed=1)
    rows = Rows.of(own.vectors, own.watts, own.groups)
    # On the other board the last kernel draws most absurdly: who sees it, answers so.
    hot = peer.groups == "k07"
    absurd = Part(peer.gpu, peer.vectors, np.where(hot, 149.0, peer.watts), peer.groups)
    train = np.flatnonzero(own.groups != "k07")
    test = np.flatnonzero(own.groups == "k07")
    nothing = rows.take(np.empty(0, dtype=np.int64))

    def answer(peers: list[Part]) -> np.ndarray:
        return pooled_fit(own, peers)(rows.take(train))(nothing, rows.take(test).hidden())

    np.testing.assert_array_equal(answer([absurd]), answer([peer]))
    assert left_out(np.unique(own.groups), own.groups[train]) == {"k07"}
