"""Prints how near the physical power model comes, beside the answers that need no model.

    python -m studies physical  (some minutes on one core)

Everything is on programs (or GPUs) left out, over all clocks measured. docs/physical.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from studies.card_tables import table
from studies.fitting.physical.artifacts import priors, served_costs, watts_of
from studies.fitting.physical.fit import (
    Averaged,
    Choice,
    Fits,
    choose,
    error_percent,
    leave_program_out,
    scored_programs,
)
from studies.fitting.physical.rows import Floats, GpuRows, all_rows
from wattcast.features.errors import WattcastError
from wattcast.models.clocks import ClockPair
from wattcast.models.power.activities import UnitActivities
from wattcast.models.power.physical import PhysicalParameters
from wattcast.models.power.recalibration import design, refitted

Line = list[str]


def programs_lines(fits: Fits, choice: Choice) -> Iterator[Line]:
    """Activities as they are served (GTX 980, Titan X: as counted), settings nested."""
    for gpu_id in fits.varied:
        found = leave_program_out(fits, gpu_id, choice.settings)
        yield [gpu_id, f"{found.error_percent:.1f}", f"{found.median_error_percent:.1f}"]


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


def report() -> str:
    """All tables as Markdown. Raises DataError for missing or defective data."""
    fits = Fits(all_rows())
    choice = choose(fits)
    scores = list(programs_lines(fits, choice))
    costs = [
        [cost.gpu_id, f"{cost.counted_percent:.1f}", f"{cost.served_percent:.1f}"]
        for cost in served_costs(fits, choice.best)
    ]
    shots = ["datasheet", "1 row", "3 rows", "5 rows", "10 rows"]
    parts = [
        ("Mean absolute percentage error over all clocks",
         ["GPU", "model %", "median at the same clocks %"], scores),
        ("Fitted on counted activities alone, read on", ["GPU", "counted %", "PTX %"], costs),
        ("GPU and program left out, and recalibrated by measured launches (median of those)",
         ["GPU", *shots], transfer_lines(fits, choice)),
    ]  # fmt: skip
    return "\n".join(f"{title}\n\n{table(heads, lines)}" for title, heads, lines in parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m studies physical")
    parser.parse_args(arguments)
    try:
        print(report())
    except WattcastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


# --- What a few measured launches are worth to the pooled physical model on --------------------


SHOTS = (0, 1, 3, 5, 10)
"""Measured launches of the new GPU, each of another program."""


@dataclass(frozen=True, slots=True)
class MeasuredLaunch:
    """Activities of a launch at the PREDICTED time at ``clocks``, and the watts it drew there."""

    activities: UnitActivities
    clocks: ClockPair
    power_watts: float


def recalibrated(
    parameters: PhysicalParameters,
    measured: Sequence[MeasuredLaunch],
) -> PhysicalParameters:
    """``refitted`` to measured launches; without any the parameters come back as they are."""
    if not measured:
        return parameters
    watts = np.array([one.power_watts for one in measured])
    rows = design(parameters, [(one.activities, one.clocks) for one in measured])
    return refitted(parameters, rows, watts)


@dataclass(frozen=True)
class ShotErrors:
    """Error in percent of the recalibrated model, mean and spread over draws, and the median's."""

    shots: int
    model: float
    spread: float
    median: float


def shot_errors(fits: Fits, gpu_id: str, settings: Averaged, seeds: int = 10) -> list[ShotErrors]:
    """What a few measured launches of a GPU left out are worth, by their number."""
    table, known = fits.tables[gpu_id], priors(fits, gpu_id, settings)
    found = []
    for shots in SHOTS:
        draws = range(seeds if shots else 1)
        errors = [error_percent(table, with_shots(table, known, shots, seed)) for seed in draws]
        medians = [
            error_percent(table, median_with_shots(table, shots, seed)) if shots else np.nan
            for seed in draws
        ]
        found.append(
            ShotErrors(
                shots, float(np.mean(errors)), float(np.std(errors)), float(np.mean(medians))
            )
        )
    return found


def with_shots(
    table: GpuRows, known: Mapping[str, PhysicalParameters], shots: int, seed: int
) -> Floats:
    """The same after ``shots`` measured launches of other programs, each at some clocks."""
    watts = np.full(len(table.watts), np.nan)
    for (program, prior), rows in zip(known.items(), _drawn(table, shots, seed), strict=True):
        parameters = recalibrated(prior, measured_launches(table, rows))
        mine = (table.programs == program) & table.scored
        watts[mine] = watts_of(parameters, table)[mine]
    return watts


def median_with_shots(table: GpuRows, shots: int, seed: int) -> Floats:
    """What the median of the same launches says: the answer without a model."""
    watts = np.full(len(table.watts), np.nan)
    programs = scored_programs(table)
    for program, rows in zip(programs, _drawn(table, shots, seed), strict=True):
        watts[(table.programs == program) & table.scored] = np.median(table.watts[rows])
    return watts


def _drawn(table: GpuRows, shots: int, seed: int) -> list[list[int]]:
    """For each scored program some rows of others, no two of one program."""
    random = np.random.default_rng(seed)
    scored = np.flatnonzero(table.scored)
    drawn = []
    for program in scored_programs(table):
        others = scored[table.programs[scored] != program]
        names = random.permutation(np.unique(table.programs[others]))[:shots]
        drawn.append([int(random.choice(others[table.programs[others] == n])) for n in names])
    return drawn


def measured_launches(table: GpuRows, rows: Sequence[int]) -> list[MeasuredLaunch]:
    """Some rows as ``wattcast.models.power.recalibration`` takes them."""
    return [
        MeasuredLaunch(
            UnitActivities(*table.activities[row]),
            ClockPair(*table.clocks_mhz[row]),
            float(table.watts[row]),
        )
        for row in rows
    ]
