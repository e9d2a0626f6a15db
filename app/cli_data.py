"""``wattcast data``: have the complete upstream files, and see what tables are there."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from app.cli_inputs import AsJson
from app.settings import Settings

data = typer.Typer(
    help="Training data: fetch the published files, check what is there.", no_args_is_help=True
)

_PIPED_WIDTH = 240


@data.command()
def fetch(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Files (K20, say); default: all.")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="DIR", help="Data folder; default WATTCAST_DATA, else in the home."
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option("--from", metavar="URL", help="Mirror: <URL>/<commit>/<path>."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Overwrite files with other content.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Download the complete published power files, checked by their sha256.

    They carry no licence: for training and evaluation only, rows must not be handed on.
    """
    _require_extra()
    from features.errors import WattcastError
    from training.datasets import sources
    from training.fetch import fetch as run

    wanted = [sources().get(one) for one in ids] if ids else list(sources().file)
    folder = to or Path(os.environ.get("WATTCAST_DATA") or Settings().home / "data")
    done: list[dict[str, Any]] = []
    failed = 0
    for source in wanted:
        try:
            fetched = run(
                source, folder / "power" / "raw", base=base, replace=replace, progress=_progress
            )
        except WattcastError as error:
            # One file that cannot be had keeps nobody from the others.
            failed += 1
            print(f"wattcast: {error}", file=sys.stderr)
            continue
        done.append({**asdict(fetched), "path": str(fetched.path)})
    if as_json:
        print(json.dumps(done, indent=2))
    else:
        for one in done:
            print(f"{one['id']}: {one['how']}, {one['path']}")
        if done and os.environ.get("WATTCAST_DATA") != str(folder):
            print(f"training looks there with WATTCAST_DATA={folder}")
    if failed:
        raise typer.Exit(1)


@data.command()
def check(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="Data folder; default: where training looks."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read every table: complete or shortened, rows, what cleaning dropped by which rule.

    Exit status 1 if a table is defective; missing ones are listed.
    """
    _require_extra()
    from app import report
    from training.inventory import data_folder, inventory

    tables = [asdict(each) for each in inventory(data_folder(folder))]
    if as_json:
        print(json.dumps(tables, indent=2))
    else:
        console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else _PIPED_WIDTH)
        shown = [
            {
                **each,
                "sha256": each["sha256"][:12] or "-",
                "fingerprint": each["fingerprint"][:12] or "-",
                "dropped": _counts(each["dropped"]),
                "noted": _counts(each["noted"]),
            }
            for each in tables
        ]
        columns = ("path", "state", "rows", "kept", "sha256", "fingerprint", "dropped", "noted")
        report.rows(console, shown, columns)
    defective = [each["problem"] for each in tables if each["state"] == "defective"]
    for problem in defective:
        print(f"wattcast: {problem}", file=sys.stderr)
    if defective:
        raise typer.Exit(1)


def _require_extra() -> None:
    from training.reports.extra import require_train_extra

    require_train_extra(("pandera",))


def _counts(counts: dict[str, int]) -> str:
    return "; ".join(f"{rule}: {count}" for rule, count in counts.items()) or "-"


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
