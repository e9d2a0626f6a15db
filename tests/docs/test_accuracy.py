"""docs/accuracy.md, its picture and the README's table hold the scores of the shipped cards."""

from __future__ import annotations

from pathlib import Path

from studies.accuracy import PICTURE, default_cards, main, page, picture, short_table
from wattcast.models.store import PACKAGED_ARTIFACTS, ArtifactStore
from wattcast.predictor.parts.power_models import PowerModels

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "accuracy.md"
CARDS = ArtifactStore((PACKAGED_ARTIFACTS,)).list()


def test_the_committed_page_and_picture_are_those_of_the_cards():
    same = PAGE.read_text(encoding="utf-8") == page(CARDS)
    assert same, "python -m studies accuracy docs/accuracy.md writes it anew"
    drawn = PAGE.with_name(PICTURE).read_text(encoding="utf-8") == picture(CARDS)
    assert drawn, "python -m studies accuracy docs/accuracy.md draws it anew"


def test_the_readme_holds_the_picture_and_the_short_table():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"](docs/{PICTURE})" in readme
    short = short_table(CARDS)
    assert short in readme, "python -m studies accuracy docs/accuracy.md prints the table"
    assert len(short.splitlines()) <= 2 + 8


def test_what_is_shown_for_a_gpu_is_the_model_that_answers(tmp_path: Path):
    answering = {each.card.gpu: each.card for each in PowerModels(tmp_path).answering()}
    shown = default_cards(CARDS)
    assert shown.pop("pooled").family == "physical"
    assert shown == answering
    assert {gpu for gpu in shown if f">{gpu}<" in picture(CARDS)} == set(shown)


def test_every_card_stands_in_every_table():
    for part in page(CARDS).split("\n## ")[2:5]:
        for card in CARDS:
            assert f"| {card.gpu}" in part
            assert f"| {card.family} |" in part


def test_the_command_wants_a_file():
    assert main([]) == 2
