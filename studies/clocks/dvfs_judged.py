"""Targets of frequency scaling, each beside what knows nothing of the program and what was printed.

Errors of scaling factors are in points: a point is one percent of the value at the reference pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from studies.clocks.scaling_rows import Floats
from studies.pages.page import Section, Table
from studies.pages.targets import Target

JUDGED = "hybrid"
"""The model that targets are judged by: the physical one, with trees where they help kernels left
out inside the training kernels (else the two are the same). Artifacts hold what it holds."""
MEAN_CURVE = "mean curve"


@dataclass(frozen=True, slots=True)
class Judged:
    """A target; ``baseline``: the same figure of the mean curve (or what else knows nothing),
    NaN where there is none. ``published``: what others printed of the same kind, if anything."""

    target: Target
    baseline: float
    published: str = "-"


class DvfsChapter(NamedTuple):
    """Sections of the page, and the targets they show."""

    sections: Sequence[Section]
    judged: Sequence[Judged] = ()


def judged_table(judged: Iterable[Judged]) -> Table:
    """All targets with what was reached, the baseline and the published figure in one line."""
    return Table(
        ("target", "bound", "reached, %", "verdict", "knowing nothing, %", "published, %"),
        [
            [
                each.target.name,
                f"{each.target.sense} {each.target.bound:g} %",
                f"{each.target.found:.2f}",
                each.target.verdict,
                number(each.baseline),
                each.published,
            ]
            for each in judged
        ],
    )


def number(value: float, digits: int = 2) -> str:
    """A number, or a dash where there is none."""
    return f"{value:.{digits}f}" if np.isfinite(value) else "-"


def mean_and_median(values: Floats) -> str:
    """``mean (median)`` of what is known, or a dash."""
    known = values[np.isfinite(values)]
    return f"{known.mean():.2f} ({np.median(known):.2f})" if len(known) else "-"


def spread_over(names: Sequence[str], count: int) -> list[str]:
    """``count`` names evenly spread over a list, its first and last among them."""
    if len(names) <= count:
        return list(names)
    at = np.linspace(0, len(names) - 1, count).round().astype(int)
    return [names[position] for position in at]
