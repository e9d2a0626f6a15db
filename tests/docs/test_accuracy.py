"""docs/accuracy.md holds the scores of the shipped cards."""

from __future__ import annotations

from pathlib import Path

from wattcast.models.store import PACKAGED_ARTIFACTS, ArtifactStore
from studies.accuracy import main, page

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"


def test_the_committed_page_is_that_of_the_cards():
    cards = ArtifactStore((PACKAGED_ARTIFACTS,)).list()
    same = PAGE.read_text(encoding="utf-8") == page(cards)
    assert same, "python -m studies accuracy docs/accuracy.md writes it anew"


def test_every_card_stands_in_every_table():
    cards = ArtifactStore((PACKAGED_ARTIFACTS,)).list()
    for part in page(cards).split("\n## ")[1:4]:
        for card in cards:
            assert f"| {card.gpu}" in part
            assert f"| {card.family} |" in part


def test_the_command_wants_a_file():
    assert main([]) == 2
