"""``wattcast rank``: Kernel Tuner's configurations in predicted order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.text import Text

from wattcast.app.cli import inputs
from wattcast.app.cli.output import Answer, console, line, plain_table, predictor, print_json
from wattcast.models.estimate import quantity

if TYPE_CHECKING:
    from wattcast.predictor.rank import TuningProblem
    from wattcast.predictor.tuning_files import TuningRun

Divisors = Annotated[
    str | None,
    typer.Option(help="What divides this axis of the problem size: parameters a,b or a number."),
]


@inputs.with_options
def rank(
    tuning: Annotated[
        Path, typer.Argument(metavar="TUNING", help="T4 results or cache file of Kernel Tuner.")
    ],
    file: inputs.Ptx,
    gpu: inputs.Gpu,
    problem_size: Annotated[
        str | None, typer.Option(help="Problem size: 1048576 or 4096x4096. Default: from the file.")
    ] = None,
    grid_div_x: Divisors = None,
    grid_div_y: Divisors = None,
    grid_div_z: Divisors = None,
    by: Annotated[str, typer.Option(help="Rank by energy or time.")] = "energy",
    top: Annotated[int, typer.Option(min=1, help="How many configurations you would run.")] = 10,
    *,
    code: inputs.CodeOptions,
    models: inputs.PhysicalOptions,
    as_json: inputs.AsJson = False,
) -> None:
    """Rank Kernel Tuner configurations before running them.

    If the file holds measurements, also shows how good the ranking is.
    """
    from wattcast.predictor.rank import Objective
    from wattcast.predictor.rank import rank as run

    if by not in get_args(Objective):
        inputs.fail(f"--by {by!r}: expected energy or time")
    found = tuning_file(tuning)
    divisors = (grid_div_x, grid_div_y, grid_div_z)
    problem = problem_of(found, file, gpu, problem_size, divisors, code, models)
    answer = run(predictor(), found, problem, by, top)  # type: ignore[arg-type]
    if as_json:
        print_json(answer)
    else:
        _report(answer, top)


def tuning_file(path: Path) -> TuningRun:
    """A file of Kernel Tuner. Ends the command for one that cannot be read."""
    from wattcast.predictor.tuning_files import read_tuning

    try:
        return read_tuning(path.read_text(encoding="utf-8"))
    except OSError as error:
        inputs.fail(f"{path}: {error.strerror}")
    except UnicodeDecodeError:
        inputs.fail(f"{path}: not UTF-8 text")


def problem_of(
    found: TuningRun,
    file: Path,
    gpu: str,
    problem_size: str | None,
    divisors: tuple[str | None, ...],
    code: inputs.CodeOptions,
    models: inputs.PhysicalOptions,
) -> TuningProblem:
    """How the configurations of a file become launches of the code in another."""
    from wattcast.predictor.rank import BLOCK_NAMES, TuningProblem

    size = _size(problem_size) or found.problem_size
    if size is None:
        inputs.fail("the file does not give the problem size; pass --problem-size")
    request: dict[str, Any] = {**code.of_code(file), "gpu": gpu, **models.request()}
    if file.suffix in inputs.CUDA_SUFFIXES:
        request["kernel"] = code.kernel or found.kernel
    named = tuple(
        (name,) if text is None else tuple(text.split(","))
        for text, name in zip(divisors, BLOCK_NAMES, strict=True)
    )
    return TuningProblem(size, named, request=request)


def _size(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        parts = tuple(int(part) for part in text.replace(",", "x").split("x"))
    except ValueError:
        parts = ()
    if not 1 <= len(parts) <= 3 or min(parts) < 1:
        inputs.fail(f"--problem-size {text!r}: expected 1 to 3 whole numbers, as in 4096x4096")
    return parts


def _report(answer: Answer, top: int) -> None:
    out = console()
    out.print(Text.assemble((answer["kernel"], "bold"), " on ", answer["gpu"]))
    headings = ("rank", "configuration", "energy", "time", "measured energy", "measured time")
    table = plain_table(*headings)
    for row in answer["configurations"][:top]:
        measured = (row["measured_joules"], "J"), (row["measured_seconds"], "s")
        named = ", ".join(f"{name}={value}" for name, value in row["configuration"].items())
        table.add_row(
            str(row["rank"]),
            Text(named),
            quantity(row["joules"], "J"),
            quantity(row["seconds"], "s"),
            *("-" if value is None else quantity(value, unit) for value, unit in measured),
        )
    out.print(table)
    if answer["refused"]:
        first = answer["refused"][0]["reason"]
        out.print(f"{len(answer['refused'])} refused, the first: {first}", markup=False)
    judged = answer["judged"]
    if judged is None:
        line(out, f"no measured {answer['objective']} to judge the order by")
        return
    line(
        out,
        f"measuring these {judged['k']} of {judged['configurations']} would have saved "
        f"{judged['runs_saved']} runs and found one {judged['loss']:.1%} above the best",
    )
    line(
        out,
        f"one within {judged['near']:.0%} of the best is at rank {judged['runs_needed']}; without "
        f"a prediction it takes {judged['runs_needed_random']:.1f} runs on average; rank "
        f"correlation {judged['rank_correlation']:.2f}",
    )
