"""The commands that have a module each, put into the program."""

from __future__ import annotations

import typer

from app.cli_sweep import sweep


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(sweep)
