"""``wattcast gpus``: the GPUs that have a profile."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from wattcast.app.cli.inputs import AsJson
from wattcast.app.cli.output import console, predictor, print_json, rows, show

gpus = typer.Typer(help="List, show or check GPU profiles.", invoke_without_command=True)


@gpus.callback()
def gpus_default(context: typer.Context) -> None:
    """Without a subcommand: the list."""
    if context.invoked_subcommand is None:
        gpus_list()


@gpus.command("list")
def gpus_list(as_json: AsJson = False) -> None:
    """List all GPUs with a profile."""
    from wattcast.predictor import catalog

    opened = predictor()
    found = catalog.gpu_summaries(opened.gpus, opened.power.cards())
    columns = ("id", "name", "compute_capability", "sm_count", "power_models", "schemas")
    show(found, as_json, lambda out, each: rows(out, each, columns))


@gpus.command("show")
def gpus_show(gpu: Annotated[str, typer.Argument(help="GPU id or alias.")]) -> None:
    """Print one GPU profile as JSON: every fact, its unit and its source."""
    from wattcast.predictor import catalog

    opened = predictor()
    print_json(catalog.gpu_details(opened.gpus, gpu, opened.power.cards()))


@gpus.command("check")
def gpus_check(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Profile files. Default: all known profiles.")
    ] = None,
) -> None:
    """Check GPU profiles. The exit status is 1 if one has errors."""
    from wattcast.features.gpus import check_profile

    if not files:
        found = predictor().gpus.all()
        console().print(f"{len(found)} profiles are valid", highlight=False)
        return
    broken = False
    for path in files:
        problems = check_profile(path)
        broken = broken or bool(problems)
        for problem in problems:
            print(f"{path}: {problem}", file=sys.stderr)
        if not problems:
            console().print(f"{path}: valid", highlight=False)
    if broken:
        raise typer.Exit(1)
