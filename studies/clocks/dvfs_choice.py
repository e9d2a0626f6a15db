"""Clocks chosen by predicted energy: what they save, and what keeps them from saving all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from studies.clocks.dvfs_counters import short_name, title
from studies.clocks.dvfs_judged import JUDGED, MEAN_CURVE, DvfsChapter, Judged
from studies.clocks.scaling_rows import Floats
from studies.clocks.scaling_studies import (
    ChoiceScores,
    Scored,
    choice_scores,
    choice_table,
    scale_scores,
)
from studies.pages.figures import Choices, Figure, pareto_fronts
from studies.pages.page import Section, Table
from studies.pages.targets import Target
from studies.time.queueing_errors import DATA_SETS, FAMILIES, predict, read_data_set
from wattcast.models.choice import Point

SHARE_BOUNDS: Mapping[str, float] = {
    "wang_gtx_980_high": 95.0,
    "wang_gtx_980_low": 60.0,
    "wang_gtx_1080_ti": 85.0,
    "wang_dcgm_quadro_rtx_8000": 95.0,
}
"""Energy saved as a share of what the oracle saves, in percent: what was asked for."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """One kernel's choice: energies over that at the reference, measured.

    ``least`` is the oracle's. ``row`` and ``best_row`` are the rows of both.
    """

    name: str
    row: int
    best_row: int
    energy: float
    least: float

    @property
    def lost_points(self) -> float:
        """What the choice gives away, in percent of the energy at the reference."""
        return 100 * (self.energy - self.least)


def choices_of(one: Scored) -> list[Chosen]:
    """Every kernel's choice by the judged model, the one that loses most first."""
    rows, predictions = one.predictions.rows, one.predictions
    time = predictions.time[JUDGED]
    told = time * predictions.power[JUDGED]
    energy = rows.time_scale * rows.power_scale
    found = []
    for kernel in np.unique(rows.kernel):
        mine = np.flatnonzero(rows.kernel == kernel)
        chosen = mine[np.lexsort((time[mine], told[mine]))[0]]
        best = mine[np.argmin(energy[mine])]
        found.append(
            Chosen(
                short_name(str(rows.names[chosen])),
                *(int(chosen), int(best), float(energy[chosen]), float(energy[best])),
            )
        )
    return sorted(found, key=lambda each: -each.lost_points)


def choice_chapter(scored: Sequence[Scored]) -> DvfsChapter:
    """Energy saved, what is lost and why, Pareto plots. Raises DataError for missing data."""
    both = [one for one in scored if one.choice(JUDGED) is not None]
    asked = [one for one in both if one.predictions.rows.campaign in SHARE_BOUNDS]
    return DvfsChapter(
        (_saved_section(scored), _lost_section(asked), _pareto_section(asked)),
        tuple(_target(one) for one in asked),
    )


def _target(one: Scored) -> Judged:
    name = f"energy saved, share of the oracle's, {title(one)}"
    bound = SHARE_BOUNDS[one.predictions.rows.campaign]
    return Judged(
        Target(name, _share(one.choice(JUDGED)), bound, "at least"), _share(one.choice(MEAN_CURVE))
    )


def _share(choice: ChoiceScores | None) -> float:
    return float("nan") if choice is None else choice.oracle_share_percent


def _saved_section(scored: Sequence[Scored]) -> Section:
    return Section(
        "Energy saved at the chosen pair",
        (
            "Each kernel, left out as above, runs at the pair of least predicted energy; `saved` "
            "is measured there, against the reference, and `oracle` is the least measured. Their "
            "ratio is of the means. `hypervolume`: what the pairs predicted to be Pareto-optimal "
            "dominate, as measured, over what the optimal ones do.",
            choice_table(scored),
            "Guerreiro et al. (IEEE Access 2019) print 8.0 of 16.8 % (T4), 6.0 of 9.1 (Titan V), "
            "29.0 of 32.6 (Titan Xp) and 11.5 of 18.1 (GTX Titan X): shares of 48, 66, 89 and "
            "64 %, from PTX alone.",
        ),
    )


# --- what is lost -------------------------------------------------------------------------


def _lost_section(asked: Sequence[Scored]) -> Section:
    kernels = []
    for one in asked:
        choices = choices_of(one)
        for each in choices[:3]:
            share = _share_without(choices, each.name)
            kernels.append([title(one), *_loss_cells(one, each), f"{share:.1f}"])
    return Section(
        "What the choice gives away, and why",
        (
            "The kernels that lose most: the pair chosen and the best one, measured and predicted "
            "scales of time and power at both, and the share of the oracle's saving that all "
            "other kernels reach together.",
            Table(
                (
                    *("campaign", "kernel", "chosen", "best", "lost, points"),
                    *("chosen: time, power (predicted)", "best: time, power (predicted)"),
                    "share without it, %",
                ),
                kernels,
            ),
            "The same choice where one of the two is replaced: by the measured scale, by "
            "`unfitted` time, by Wang and Chu's `queueing` (network form, from the same counters, "
            "nothing fitted), or by the geometric mean of `hybrid` and `queueing`. Share of the "
            "oracle's saving, in percent; error of the time used, in points.",
            _replaced_table(asked),
            "**GTX 1080 Ti**: between 1600 and 2000, 4000 and 5500 MHz the oracle itself saves 3.8 "
            "% only, so that one kernel's five points are six of the share. Nearly half of what "
            "is lost is `srad`, which slows by a fifth with the memory clock (2 % predicted), and "
            "`transpose`, which the core clock does not slow (7 % predicted): counters of one run "
            "do not tell them from kernels that behave as predicted. Exact time would be above "
            "the bound; exact power with predicted time chooses worse than both predicted, as "
            "their errors cancel. The geometric mean with `queueing` is above the bound here, but "
            "it was tried with these results in sight and chooses worse on both grids of the "
            "GTX 980: **it is not served**, and the target counts as missed.",
        ),
    )


def _loss_cells(one: Scored, each: Chosen) -> list[str]:
    rows, predictions = one.predictions.rows, one.predictions
    time, power = predictions.time[JUDGED], predictions.power[JUDGED]

    def pair(row: int) -> str:
        return f"{rows.core_mhz[row]:g}/{rows.memory_mhz[row]:g}"

    def scales(row: int) -> str:
        return (
            f"{rows.time_scale[row]:.3f}, {rows.power_scale[row]:.3f} "
            f"({time[row]:.3f}, {power[row]:.3f})"
        )

    return [
        *(each.name, pair(each.row), pair(each.best_row), f"{each.lost_points:.1f}"),
        *(scales(each.row), scales(each.best_row)),
    ]


def _share_without(choices: Sequence[Chosen], name: str) -> float:
    kept = [each for each in choices if each.name != name]
    saved, best = (
        float(np.sum([1 - getattr(each, which) for each in kept])) for which in ("energy", "least")
    )
    return 100 * saved / best if best > 0 else float("nan")


def _replaced_table(asked: Sequence[Scored]) -> Table:
    lines: dict[str, list[str]] = {}
    for one in asked:
        rows, predictions = one.predictions.rows, one.predictions
        time, power = predictions.time[JUDGED], predictions.power[JUDGED]
        queueing = queueing_scale(one)
        replaced: dict[str, tuple[Floats | None, Floats]] = {
            "as judged": (time, power),
            "measured time": (rows.time_scale, power),
            "measured power": (time, rows.power_scale),
            "unfitted time": (predictions.time["unfitted"], power),
            "queueing": (queueing, power),
            "geometric mean with queueing": (
                None if queueing is None else np.sqrt(time * queueing),
                power,
            ),
        }
        for name, (times, powers) in replaced.items():
            lines.setdefault(name, []).append(_replaced_cell(one, times, powers))
    return Table(("", *map(title, asked)), [[name, *cells] for name, cells in lines.items()])


def _replaced_cell(one: Scored, times: Floats | None, powers: Floats) -> str:
    rows = one.predictions.rows
    if times is None:
        return "-"
    choice = choice_scores((times, powers), (rows.time_scale, rows.power_scale), rows.kernel)
    errors = scale_scores(times, rows.time_scale, rows.is_reference)
    return f"{choice.oracle_share_percent:.1f}; {errors.mean_points:.2f}"


def queueing_scale(one: Scored) -> Floats | None:
    """Time scales of every row by Wang and Chu's model from the same counters, ``[n]``.

    ``None`` for a campaign without what that model needs. Raises DataError for missing data.
    """
    rows = one.predictions.rows
    data = {each.file.removesuffix(".csv"): each for each in DATA_SETS}.get(rows.campaign)
    if data is None:
        return None
    frame, found = read_data_set(data), predict(data, FAMILIES["queueing"])
    scale = found.predicted / found.predicted[found.reference]
    keys = zip(frame["benchmark"], frame["core_mhz"], frame["mem_mhz"], strict=True)
    by_row = dict(zip(keys, scale.tolist(), strict=True))
    wanted = zip(rows.names, rows.core_mhz, rows.memory_mhz, strict=True)
    return np.array([by_row[str(name).split()[0], core, memory] for name, core, memory in wanted])


# --- Pareto plots -------------------------------------------------------------------------


def _pareto_section(asked: Sequence[Scored]) -> Section:
    figures = []
    for one in asked:
        choices = choices_of(one)
        for which, each in (("most", choices[0]), ("middle", choices[len(choices) // 2])):
            figures.append(_pareto_figure(one, each, which))
    return Section(
        "Time against energy",
        (
            "All pairs of one kernel; lines join those that no other beats in both time and "
            "energy, measured and predicted. For every campaign the kernel that loses most by "
            "its choice, and the one in the middle of that ranking.",
            *figures,
        ),
    )


def _pareto_figure(one: Scored, each: Chosen, which: str) -> Figure:
    rows, predictions = one.predictions.rows, one.predictions
    mine = np.flatnonzero(rows.kernel == rows.kernel[each.row])
    reference = int(rows.reference_rows[each.row])
    series = []
    for label, time, power in (
        ("measured", rows.time_scale, rows.power_scale),
        ("predicted", predictions.time[JUDGED], predictions.power[JUDGED]),
    ):
        points = {row: Point(row, float(time[row]), float(power[row])) for row in mine.tolist()}
        series.append(Choices(label, list(points.values()), points[reference]))
    return pareto_fronts(
        f"dvfs-pareto-{rows.campaign}-{which}".replace("_", "-"),
        f"{title(one)}: {each.name}, which loses {each.lost_points:.1f} points by its choice.",
        series,
    )
