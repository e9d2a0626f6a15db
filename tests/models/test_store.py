"""The store opens an artifact only with its card, its exact files and its schema's hash."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from studies.fitting.fit_all import compress
from wattcast.features.errors import ModelError, SchemaError
from wattcast.models.cards import CARD_NAME, ModelCard, read_card, sha256_of
from wattcast.models.store import PACKAGED_ARTIFACTS, ArtifactStore

SCHEMA_HASH = "a" * 64
CARD = Path(__file__).parents[1] / "fixtures" / "card.json"


def card(**changes: Any) -> dict[str, Any]:
    return {**json.loads(CARD.read_text("utf-8")), **changes}


def write(root: Path, text: str = "weights", **changes: Any) -> Path:
    """An artifact with one file below ``root``; its folder."""
    data = card(**changes)
    schema = data["feature_schema"]["id"]
    name = f"{data['family']}-{schema}-{data['source']}"
    folder = root / data["gpu"] / data["target"] / name / str(data["version"])
    folder.mkdir(parents=True)
    if not data.get("members"):
        (folder / "model.onnx").write_text(text)
        data["files"] = {"model.onnx": sha256_of(folder / "model.onnx")} | data["files"]
    (folder / CARD_NAME).write_text(json.dumps(data))
    return folder


def store(*roots: Path) -> ArtifactStore:
    return ArtifactStore(roots, hash_of_schema=lambda schema_id: SCHEMA_HASH)


def find(artifacts: ArtifactStore, family: str = "xgboost") -> Path:
    return artifacts.find("tesla-k20", "power", family, "alavani2023").folder


def test_an_intact_artifact_opens(tmp_path: Path) -> None:
    folder = write(tmp_path)
    found = store(tmp_path).find("tesla-k20", "power", "xgboost", "alavani2023")
    assert found.folder == folder
    assert found.card.feature_names == ("branch", "occupancy")
    assert found.read("model.onnx") == b"weights"
    with pytest.raises(ModelError, match="has no file 'other'"):
        found.read("other")


def test_a_compressed_file_is_read_as_if_it_were_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path)
    monkeypatch.setattr("studies.fitting.fit_all.COMPRESSED_FROM_BYTES", len("weights"))
    compress(tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == [CARD_NAME, "model.onnx.gz"]
    found = store(tmp_path).find("tesla-k20", "power", "xgboost", "alavani2023")
    assert found.read("model.onnx") == b"weights"
    monkeypatch.setattr("wattcast.models.store.MOST_BYTES", len("weight"))
    with pytest.raises(ModelError, match="holds more than 6 bytes"):
        found.read("model.onnx")


def test_the_models_of_the_package_are_compressed() -> None:
    """A checkout has at most 50 MB, of which they are more than half."""
    files = [path for path in PACKAGED_ARTIFACTS.rglob("*") if path.is_file()]
    large = [path.name for path in files if path.stat().st_size > 1e5 and path.match("model.*")]
    assert not {name for name in large if not name.endswith((".gz", ".xz"))}
    assert sum(path.stat().st_size for path in files) < 30e6


def test_the_newest_version_wins_and_the_last_root(tmp_path: Path) -> None:
    packaged, overlay = tmp_path / "packaged", tmp_path / "overlay"
    write(packaged, version=2)
    write(packaged, version=10)
    assert find(store(packaged, overlay)).name == "10"  # the overlay need not exist
    theirs = write(overlay, version=1)
    assert find(store(packaged, overlay)) == theirs
    chosen = store(packaged).find("tesla-k20", "power", "xgboost", "alavani2023", version=2)
    assert chosen.card.version == 2


def test_sources_are_told_apart(tmp_path: Path) -> None:
    write(tmp_path, source="thesis", version=3)
    write(tmp_path, source="mine", version=1)
    artifacts = store(tmp_path)
    found = artifacts.find("tesla-k20", "power", "xgboost", "alavani2023", source="mine")
    assert found.card.source == "mine"
    with pytest.raises(ModelError, match="source theirs"):
        artifacts.find("tesla-k20", "power", "xgboost", "alavani2023", source="theirs")


@pytest.mark.parametrize(
    ("gpu", "target", "family", "schema"),
    [
        ("tesla-m60", "power", "xgboost", "alavani2023"),
        ("tesla-k20", "time", "xgboost", "alavani2023"),
        ("tesla-k20", "power", "catboost", "alavani2023"),
        ("tesla-k20", "power", "xgboost", "powerquant2026"),
        ("../tesla-k20", "power", "xgboost", "alavani2023"),
        ("tesla-k20", "power", "xgboost", "../../../etc"),
    ],
)
def test_what_is_not_there_is_said(
    tmp_path: Path, gpu: str, target: str, family: str, schema: str
) -> None:
    write(tmp_path)
    with pytest.raises(ModelError, match=f"no {family} {target} model for"):
        store(tmp_path).find(gpu, target, family, schema)


def _without_card(folder: Path) -> None:
    (folder / CARD_NAME).unlink()


def _changed_file(folder: Path) -> None:
    (folder / "model.onnx").write_text("other weights")


def _other_content(folder: Path) -> None:
    (folder / "model.onnx").unlink()
    (folder / "model.onnx.gz").write_bytes(gzip.compress(b"other weights"))


def _cut_gzip(folder: Path) -> None:
    (folder / "model.onnx").unlink()
    (folder / "model.onnx.gz").write_bytes(gzip.compress(b"weights")[:-9])


def _twice(folder: Path) -> None:
    (folder / "model.onnx.gz").write_bytes(gzip.compress(b"weights"))


def _missing_file(folder: Path) -> None:
    (folder / "model.onnx").unlink()


def _unknown_file(folder: Path) -> None:
    (folder / "extra.bin").write_text("x")


def _linked_file(folder: Path) -> None:
    outside = folder.parents[4] / "outside"
    (folder / "model.onnx").rename(outside)
    (folder / "model.onnx").symlink_to(outside)


def _edit(folder: Path, **changes: Any) -> None:
    path = folder / CARD_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _broken_card(folder: Path) -> None:
    (folder / CARD_NAME).write_text("{")


def _other_schema(folder: Path) -> None:
    _edit(folder, feature_schema={"id": "alavani2023", "sha256": "d" * 64})


def _other_place(folder: Path) -> None:
    _edit(folder, gpu="tesla-m60")


def _escaping_file(folder: Path) -> None:
    _edit(folder, files={"../../../../../outside": "e" * 64})


def _no_licence(folder: Path) -> None:
    source = {**card()["sources"][0]}
    del source["licence"]
    _edit(folder, sources=[source])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_without_card, "no model card"),
        (_broken_card, "Invalid JSON"),
        (_changed_file, "'model.onnx' does not match the checksum"),
        (_other_content, "'model.onnx' does not match the checksum"),
        (_cut_gzip, "'model.onnx' cannot be read: Compressed file ended"),
        (_twice, "'model.onnx' is there twice"),
        (_missing_file, "'model.onnx' is missing"),
        (_unknown_file, "'extra.bin' is not in the card"),
        (_linked_file, "'model.onnx' is missing or no plain file"),
        (_other_schema, "trained on another definition of schema alavani2023"),
        (_other_place, "its card is that of tesla-m60/power"),
        (_escaping_file, r"files\..*outside"),
        (_no_licence, r"sources\.0\.licence: Field required"),
    ],
)
def test_a_damaged_artifact_is_refused(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    folder = write(tmp_path)
    damage(folder)
    artifacts = store(tmp_path)
    with pytest.raises(ModelError, match=message):
        find(artifacts)
    assert artifacts.list() == []
    assert len(artifacts.problems()) == 1


def test_a_damaged_artifact_does_not_hide_the_others(tmp_path: Path) -> None:
    write(tmp_path)
    _changed_file(write(tmp_path, gpu="tesla-m60"))
    assert [found.gpu for found in store(tmp_path).list()] == ["tesla-k20"]


def test_an_unknown_schema_is_a_model_error(tmp_path: Path) -> None:
    def unknown(schema_id: str) -> str:
        raise SchemaError(f"unknown schema {schema_id}")

    write(tmp_path)
    with pytest.raises(ModelError, match="unknown schema alavani2023"):
        find(ArtifactStore([tmp_path], hash_of_schema=unknown))


def _average(root: Path, **changes: Any) -> Path:
    member = root / "tesla-k20" / "power" / "xgboost-alavani2023-thesis" / "1" / CARD_NAME
    members = [{"family": "xgboost", "version": 1, "card_sha256": sha256_of(member)} | changes]
    return write(root, family="average", members=members)


def test_an_average_opens_with_its_members(tmp_path: Path) -> None:
    write(tmp_path)
    _average(tmp_path)
    found = store(tmp_path).find("tesla-k20", "power", "average", "alavani2023")
    assert [member.card.family for member in found.members] == ["xgboost"]


def test_an_average_pins_its_members(tmp_path: Path) -> None:
    folder = write(tmp_path)
    _average(tmp_path)
    _edit(folder, code_revision="other")
    with pytest.raises(ModelError, match=r"member .* does not match its checksum"):
        find(store(tmp_path), "average")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "no model card"),
        ({"family": "average"}, "names itself"),
        ({"card_sha256": "f" * 64}, "does not match its checksum"),
    ],
)
def test_a_wrong_member_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write(tmp_path)
    _average(tmp_path, **changes)
    with pytest.raises(ModelError, match=message):
        find(store(tmp_path), "average")


def test_a_card_survives_its_own_text(tmp_path: Path) -> None:
    made = ModelCard.model_validate(card(files={"model.onnx": "1" * 64}))
    path = tmp_path / CARD_NAME
    path.write_text(made.to_json(), "utf-8")
    assert read_card(path, ModelCard) == made
    assert made.score("as_recomputed", "grouped").assignments == 10
    with pytest.raises(ModelError, match="no random scores as published"):
        made.score("as_published", "random")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpu": ".."}, "gpu"),
        ({"gpu": "a/b"}, "gpu"),
        ({"family": "x-y"}, "family"),
        ({"source": ""}, "source"),
        ({"version": 0}, "version"),
        ({"files": {"card.json": "1" * 64}}, "its own checksum"),
        ({"files": {".hidden": "1" * 64}}, "files"),
        ({"files": {"model.onnx": "xyz"}}, "files"),
        ({"files": {}}, "needs files or members"),
        ({"surprise": 1}, "surprise"),
        ({"format": 2}, "format"),
    ],
)
def test_a_card_that_makes_no_sense_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = tmp_path / CARD_NAME
    path.write_text(json.dumps(card(files={"model.onnx": "1" * 64}) | changes))
    with pytest.raises(ModelError, match=message):
        read_card(path, ModelCard)


def test_what_ships_for_powerquant_boards_knows_its_kernels_and_others_as_the_median_does() -> None:
    """Ten assignments; docs/power.md has all families."""
    cards = [card for card in ArtifactStore().list() if card.source == "powerquant"]
    assert [card.family for card in cards] == ["catboost"] * 4
    for card in cards:
        for protocol, most in (("grouped", 1.1), ("random", 1 / 3)):
            scores = card.score("as_published", protocol)
            assert scores.assignments == 10
            for name in ("mae_watts", "mape_percent"):
                assert scores.model[name].mean <= most * scores.baseline[name].mean, card.gpu
