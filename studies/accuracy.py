"""``python -m studies accuracy docs/accuracy.md``: errors of the shipped models.

Writes the page, the pictures beside it, the data of the web page's tab Accuracy
(``app/web/static/accuracy.json``), and prints the short table of the README.
All power figures come from the model cards: scores with rows and with kernels left out beside the
no-information baseline, intervals with their coverage, and which of the project's targets hold.
Time errors, counts and rows left out are those that the studies ``end-to-end``, ``counters``,
``catalogue`` and ``held-out`` left in their files of results (``--write``). A test compares what is
committed with what this writes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from studies import counters
from studies.card_tables import interval_table, score_table, summary_table, table
from studies.end_to_end import RESULTS
from studies.fitting.trees.holds import card_lines
from studies.intervals import coverage_table, read_results
from studies.pages import trust
from studies.pages.figures import bars
from wattcast.features.gpus import load_gpu
from wattcast.models.cards import ModelCard
from wattcast.models.store import PACKAGED_ARTIFACTS, ArtifactStore
from wattcast.predictor.parts.power_models import unseen_error_percent

PICTURE = "accuracy.svg"
TEXT = Path(__file__).parent / "pages" / "accuracy_page.md"
TARGETS = ("GPU", "protocol", "model", "R²", "MAE W", "baseline R², MAE", "target", "reached")


def default_cards(cards: Iterable[ModelCard]) -> dict[str, ModelCard]:
    """By GPU, the card that answers where nothing was promoted: the least error on kernels not
    seen, as ``PowerModels`` chooses. Not of boards that library operators alone were measured on:
    no kernel was asked as code there."""
    best: dict[str, ModelCard] = {}
    for card in cards:
        if card.source == "aiconfigurator":
            continue
        best[card.gpu] = min(best.get(card.gpu, card), card, key=unseen_error_percent)
    return best


def _percent(card: ModelCard, protocol: str, *, baseline: bool = False) -> float:
    """Mean absolute percentage error of a card; of two tables that of the recomputed features."""
    found = [one for one in card.scores if one.protocol == protocol]
    scores = max(found, key=lambda one: one.table)
    return (scores.baseline if baseline else scores.model)["mape_percent"].mean


def picture(cards: Iterable[ModelCard]) -> str:
    """SVG: the error of every GPU's default power model on kernels not seen, and the baseline."""
    best = sorted(default_cards(cards).values(), key=unseen_error_percent)
    drawn = bars(
        "accuracy",
        "Mean absolute error of power on kernels that were not in training.",
        ["GPU never measured" if card.gpu == "pooled" else card.gpu for card in best],
        {
            "Wattcast": [_percent(card, "grouped") for card in best],
            "median power": [_percent(card, "grouped", baseline=True) for card in best],
        },
        "mean absolute error of power on kernels not seen, %",
    )
    return drawn.svg


def short_table(cards: Iterable[ModelCard]) -> str:
    """The accuracy of the README: ranges over the GPUs of each kind of power model, then time."""
    best = default_cards(cards)
    measured = [card for gpu, card in best.items() if gpu != "pooled"]
    kinds = (
        ("physical model", [card for card in measured if card.family == "physical"]),
        ("trees, thesis data", [card for card in measured if card.source == "thesis"]),
        ("trees, PowerQuant data", [card for card in measured if card.source == "powerquant"]),
        ("board never measured", [best["pooled"]]),
    )
    rows = []
    for name, group in kinds:
        pooled = group == [best["pooled"]]
        rows.append(
            (
                f"power, {name}",
                "any other GPU" if pooled else ", ".join(card.gpu for card in group),
                _range(group, "grouped"),
                _range(group, "grouped", baseline=True),
                "-" if pooled else _range(group, "random"),
            )
        )
    served = json.loads(RESULTS.read_text(encoding="utf-8"))
    for gpu, score in served.items():
        if "programs" in score:
            mean, median = score["time"]
            error = f"{mean:g} % (median {median:g} %)"
            rows.append(("time, public programs", load_gpu(gpu).name, error, "-", "-"))
    swept = {gpu: score for gpu, score in served.items() if "programs" not in score}
    error = ", ".join(f"{score['time']:g} %" for score in swept.values())
    rows.append(("time, sweep of multiply-adds", ", ".join(swept), error, "-", "-"))
    titles = ("quantity", "GPUs", "mean error, kernel not seen", "median power", "kernel seen")
    return table(titles, rows)


def _range(cards: Iterable[ModelCard], protocol: str, *, baseline: bool = False) -> str:
    found = sorted(_percent(card, protocol, baseline=baseline) for card in cards)
    ends = dict.fromkeys(f"{end:.1f}" for end in (found[0], found[-1]))
    return " to ".join(ends) + " %"


def page(cards: Sequence[ModelCard]) -> str:
    """The page of these cards, in Markdown: ``TEXT`` with its tables."""
    counted = json.loads(counters.RESULTS.read_text(encoding="utf-8"))
    return TEXT.read_text(encoding="utf-8").format(
        short_table=short_table(cards),
        headline=trust.headline(trust.boards(cards)),
        summary_table=summary_table(cards),
        score_table=score_table(cards),
        interval_table=interval_table(cards),
        coverage_table=coverage_table(read_results()),
        targets=table(TARGETS, card_lines(cards)),
        count_table=counters.count_table(counted),
        time_table=counters.time_table(counted),
    )


def main(arguments: list[str]) -> int:
    """Write the page of the packaged models into the file that the only argument names, the
    pictures beside it, and the web page's data; print the README's table."""
    if len(arguments) != 1:
        print("usage: python -m studies accuracy FILE", file=sys.stderr)
        return 2
    cards = ArtifactStore((PACKAGED_ARTIFACTS,)).list()
    file = Path(arguments[0])
    file.write_text(page(cards), encoding="utf-8")
    file.with_name(PICTURE).write_text(picture(cards), encoding="utf-8")
    boards = trust.boards(cards)
    for figure in trust.figures(boards):
        file.with_name(f"{figure.name}.svg").write_text(figure.svg, encoding="utf-8")
    trust.PAGE_DATA.write_text(trust.data(boards), encoding="utf-8")
    print(short_table(cards), end="")
    return 0
