"""``python -m studies abe``: Abe et al.'s regression (IPDPS 2014) on the frequency campaigns.

Its errors, then what they draw: Figures 4 and 7 to 11, Table IV, on those counted with nvprof.

Their GPUs (GTX 285, 460, 480, 680), counters (32 to 108) and raw data are not public: the method is
repeated, their figures stand beside. A benchmark is always predicted by a model of the others.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from studies import parser_of
from studies.data.frequency import read_frequency
from studies.fitting.scaling.rows import Floats
from studies.pages.page import Section, Table, to_markdown
from studies.papers.abe import (
    MOST_VARIABLES,
    POWER_CAMPAIGNS,
    TIME_CAMPAIGNS,
    AbeModel,
    AbeRows,
    abe_table,
    counter_rows,
)

VARIABLES = (5, 10, 15, 20)
"""Figures 7 and 8: explanatory variables allowed. The campaigns offer 15 counters."""

_MOST = 3
"""Pairs and variables named of each campaign."""


def abe_figures() -> Section:
    """Their figures and Table IV, as tables. Raises DataError for missing data."""
    rows = list(_campaigns())
    return Section(
        "Abe et al.'s figures",
        (
            _variables(rows),
            _unified(rows),
            _influence(rows),
            _best_pairs(),
        ),
    )


def _campaigns() -> Iterator[AbeRows]:
    yield from (counter_rows(campaign, "power") for campaign in POWER_CAMPAIGNS)
    yield from (counter_rows(campaign, "time") for campaign in TIME_CAMPAIGNS)


def _left_out(rows: AbeRows, most: int = MOST_VARIABLES) -> Floats:
    """Errors in percent ``[n]``, each benchmark predicted by a model of the others."""
    errors = np.empty(len(rows.target))
    for name in np.unique(rows.benchmark):
        mine = rows.benchmark == name
        errors[mine] = rows.errors(rows.fit(~mine, most), mine) * 100
    return errors


def _variables(campaigns: list[AbeRows]) -> Table:
    lines = []
    for rows in campaigns:
        cells = []
        for most in VARIABLES:
            model = rows.fit(np.ones(len(rows.target), dtype=bool), most)
            cells.append(
                f"{_left_out(rows, most).mean():.1f} ({model.adjusted_r2:.2f}, {len(model.terms)})"
            )
        lines.append([rows.label, rows.quantity, *cells])
    return Table(
        ("campaign", "quantity", *(f"at most {most}" for most in VARIABLES)),
        lines,
        "Figures 7 and 8, the number of variables: mean error in percent with the benchmark left "
        "out (adjusted R² of the fit on all, variables taken). They find that ten do, as the "
        "adjusted R² hardly rises beyond. Here it rises by .05 at most, and benchmarks left out "
        "are predicted worse with more than ten on five lines of eight.",
    )


def _unified(campaigns: list[AbeRows]) -> Table:
    lines = []
    for rows in campaigns:
        whole = _left_out(rows)
        pairs = list(zip(rows.core_mhz.tolist(), rows.memory_mhz.tolist(), strict=True))
        alone = np.empty(len(whole))
        for pair in sorted(set(pairs)):
            mine = np.array([one == pair for one in pairs])
            alone[mine] = _left_out(rows.take(mine))
        lines.append(
            [rows.label, rows.quantity, str(len(set(pairs))), _quartiles(whole), _quartiles(alone)]
        )
    return Table(
        ("campaign", "quantity", "pairs", "one model for all pairs", "a model for each pair"),
        lines,
        "Figures 9 and 10, one unified model beside one for each pair of clocks: quartiles of the "
        "error in percent, benchmark left out. They see a slight difference, in sample. So it is "
        "here with benchmarks left out: a model for a pair is a little better where both clocks "
        "move and a little worse on P100 and V100, where five core clocks are one law.",
    )


def _quartiles(errors: Floats) -> str:
    low, middle, high = np.percentile(errors, (25, 50, 75))
    return f"{low:.1f}, {middle:.1f}, {high:.1f}"


def influence(rows: AbeRows, model: AbeModel) -> dict[str, float]:
    """Share of each variable in what the regression moves: its coefficient times the standard
    deviation of its column, over the sum; largest first."""
    moved = {}
    for term in model.terms:
        alone = model.model_copy(update={"terms": (term,), "intercept": 0.0})
        column = alone.predict(rows.counters, rows.names, rows.core_mhz, rows.memory_mhz)
        moved[term.counter] = float(np.std(column))
    total = sum(moved.values())
    ordered = sorted(moved, key=lambda name: (-moved[name], name))
    return {name: moved[name] / total for name in ordered}


def _influence(campaigns: list[AbeRows]) -> Table:
    lines = []
    for rows in campaigns:
        found = influence(rows, rows.fit(np.ones(len(rows.target), dtype=bool)))
        named = [f"{name} {share:.0%}" for name, share in list(found.items())[:_MOST]]
        lines.append([rows.label, rows.quantity, str(len(found)), ", ".join(named)])
    return Table(
        ("campaign", "quantity", "variables", "most influence"),
        lines,
        "Figure 11, influence of the variables: share of each in what the model moves (coefficient "
        "times standard deviation). They do not name theirs. Counters of one cause (transactions "
        "at L2 and DRAM) take each other's place from GPU to GPU, often with opposite signs.",
    )


def _best_pairs() -> Table:
    lines = []
    for campaign in POWER_CAMPAIGNS:
        read = read_frequency(campaign)
        frame = read.frame.assign(joules=read.frame["power_watts"] * read.frame["time_seconds"])
        best = frame.loc[frame.groupby("kernel")["joules"].idxmin()]
        pairs = Counter(zip(best["core_mhz"], best["memory_mhz"], strict=True))
        reference = frame[frame["is_reference"]].set_index("kernel")["joules"]
        saved = 1 - best.set_index("kernel")["joules"] / reference
        named = [f"{core:.0f}/{memory:.0f}: {n}" for (core, memory), n in pairs.most_common(_MOST)]
        lines.append(
            [
                campaign,
                f"{read.reference.core_mhz:.0f}/{read.reference.memory_mhz:.0f}",
                str(len(pairs)),
                ", ".join(named),
                f"{saved.mean() * 100:.1f}",
                f"{saved.max() * 100:.1f}",
            ]
        )
    return Table(
        ("campaign", "reference", "pairs that are best", "most often", "saved, %", "at most"),
        lines,
        "Table IV and Figure 4, the measured pair of least energy of each benchmark (core/memory "
        "MHz: benchmarks) and the energy it saves against the reference. They print 0.8, 12.3, "
        "12.1 and 24.4 % for GTX 285, 460, 480 and 680 and more and more different pairs.",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = parser_of("abe", __doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    print(abe_table(options.jobs))
    print()
    print(to_markdown("Figures", (abe_figures(),)))
    return 0
