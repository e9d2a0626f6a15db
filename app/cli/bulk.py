"""``wattcast bulk``: the kernels of a folder on one or several GPUs, as a CSV table."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from wattcast.app import progress, settings
from wattcast.app.cli.exits import Exit
from wattcast.app.cli.inputs import CUDA_SUFFIXES, LaunchOptions, fail
from wattcast.app.cli.output import Shown, predictor
from wattcast.features.analysis import Mode
from wattcast.features.errors import WattcastError
from wattcast.predictor import Predictor, messages, reports

SUFFIXES = (".ptx", *CUDA_SUFFIXES)
QUANTITIES = (("power", "watts"), ("time", "seconds"), ("energy", "joules"))
NUMBERS = [f"{name}_{part}" for name, unit in QUANTITIES for part in (unit, "low", "high")]
COLUMNS = (
    *("file", "kernel", "gpu", "grid", "block"),
    *(f"{name}_{part}" for name, unit in QUANTITIES for part in (unit, "low", "high", "basis")),
    *("warnings", "problem"),
)
"""Columns of the table. Bounds have the unit of their quantity; ``problem`` says why there is no
prediction."""
LAUNCH_COLUMNS = ("file", "grid", "block", "kernel", "shared", "registers", "loops", "arguments")
"""Columns of ``--launches``; the first three are required. ``loops`` is one number of trips,
``arguments`` are as ``--arg`` takes them, separated by blanks."""

Row = dict[str, str]


class BulkAnswer(messages.Answer):
    """The table as data: its rows, and how many of them are predicted."""

    predicted: int
    failed: int
    """Why: ``problem`` of the row."""
    rows: list[dict[str, str | float]]


@dataclass(frozen=True)
class FileTask:
    """Launches of the kernels of one file on some GPUs. Plain data, so that it can travel.

    ``launches`` are requests without their code (``kernel``: its name, or ``None`` for every
    kernel of the file), each with the grid and block as written.
    """

    file: str
    code: Mapping[str, str]
    launches: tuple[tuple[str, str, Mapping[str, Any]], ...]
    gpus: tuple[str, ...]


def bulk(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER")],
    gpu: Annotated[list[str], typer.Option("--gpu")],
    grid: str | None = None,
    block: str | None = None,
    launches: Path | None = None,
    out: Path | None = None,
    dask: str | None = None,
    analysis: Mode = "auto",
    jobs: Annotated[int, typer.Option(min=1)] = 2,
) -> Shown[BulkAnswer]:
    """Predict all kernels of a folder, or all launches of a CSV.

    If a kernel cannot be predicted, its row says why. The exit status is 1 if every row failed.

    Args:
        folder: Folder with .ptx, .cu and .cuh files.
        gpu: GPU id or alias. Repeatable.
        grid: Grid used for every kernel: 4096 or 64,64.
        block: Block used for every kernel: 256 or 16,16.
        launches: CSV of launches instead of --grid and --block. Columns: file, grid, block;
            optional: kernel, shared, registers, loops, arguments.
        out: CSV file to write. Default: standard output.
        dask: Dask scheduler to predict on. Default: WATTCAST_DASK.
        analysis: symbolic is many times faster than running sampled blocks (auto).
        jobs: Files predicted at once, without a Dask cluster.
    """
    from wattcast.training.engine import open_engine

    if not folder.is_dir():
        fail(f"{folder}: not a folder")
    if launches is None and (grid is None or block is None):
        fail("give --grid and --block for all kernels, or --launches FILE")
    wanted = (
        [{"file": name, "grid": grid or "", "block": block or ""} for name in _names(folder)]
        if launches is None
        else _launches(launches)
    )
    tasks, rows = _tasks(folder, wanted, tuple(gpu), analysis)
    with open_engine(dask or settings.Settings().dask, jobs) as engine:
        found: dict[int, list[Row]] = {}
        for at, made in engine.map(predict_file, tasks):
            found[at] = made
            progress.advance(len(found), len(tasks))
    progress.clear()
    rows += [row for at in sorted(found) for row in found[at]]
    table = reports.comma_separated(COLUMNS, ({"problem": "", **row} for row in rows))
    if out is not None:
        out.write_text(table, encoding="utf-8", newline="")
    failed = sum("problem" in row for row in rows)
    print(f"{len(rows) - failed} predicted, {failed} failed (see column problem)", file=sys.stderr)
    told = [{name: float(v) if name in NUMBERS else v for name, v in row.items()} for row in rows]
    answer = BulkAnswer(predicted=len(rows) - failed, failed=failed, rows=told)

    def report() -> reports.Report:
        if out is None:
            sys.stdout.write(table)
        return []

    return Shown(answer, report, Exit.NO_ANSWER if failed == len(rows) else Exit.DONE)


def predict_file(task: FileTask) -> list[Row]:
    """A row for every kernel, launch and GPU of a task; what is wrong becomes its ``problem``."""
    return [
        row
        for grid, block, launch in task.launches
        for gpu in task.gpus
        for row in _predicted(task, {"file": task.file, "gpu": gpu, "grid": grid, "block": block},
                              launch)
    ]  # fmt: skip


def _predicted(task: FileTask, row: Row, launch: Mapping[str, Any]) -> Iterator[Row]:
    from wattcast.predictor.messages.predict import PredictRequest
    from wattcast.predictor.predict import predict_one

    kernels: Sequence[str | None] = [launch.get("kernel")]
    row = {**row, "kernel": launch.get("kernel") or ""}
    try:
        request = PredictRequest(**{**launch, **task.code, "gpu": row["gpu"]})
        if request.kernel is None:
            source = _predictor().sources.read(request, _predictor().gpus.load(row["gpu"]))
            kernels = [kernel.name for kernel in source.known.module.kernels] or [None]
    except (WattcastError, ValidationError) as error:
        yield {**row, "problem": _one_line(error)}
        return
    for kernel in kernels:
        named = {**row, "kernel": kernel or ""}
        try:
            answer = predict_one(_predictor(), request.model_copy(update={"kernel": kernel}))
        except WattcastError as error:
            yield {**named, "problem": _one_line(error)}
        else:
            yield {**named, **_cells(answer.data())}


@lru_cache(maxsize=1)
def _predictor() -> Predictor:
    """That of this process: a worker predicts many files."""
    return predictor()


def _cells(answer: Mapping[str, Any]) -> Row:
    cells = {"warnings": " ".join(dict.fromkeys(one["code"] for one in answer["warnings"]))}
    for name, unit in QUANTITIES:
        part = answer[name]
        if part is not None:
            cells |= {f"{name}_{end}": f"{part[end]:.6g}" for end in (unit, "low", "high")}
            cells[f"{name}_basis"] = part["basis"]
    return cells


def _one_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return " ".join(str(error).split())


def _names(folder: Path) -> list[str]:
    """Files with code below a folder, relative to it, in order."""
    found = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    if not found:
        fail(f"{folder}: no file ends in {', '.join(SUFFIXES)}")
    return [str(path.relative_to(folder)) for path in found]


def _launches(path: Path) -> list[Mapping[str, str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            found = [{name: (text or "").strip() for name, text in row.items()} for row in reader]
            columns = reader.fieldnames or ()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        fail(f"{path}: {error}")
    if missing := [name for name in LAUNCH_COLUMNS[:3] if name not in columns]:
        fail(f"{path}: column {', '.join(missing)} is missing")
    if unknown := [name for name in columns if name not in LAUNCH_COLUMNS]:
        fail(f"{path}: unknown column {', '.join(unknown)}; known: {', '.join(LAUNCH_COLUMNS)}")
    return list(found)


def _tasks(
    folder: Path, wanted: Sequence[Mapping[str, str]], gpus: tuple[str, ...], analysis: Mode
) -> tuple[list[FileTask], list[Row]]:
    """One task a file, and rows of files that hold no text."""
    code: dict[str, Mapping[str, str]] = {}
    grouped: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
    rows = []
    for row in wanted:
        name, grid, block = row["file"], row["grid"], row["block"]
        shared, registers = (_whole(row, column) for column in ("shared", "registers"))
        loops = [row["loops"]] if row.get("loops") else None
        kernel, arguments = row.get("kernel") or None, row.get("arguments", "").split()
        try:
            options = LaunchOptions.model_construct(
                grid=grid, block=block, shared=shared, kernel=kernel, loops=loops,
                arg=arguments, analysis=analysis, registers=registers,
            )  # fmt: skip
            request = options.of(folder / name)
        except WattcastError as error:
            told = {"file": name, "grid": grid, "block": block, "problem": _one_line(error)}
            rows += [{**told, "gpu": gpu} for gpu in gpus]
            continue
        code[name] = {key: request.pop(key) for key in ("ptx", "cuda") if key in request}
        grouped.setdefault(name, []).append((grid, block, request))
    tasks = [FileTask(name, code[name], tuple(each), gpus) for name, each in grouped.items()]
    return tasks, rows


def _whole(row: Mapping[str, str], column: str) -> int | None:
    try:
        return int(row[column]) if row.get(column) else None
    except ValueError:
        fail(f"{row['file']}: {column} {row[column]!r} is not a whole number")
