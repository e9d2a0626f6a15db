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

from wattcast.app.cli.inputs import AsJson
from wattcast.app.settings import Settings
from wattcast.app.store.private import private_folder

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
    from wattcast.features.errors import WattcastError
    from wattcast.training.data.datasets import sources
    from wattcast.training.data.fetch import fetch as run

    wanted = [sources().get(one) for one in ids] if ids else list(sources().file)
    folder = to or Path(os.environ.get("WATTCAST_DATA") or private_folder(Settings().home) / "data")
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
    from wattcast.app.cli import output as report
    from wattcast.training.data.inventory import data_folder, inventory

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


@data.command()
def pack(
    recordings: Annotated[
        list[Path], typer.Argument(metavar="RECORDING...", help="Recordings of wattcast measure.")
    ],
    to: Annotated[Path, typer.Option("--to", metavar="FILE.zip", help="The data set.")],
    attribution: Annotated[str, typer.Option(help="Whom users of the data should name.")],
    as_json: AsJson = False,
) -> None:
    """Make an open data set of recordings: PTX, launches, raw samples, results (CC BY 4.0)."""
    from wattcast.training.measure.pack import pack as run

    counts = run(recordings, to, attribution)
    if as_json:
        print(json.dumps({"file": str(to), **counts}, indent=2))
    else:
        print(
            f"{to}: {counts['recordings']} recordings, {counts['configurations']} configurations, "
            f"{counts['modules']} PTX modules, {counts['bytes']} bytes"
        )


@data.command("import")
def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Kernel Tuner results or cache; a Zeus log.")
    ],
    to: Annotated[Path, typer.Option("--to", metavar="RECORDING.jsonl", help="What is written.")],
    gpu: Annotated[str, typer.Option("--gpu", help="The GPU it was measured on.")],
    licence: Annotated[str, typer.Option(help="Licence of the file, an SPDX name.")] = "unknown",
    ptx: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PTX of the kernel, where there is one.")
    ] = None,
    kernel: Annotated[str | None, typer.Option(help="Name of the kernel; else the file's.")] = None,
) -> None:
    """Make a recording of what Kernel Tuner or Zeus measured. Exit status 1 for another file."""
    from wattcast.features.errors import DataError
    from wattcast.predictor.tuning_files import read_tuning
    from wattcast.training.measure.importers import from_tuning, from_zeus, write_imported

    try:
        text = file.read_text(encoding="utf-8")
        code = ptx.read_text(encoding="utf-8") if ptx is not None else None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: {error}", file=file.name) from error
    if text.startswith("start_time,"):
        origin, found = "zeus", from_zeus(text)
    else:
        run = read_tuning(text)
        name = kernel or run.kernel or file.stem
        found = from_tuning(run.configurations, name, run.problem_size or ())
        origin = "kernel_tuner"
    write_imported(to, found, gpu, f"{origin}: {file.name}", licence, code)
    print(f"{to}: {len(found)} configurations")


def _counts(counts: dict[str, int]) -> str:
    return "; ".join(f"{rule}: {count}" for rule, count in counts.items()) or "-"


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
