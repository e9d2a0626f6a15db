"""``python -m studies report NAME``: accuracy of the models, measured anew from the data folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from wattcast.features.errors import MissingExtraError

if TYPE_CHECKING:
    from studies.pages.page import Page
    from studies.pages.targets import Target

    Report = Callable[[int, Callable[[str], None]], tuple[Page, Sequence[Target]]]

PURPOSES = {
    "time": "how near predicted times come to measured ones",
    "dvfs": "how near predicted time, power and energy over the clocks come to measured ones",
    "power": "how near predicted power comes to measured power",
}
ASSIGNMENTS = {"time": 5, "power": 2}
"""Seeded fold assignments of what is fitted; ``dvfs`` leaves everything out once."""


NEEDED = ("markdown_it", "matplotlib", "pandera", "scipy")
"""Packages of the extra ``train`` that every report imports."""


def require(packages: Sequence[str]) -> None:
    """Refuse before minutes of work what would fail after them. Raises MissingExtraError."""
    for name in packages:
        if find_spec(name) is None:
            raise MissingExtraError(name, "train")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status. Raises MissingExtraError and DataError."""
    parser = argparse.ArgumentParser(
        prog="python -m studies report",
        description="Accuracy reports from the data folder (WATTCAST_DATA), as Markdown and HTML.",
    )
    reports = parser.add_subparsers(dest="name", required=True)
    for name, purpose in PURPOSES.items():
        one = reports.add_parser(name, help=purpose)
        one.add_argument("--out", type=Path, default=Path("reports", name), metavar="DIR")
        if name in ASSIGNMENTS:
            help_ = "seeded fold assignments of what is fitted; fewer are faster"
            one.add_argument("--assignments", type=int, default=ASSIGNMENTS[name], help=help_)
    options = parser.parse_args(arguments)
    if getattr(options, "assignments", 1) < 1:
        parser.error("--assignments must be 1 or more")
    require((*NEEDED, "hdbscan") if options.name == "power" else NEEDED)
    from studies.pages.page import write_page
    from studies.pages.targets import target_lines

    page, targets = _report(options.name)(getattr(options, "assignments", 1), _progress)
    paths = write_page(page, options.out)
    print("\n".join([*target_lines(targets), "", *map(str, paths)]))
    return 0


def _report(name: str) -> Report:
    if name == "time":
        from studies.time.time_report import time_report

        return time_report
    if name == "power":
        from studies.power.power_report import power_report

        return power_report
    from studies.clocks.dvfs_report import dvfs_report

    return lambda assignments, progress: dvfs_report(progress)


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
