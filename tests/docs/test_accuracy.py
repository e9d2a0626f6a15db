"""docs/accuracy.md, its picture and the README's table hold the scores of the shipped cards."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from studies import held_out
from studies.accuracy import PICTURE, default_cards, main, page, picture, short_table
from studies.pages import trust
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


def test_what_the_web_page_shows_is_what_the_studies_found():
    boards = trust.boards(CARDS)
    same = trust.PAGE_DATA.read_text(encoding="utf-8") == trust.data(boards)
    assert same, "python -m studies accuracy docs/accuracy.md writes it anew"
    for figure in trust.figures(boards):
        drawn = PAGE.with_name(f"{figure.name}.svg").read_text(encoding="utf-8") == figure.svg
        assert drawn, "python -m studies accuracy docs/accuracy.md draws it anew"
        assert f"]({figure.name}.svg)" in PAGE.read_text(encoding="utf-8")


def test_rows_left_out_were_predicted_by_the_models_that_ship():
    found = json.loads(held_out.RESULTS.read_text(encoding="utf-8"))["power"]
    shown = default_cards(CARDS)
    assert set(found) == set(shown)
    for gpu, parts in found.items():
        card = held_out.default_card(CARDS, gpu)
        assert card == shown[gpu]
        same = parts["card_sha256"] == held_out.card_hash(card)
        assert same, "python -m studies held-out --write"
        for protocol in held_out.PROTOCOLS:
            if protocol in parts:
                scores = max(
                    (one for one in card.scores if one.protocol == protocol),
                    key=lambda one: one.table,
                )
                mean, spread = scores.model["mape_percent"].mean, scores.model["mape_percent"].std
                # One assignment of the ten that the card averages.
                assert parts[protocol]["mean_error_percent"] == pytest.approx(
                    mean, abs=0.06 + 3 * spread
                )


def test_no_measurement_without_a_licence_is_shipped():
    aggregated = {"rows", "kernels", "mean_error_percent", "median_error_percent", "near_percent",
                  "quantiles", "baseline", "coverage_percent"}  # fmt: skip
    shipped = json.loads(trust.PAGE_DATA.read_text(encoding="utf-8"))
    for board in shipped["boards"]:
        assert ("points" in board) == (board["licence"] != trust.UNLICENSED)
        for split in board["splits"].values():
            assert set(split) <= aggregated
            assert len(split["quantiles"]) == len(held_out.QUANTILES)
    written = json.loads(held_out.RESULTS.read_text(encoding="utf-8"))["power"]
    assert {gpu for gpu, parts in written.items() if "points" in parts} == set(held_out.FREE)
    assert "Redistributions in binary form must reproduce" in shipped["notice"]


def test_ratios_are_told_by_hand():
    told = held_out.ratios_told(np.array([0.5, 0.9, 1.0, 1.2, 1.5]))
    assert told["median_error_percent"] == 20.0
    assert told["near_percent"] == 80.0
    assert told["quantiles"][2] == 1.0


def test_every_power_model_stands_beside_its_baseline_on_both_splits():
    for board in trust.boards(CARDS):
        if board["quantity"] == "power" and board["gpu"] != "pooled":
            assert list(board["splits"]) == ["grouped", "random"]
        if board["against"] != "one kernel, a sweep of multiply-adds":
            assert all(split["baseline"] for split in board["splits"].values())


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
    for part in page(CARDS).split("\n## ")[3:6]:
        for card in CARDS:
            assert f"| {card.gpu}" in part
            assert f"| {card.family} |" in part


def test_the_command_wants_a_file():
    assert main([]) == 2
