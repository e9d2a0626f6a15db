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
    answering = {
        each.card.gpu: each.card
        for each in PowerModels(tmp_path).answering()
        if each.card.source != "aiconfigurator"  # measured by operators, not as code
    }
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


def rows_of(page: str, *cells: str) -> list[list[str]]:
    """Rows of a page's tables that begin with these cells."""
    found = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith("|")
    )
    return [row for row in found if row[: len(cells)] == list(cells)]


def test_the_figures_of_the_trust_page_are_those_of_the_pages_that_hold_them() -> None:
    """Those pages are held to what the studies found, above and in tests/studies."""
    pages = {name: (ROOT / "docs" / name).read_text("utf-8") for name in
             ("trust.md", "accuracy.md", "catalogue.md")}  # fmt: skip
    told, accuracy, catalogue = (" ".join(page.split()) for page in pages.values())

    def span(values: list[str], form: str = "g") -> str:
        numbers = [float(value) for value in values]
        return f"{min(numbers):{form}} to {max(numbers):{form}}"

    in_short = pages["accuracy.md"].split("\n## ")[1]
    short = {row[0]: row[1:] for row in rows_of(in_short) if len(row) == 5}
    for name, heading in (
        ("power, physical model", "power, physical model, six measured boards"),
        ("power, trees, thesis data", "power, trees on the thesis' data, two boards"),
        ("power, trees, PowerQuant data", "power, trees on PowerQuant's data, three boards"),
        ("power, board never measured", "power, a board nobody measured"),
    ):
        ((_, says, _),) = rows_of(pages["trust.md"], heading)
        assert short[name][1] in says.replace(" off on average", "")
        assert f"({short[name][2]})" in says
    assert f"err by {short['power, trees, thesis data'][3]} instead of" in told
    rows = rows_of(pages["accuracy.md"], "power")
    unseen = [row[-1] for row in rows if row[3] == "kernel not seen"]
    left_out = [row[-1] for row in rows if row[3] not in ("kernel not seen", "kernel seen, launch not")]
    assert f"{span(unseen)} % of the rows by board; {left_out[0]} % on a board" in told
    times = [row for row in rows_of(pages["accuracy.md"], "time") if row[2] == "public programs"]
    mean = [row[2].split(" %")[0] for row in rows_of(in_short, "time, public programs")]
    assert f"{span(mean)} % off on average, median {span([row[6] for row in times])} %" in told
    ((_, figures, near, factor_two, _),) = rows_of(pages["catalogue.md"], "as served")
    kernels = catalogue.split(" kernels, ")[0].split()[-1]
    bound = catalogue.split(" are bound by what")[0].split("; ")[-1]
    assert f"{figures} published figures of {kernels} well-known kernels" in told
    assert f"{near} % within a factor of 1.5, {factor_two} % within 2" in told
    assert f"| {bound} as their authors say" in told
    assert bound.endswith(f" of {figures}")
    (t4,) = rows_of(pages["accuracy.md"], "time", "T4", "published figures of well-known kernels")
    assert f"On T4 the median error of seven published times is {t4[6]} %, and {t4[-1]} %" in told
    spaces = accuracy.split("| rank correlation | by hand")[1].split(" ## ")[0]
    found = [row for row in rows_of(spaces.replace(" | | ", " |\n| ")) if len(row) == 10]
    ranks = [row[4] for row in found if row[1].isdecimal()]
    assert len(ranks) == 6
    assert f"rank correlation {span(ranks, '.2f')}" in told
    (worst,) = rows_of(pages["accuracy.md"], "convolution_a100")[-1:]
    assert f"ends {float(worst[-2]):g} % above the fastest one; a random 1 % ends " in told
    assert f"{float(worst[-1]):g} % above it" in told
