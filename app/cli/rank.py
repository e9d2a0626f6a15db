"""``wattcast rank``: Kernel Tuner's configurations in predicted order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from wattcast.app.cli import inputs
from wattcast.app.cli.output import Shown, predictor
from wattcast.predictor.messages.rank import RankAnswer

if TYPE_CHECKING:
    from wattcast.predictor.rank import TuningProblem
    from wattcast.predictor.tuning_files import TuningRun


class ProblemOptions(inputs.Options):
    """How configurations become launches."""

    panel = inputs.OWN
    file: inputs.Ptx
    problem_size: str | None = None
    """Problem size: 1048576 or 4096x4096. Default: from the file."""
    grid_div_x: str | None = None
    """What divides this axis of the problem size: parameters a,b or a number."""
    grid_div_y: str | None = None
    """What divides this axis of the problem size: parameters a,b or a number."""
    grid_div_z: str | None = None
    """What divides this axis of the problem size: parameters a,b or a number."""

    def of(
        self,
        found: TuningRun,
        on: inputs.OnGpu,
        code: inputs.CodeOptions,
        models: inputs.PhysicalOptions,
    ) -> TuningProblem:
        """How the configurations of a file become launches of the code in another."""
        from wattcast.predictor.rank import BLOCK_NAMES, TuningProblem

        size = found.problem_size
        if self.problem_size is not None:
            told = inputs.dimensions("--problem-size", self.problem_size, "4096x4096", least=1)
            size = tuple(told)
        if size is None:
            inputs.fail("the file does not give the problem size; pass --problem-size")
        body = inputs.body_of(code.of_code(self.file), on, models)
        if self.file.suffix in inputs.CUDA_SUFFIXES:
            body["kernel"] = code.given["kernel"] or found.kernel
        axes = (self.grid_div_x, self.grid_div_y, self.grid_div_z)
        named = tuple(
            (name,) if text is None else tuple(text.split(","))
            for text, name in zip(axes, BLOCK_NAMES, strict=True)
        )
        return TuningProblem(size, named, request=body)


def rank(
    tuning: Annotated[Path, typer.Argument(metavar="TUNING")],
    on: inputs.OnGpu,
    problem: ProblemOptions,
    code: inputs.CodeOptions,
    models: inputs.PhysicalOptions,
    by: str = "energy",
    top: Annotated[int, typer.Option(min=1)] = 10,
) -> Shown[RankAnswer]:
    """Rank Kernel Tuner configurations before running them.

    If the file holds measurements, also shows how good the ranking is.

    Args:
        tuning: T4 results or cache file of Kernel Tuner.
        by: Rank by energy or time.
        top: How many configurations you would run.
    """
    from wattcast.predictor.rank import Objective
    from wattcast.predictor.rank import rank as run

    inputs.check("--by", by, get_args(Objective))
    found = tuning_file(tuning)
    answer = run(predictor(), found, problem.of(found, on, code, models), by, top)  # type: ignore[arg-type]
    return Shown(answer, lambda: answer.report(top))


def tuning_file(path: Path) -> TuningRun:
    """A file of Kernel Tuner. Ends the command for one that cannot be read."""
    from wattcast.predictor.tuning_files import read_tuning

    return read_tuning(inputs.read_text(path))
