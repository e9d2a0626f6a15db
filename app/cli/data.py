"""``wattcast data``: have the complete upstream files, and see what tables are there."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from wattcast.app.cli.exits import Exit
from wattcast.app.cli.inputs import progress
from wattcast.app.cli.output import Shown, rows, told
from wattcast.app.settings import Settings
from wattcast.app.store.private import private_folder

data = typer.Typer(help="Fetch, check, import or pack training data.", no_args_is_help=True)


@data.command()
def fetch(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...")] = None,
    to: Annotated[Path | None, typer.Option("--to", metavar="DIR")] = None,
    base: Annotated[str | None, typer.Option("--from", metavar="URL")] = None,
    replace: bool = False,
) -> Shown[Any]:
    """Download the published power files and check their sha256.

    The files carry no licence. Use them for training and evaluation; do not redistribute rows.

    Args:
        ids: Files to fetch, e.g. K20. Default: all.
        to: Data folder. Default: WATTCAST_DATA, else data in WATTCAST_HOME.
        base: Mirror to fetch from: <URL>/<commit>/<path>.
        replace: Overwrite files whose content differs.
    """
    from wattcast.features.errors import WattcastError
    from wattcast.training.data.datasets import fetched_data, find_data, sources
    from wattcast.training.data.fetch import fetch as run

    wanted = [sources().get(one) for one in ids] if ids else list(sources().file)
    given = os.environ.get("WATTCAST_DATA")
    folder = to or (Path(given) if given else fetched_data())
    if folder == fetched_data():
        private_folder(Settings().home)
    done: list[dict[str, Any]] = []
    for source in wanted:
        try:
            fetched = run(
                source, folder / "power" / "raw", base=base, replace=replace, progress=progress
            )
        except WattcastError as error:
            # One file that cannot be had keeps nobody from the others.
            print(f"wattcast: {error}", file=sys.stderr)
            continue
        done.append({**asdict(fetched), "path": str(fetched.path)})
    lines = [f"{one['id']}: {one['how']}, {one['path']}" for one in done]
    if done and find_data() != folder:
        lines.append(f"training looks there with WATTCAST_DATA={folder}")
    return told(done, *lines, status=Exit.DONE if len(done) == len(wanted) else Exit.NO_ANSWER)


@data.command()
def check(
    folder: Annotated[Path | None, typer.Argument(metavar="[DIR]")] = None,
) -> Shown[Any]:
    """Read every table and report rows, missing parts and what cleaning drops.

    The exit status is 1 if a table is defective. Missing tables are listed.

    Args:
        folder: Data folder. Default: where training looks.
    """
    from wattcast.training.data.inventory import data_folder, inventory

    tables = [asdict(each) for each in inventory(data_folder(folder))]
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
    defective = [each["problem"] for each in tables if each["state"] == "defective"]
    for problem in defective:
        print(f"wattcast: {problem}", file=sys.stderr)
    status = Exit.NO_ANSWER if defective else Exit.DONE
    return Shown(tables, lambda: rows(shown, columns), status)


@data.command()
def pack(
    recordings: Annotated[list[Path], typer.Argument(metavar="RECORDING")],
    to: Annotated[Path, typer.Option("--to", metavar="FILE.zip")],
    attribution: Annotated[str, typer.Option()],
) -> Shown[Any]:
    """Pack recordings into an open data set (CC BY 4.0).

    It holds the PTX, the launches, the raw samples and the results.

    Args:
        recordings: Recordings made by wattcast measure.
        to: The data set to write.
        attribution: Who is to be credited when the data are used.
    """
    from wattcast.measure.exchange import pack as run

    counts = run(recordings, to, attribution)
    return told(
        {"file": str(to), **counts},
        f"{to}: {counts['recordings']} recordings, {counts['configurations']} configurations, "
        f"{counts['modules']} PTX modules, {counts['bytes']} bytes",
    )


@data.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE")],
    to: Annotated[Path, typer.Option("--to", metavar="RECORDING.jsonl")],
    gpu: Annotated[str, typer.Option("--gpu")],
    licence: str = "unknown",
    ptx: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    kernel: str | None = None,
) -> None:
    """Turn measurements of Kernel Tuner or Zeus into a recording.

    The exit status is 2 for any other file.

    Args:
        file: Kernel Tuner results or cache file, or a Zeus log.
        to: The recording to write.
        gpu: The GPU it was measured on.
        licence: Licence of the file, as an SPDX identifier.
        ptx: PTX of the kernel, if you have it.
        kernel: Name of the kernel. Default: from the file.
    """
    from wattcast.features.errors import DataError
    from wattcast.measure.exchange import from_tuning, from_zeus, write_imported
    from wattcast.predictor.tuning_files import read_tuning

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
