"""``wattcast gpus``: the GPUs that have a profile, and profiles for others."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from wattcast.app.cli.exits import Exit
from wattcast.app.cli.inputs import AsJson, Brief, fail, progress
from wattcast.app.cli.output import Shown, console, line, predictor, show, told
from wattcast.app.settings import Settings
from wattcast.app.store.private import private_folder
from wattcast.features.gpus.loader import squeezed
from wattcast.predictor.messages.catalog import GpuSummary
from wattcast.predictor.reports import members_table

gpus = typer.Typer(help="List, show, check or add GPU profiles.", invoke_without_command=True)


@gpus.callback()
def gpus_default(context: typer.Context, as_json: AsJson = False, brief: Brief = False) -> None:
    """Without a subcommand: the list."""
    if context.invoked_subcommand is None:
        show(gpus_list(), as_json, brief)


@gpus.command("list")
def gpus_list(
    words: Annotated[list[str] | None, typer.Argument(metavar="[WORD]...")] = None,
) -> Shown[list[GpuSummary]]:
    """List the GPUs with a profile, all or those that words name.

    Args:
        words: Only GPUs with every word in id, name, alias or architecture, such as 3090.
    """
    from wattcast.predictor import catalog

    opened = predictor()
    found = catalog.gpu_summaries(opened.gpus, opened.power.cards())
    if words:
        asked = {squeezed(word) for word in words}
        named = [one for one in found if all(word in _searched(one) for word in asked)]
        # A PCI id or another spelling; where it is none, the error names what is alike.
        found = named or [one for one in found if one.id == opened.gpus.load(" ".join(words)).id]
    columns = ("id", "name", "compute_capability", "sm_count", "power_models", "schemas")
    return Shown(found, lambda: [members_table(found, columns)])


def _searched(gpu: GpuSummary) -> str:
    names = (gpu.id, gpu.name, *gpu.aliases, gpu.architecture)
    return " ".join(squeezed(name) for name in names)


@gpus.command("show")
def gpus_show(gpu: str, brief: Brief = False) -> None:
    """Print one GPU profile as JSON: every fact, its unit and its source.

    Args:
        gpu: GPU id, alias, name or PCI id.
    """
    from wattcast.predictor import catalog

    opened = predictor()
    show(catalog.gpu_details(opened.gpus, gpu, opened.power.cards()), as_json=True, brief=brief)


@gpus.command("check")
def gpus_check(files: Annotated[list[Path] | None, typer.Argument()] = None) -> None:
    """Check GPU profiles: structure, units, sources, and that the numbers agree.

    Printed peaks must follow from SMs, lanes and clocks, and nothing may exceed the largest board
    of its compute capability. The exit status is 1 if a profile has errors.

    Args:
        files: Profile files. Default: all known profiles.
    """
    from wattcast.features.gpus import check_profile

    if not files:
        found = predictor().gpus.all()
        printed = sum(len(gpu.printed) for gpu in found)
        line(console(), f"{len(found)} profiles are valid, {printed} printed peaks agree")
        return
    broken = False
    for path in files:
        problems = check_profile(path)
        broken = broken or bool(problems)
        for problem in problems:
            print(f"{path}: {problem}", file=sys.stderr)
        if not problems:
            line(console(), f"{path}: valid")
    if broken:
        raise typer.Exit(Exit.NO_ANSWER)


@gpus.command("add")
def gpus_add(
    dumps: Annotated[list[Path] | None, typer.Argument(metavar="[DUMP]...")] = None,
    base: str | None = None,
    gpu_id: Annotated[str | None, typer.Option("--id")] = None,
    device: int | None = None,
    replace: bool = False,
) -> None:
    """Write a profile of a GPU to WATTCAST_HOME, from its driver or from text dumps.

    A board that has a profile keeps its facts except those that the driver tells otherwise, such
    as power limits. `wattcast onboard` measures what no driver tells.

    Args:
        dumps: What `nvidia-smi -q` or CUDA's deviceQuery printed, or both. Default: ask the driver
            of this machine.
        base: Profile to start from, if the board's name finds none.
        gpu_id: Id of the profile. Default: from the name.
        device: CUDA device number. Required if there are several GPUs.
        replace: Overwrite a profile in WATTCAST_HOME.
    """
    from wattcast.measure.device import profile_id
    from wattcast.measure.onboard.data import known_base, loaded, told_data

    told, source = _told(dumps or [], device)
    known = predictor().gpus.load(base) if base else known_base(told)
    if base and "name" in told:  # another board than its base
        gpu_id = gpu_id or profile_id(told["name"])
    data = told_data(told, source, known, gpu_id)
    folder = private_folder(Settings().home) / "gpus"
    path = folder / f"{data['id']}.toml"
    if path.exists() and not replace:
        fail(f"{path} exists; --replace overwrites it, --id writes another")
    made = loaded(data, folder)
    origin = f" (the rest from {known.id})" if known else ""
    line(console(), f"{made.name} is now known as {made.id}{origin}: {path}")


def _told(dumps: list[Path], device: int | None) -> tuple[dict[str, Any], str]:
    """What dumps, or the driver, tell of a GPU, and the source to cite."""
    from wattcast.measure.onboard.data import device_facts, dump_facts

    if not dumps:
        from wattcast.measure.run import Machine

        machine = Machine.here(device)
        try:
            sensor = machine.nvml.sensor(machine.clock, machine.runner.pci_bus())
            version = sensor.driver_version()
            return device_facts(machine.runner.device(), sensor.facts()), f"driver {version}"
        finally:
            machine.close()
    told: dict[str, Any] = {}
    for path in dumps:
        try:
            found = dump_facts(path.read_text("utf-8", errors="replace"))
        except OSError as error:
            fail(f"{path}: {error.strerror}")
        names = {one["name"] for one in (told, found) if "name" in one}
        if len(names) > 1:
            fail(f"the dumps are of different boards: {', '.join(sorted(names))}")
        told = {**found, **told}
    return told, f"text dump: {', '.join(path.name for path in dumps)}"


# ``wattcast data``: have the complete upstream files, and see what tables are there.

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
    from wattcast.training.data.inventory import fetch as run

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
    return Shown(tables, lambda: [members_table(shown, columns)], status)


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
        found = from_tuning(run, name)
        origin = "kernel_tuner"
    write_imported(to, found, gpu, f"{origin}: {file.name}", licence, code)
    print(f"{to}: {len(found)} configurations")


def _counts(counts: dict[str, int]) -> str:
    return "; ".join(f"{rule}: {count}" for rule, count in counts.items()) or "-"
