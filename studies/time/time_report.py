"""``report time``: how near every time model comes, beside what knows nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from studies.pages.page import Page, Section
from studies.pages.targets import Target, target_table
from studies.time.time_activity import activity_chapter
from studies.time.time_counters import counters_chapter
from studies.time.time_thesis import thesis_chapter
from studies.time.time_work import Progress, work_chapter
from studies.time.work_artifact import ASSIGNMENTS

_LEAD = """\
How near Wattcast's time models come to measured times, each beside predictions that know nothing
of the program, and beside what was published. `python -m studies report time` makes this page again
from the data folder (`WATTCAST_DATA`); docs/reports.md says what each section means.

Errors are |predicted / measured - 1| in percent. The mean is over programs or rows as each table
says; the median beside it tells how much of the mean a few programs make.
"""


def time_report(
    assignments: int = ASSIGNMENTS, progress: Progress = lambda line: None
) -> tuple[Page, tuple[Target, ...]]:
    """The page, and all targets it shows.

    ``assignments``: seeded fold assignments of what is fitted. Raises DataError for missing or
    defective data.
    """
    chapters = []
    for name, chapter in (
        ("programs of the activity tables", activity_chapter),
        ("measured counters", counters_chapter),
        ("measured work", partial(work_chapter, assignments, progress)),
        ("the thesis' models", thesis_chapter),
    ):
        progress(name)
        chapters.append(chapter())
    targets = tuple(target for chapter in chapters for target in chapter.targets)
    sections = [section for chapter in chapters for section in chapter.sections]
    return Page("time", "Accuracy of time", _LEAD, [_targets_section(targets), *sections]), targets


def _targets_section(targets: Sequence[Target]) -> Section:
    met = sum(target.met for target in targets if not target.stretch)
    asked = sum(not target.stretch for target in targets)
    return Section(
        "Targets",
        (
            f"{met} of {asked} targets are met. A stretch was to be tried for, not promised. The "
            "sections below say of each miss by how much and why.",
            target_table(targets),
        ),
    )
