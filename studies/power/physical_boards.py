"""Boards left out, boards of one kind, temperature: what docs/physical.md tells of them.

    python -m studies physical-boards          prints the tables
    python -m studies physical-boards --write  writes them into docs/physical.md

Errors of the shipped cards come first. Nothing here is served: activities of the sweeps are those
measured. ``studies.end_to_end`` has the sweeps as they are served.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from studies.power.physical_artifacts import POOLED_SETTINGS, leave_gpu_out, watts_of
from studies.power.physical_fit import Fits, error_percent, pooled_parameters
from studies.power.physical_rows import SWEPT, Floats, GpuRows, all_rows, sweep_frame
from wattcast.features.errors import WattcastError
from wattcast.models.cards import ScoreName
from wattcast.models.power.physical import parameters_for
from wattcast.models.store import ArtifactStore
from wattcast.training.card_tables import table

PAGE = Path(__file__).parents[2] / "docs" / "physical.md"


class Seen(NamedTuple):
    """A kind of board of which one is seen: errors in percent on the others, ``[boards]`` by the
    one seen; the least rank correlation of watts over intensities; what their mean misses by."""

    errors_percent: Floats
    rank_correlation: float
    mean_of_others_percent: float


def one_board_seen(fits: Fits, gpu_id: str) -> Seen:
    """Fit with each board of a swept kind in turn, predict the others. Raises DataError."""
    rows = fits.tables[gpu_id]
    board = np.array([name.split()[1] for name in rows.measurements])
    errors, ranks, means = [], [], []
    for one in np.unique(board):
        mine = board == one
        part = Fits({**fits.tables, gpu_id: rows.take(mine)})
        parameters = parameters_for(rows.gpu, pooled_parameters(part, POOLED_SETTINGS))
        watts = watts_of(parameters, rows)
        errors.append(float(np.mean(np.abs(watts / rows.watts - 1)[~mine]) * 100))
        by_label = pd.DataFrame({"told": watts[~mine], "true": rows.watts[~mine]})
        middle = by_label.groupby(rows.labels[~mine]).mean()
        ranks.append(float(spearmanr(middle["told"], middle["true"]).statistic))
        others = pd.Series(rows.watts[~mine]).groupby(rows.labels[~mine]).mean()
        told = others.loc[rows.labels[mine]].to_numpy()
        means.append(float(np.mean(np.abs(told / rows.watts[mine] - 1)) * 100))
    return Seen(np.array(errors), min(ranks), float(np.mean(means)))


class Spread(NamedTuple):
    """How boards of a kind differ, over all intensities below their power limit.

    ``between_percent``: standard deviation of the boards' mean power, ``within_percent`` that of a
    board's readings about its mean, relative to all boards at the intensity.
    ``percent_per_kelvin``: how power goes with temperature from board to board, and its standard
    error; ``kelvin`` is the range of the boards' mean temperatures.
    """

    between_percent: float
    within_percent: float
    percent_per_kelvin: float
    error_per_kelvin: float
    kelvin: float


def spread(gpu_id: str) -> Spread:
    """The spread of a swept kind. Raises DataError."""
    frame = sweep_frame(gpu_id)
    by = frame.groupby("fma_per_element")
    relative = np.log(frame["power_watts"] / by["power_watts"].transform("mean")) * 100
    warmer = frame["temperature_c"] - by["temperature_c"].transform("mean")
    boards = pd.DataFrame({"percent": relative, "kelvin": warmer}).groupby(frame["board"])
    mean = boards.mean()
    x, y = mean["kelvin"].to_numpy(), mean["percent"].to_numpy()
    slope = float(x @ y / (x @ x))
    rest = y - slope * x
    error = float(np.sqrt(rest @ rest / (len(x) - 2) / (x @ x)))
    within = float(np.sqrt(boards["percent"].var().mean()))
    return Spread(float(y.std(ddof=1)), within, slope, error, float(np.ptp(x)))


SHOWN: Sequence[tuple[Literal["random", "grouped"], ScoreName]] = (
    ("random", "mape_percent"),
    ("grouped", "mape_percent"),
    ("grouped", "mae_watts"),
)
"""Scores of a card that the page shows, by protocol."""


def cards_table() -> str:
    """Errors of the shipped cards on programs left out (``pooled``: boards), as Markdown."""
    lines = []
    for card in sorted(ArtifactStore().list(), key=lambda card: card.gpu):
        if card.family != "physical":
            continue
        cells = []
        for protocol, name in SHOWN:
            found = card.score("as_published", protocol)
            cells.append(f"{found.model[name].mean:.1f} ({found.baseline[name].mean:.1f})")
        width = card.intervals.unseen_kernel
        assert width.coverage is not None, "every physical card has measured it"
        inside = f"{width.coverage.rows:.2f}, {width.coverage.kernels:.2f}"
        lines.append([card.gpu, *cells, str(width), inside])
    titles = ("GPU", "random % (baseline)", "grouped % (baseline)", "grouped W (baseline)",
              "90 % interval, program not seen", "rows inside, mean per program")  # fmt: skip
    return table(titles, lines)


def boards_tables() -> str:
    """The tables of boards as Markdown. Raises DataError."""
    fits = Fits(all_rows())
    lines = []
    for gpu_id, rows in fits.tables.items():
        watts = leave_gpu_out(fits, gpu_id, POOLED_SETTINGS)
        rank = "-" if rows.several_clocks else f"{_rank(rows, watts):.2f}"
        lines.append([gpu_id, f"{error_percent(rows, watts):.1f}", rank])
    left_out = table(("board left out", "error %", "rank correlation over intensities"), lines)
    lines = []
    for gpu_id in SWEPT:
        seen = one_board_seen(fits, gpu_id)
        lines.append(
            [
                gpu_id,
                f"{seen.errors_percent.mean():.1f}",
                f"{seen.errors_percent.max():.1f}",
                f"{seen.rank_correlation:.2f}",
                f"{seen.mean_of_others_percent:.1f}",
            ]
        )
    titles = ("one board seen", "others, mean %", "at most %", "least rank correlation",
              "mean of seven on the eighth %")  # fmt: skip
    one_seen = table(titles, lines)
    lines = []
    for gpu_id in SWEPT:
        found = spread(gpu_id)
        lines.append(
            [
                gpu_id,
                f"{found.between_percent:.1f}",
                f"{found.within_percent:.1f}",
                f"{found.percent_per_kelvin:+.2f} ± {found.error_per_kelvin:.2f}",
                f"{found.kelvin:.0f}",
            ]
        )
    titles = ("eight boards", "between boards, sd %", "within a board, sd %",
              "% of power per kelvin, from board to board", "range, K")  # fmt: skip
    spreads = table(titles, lines)
    return "\n".join((left_out, one_seen, spreads))


def _rank(rows: GpuRows, watts: Floats) -> float:
    middle = pd.DataFrame({"told": watts, "true": rows.watts}).groupby(rows.labels).mean()
    return float(spearmanr(middle["told"], middle["true"]).statistic)


TABLES = {"cards": cards_table, "boards": boards_tables}
"""What the page holds between marks, by the name in them."""


def shown(page: str, name: str) -> str:
    """What stands between the marks of a name."""
    return page.partition(f"<!-- physical-{name}: begin -->")[2].partition("<!--")[0].strip()


def with_tables(page: str, told: Mapping[str, str]) -> str:
    """The page with tables in their places."""
    for name, text in told.items():
        mark = f"<!-- physical-{name}: "
        before, _, rest = page.partition(f"{mark}begin -->")
        after = rest.partition(f"{mark}end -->")[2]
        page = f"{before}{mark}begin -->\n\n{text}\n{mark}end -->{after}"
    return page


def main(arguments: Sequence[str]) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m studies physical-boards")
    parser.add_argument("--write", action="store_true", help=f"write them into {PAGE.name}")
    options = parser.parse_args(arguments)
    try:
        told = {name: make() for name, make in TABLES.items()}
    except WattcastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("\n".join(told.values()))
    if options.write:
        PAGE.write_text(with_tables(PAGE.read_text("utf-8"), told), "utf-8")
    return 0
