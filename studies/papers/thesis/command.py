"""``python -m studies thesis``: parts of the thesis as Markdown tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import MappingProxyType

from studies import parser_of
from studies.pages.page import Section
from studies.papers.thesis.data import ASSIGNMENTS, Effort
from studies.papers.thesis.feature_sections import selection_section
from studies.papers.thesis.fit_sections import regressions_section
from studies.papers.thesis.model_sections import (
    dwarfs_section,
    regressors_section,
    repeated_section,
)
from studies.papers.thesis.study import Study
from studies.papers.thesis.times import times_section
from wattcast.features.errors import MissingExtraError

NEEDED = ("pandera", "scipy")
"""Packages of the extra ``train`` that parts import."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    for name in NEEDED:  # refused before minutes of work, not after them
        if find_spec(name) is None:
            raise MissingExtraError(name, "train")
    from studies.pages.page import to_markdown

    parser = parser_of("thesis", __doc__)
    parser.add_argument("part", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--assignments", type=int, default=ASSIGNMENTS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    unknown = set(options.part) - set(PARTS)
    if unknown or options.assignments < 1 or options.jobs < 1:
        parser.error(f"no part is called {', '.join(sorted(unknown))}" if unknown else "too few")
    effort = Effort(
        options.assignments, options.jobs, lambda line: print(line, file=sys.stderr, flush=True)
    )
    study = Study(effort)
    sections = [PARTS[name](study) for name in options.part or PARTS]
    print(to_markdown("The thesis, reproduced", sections))
    return 0


# --- The parts of the thesis' power study by name, in the order of the thes --------------------


PARTS: Mapping[str, Callable[[Study], Section]] = MappingProxyType(
    {
        "times": times_section,
        "selection": selection_section,
        "regressors": regressors_section,
        "repeated": repeated_section,
        "dwarfs": dwarfs_section,
        "regressions": regressions_section,
    }
)
"""Name of a part -> its section of the page."""
