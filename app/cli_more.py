"""The commands that have a module each, put into the program."""

from __future__ import annotations

import typer

from app.cli_diff import diff
from app.cli_explain import explain
from app.cli_insight import advise, cost, hotspots
from app.cli_kernel_tuner import rank
from app.cli_measure import measure, onboard
from app.cli_sweep import sweep


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    for command in (explain, hotspots, advise, sweep, diff, cost, rank, measure, onboard):
        app.command()(command)
