"""The commands that have a module each, put into the program."""

from __future__ import annotations

import typer

from wattcast.app.cli_diff import diff
from wattcast.app.cli_explain import explain
from wattcast.app.cli_insight import advise, cost, hotspots
from wattcast.app.cli_kernel_tuner import rank
from wattcast.app.cli_measure import measure, onboard
from wattcast.app.cli_sweep import sweep


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    for command in (explain, hotspots, advise, sweep, diff, cost, rank, measure, onboard):
        app.command()(command)
