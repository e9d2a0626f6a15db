"""``python -m studies accuracy docs/accuracy.md``: errors of the shipped power models.

Everything below the introduction comes from the model cards: scores with rows and with kernels
left out beside the no-information baseline, intervals with their coverage, and which of the
project's targets hold. A test holds the committed page equal to what this module writes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from studies.power.holds import card_lines
from wattcast.models.cards import ModelCard
from wattcast.models.store import PACKAGED_ARTIFACTS, ArtifactStore
from wattcast.training.card_tables import interval_table, score_table, summary_table, table

_START = """\
<!-- Written by python -m studies accuracy docs/accuracy.md; do not edit. -->

# Accuracy

What the shipped models hold, by their cards. Users bring kernels that no model has seen:
**kernel not seen** is what they get, and what published scores in this field do not tell. Beside
each score, in brackets, is that of doing nothing: the median power of the training rows, answered
for everything.

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


def page(cards: Sequence[ModelCard]) -> str:
    """The page of these cards, in Markdown."""
    targets = table(
        ("GPU", "protocol", "model", "R²", "MAE W", "baseline R², MAE", "wanted", "held"),
        card_lines(cards),
    )
    return "\n".join(
        (
            _START,
            "## Power in short\n",
            summary_table(cards),
            "## Every protocol and table\n",
            score_table(cards),
            "## 90 % intervals\n",
            "`rows inside` counts rows, `mean per kernel` gives every kernel the same weight. A "
            "dash: not measured, so an answer of that basis is marked. `×`: factors of the "
            "prediction; `± W`: that many watts around it; `± W^0.5`: the square roots of the "
            "bounds lie so far from its own. No bound is below the lowest power measured on the "
            "board.\n",
            interval_table(cards),
            "## Targets\n",
            "What the project set out to hold, and whether each model does.\n",
            targets,
        )
    )


def main(arguments: list[str]) -> int:
    """Write the page of the packaged models into the file that the only argument names."""
    if len(arguments) != 1:
        print("usage: python -m studies accuracy FILE", file=sys.stderr)
        return 2
    cards = ArtifactStore((PACKAGED_ARTIFACTS,)).list()
    Path(arguments[0]).write_text(page(cards), encoding="utf-8")
    return 0
