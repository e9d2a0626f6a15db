"""``wattcast train`` and ``wattcast calibrate``: power models from published or measured rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from wattcast.app.cli.inputs import AsJson


def train(context: typer.Context) -> None:
    """Train the power models, or search their hyperparameters (--help lists the options)."""
    from wattcast.training.__main__ import main as run

    raise typer.Exit(run(context.args))


def calibrate(
    measured: Annotated[
        Path,
        typer.Argument(
            metavar="MEASURED.csv",
            help="Measured launches: features of docs/data.md and power_watts.",
        ),
    ],
    predict: Annotated[
        Path | None,
        typer.Option("--predict", metavar="FILE.csv", help="Launches to predict: features."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Map a model of other GPUs to a new one by a few launches measured on it.

    Needs the power files (wattcast data check). Says which map it chose and how each errs on the
    measured launches left out in turn; the median of them is always among the choices.
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
    print(f"{found.measured} measured launches; mean error on each left out in turn:")
    for way, watts in errors.items():
        mark = "  <- chosen" if way == found.choice.way else ""
        print(f"  {way:14} {watts:7.1f} W{mark}")
    for at, watts in enumerate(found.predicted_watts, start=1):
        print(f"launch {at}: {watts:.1f} W")
