"""``report power``: the shipped models, the physical ones, and the thesis' study."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from math import isfinite

from studies.pages.page import Page, Section, Table
from studies.pages.targets import Target
from studies.power.anchored import SHOTS
from studies.power.bounds import BOUNDS, INTERVAL_GAIN, KNOWN_R2
from studies.power.holds import interval_judged, known_judged, seen_judged
from studies.power.physical_tables import measured_errors
from studies.power.power_models import (
    Held,
    intervals_section,
    model_targets,
    models_section,
    packaged_cards,
)
from studies.power.power_parts import PARTS, USUAL
from studies.power.power_physical import physical_chapter
from studies.thesis.judged import ASSIGNMENTS, Effort, Progress
from studies.thesis.study import Study
from wattcast.training.checkpoints import Checkpoints
from wattcast.training.power_rows import SOURCE, THESIS_FILES


def measured_targets(assignments: int) -> list[Held]:
    """Every such target. Raises DataError for missing or defective data."""
    seeds = range(assignments)
    return [
        *_seen(seeds),
        *_known(seeds),
        *_interval_gains(seeds),
        *_routes(),
    ]


def _seen(seeds: Sequence[int]) -> Iterator[Held]:
    for gpu in THESIS_FILES:
        found, bound = seen_judged(gpu, seeds, Checkpoints()), BOUNDS[gpu]
        scores, nothing = found.scores(), found.baseline_scores()
        name = f"{gpu}, blend (not shipped), rows left out"
        r2 = Target(f"{name}, R²", scores["r2"].mean, bound.random_r2, "at least", unit="")
        mae = Target(f"{name}, MAE", scores["mae_watts"].mean, bound.random_mae_watts, unit="W")
        yield Held(r2, nothing["r2"].mean)
        yield Held(mae, nothing["mae_watts"].mean)


def _known(seeds: Sequence[int]) -> Iterator[Held]:
    for gpu, bound in KNOWN_R2.items():
        found = known_judged(gpu, SOURCE, seeds, Checkpoints())
        name = f"{gpu}, {SHOTS} launches of the kernel known, R²"
        target = Target(name, found.anchored["r2"].mean, bound, "at least", unit="")
        yield Held(target, found.own_median["r2"].mean)


def _interval_gains(seeds: Sequence[int]) -> Iterator[Held]:
    for gpu in THESIS_FILES:
        found = interval_judged(gpu, SOURCE, seeds, Checkpoints())
        name = f"{gpu}, kernels left out, interval score under a constant width's"
        yield Held(Target(name, found.gain * 100, INTERVAL_GAIN * 100, "at least"), 0.0)


def _routes() -> Iterator[Held]:
    for error in measured_errors(fast=False):
        if isinstance(error.asked, float):
            name = f"{error.gpu_id}, physical, {error.route}, mean error"
            yield Held(Target(name, error.model_percent, error.asked), error.median_percent)


_LEAD = """\
How near Wattcast's power models come to measured power on rows and on kernels they have not seen,
each beside predictions that know nothing of the kernel; and the power study of G. Alavani's thesis
(BITS Pilani, 2023, chapter 5 and Appendix A) done again on its published rows, ours beside the
printed figures. `python -m studies report power` makes this page again from the data folder
(`WATTCAST_DATA`); docs/study.md says how each part is done and where it differs.

Scores of kernels left out are the ones that a user's own kernel gets. ± is the standard deviation
over seeded fold assignments.
"""


def power_report(
    assignments: int = ASSIGNMENTS,
    progress: Progress = lambda line: None,
    parts: Sequence[str] = USUAL,
) -> tuple[Page, tuple[Target, ...]]:
    """The page, and all targets it shows.

    ``assignments``: seeded fold assignments of what is fitted here (cards bring their own);
    ``parts`` of the study; without its regressors no target compares with plain models. Raises
    DataError for missing or defective data.
    """
    progress("shipped models")
    cards = packaged_cards()
    progress("physical models, programs left out")
    physical = physical_chapter()
    progress("known launches, widths, measured activity")
    measured = measured_targets(assignments)
    study = Study(Effort(assignments, os.cpu_count() or 1, progress))
    sections = [PARTS[name](study) for name in parts]
    # The plain models to compare with are those of this part.
    plain = study.regressors if "regressors" in parts else {}
    held = [*model_targets(cards, plain), *physical.held, *measured]
    page = Page(
        "power",
        "Accuracy of power",
        _LEAD,
        [
            _targets_section(held),
            models_section(cards),
            intervals_section(cards),
            *physical.sections,
            *sections,
        ],
    )
    return page, tuple(each.target for each in held)


def _targets_section(held: Sequence[Held]) -> Section:
    asked = [each.target for each in held if not each.target.stretch]
    rows = [
        [
            each.target.name,
            f"{each.target.limit}{' (stretch)' if each.target.stretch else ''}",
            each.target.reached,
            each.target.verdict,
            f"{each.nothing:.2f}" if isfinite(each.nothing) else "-",
        ]
        for each in held
    ]
    return Section(
        "Targets",
        (
            f"{sum(target.met for target in asked)} of {len(asked)} targets are met. A stretch was "
            "to be tried for, not promised. *Knowing nothing* is the same figure of the training "
            "rows' median power, per clock where there are several.",
            Table(("target", "bound", "reached", "verdict", "knowing nothing"), rows),
        ),
    )
