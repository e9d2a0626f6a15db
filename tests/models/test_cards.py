"""Cards of every target: what they share, and that cards written before read and print the same."""

from __future__ import annotations

import pytest

from wattcast.features.errors import ModelError
from wattcast.models.cards import Card, ModelCard, ScalingCard, read_card
from wattcast.models.operators import OperatorCard
from wattcast.models.store import PACKAGED_ARTIFACTS, ArtifactStore
from wattcast.models.time.calibration import TimeCard

KINDS: dict[str, type[Card]] = {
    "power": ModelCard,
    "scaling": ScalingCard,
    "time": TimeCard,
    "operator": OperatorCard,
}
PACKAGED = sorted(PACKAGED_ARTIFACTS.glob("*/*/*/*/card.json"))


def test_a_kind_of_card_names_its_target() -> None:
    assert {kind.target_name(): kind for kind in KINDS.values()} == KINDS


@pytest.mark.parametrize("path", PACKAGED, ids=lambda path: "/".join(path.parts[-5:-1]))
def test_a_packaged_card_prints_as_it_was_written(path) -> None:
    kind = KINDS[path.parts[-4]]
    assert read_card(path, kind).to_json() == path.read_text(encoding="utf-8")


def test_the_card_of_another_target_is_refused() -> None:
    time = next(path for path in PACKAGED if path.parts[-4] == "time")
    with pytest.raises(ModelError, match="target"):
        read_card(time, ModelCard)


def test_a_store_sees_its_own_target_alone() -> None:
    assert {card.target for card in ArtifactStore().list()} == {"power"}
    assert {card.target for card in ArtifactStore(kind=TimeCard).list()} == {"time"}
    with pytest.raises(ModelError, match="no catboost time model"):
        ArtifactStore().find("rtx-3080", "time", "catboost", "work1")
