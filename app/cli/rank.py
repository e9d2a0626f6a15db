"""``wattcast rank``: Kernel Tuner's configurations in predicted order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from wattcast.app.cli import inputs
from wattcast.app.cli.output import predictor, show

if TYPE_CHECKING:
    from wattcast.predictor.rank import TuningProblem
    from wattcast.predictor.tuning_files import TuningRun

Divisors = Annotated[
    str | None,
    typer.Option(help="What divides this axis of the problem size: parameters a,b or a number."),
]


def rank(
    tuning: Annotated[Path, typer.Argument(metavar="TUNING")],
    file: inputs.Ptx,
    gpu: inputs.Gpu,
    problem_size: str | None = None,
    grid_div_x: Divisors = None,
    grid_div_y: Divisors = None,
    grid_div_z: Divisors = None,
    by: str = "energy",
    top: Annotated[int, typer.Option(min=1)] = 10,
    *,
    code: inputs.CodeOptions,
    models: inputs.PhysicalOptions,
    as_json: inputs.AsJson = False,
) -> None:
    """Rank Kernel Tuner configurations before running them.

    If the file holds measurements, also shows how good the ranking is.

    Args:
        tuning: T4 results or cache file of Kernel Tuner.
        problem_size: Problem size: 1048576 or 4096x4096. Default: from the file.
        by: Rank by energy or time.
        top: How many configurations you would run.
    """
    from wattcast.predictor.rank import Objective
    from wattcast.predictor.rank import rank as run

    if by not in get_args(Objective):
        inputs.fail(f"--by {by!r}: expected energy or time")
    found = tuning_file(tuning)
    divisors = (grid_div_x, grid_div_y, grid_div_z)
    problem = problem_of(found, file, gpu, problem_size, divisors, code, models)
    answer = run(predictor(), found, problem, by, top)  # type: ignore[arg-type]
    show(answer, as_json, lambda: answer.report(top))


def tuning_file(path: Path) -> TuningRun:
    """A file of Kernel Tuner. Ends the command for one that cannot be read."""
    from wattcast.predictor.tuning_files import read_tuning

    return read_tuning(inputs.read_text(path))


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

    size = found.problem_size
    if problem_size is not None:
        size = tuple(inputs.dimensions("--problem-size", problem_size, "4096x4096", least=1))
    if size is None:
        inputs.fail("the file does not give the problem size; pass --problem-size")
    request: dict[str, Any] = {**code.of_code(file), "gpu": gpu, **models.request()}
    if file.suffix in inputs.CUDA_SUFFIXES:
        request["kernel"] = code.given["kernel"] or found.kernel
    named = tuple(
        (name,) if text is None else tuple(text.split(","))
        for text, name in zip(divisors, BLOCK_NAMES, strict=True)
    )
    return TuningProblem(size, named, request=request)
