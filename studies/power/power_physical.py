"""The physical power models with whole programs left out, beside the median at the same clocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from studies.pages.figures import Points, cumulative, scatter
from studies.pages.page import Section, Table
from studies.pages.targets import Target
from studies.power.physical_fit import (
    Averaged,
    Fits,
    LeftOut,
    cached_choice,
    error_percent,
    leave_program_out,
)
from studies.power.physical_rows import all_rows
from studies.power.power_models import Held
from wattcast.training.evaluation.scores import ape_percent, mae_watts, r2

BOUNDS: Mapping[str, float] = {"quadro-rtx-8000": 14.0, "tesla-v100": 17.0}
"""Targets: mean absolute percentage error over all clocks, programs left out."""
UNDER_MEDIAN: Mapping[str, float] = {"gtx-1080-ti": 15.0, "tesla-p100": 15.0}
"""Targets: least share in percent by which the error lies under the median's."""


class PhysicalChapter(NamedTuple):
    """Sections on the physical models, and the targets they show."""

    sections: Sequence[Section]
    held: Sequence[Held]


def physical_chapter(settings: Averaged | None = None) -> PhysicalChapter:
    """The physical models on programs left out. Raises DataError for missing or defective data.

    ``settings`` of the fits; by default each program's are chosen without it.
    """
    fits = Fits(all_rows())
    chosen = cached_choice(fits).settings if settings is None else settings
    found = {gpu: leave_program_out(fits, gpu, chosen) for gpu in fits.varied}
    return PhysicalChapter((_section(found),), _held(found))


def _held(found: Mapping[str, LeftOut]) -> list[Held]:
    held = []
    for gpu, one in found.items():
        model, median = one.error_percent, one.median_error_percent
        name = f"{gpu}, physical, programs left out, mean error"
        if gpu in BOUNDS:
            held.append(Held(Target(name, model, BOUNDS[gpu]), median))
        if gpu in UNDER_MEDIAN:
            under = (1 - model / median) * 100
            target = Target(f"{name}, under the median's", under, UNDER_MEDIAN[gpu], "at least")
            held.append(Held(target, 0.0))
    return held


def _section(found: Mapping[str, LeftOut]) -> Section:
    programs = {gpu: _by_program(one) for gpu, one in found.items()}
    names = sorted({name for each in programs.values() for name in each})
    return Section(
        "Physical models, programs left out",
        (
            "Idle power plus energy per event times events per second (docs/physical.md). Each "
            "program is predicted at all its clocks by weights, voltages and settings found "
            "without it, on any GPU. In brackets the median of the other programs at the same "
            "clocks. Rows of most GPUs are whole programs at many clocks, so that scores of rows "
            "left out, which the cards have, tell of other clocks of a known program.",
            Table(
                ("GPU", "programs", "rows", "MAPE %", "MAE W", "R²", "worst program, %"),
                [_score_cells(gpu, one, programs[gpu]) for gpu, one in found.items()],
            ),
            scatter(
                "power-physical-scatter",
                "Predicted over measured power, programs left out: one point for each program at "
                "each pair of clocks; the band is a factor of 2.",
                [_points(gpu, one) for gpu, one in found.items()],
                "W",
            ),
            cumulative(
                "power-physical-errors",
                "Share of rows with at most that error, programs left out.",
                {gpu: _percents(one) for gpu, one in found.items()},
            ),
            Table(
                ("program", *programs),
                [
                    [
                        name,
                        *(
                            f"{each[name]:.1f}" if name in each else "-"
                            for each in programs.values()
                        ),
                    ]
                    for name in names
                ],
                "Mean absolute error over all clocks by program left out, in percent.",
            ),
        ),
    )


def _score_cells(gpu: str, one: LeftOut, programs: Mapping[str, float]) -> list[str]:
    scored = one.table.scored
    measured, predicted = one.table.watts[scored], one.watts[scored]
    median = one.median_watts[scored]
    worst = max(programs, key=lambda name: programs[name])
    return [
        gpu,
        str(len(programs)),
        str(int(scored.sum())),
        f"{error_percent(one.table, one.watts):.1f} ({one.median_error_percent:.1f})",
        f"{mae_watts(measured, predicted):.1f} ({mae_watts(measured, median):.1f})",
        f"{r2(measured, predicted):.2f} ({r2(measured, median):.2f})",
        f"{worst} {programs[worst]:.0f}",
    ]


def _by_program(one: LeftOut) -> dict[str, float]:
    """Program -> mean absolute percentage error over its rows."""
    wrong = np.abs(one.watts / one.table.watts - 1) * 100
    return {
        str(name): float(wrong[one.table.scored & (one.table.programs == name)].mean())
        for name in np.unique(one.table.programs[one.table.scored])
    }


def _percents(one: LeftOut) -> list[float]:
    scored = one.table.scored
    errors = ape_percent(one.table.watts[scored], one.watts[scored])
    return [float(error) for error in errors]


def _points(gpu: str, one: LeftOut) -> Points:
    scored = one.table.scored
    return Points(gpu, one.table.watts[scored].tolist(), one.watts[scored].tolist())
