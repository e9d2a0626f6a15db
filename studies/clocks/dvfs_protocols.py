"""Random beside grouped splits of the physical scaling model, and what each of its parts brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np

from studies.clocks.dvfs_counters import campaign_title, title
from studies.clocks.dvfs_judged import MEAN_CURVE, DvfsChapter
from studies.clocks.scaling_parts import parts_table
from studies.clocks.scaling_protocols import predict
from studies.clocks.scaling_rows import Floats, Integers, ScalingRows, scaling_rows
from studies.clocks.scaling_studies import STUDIES, Scored, Study, scale_scores
from studies.clocks.scaling_trees import TreeSettings
from studies.pages.page import Section, Table

RANDOM_FOLDS = 5
SEED = 0
COMPARED = "physical"
_NO_TREES = (TreeSettings(0),)

Errors = Mapping[str, float]
"""Mean error in points by model."""


def protocols_chapter(
    scored: Sequence[Scored], studies: Sequence[Study] = STUDIES, jobs: int = 1
) -> DvfsChapter:
    """The two protocols side by side, and the ablation. Raises DataError for missing data."""
    return DvfsChapter((_protocols_section(scored, studies, jobs), _parts_section()))


def _protocols_section(scored: Sequence[Scored], studies: Sequence[Study], jobs: int) -> Section:
    random: dict[tuple[str, str], Errors] = {}
    for study in studies:
        parts = [
            scaling_rows(name, reference=study.reference, memory_mhz=study.memory_mhz)
            for name in study.campaigns
        ]
        if parts[0].kind is not None:
            random |= random_errors(parts, study.protocol == "micro_to_real", jobs)
    lines = []
    for one in scored:
        for quantity, errors in (("time", one.time), ("power", one.power)):
            grouped, base = errors(COMPARED), errors(MEAN_CURVE)
            found = random.get((title(one), quantity))
            if grouped is None or base is None or found is None:
                continue
            lines.append(
                [
                    *(title(one), quantity),
                    *(f"{found[model]:.2f}" for model in (COMPARED, MEAN_CURVE)),
                    one.protocol.replace("_", " "),
                    *(f"{each.mean_points:.2f}" for each in (grouped, base)),
                ]
            )
    return Section(
        "Random beside grouped splits",
        (
            "`random`: single rows left out, so that other clocks of the same kernel were in "
            f"training ({RANDOM_FOLDS} seeded folds; rows at the reference stay, as nothing can "
            "be scaled from without them). `grouped`: the kernel was not in training, as "
            "everywhere above. The physical model beside the mean curve, mean error in points, "
            "of applications where there are any. Where programs are left out the two are near "
            "each other: a form with few parameters for a board does not remember kernels. From "
            "microbenchmarks to applications is farther.",
            Table(
                (
                    *("campaign, reference", "scale of", "random", "random, mean curve"),
                    *("grouped protocol", "grouped", "grouped, mean curve"),
                ),
                lines,
            ),
        ),
    )


def random_errors(
    parts: Sequence[ScalingRows], real_only: bool, jobs: int = 1
) -> dict[tuple[str, str], Errors]:
    """Errors of campaigns fitted together with rows left out at random, by campaign and quantity.

    ``real_only`` scores applications only, as ``micro_to_real`` does.
    """
    generator = np.random.default_rng(SEED)
    folds = [generator.permutation(len(part)) % RANDOM_FOLDS for part in parts]
    fold = partial(_fold, parts, folds)
    with ProcessPoolExecutor(jobs) as pool:
        results = list(pool.map(fold, range(RANDOM_FOLDS)))
    found: dict[tuple[str, str], Errors] = {}
    for at, part in enumerate(parts):
        unscored = part.is_reference | (~part.real if real_only else False)
        for quantity, measured in (("time", part.time_scale), ("power", part.power_scale)):
            if not np.isfinite(measured).any():
                continue
            found[campaign_title(part), quantity] = {
                model: scale_scores(
                    np.choose(folds[at], [result[at][quantity][model] for result in results]),
                    measured,
                    unscored,
                ).mean_points
                for model in (COMPARED, MEAN_CURVE)
            }
    return found


def _fold(
    parts: Sequence[ScalingRows], folds: Sequence[Integers], number: int
) -> list[dict[str, Mapping[str, Floats]]]:
    """Scales of all rows of each campaign by a fit without the rows of one fold."""
    train = [(fold != number) | part.is_reference for part, fold in zip(parts, folds, strict=True)]
    return [{"time": each.time, "power": each.power} for each in predict(parts, train, _NO_TREES)]


def _parts_section() -> Section:
    return Section(
        "What each part of the physical model is worth",
        (
            "Each line changes one thing; programs left out as above, mean errors of time, power "
            "in points (`python -m studies clocks --parts`). docs/frequency.md has the "
            "form. On the campaigns with targets no line is better in both than what is served, "
            "but for hundredths: no single part is to blame for a miss. The served form is not "
            "the best one everywhere: on the V100 and the 49 pairs of the GTX 980 latency "
            "would rather be all on the core clock, which makes the error of P100 half as large "
            "again; one form serves all.",
            parts_table(),
        ),
    )
