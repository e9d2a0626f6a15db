"""``python -m studies thesis``: parts of the thesis' power study as Markdown tables."""

from __future__ import annotations

import argparse
import os
import sys

from studies.report import NEEDED, require
from studies.thesis.judged import ASSIGNMENTS, Effort
from studies.thesis.study import Study
from wattcast.features.errors import WattcastError


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    try:
        require((*NEEDED, "hdbscan"))
    except WattcastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    from studies.pages.figures import Figure
    from studies.pages.page import Page, Section, to_markdown
    from studies.power.power_parts import PARTS, USUAL

    parser = argparse.ArgumentParser(prog="python -m studies thesis", description=__doc__)
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
    try:
        sections = [PARTS[name](study) for name in options.part or USUAL]
    except WattcastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    told = [
        Section(one.title, [block for block in one.blocks if not isinstance(block, Figure)])
        for one in sections
    ]
    print(to_markdown(Page("study", "The thesis' power study", "", told)))
    return 0
