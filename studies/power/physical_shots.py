"""What a few measured launches are worth to the pooled physical model on a GPU left out.

The GPU's rows and the predicted program's rows on every other GPU take no part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from studies.power.physical_artifacts import priors, watts_of
from studies.power.physical_fit import (
    Averaged,
    Fits,
    error_percent,
    scored_programs,
)
from studies.power.physical_rows import Floats, GpuRows
from wattcast.models.clocks import ClockPair
from wattcast.models.power.activities import UnitActivities
from wattcast.models.power.physical import PhysicalParameters
from wattcast.models.power.recalibration import design, refitted

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
