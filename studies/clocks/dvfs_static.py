"""Scaling without any run: time and power from activities, programs left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from studies.clocks.dvfs_counters import Scale
from studies.clocks.dvfs_judged import DvfsChapter, Judged, mean_and_median, spread_over
from studies.clocks.scaling_rows import Bools, Floats, Integers
from studies.clocks.scaling_studies import choice_scores
from studies.data.activity_tables import ACTIVITY_GPUS
from studies.data.frequency import kernel_group
from studies.pages.figures import Figure, Line, Panel, curves
from studies.pages.page import Section, Table
from studies.pages.targets import Target
from studies.pages.uninformed import mean_curve_of_others
from studies.power.physical_fit import Fits, FitSettings, leave_program_out, row_folds
from studies.power.physical_rows import GpuRows, all_rows
from studies.time.activity_errors import ActivityErrors

ASKED = ("tesla-v100", "quadro-rtx-8000")
LEAST_MARGIN = 10.0
"""Percent by which errors of scaling are to be below the mean curve's, on the GPUs ``ASKED``."""
RANDOM_FOLDS = 5
_PANELS = 4


@dataclass(frozen=True, eq=False)
class StaticScaling:
    """Application rows of one GPU, ``[n]``: time by the default time model, power by the physical
    one, with the program family left out. ``random_power`` saw other clocks of the program."""

    errors: ActivityErrors
    time: Scale
    power: Scale
    random_power: Scale

    @property
    def others(self) -> Bools:
        """Rows that are not at the reference clocks."""
        return ~self.errors.shipped.at_reference

    @property
    def kernel(self) -> Integers:
        """Number of the program of each row."""
        return np.unique(self.errors.labels, return_inverse=True)[1].astype(np.int64)


def static_scaling(gpu: str, tables: Mapping[str, GpuRows]) -> StaticScaling:
    """Predict every application row of a GPU. Raises DataError."""
    errors = ActivityErrors.of(gpu)
    rows, at = errors.shipped.rows, errors.reference_rows
    measured, grouped, random = _power_left_out(gpu, tables)
    assert [row.power_watts for row in rows] == measured.tolist(), "the same rows in one order"
    mean = mean_curve_of_others(
        [kernel_group(row.program) for row in rows], [row.clocks for row in rows], measured, at
    )
    predicted = errors.shipped.predicted
    return StaticScaling(
        errors,
        Scale(errors.scale, predicted / predicted[at], errors.mean_curve),
        Scale(measured / measured[at], grouped / grouped[at], mean),
        Scale(measured / measured[at], random / random[at], mean),
    )


def _power_left_out(gpu: str, tables: Mapping[str, GpuRows]) -> tuple[Floats, Floats, Floats]:
    """Watts of the application rows: measured, family left out, and row left out at random."""
    table, settings = tables[gpu], (FitSettings(),)
    grouped = leave_program_out(Fits(tables), gpu, settings).watts
    random, _ = row_folds(tables, gpu, settings, 0, RANDOM_FOLDS)
    return table.watts[table.scored], grouped[table.scored], random[table.scored]


def static_chapter(gpus: Sequence[str] = ACTIVITY_GPUS) -> DvfsChapter:
    """Scores and curves of static scaling, and its targets. Raises DataError."""
    tables = all_rows()
    found = [static_scaling(gpu, tables) for gpu in gpus]
    judged = [judged for each in found if each.errors.gpu in ASKED for judged in _targets(each)]
    return DvfsChapter((_scores_section(found), _curves_section(found)), judged)


def _targets(each: StaticScaling) -> list[Judged]:
    found = []
    for name, scale in (("time", each.time), ("power", each.power)):
        model, mean = (float(points.mean()) for points in scale.points(each.others))
        label = f"{name} scaling from activities, {each.errors.gpu}, below the mean curve"
        margin = Target(label, 100 * (1 - model / mean), LEAST_MARGIN, "at least")
        # The mean curve is what the margin is over: its own is 0.
        found.append(Judged(margin, 0.0))
    return found


def _scores_section(found: Sequence[StaticScaling]) -> Section:
    lines = []
    for each in found:
        energy = Scale(
            *(
                getattr(each.time, name) * getattr(each.power, name)
                for name in ("measured", "predicted", "mean_curve")
            )
        )
        for quantity, protocol, scale in (
            ("time", "nothing fitted", each.time),
            ("power", "grouped", each.power),
            ("power", "random", each.random_power),
            ("energy", "grouped", energy),
        ):
            model, mean = scale.points(each.others)
            lines.append(
                [
                    *(each.errors.gpu, quantity, protocol),
                    *(mean_and_median(points) for points in (model, mean)),
                    f"{100 * (1 - model.mean() / mean.mean()):.0f} %",
                ]
            )
    return Section(
        "Scaling without a run: from activities",
        (
            "What `/dvfs` and `wattcast dvfs` do: no counter, no measurement of the kernel. Time "
            "by `bottleneck` (nothing fitted to these times), power by the physical model at the "
            "predicted time (docs/physical.md). Activities are those of the tables, estimated "
            "from PTX by this project's prototype. `grouped`: all kernels of the program's family "
            "left out, on all GPUs, the voltage curve's choice included. `random`: other "
            f"clocks of the same program were in training ({RANDOM_FOLDS} folds of single rows). "
            "The mean curve is that of the other families at the same clocks.",
            Table(
                ("GPU", "scale of", "protocol", "model", "mean curve", "below it"),
                lines,
                "Mean (median) error in points of the scale against the highest clocks.",
            ),
            Table(
                ("GPU", "model saves", "mean curve saves", "oracle", "share", "mean curve's share"),
                [[each.errors.gpu, *_choice_cells(each)] for each in found],
                "Energy saved at the pair of least predicted energy, measured there.",
            ),
            "**Energy**, their product, is another matter: on all boards but the GTX 1080 Ti the "
            "mean curve is nearer. A kernel that slows less keeps its power, so that its errors "
            "of time and power cancel; those of the models do not. Where only the core clock "
            "can be chosen, one pair is close to the best for every program, and the mean curve "
            "finds it: choosing by it saves as much or more there. On the GTX 1080 Ti, with two "
            "clocks, it saves nothing, and the models most of what there is. Power of **P100** "
            "scales hardly better than its mean curve: activities follow from predicted time, "
            "which scales worst there. Random splits are not nearer than grouped ones: what is "
            "off is the form and its inputs, not what was seen.",
        ),
    )


def _choice_cells(each: StaticScaling) -> list[str]:
    measured = (each.time.measured, each.power.measured)
    model, mean = (
        choice_scores((getattr(each.time, of), getattr(each.power, of)), measured, each.kernel)
        for of in ("predicted", "mean_curve")
    )
    return [
        f"{model.saved_percent:.1f} %",
        f"{mean.saved_percent:.1f} %",
        f"{model.oracle_percent:.1f} %",
        f"{model.oracle_share_percent:.0f} %",
        f"{mean.oracle_share_percent:.0f} %",
    ]


def _curves_section(found: Sequence[StaticScaling]) -> Section:
    return Section(
        "Scaling curves without a run",
        (
            "Power at the highest memory clock, programs spread evenly over the ranking by error; "
            "the curves of time are in the report of time.",
            *(_power_figure(each) for each in found if each.errors.gpu in ASKED),
        ),
    )


def _power_figure(each: StaticScaling) -> Figure:
    rows, labels = each.errors.shipped.rows, np.array(each.errors.labels)
    reference = each.errors.shipped.reference
    highest = np.array([row.clocks.memory_mhz == reference.memory_mhz for row in rows])
    core = np.array([row.clocks.core_mhz for row in rows])
    points, _ = each.power.points(np.ones(len(rows), dtype=bool))
    error = {str(name): float(points[labels == name].mean()) for name in np.unique(labels)}
    panels = []
    for name in spread_over(sorted(error, key=lambda label: error[label]), _PANELS):
        mine = np.flatnonzero((labels == name) & highest)
        mine = mine[np.argsort(core[mine])]
        panels.append(
            Panel(
                name,
                [
                    Line(label, core[mine].tolist(), values[mine].tolist())
                    for label, values in (
                        ("measured", each.power.measured),
                        ("predicted", each.power.predicted),
                        ("mean curve", each.power.mean_curve),
                    )
                ],
            )
        )
    return curves(
        f"dvfs-static-power-{each.errors.gpu}",
        f"{each.errors.gpu}: power over that at {reference.core_mhz:g} MHz core clock, no "
        "counter and no measurement of the program known.",
        panels,
        "core clock, MHz",
        "power over that at the highest clocks",
    )
