"""``python -m studies accuracy docs/accuracy.md``: errors of the shipped models.

Writes the page, the picture beside it (``accuracy.svg``) and prints the short table of the README.
All power figures come from the model cards: scores with rows and with kernels left out beside the
no-information baseline, intervals with their coverage, and which of the project's targets hold.
Time errors and counts are those that ``python -m studies end-to-end --write`` and ``counters
--write`` left in their files of results. A test compares what is committed with what this writes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from studies import counters
from studies.end_to_end import RESULTS
from studies.intervals import coverage_table, read_results
from studies.pages.figures import bars
from studies.power.holds import card_lines
from wattcast.features.gpus import load_gpu
from wattcast.models.cards import ModelCard
from wattcast.models.store import PACKAGED_ARTIFACTS, ArtifactStore
from wattcast.predictor.parts.power_models import unseen_error_percent
from wattcast.training.card_tables import interval_table, score_table, summary_table, table

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
Two things limit them:

* The `physical` models of four GPUs were fitted to and scored on what the service answers for
  public programs, those of GTX 980 and Titan X on hardware counters ([physical](physical.md)).
* The other models were scored on the feature tables of the published data, not on PTX sent to the
  service. `wattcast train --report` prints how many of those features the service reproduces.

The time figures were made as users ask: code, launch and arguments in, an answer out, for 13 public
programs and for a sweep of multiply-adds below the power limit (`python -m studies end-to-end`).
The smaller errors in [bottleneck](bottleneck.md) were computed on activity tables of an early
prototype, not through the service.

| more on | page, and the study that prints its figures (`python -m studies NAME`) |
| --- | --- |
| time: errors by GPU, beside other models | [bottleneck](bottleneck.md), `report time` |
| clocks: scaling of time, power and energy | [frequency](frequency.md), `report dvfs` |
| power models beside the thesis | [power](power.md), [study](study.md), `report power` |
| power by component | [physical](physical.md) |
| time from measured work | [work](work.md), `work` |
| protocols and baselines | [data](data.md), `baselines` |
| measured launches, short runs | [power](power.md), `power` |
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
    seen, as ``PowerModels`` chooses."""
    best: dict[str, ModelCard] = {}
    for card in cards:
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
    counted = json.loads(counters.RESULTS.read_text(encoding="utf-8"))
    targets = table(
        ("GPU", "protocol", "model", "R²", "MAE W", "baseline R², MAE", "target", "reached"),
        card_lines(cards),
    )
    return "\n".join(
        (
            _START,
            short_table(cards) + _POWER,
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
    """Write the page of the packaged models into the file that the only argument names, and the
    picture beside it; print the README's table."""
    if len(arguments) != 1:
        print("usage: python -m studies accuracy FILE", file=sys.stderr)
        return 2
    cards = ArtifactStore((PACKAGED_ARTIFACTS,)).list()
    file = Path(arguments[0])
    file.write_text(page(cards), encoding="utf-8")
    file.with_name(PICTURE).write_text(picture(cards), encoding="utf-8")
    print(short_table(cards), end="")
    return 0
