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

_START = """\
<!-- Written by python -m studies accuracy docs/accuracy.md; do not edit. -->

# Accuracy

Users bring kernels that no model has seen: **kernel not seen** is the error they get. Most
published scores in this field are for kernels that were also in training: **kernel seen**. The
baseline needs no model. It answers the median power of the training rows for everything.

![Power error on kernels not seen](accuracy.svg)

## In short
"""

_POWER = """
The power figures come from the model cards, for the model that answers by default on each GPU.
Three things limit them:

* The `physical` models of four GPUs were fitted to and scored on what the service answers for
  public programs, those of GTX 980 and Titan X on hardware counters ([physical](physical.md)).
* The models of H200, B200, H100 and GB200 rest on library operators, in the activities that a
  count of their code would find ([physical](physical.md#hopper-and-blackwell)). They are not in
  the short table.
* The other models were scored on the feature tables of the published data, not on PTX sent to the
  service. `python -m studies train --report` prints how many of those features the service
  reproduces.

The time figures were made as users ask: code, launch and arguments in, an answer out, for 13 public
programs and for a sweep of multiply-adds below the power limit (`python -m studies end-to-end`).
The smaller errors in [bottleneck](bottleneck.md) were computed on activity tables of an early
prototype, not through the service.

| more on | page, and the study that prints its figures (`python -m studies NAME`) |
| --- | --- |
| time: errors by GPU, beside other models | [bottleneck](bottleneck.md), `bottleneck` |
| clocks: scaling of time, power and energy | [frequency](frequency.md), `clocks` |
| power models beside the thesis | [power](power.md), [study](study.md), `thesis` |
| power by component | [physical](physical.md) |
| time from measured work | [work](work.md), `work` |
| protocols and baselines | [data](data.md) |
| measured launches | [power](power.md), `power` |
"""


_MEASURED = """\
Each line is one board: the ratio of predicted to measured, on a logarithmic axis. The thin line
holds 90 % of the rows, the bar the half in the middle, the mark is the median; the grey band is a
factor of 1.5. The tab *Accuracy* of the web page shows the same and lets you take the numbers with
you. Power: every row by a model that saw nothing of its kernel (`python -m studies held-out`).
Time: no kernel was fitted, but four norms and one share were chosen with the public programs in
sight, and one rule by three of the published figures. The number after a board says how much was
asked.

![Ratio of predicted to measured power](accuracy_power.svg)

![Ratio of predicted to measured time](accuracy_time.svg)

![Predicted against published times](accuracy_points.svg)

"""

_HEADLINE = """\
`left out`: what the model had not seen. `kernel seen, launch not` is the optimistic split.
`baseline`: power, the median of the training rows (where kernels are left out of the physical
models: of the other programs at the same clocks); time, the median of the other kernels of the
board. One fold assignment of five folds; the tables below hold ten. Coverage is that of the model
cards, by rows. The sweep of multiply-adds is one kernel in many sizes: it has no baseline.

What is shipped: the measurements of power, and the times of public programs, state no licence.
`app/web/static/accuracy.json`, `studies/held_out.json` and these pictures hold quantiles of their
ratios over all rows of a board, never a row. Points are shown where they may be: published figures
of well-known kernels with their sources ([catalogue](catalogue.md)), and GeForce GTX Titan X at its
reference clocks (BSD-3-Clause, Copyright (c) 2018 INESC-ID, Instituto Superior Técnico,
Universidade de Lisboa; Guerreiro, Ilic, Roma, Tomás, HPCA 2018; the licence stands in
`app/web/static/accuracy.json`).
"""

_COUNTS = """\
Counts that the service answers, beside hardware counters of a GeForce RTX 2080 Ti, and times beside
measured ones: tuning spaces of public kernels, each asked with PTX, launch and arguments alone
(`python -m studies counters`). The ratio is predicted to measured. Of the spaces that were asked
here only seeded configurations count, and the choice is made among them and the 20 fastest.

* Rules of the machine code (predicated branches, divisions) follow what ptxas makes of the fixture
  kernels and of point in polygon. No constant was fitted to the counters.
* L2 also reads instructions where unrolled code exceeds the instruction cache: about 50 KB on this
  board. That is not modelled, so `L2 read sectors` is told apart by the size of the code.
* Nobody filled the constant memory of point in polygon: all its divisions are 0 / 0 and take their
  long way.
* `by hand`: the larger of distinct bytes over bandwidth and operations over peak, times one
  constant, the median of the others.
"""


_INTERVALS = """\
What the other intervals hold on groups that taught them nothing: neither model nor width has seen
a row of them (`python -m studies intervals`). `high/low` is the median ratio of the ends;
`constant` is that of one factor for all predictions, chosen alike. With k groups a level of
k / (k + 1) can be told at most: of ten kernels, the largest error is the 0.9 quantile. Energies are
those of the default models, physical power and uncorrected time; their interval is half as wide as
the product of the ends of both.
"""


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
    """The page of these cards, in Markdown."""
    boards = trust.boards(cards)
    counted = json.loads(counters.RESULTS.read_text(encoding="utf-8"))
    targets = table(
        ("GPU", "protocol", "model", "R²", "MAE W", "baseline R², MAE", "target", "reached"),
        card_lines(cards),
    )
    return "\n".join(
        (
            _START,
            short_table(cards) + _POWER,
            "## Predicted against measured\n",
            _MEASURED + trust.headline(boards) + "\n" + _HEADLINE,
            "## Every power model\n",
            summary_table(cards),
            "## Every protocol and table\n",
            score_table(cards),
            "## 90 % intervals\n",
            "`rows inside` counts rows; `mean per kernel` gives every kernel the same weight. A "
            "dash means not measured; an answer of that basis is marked. `×`: factors of the "
            "prediction. `± W`: watts around it. `± W^0.5`: the same on the scale of square roots. "
            "No bound is below the lowest power measured on the board.\n",
            interval_table(cards),
            "### Of kernels, programs and boards left out\n",
            _INTERVALS,
            coverage_table(read_results()),
            "## Targets\n",
            "The errors that the project set out to reach, and whether each model does.\n",
            targets,
            "## Counts and tuning spaces\n",
            _COUNTS,
            counters.count_table(counted),
            counters.time_table(counted),
        )
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
