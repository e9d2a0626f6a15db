"""Prints how near the physical power model comes, by every route, beside the no-model answers.

    python -m studies physical  everything (some ten minutes on one core)
    python -m studies physical --fast  no nested choice of DCGM's, no residual

Everything is on programs (or GPUs) left out, over all clocks measured. docs/physical.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from sklearn.ensemble import GradientBoostingRegressor

from studies.power.physical_artifacts import served_costs
from studies.power.physical_fit import (
    Choice,
    Fits,
    LeftOut,
    SettingsOf,
    choose,
    clock_medians,
    error_percent,
    leave_program_out,
    predict,
    scored_programs,
)
from studies.power.physical_measured import TITAN_X_DOMAINS, dcgm_left_out, titan_x
from studies.power.physical_rows import Floats, all_rows, prototype_rows
from studies.power.physical_shots import shot_errors
from studies.power.physical_tokens import CAMPAIGNS, tokens_left_out
from wattcast.features.errors import WattcastError
from wattcast.models.store import ArtifactStore
from wattcast.training.card_tables import table

TREES, DEPTH, RATE = 60, 2, 0.1
"""Few and shallow: there are some fifteen programs to learn from."""


def with_residual(fits: Fits, gpu_id: str, settings: SettingsOf) -> Floats:
    """Watts of every scored row, physical times boosted residual, program left out; else NaN."""
    table = fits.tables[gpu_id].take(fits.tables[gpu_id].scored)
    relative = table.clocks_mhz / table.reference
    inputs = np.column_stack([table.activities, relative])
    names = scored_programs(table)
    watts = np.full(len(table.watts), np.nan)
    for program in names:
        mine = table.programs == program
        seen = np.full(len(table.watts), np.nan)
        for other in names:
            weights, voltage = fits.fit(gpu_id, settings(program), frozenset({program, other}))
            rows = table.programs == other
            seen[rows] = predict(table, weights, voltage)[rows]
        missed = np.log(table.watts / seen)
        trees = GradientBoostingRegressor(
            n_estimators=TREES, max_depth=DEPTH, learning_rate=RATE, random_state=0
        )
        trees.fit(inputs[~mine], missed[~mine])
        watts[mine] = seen[mine] * np.exp(trees.predict(inputs[mine]))
    found = np.full(len(fits.tables[gpu_id].watts), np.nan)
    found[fits.tables[gpu_id].scored] = watts
    return found


PROGRAMS, TOKENS, DCGM = "programs left out", "PTX tokens alone", "DCGM's shares"

ASKED: Mapping[str, Mapping[str, float | str]] = {
    PROGRAMS: {
        "quadro-rtx-8000": 14.0,
        "tesla-v100": 17.0,
        "gtx-1080-ti": "85 % of the median",
        "tesla-p100": "85 % of the median",
    },
    TOKENS: {"quadro-rtx-8000": 14.0, "tesla-v100": 17.5},
    DCGM: {"quadro-rtx-8000": 8.5, "tesla-v100": 14.0},
    "utilisations, 32 pairs": {"gtx-titan-x": 6.5},
    "utilisations, 64 pairs": {"gtx-titan-x": 6.2},
}
"""Targets: most mean absolute percentage error, by route and GPU."""


class RouteError(NamedTuple):
    """Mean absolute percentage error by one route on one GPU, and the median's at those clocks."""

    route: str
    gpu_id: str
    model_percent: float
    median_percent: float

    @property
    def asked(self) -> float | str | None:
        """The most it should be; words where it is told by the median, None where nothing is."""
        return ASKED.get(self.route, {}).get(self.gpu_id)


Line = list[str]


def programs_errors(fits: Fits, choice: Choice) -> Iterator[RouteError]:
    """Activities as they are served (GTX 980, Titan X: as counted), settings nested."""
    for gpu_id in fits.varied:
        found = leave_program_out(fits, gpu_id, choice.settings)
        yield RouteError(PROGRAMS, gpu_id, found.error_percent, found.median_error_percent)


def measured_errors(*, fast: bool) -> Iterator[RouteError]:
    """Routes from measured activity and from tokens. Raises DataError."""
    for gpu_id in CAMPAIGNS:
        tokens = tokens_left_out(gpu_id)
        yield RouteError(TOKENS, gpu_id, tokens.model_percent, tokens.median_percent)
    if not fast:
        for gpu_id, watts in dcgm_left_out().items():
            rows = prototype_rows(gpu_id)
            found = LeftOut(rows, watts, clock_medians(rows))
            yield RouteError(DCGM, gpu_id, found.error_percent, found.median_error_percent)
    for domain in TITAN_X_DOMAINS:
        one = titan_x(domain)
        yield RouteError(
            f"utilisations, {domain}", one.gpu_id, one.model_percent, one.median_percent
        )


def residual_lines(fits: Fits, choice: Choice) -> list[Line]:
    """The same programs with boosted trees on the residual."""
    lines = []
    for gpu_id, rows in fits.varied.items():
        if rows.counted[rows.scored].all():
            continue
        plain = leave_program_out(fits, gpu_id, choice.settings).error_percent
        trees = error_percent(rows, with_residual(fits, gpu_id, choice.settings))
        lines.append([gpu_id, f"{plain:.1f}", f"{trees:.1f}"])
    return lines


def transfer_lines(fits: Fits, choice: Choice) -> list[Line]:
    """GPUs left out: the datasheet alone, and with a few measured launches."""
    lines = []
    for gpu_id in fits.varied:
        cells = [gpu_id]
        for found in shot_errors(fits, gpu_id, choice.best):
            median = f" ({found.median:.1f})" if found.shots else ""
            cells.append(f"{found.model:.1f} ± {found.spread:.1f}{median}")
        lines.append(cells)
    return lines


def interval_lines() -> list[Line]:
    """Intervals of the shipped cards on programs (pooled: GPUs) left out."""
    lines = []
    for card in ArtifactStore().list():
        if card.family != "physical":
            continue
        width = card.intervals.unseen_kernel
        assert width.coverage is not None, "every physical card has measured it"
        lines.append(
            [
                card.gpu,
                str(width),
                f"{width.coverage.rows:.2f}, {width.coverage.kernels:.2f}",
                f"{width.coverage.interval_score_watts:.1f}",
            ]
        )
    return lines


def report(*, fast: bool = False) -> str:
    """All tables as Markdown. Raises DataError for missing or defective data."""
    fits = Fits(all_rows())
    choice = choose(fits)
    errors = [*programs_errors(fits, choice), *measured_errors(fast=fast)]
    scores = [_line(error) for error in errors]
    costs = [
        [cost.gpu_id, f"{cost.counted_percent:.1f}", f"{cost.served_percent:.1f}"]
        for cost in served_costs(fits, choice.best)
    ]
    shots = ["datasheet", "1 row", "3 rows", "5 rows", "10 rows"]
    parts = [
        ("Mean absolute percentage error over all clocks",
         ["route", "GPU", "model %", "median at the same clocks %", "asked at most"], scores),
        ("Fitted on counted activities alone, read on", ["GPU", "counted %", "PTX %"], costs),
        ("GPU and program left out, and recalibrated by measured launches (median of those)",
         ["GPU", *shots], transfer_lines(fits, choice)),
        ("90 % intervals of the cards", ["GPU", "program not seen", "rows inside, mean per program",
         "interval score W"], interval_lines()),
    ]  # fmt: skip
    if not fast:
        parts.append(
            ("Boosted trees on the residual", ["GPU", "physical %", "with trees %"],
             residual_lines(fits, choice))
        )  # fmt: skip
    return "\n".join(f"{title}\n\n{table(heads, lines)}" for title, heads, lines in parts)


def _line(error: RouteError) -> Line:
    asked = "-" if error.asked is None else str(error.asked)
    cells = f"{error.model_percent:.1f}", f"{error.median_percent:.1f}"
    return [error.route, error.gpu_id, *cells, asked]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m studies physical")
    parser.add_argument("--fast", action="store_true", help="leave the slow parts out")
    options = parser.parse_args(arguments)
    try:
        print(report(fast=options.fast))
    except WattcastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
