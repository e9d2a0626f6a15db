"""``wattcast train`` and ``wattcast calibrate``: power models from published or measured rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from wattcast.app.cli.inputs import AsJson


def train(context: typer.Context) -> None:
    """Train the power models or search their hyperparameters."""
    from wattcast.training.__main__ import main as run

    raise typer.Exit(run(context.args))


def calibrate(
    measured: Annotated[
        Path,
        typer.Argument(
            metavar="MEASURED.csv",
            help="Measured launches: power_watts and the features of docs/data.md.",
        ),
    ],
    predict: Annotated[
        Path | None,
        typer.Option("--predict", metavar="FILE.csv", help="Launches to predict: features only."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Adapt models of other GPUs to a new one from a few launches.

    Needs the power files (wattcast data check). Prints which mapping was chosen and the error of
    each one, leaving out one measured launch at a time. The median is always a candidate.
    """

    from wattcast.training.calibrate import calibrate as run

    found = run(measured, predict)
    errors = found.choice.left_out_mae_watts
    if as_json:
        answer = {
            "chosen": found.choice.way,
            "measured_launches": found.measured,
            "left_out_mae_watts": dict(errors),
            "power_watts": list(found.predicted_watts),
        }
        print(json.dumps(answer, indent=2))
        return
    print(f"{found.measured} measured launches; mean error, leaving out one at a time:")
    for way, watts in errors.items():
        mark = "  <- chosen" if way == found.choice.way else ""
        print(f"  {way:14} {watts:7.1f} W{mark}")
    for at, watts in enumerate(found.predicted_watts, start=1):
        print(f"launch {at}: {watts:.1f} W")
