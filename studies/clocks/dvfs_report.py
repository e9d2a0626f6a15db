"""``report dvfs``: how near scaling with the clocks comes, beside what knows nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from studies.clocks.dvfs_choice import choice_chapter
from studies.clocks.dvfs_counters import counters_chapter
from studies.clocks.dvfs_judged import DvfsChapter, Judged, judged_table
from studies.clocks.dvfs_protocols import protocols_chapter
from studies.clocks.dvfs_queueing import queueing_chapter
from studies.clocks.dvfs_regression import regression_chapter
from studies.clocks.dvfs_static import static_chapter
from studies.clocks.scaling_studies import STUDIES, Study, run_studies
from studies.pages.page import Page, Section
from studies.pages.targets import Target

Progress = Callable[[str], None]

_LEAD = """\
How near Wattcast comes to measured time, power and energy over core and memory clocks, each beside
the mean scaling curve, which knows the clocks but nothing of the program, and beside what was
published. `python -m studies report dvfs` makes this page again from the data folder
(`WATTCAST_DATA`); docs/reports.md says what each section means.

A scale is a quantity over that at the reference pair of clocks. Errors of scales are in **points**:
percent of the value at the reference. Other errors are |predicted / measured - 1| in percent.
"""


def dvfs_report(
    progress: Progress = lambda line: None, studies: Sequence[Study] = STUDIES
) -> tuple[Page, tuple[Target, ...]]:
    """The page, and all targets it shows. Raises DataError for missing or defective data."""
    jobs = os.cpu_count() or 1
    scored = run_studies(studies, jobs=jobs, progress=progress)
    chapters: list[DvfsChapter] = [counters_chapter(scored), choice_chapter(scored)]
    steps: tuple[tuple[str, Callable[[], DvfsChapter]], ...] = (
        ("random splits and parts", lambda: protocols_chapter(scored, studies, jobs)),
        ("scaling from activities", static_chapter),
        ("Wang and Chu's model", queueing_chapter),
        ("Abe et al.'s regression", regression_chapter),
    )
    for name, chapter in steps:
        progress(name)
        chapters.append(chapter())
    judged = [each for chapter in chapters for each in chapter.judged]
    sections = [section for chapter in chapters for section in chapter.sections]
    page = Page("dvfs", "Accuracy over clocks", _LEAD, [_targets_section(judged), *sections])
    return page, tuple(each.target for each in judged)


def _targets_section(judged: Sequence[Judged]) -> Section:
    met = sum(each.target.met for each in judged)
    return Section(
        "Targets",
        (
            f"{met} of {len(judged)} targets are met; the sections below say of each miss why. "
            "`knowing nothing` is the same figure of the mean curve; for absolute time and power "
            "of the median of the others at the same clocks. All in percent: of the value at the "
            "reference (points) for errors of scaling from counters, of the measured value for "
            "the last two models. Published figures are of other data, protocols or GPUs.",
            judged_table(judged),
        ),
    )
