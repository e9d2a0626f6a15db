"""Abe et al.'s regression on the frequency campaigns, beside the others' median."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from studies.clocks.abe_figures import abe_figures
from studies.clocks.abe_model import HARDENED
from studies.clocks.abe_regression import (
    PLAIN,
    WITH_CLOCKS,
    AbeRows,
    AbeScores,
    cases,
    leave_benchmarks_out,
    micro_to_real,
)
from studies.clocks.dvfs_judged import DvfsChapter, Judged
from studies.clocks.scaling_rows import Floats
from studies.pages.page import Section, Table
from studies.pages.targets import Target
from studies.pages.uninformed import median_of_others

SLACK = 1.5
"""Points by which a row may be above the first attempt's."""

FIRST_ATTEMPT: Mapping[tuple[str, str], tuple[float, float | None]] = {
    ("lisboa_gtx_titan_x, u, micro to real", "power"): (28.8, 9.8),
    ("lisboa_gtx_titan_x, u f, micro to real", "power"): (17.4, 7.2),
    ("lisboa_gtx_titan_x, u, real", "power"): (18.9, 9.1),
    ("lisboa_titan_xp, u", "power"): (12.4, 11.4),
    ("lisboa_titan_v, u", "power"): (9.6, 6.0),
    ("lisboa_gtx_980, u", "power"): (3.5, 3.4),
    ("wang_gtx_980_low", "power"): (9.9, 6.2),
    ("wang_gtx_980_high", "power"): (15.9, 22.0),
    ("wang_gtx_1080_ti", "power"): (21.4, 23.4),
    ("wang_tesla_p100", "power"): (13.7, 18.5),
    ("wang_tesla_v100", "power"): (33.6, 26.3),
    ("wang_gtx_980_low", "time"): (54.0, None),
    ("wang_gtx_980_high", "time"): (66.0, None),
    ("wang_gtx_1080_ti", "time"): (143.0, None),
}
"""Errors in percent of this project's first attempt at the regression on the same files: as
printed, and with the clocks as variables of their own."""

_PUBLISHED = {"power": "15.0 to 23.5", "time": "33.5 to 67.9"}
"""Abe et al., IPDPS 2014: GTX 285, 460, 480 and 680, in sample, power of the whole machine."""


@dataclass(frozen=True)
class RegressionRow:
    """One line: errors in percent of three variants, and of the others' median at the clocks."""

    label: str
    quantity: str
    plain: AbeScores
    with_clocks: AbeScores
    hardened: AbeScores
    median_percent: float


def regression_chapter(chosen: Iterable[tuple[AbeRows, bool]] | None = None) -> DvfsChapter:
    """Every line of the table, and targets. Raises DataError for missing data."""
    found = [_row(rows, to_real) for rows, to_real in (cases() if chosen is None else chosen)]
    sections = (_section(found), *(() if chosen is not None else (abe_figures(),)))
    return DvfsChapter(sections, tuple(j for row in found for j in _targets(row)))


def _row(rows: AbeRows, to_real: bool) -> RegressionRow:
    score = micro_to_real if to_real else leave_benchmarks_out
    plain, clocks, hard = (score(rows, one) for one in (PLAIN, WITH_CLOCKS, HARDENED))
    return RegressionRow(
        plain.label, rows.quantity, plain, clocks, hard, float(_median_errors(rows, to_real).mean())
    )


def _median_errors(rows: AbeRows, to_real: bool) -> Floats:
    """Error in percent of the median of what the regression was fitted on, at the same clocks."""
    clocks = list(zip(rows.core_mhz.tolist(), rows.memory_mhz.tolist(), strict=True))
    # One name for all real kernels: their median is then the microbenchmarks'.
    groups = np.where(rows.real, "real", rows.benchmark.astype(str)) if to_real else rows.benchmark
    predicted = median_of_others([str(name) for name in groups], clocks, rows.target)
    kept = rows.real if to_real else np.ones(len(rows.target), dtype=bool)
    return np.asarray(np.abs(predicted / rows.target - 1)[kept] * 100)


def _targets(row: RegressionRow) -> list[Judged]:
    first = FIRST_ATTEMPT.get((row.label, row.quantity))
    if first is None:
        return []
    found = []
    for variant, score, bound in (
        ("as printed", row.plain, first[0]),
        ("with clocks", row.with_clocks, first[1]),
    ):
        if bound is None:
            continue
        name = f"Abe {variant}, {row.quantity}, {row.label}, mean error"
        target = Target(name, score.left_out_percent, round(bound + SLACK, 1))
        published = _PUBLISHED[row.quantity] if variant == "as printed" else "-"
        found.append(Judged(target, row.median_percent, published))
    return found


def _section(found: Iterable[RegressionRow]) -> Section:
    lines = []
    for row in found:
        first = FIRST_ATTEMPT.get((row.label, row.quantity), (None, None))
        lines.append(
            [
                *(row.label, row.quantity),
                f"{row.plain.left_out_percent:.1f}",
                *("-" if value is None else f"{value:.1f}" for value in first[:1]),
                *(f"{row.plain.in_sample_percent:.1f}", f"{row.plain.adjusted_r2:.2f}"),
                f"{row.with_clocks.left_out_percent:.1f}",
                *("-" if value is None else f"{value:.1f}" for value in first[1:]),
                f"{row.hardened.left_out_percent:.1f}",
                f"{row.median_percent:.1f}",
            ]
        )
    return Section(
        "Abe et al.'s regression",
        (
            "One linear regression a GPU, at most ten variables chosen forward; counters at the "
            "reference pair (`python -m studies clocks --abe`). Left out: each benchmark "
            "in turn, or all applications (micro to real); in sample is fitted and scored on the "
            "same rows. `+ f` may take the clocks themselves; `hardened` also drops counters that "
            "hardly vary, weighs relative errors, shrinks, and keeps to the range fitted on. "
            "First: this project's first attempt on the same files, the bound but for 1.5 points. "
            "Abe et al. (IPDPS 2014) print 15.0, 14.0, 18.2, 23.5 % for power and 67.9, 47.6, "
            "39.3, 33.5 % for time (GTX 285, 460, 480, 680), in sample and power of the whole "
            "machine; their data are not public. Absolute power and time, not scales: the last "
            "column is the median of the other benchmarks (or microbenchmarks) at the same "
            "clocks, which the regression as printed does not beat everywhere. It is a baseline "
            "and never served.",
            Table(
                (
                    *("campaign", "quantity", "as printed", "first", "in sample", "adjusted R²"),
                    *("+ f", "first, + f", "hardened", "knowing nothing"),
                ),
                lines,
                "Mean absolute error in percent.",
            ),
        ),
    )
