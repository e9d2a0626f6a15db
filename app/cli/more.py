"""The commands that have a module each, put into the program."""

from __future__ import annotations

import typer

from wattcast.app.cli.bulk import bulk
from wattcast.app.cli.compare import diff
from wattcast.app.cli.explain import explain
from wattcast.app.cli.insight import advise, cost, hotspots
from wattcast.app.cli.measure import measure, onboard
from wattcast.app.cli.rank import rank
from wattcast.app.cli.sweep import sweep


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    for command in (explain, hotspots, advise, sweep, bulk, diff, cost, rank, measure, onboard):
        app.command()(command)
