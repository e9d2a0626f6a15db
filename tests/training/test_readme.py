"""The README quotes the cards' scores, not somebody's memory of them."""

from __future__ import annotations

from pathlib import Path

from wattcast.models.store import ArtifactStore
from wattcast.training.card_tables import summary_table

README = Path(__file__).parents[2] / "README.md"


def test_the_readme_holds_the_scores_of_the_shipped_cards():
    assert summary_table(ArtifactStore().list()).strip() in README.read_text(encoding="utf-8")
