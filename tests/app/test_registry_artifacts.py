"""Artifacts of retrained models: adopted once, checked always, fetched where they are not local."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tests.app.conftest import Run
from wattcast.app.services.models.artifacts import RegistryArtifacts, name_of
from wattcast.app.services.models.champions import Champions
from wattcast.app.store.database import open_database
from wattcast.app.store.registry import NewVersion, Place, RegistryStore
from wattcast.features.errors import ModelError
from wattcast.features.gpus import load_gpu
from wattcast.models.cards import CARD_NAME, ModelCard, sha256_of
from wattcast.models.store import ArtifactStore
from wattcast.predictor.parts.power_models import PowerModels

GPU = "tesla-k20"
PLACE = Place(GPU, "", "power")


def made(folder: Path, family: str = "catboost") -> tuple[ModelCard, str]:
    """A packaged artifact under another version, as a retraining would leave it in ``folder``."""
    packaged = ArtifactStore().find(GPU, "power", family, "alavani2023")
    card = packaged.card.model_copy(update={"source": "uploads", "version": 1001})
    place = folder / card.folder
    place.mkdir(parents=True)
    for name in card.files:
        (place / name).write_bytes(packaged.read(name))
    (place / CARD_NAME).write_text(card.to_json(), "utf-8")
    return card, sha256_of(place / CARD_NAME)


def test_an_adopted_artifact_opens_under_its_checksum_alone(tmp_path: Path) -> None:
    card, sha256 = made(tmp_path / "work")
    artifacts = RegistryArtifacts(tmp_path / "registry")
    artifacts.adopt(tmp_path / "work", card)
    assert artifacts.open(name_of(card), sha256).card == card
    with pytest.raises(ModelError, match="not the registered one"):
        artifacts.open(name_of(card), "0" * 64)
    (tmp_path / "registry" / card.folder / "model.cbm").write_bytes(b"spoiled")
    with pytest.raises(ModelError, match="does not match the checksum"):
        artifacts.open(name_of(card), sha256)
    with pytest.raises(ModelError, match="no catboost power model"):
        artifacts.open(name_of(card)._replace(version=1002), sha256)


def test_another_machine_fetches_what_it_does_not_have(tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    card, sha256 = made(tmp_path / "work")
    url = (tmp_path / "shared").as_uri()
    RegistryArtifacts(tmp_path / "here", url).adopt(tmp_path / "work", card)
    there = RegistryArtifacts(tmp_path / "there", url)
    found = there.open(name_of(card), sha256)
    assert found.folder == tmp_path / "there" / card.folder
    assert found.card == card
    # Half of a copy is none.
    (tmp_path / "shared" / card.folder / "model.onnx").write_bytes(b"cut")
    with pytest.raises(ModelError, match="does not match the checksum"):
        RegistryArtifacts(tmp_path / "third", url).open(name_of(card), sha256)
    (tmp_path / "shared" / card.folder / CARD_NAME).unlink()
    with pytest.raises(ModelError, match="cannot be fetched"):
        RegistryArtifacts(tmp_path / "fourth", url).open(name_of(card), sha256)


def test_a_champion_that_does_not_load_leaves_the_one_before_serving(tmp_path: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path / 'w.db'}")
    registry, power = RegistryStore(engine), PowerModels(tmp_path)
    artifacts = RegistryArtifacts(tmp_path / "registry")
    champions = Champions(power, registry, artifacts)
    card, sha256 = made(tmp_path / "work")
    artifacts.adopt(tmp_path / "work", card)
    good = NewVersion(name_of(card), "", "retrained", sha256)
    before = power.model_for(load_gpu(GPU), "auto")
    registry.promote_by_hand(PLACE, good, "tests", "")
    champions.refresh()
    serving = power.model_for(load_gpu(GPU), "auto")
    assert serving.card == card
    assert power.model_for(load_gpu(GPU), "auto", "some board") is serving
    assert card in power.cards()
    lost = NewVersion(name_of(card)._replace(version=1002), "", "retrained", sha256)
    registry.promote_by_hand(PLACE, lost, "tests", "")
    champions.refresh()
    assert power.model_for(load_gpu(GPU), "auto") is serving
    for _ in range(2):
        registry.rollback(PLACE, "tests", "")
        champions.refresh()
    assert power.model_for(load_gpu(GPU), "auto") is before
    engine.dispose()


@pytest.mark.parametrize("url", ["nowhere://bucket/models", "no-such-kind://x"])
def test_a_place_that_cannot_be_used_is_told_at_once(url: str, tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    with pytest.raises(ModelError, match="WATTCAST_ARTIFACTS_URL cannot be used"):
        RegistryArtifacts(tmp_path / "registry", url)


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_promotion_by_hand_shows_both_errors_and_asks(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The K20's default is replaced; a person who says no leaves it serving."""
    asked: list[str] = []
    words = ("models", "promote", GPU, "xgboost-alavani2023-thesis/1")
    with monkeypatch.context() as terminal:
        terminal.setattr("io.TextIOWrapper", Terminal)
        terminal.setattr("typer.confirm", lambda text, **_: asked.append(text))
        _, err = run(*words, status=1)
    assert asked == ["Let it serve?"]
    assert err.splitlines()[-1] == "wattcast: not promoted"
    out, err = run(*words)  # a script is not asked
    now, then = err.splitlines()
    assert now.startswith("serves now: tesla-k20/power/extratrees-alavani2023-thesis/1: unseen")
    assert then.startswith("would serve: tesla-k20/power/xgboost-alavani2023-thesis/1: unseen")
    served = json.loads(out)["places"][0]["champion"]
    assert (served["family"], served["version"]) == ("xgboost", 1)
    _, err = run("models", "promote", GPU, "catboost-alavani2023-thesis/1", "--yes")
    assert "serves now: tesla-k20/power/xgboost" in err
