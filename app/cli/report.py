"""``wattcast report``: accuracy of the models, measured anew from the data folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

reports = typer.Typer(
    help="Accuracy reports from the data folder (WATTCAST_DATA), as Markdown and HTML.",
    no_args_is_help=True,
)

Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the files.")]

Assignments = Annotated[
    int,
    typer.Option(
        "--assignments", min=1, help="Seeded fold assignments of what is fitted; fewer are faster."
    ),
]


@reports.command()
def time(out: Out = Path("reports/time"), assignments: Assignments = 5) -> None:
    """How near predicted times come to measured ones."""
    from wattcast.training.reports.extra import require_train_extra

    require_train_extra()
    from wattcast.training.reports.page import write_page
    from wattcast.training.reports.targets import target_lines
    from wattcast.training.reports.time import time_report

    page, targets = time_report(assignments, _progress)
    paths = write_page(page, out)
    print("\n".join([*target_lines(targets), "", *map(str, paths)]))


@reports.command()
def dvfs(out: Out = Path("reports/dvfs")) -> None:
    """How near predicted time, power and energy over the clocks come to measured ones."""
    from wattcast.training.reports.extra import require_train_extra

    require_train_extra()
    from wattcast.training.reports.dvfs import dvfs_report
    from wattcast.training.reports.page import write_page
    from wattcast.training.reports.targets import target_lines

    page, targets = dvfs_report(_progress)
    paths = write_page(page, out)
    print("\n".join([*target_lines(targets), "", *map(str, paths)]))


@reports.command()
def power(out: Out = Path("reports/power"), assignments: Assignments = 2) -> None:
    """How near predicted power comes to measured power."""
    from wattcast.training.reports.extra import NEEDED, require_train_extra

    require_train_extra((*NEEDED, "hdbscan"))
    from wattcast.training.reports.page import write_page
    from wattcast.training.reports.power import power_report
    from wattcast.training.reports.targets import target_lines

    page, targets = power_report(assignments, _progress)
    paths = write_page(page, out)
    print("\n".join([*target_lines(targets), "", *map(str, paths)]))


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
