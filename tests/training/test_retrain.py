"""Retraining on measurements: a shift is learned and promoted, garbage is not, and it goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.uploaded import measured, order, packaged, uploads
from wattcast.features.errors import DataError, ModelError
from wattcast.models.power.boosted import BoostedPowerModel
from wattcast.models.store import ArtifactStore
from wattcast.training import boosted
from wattcast.training.boosted import FitTask, fit_predict, retrain
from wattcast.training.engine import Checkpoints, InProcess
from wattcast.training.evaluation.scores import Rows
from wattcast.training.families import FAMILIES
from wattcast.training.folds import board_factor
from wattcast.training.uploads import Candidate, Champion, Order

GPU = "tesla-k20"


@pytest.fixture(scope="module", autouse=True)
def few_more_trees() -> Iterator[None]:
    """A fit of little: what is tested here does not hang on how many trees are added."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boosted, "MORE_TREES", dict.fromkeys(boosted.MORE_TREES, 10))
        patch.setenv("SOURCE_DATE_EPOCH", "1767225600")
        yield


@pytest.fixture(scope="module")
def champion() -> Champion:
    return packaged()


def run(asked: Order, rows: Rows, champion: Champion | None, out: Path, **given: object):
    return retrain(asked, uploads(rows), champion, out, **given)  # type: ignore[arg-type]


def test_a_planted_shift_is_promoted_and_the_artifact_loads(
    champion: Champion, tmp_path: Path
) -> None:
    rows = measured(champion)
    stages: list[tuple[str, float]] = []
    asked = order(champion, families=("xgboost", "catboost"))
    made: Candidate = run(
        asked, rows, champion, tmp_path, progress=lambda *each: stages.append(each)
    )
    assert made.verdict.promoted, made.verdict.reasons
    assert [card.family for card in made.cards] == ["xgboost", "catboost", "average"]
    card = made.card
    assert card.board is not None
    assert (card.board.label, card.board.batches) == ("lab-7", ("1",))
    assert card.board.watts_factor == pytest.approx(1.15, abs=0.01)
    assert {(s.table, s.protocol) for s in card.scores} == {
        ("measured", "grouped"),
        ("measured", "random"),
    }
    # Of the champion's sources none is lost, and its trees are still there.
    assert set(champion.card.sources) < set(card.sources)
    loaded = BoostedPowerModel(
        ArtifactStore((tmp_path,)).find(GPU, "power", "average", "alavani2023", version=7)
    )
    predicted = loaded.predict_watts(rows.vectors)
    assert np.median(np.abs(predicted / rows.watts - 1)) < 0.02
    base, parts = loaded.shap(rows.vectors)
    assert base + parts.sum(axis=1) == pytest.approx(predicted, abs=0.002)
    assert [share for _, share in stages] == sorted(share for _, share in stages)
    assert [name for name, _ in stages][-2:] == ["final fit", "gate"]


@pytest.fixture(scope="module")
def undisturbed(champion: Champion, tmp_path_factory: pytest.TempPathFactory) -> Candidate:
    """What a retraining gives that nothing interrupts."""
    made: Candidate = run(
        order(champion), measured(champion), champion, tmp_path_factory.mktemp("undisturbed")
    )
    return made


def test_one_that_died_goes_on_where_it_was_and_gives_the_same(
    champion: Champion, undisturbed: Candidate, tmp_path: Path
) -> None:
    class Dying(InProcess):
        def map(self, function: Any, items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
            for count, each in enumerate(super().map(function, items)):
                if count == 4:
                    raise KeyboardInterrupt
                yield each

    class Counting(InProcess):
        def map(self, function: Any, items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
            counts.append(len(items))
            return super().map(function, items)

    counts: list[int] = []
    rows = measured(champion)
    kept = Checkpoints(tmp_path / "kept")
    with pytest.raises(KeyboardInterrupt):
        run(order(champion), rows, champion, tmp_path, engine=Dying(1), checkpoints=kept)
    resumed = run(order(champion), rows, champion, tmp_path, engine=Counting(1), checkpoints=kept)
    assert counts == [10 - 4]
    assert resumed == undisturbed


def test_a_spoiled_checkpoint_is_fitted_anew(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    kept.put("a", np.array([1.0, 2.0]))
    assert kept.get("b") is None
    found = kept.get("a")
    assert found is not None
    assert found.tolist() == [1.0, 2.0]
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY")
    assert kept.get("a") is None
    assert Checkpoints().get("a") is None


def test_what_cannot_be_trained_is_refused(champion: Champion, tmp_path: Path) -> None:
    rows = measured(champion)
    with pytest.raises(DataError, match="mode continue"):
        run(order(champion, continued=False), rows, champion, tmp_path)
    with pytest.raises(ModelError, match="no model to continue from"):
        run(order(champion), rows, None, tmp_path)
    with pytest.raises(ModelError, match="unknown family"):
        run(order(champion, families=("forest",)), rows, champion, tmp_path)
    with pytest.raises(ModelError, match="no family"):
        run(order(champion, families=()), rows, champion, tmp_path)
    with pytest.raises(DataError, match="two kernels"):
        run(order(champion), rows.take(np.flatnonzero(rows.groups == 0)), champion, tmp_path)
    with pytest.raises(ModelError, match="other features"):
        run(order(champion, features=("a",)), rows, champion, tmp_path)
    with pytest.raises(ModelError, match="no catboost model to continue"):
        run(order(champion), rows, packaged("xgboost"), tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_continuing_keeps_what_was_learned(family: str, champion: Champion) -> None:
    rows = measured(champion, shift=1.0)
    start = champion.native(family)
    near = fit_predict(FitTask(family, rows.vectors, rows.watts, rows.vectors, start))
    assert np.median(np.abs(near / rows.watts - 1)) < 0.02
    shifted = FitTask(family, rows.vectors, rows.watts * 2, rows.vectors, start)
    assert np.median(np.abs(fit_predict(shifted) / rows.watts / 2 - 1)) < 0.4  # 0.5 at the start


def test_a_factor_is_that_of_the_kernels_not_of_the_rows() -> None:
    groups = np.repeat(np.arange(10), 5)
    reference = np.linspace(20, 200, 50)
    assert board_factor(reference * 1.15, reference, groups) == pytest.approx(1.15)
    odd = np.where(groups == 0, 9.0, 1.15)
    assert board_factor(reference * odd, reference, groups) == pytest.approx(1.15)
    either = np.where(groups % 2, 1.1, 0.9)
    assert board_factor(reference * either, reference, groups) == 1
    assert board_factor(reference, reference, groups) == 1
    with_gaps = np.where(groups == 3, np.nan, reference)
    assert board_factor(reference * 1.15, with_gaps, groups) == pytest.approx(1.15)
