"""``wattcast tune``: which configuration of a space to measure next, and when to stop."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from statistics import median_high
from typing import Annotated, get_args

import typer

from wattcast.app import progress, settings
from wattcast.app.cli import inputs, output, runners
from wattcast.app.python.predictors import crew
from wattcast.models.intervals import quantity
from wattcast.predictor import rank as ranking
from wattcast.predictor.forecasts import Forecast, failures, forecasts
from wattcast.predictor.messages.tunings import RankAnswer, Standing, named
from wattcast.predictor.reports import Line
from wattcast.predictor.tune import Objective, Tuning
from wattcast.predictor.tuning_files import Configuration, TuningRun, Value, read_tuning, t4_text

# ``wattcast rank``: Kernel Tuner's configurations in predicted order.


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
    ) -> ranking.TuningProblem:
        """How the configurations of a file become launches of the code in another."""
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
            for text, name in zip(axes, ranking.BLOCK_NAMES, strict=True)
        )
        return ranking.TuningProblem(size, named, request=body)


def rank(
    tuning: Annotated[Path, typer.Argument(metavar="TUNING")],
    on: inputs.OnGpu,
    problem: ProblemOptions,
    code: inputs.CodeOptions,
    models: inputs.PhysicalOptions,
    by: str = "energy",
    top: Annotated[int, typer.Option(min=1)] = 10,
) -> output.Shown[RankAnswer]:
    """Rank Kernel Tuner configurations before running them.

    If the file holds measurements, also shows how good the ranking is.

    Args:
        tuning: T4 results or cache file of Kernel Tuner.
        by: Rank by energy or time.
        top: How many configurations you would run.
    """
    inputs.check("--by", by, get_args(ranking.Objective))
    found = tuning_file(tuning)
    asked = problem.of(found, on, code, models)
    with crew(variants=len(found.configurations)) as many:
        answer = ranking.rank(output.predictor(), found, asked, by, top, many)  # type: ignore[arg-type]
    return output.Shown(answer, lambda: answer.report(top))


def tuning_file(path: Path) -> TuningRun:
    """A file of Kernel Tuner. Ends the command for one that cannot be read."""
    return read_tuning(inputs.read_text(path))


def tune(
    space: Annotated[Path, typer.Argument(metavar="SPACE")],
    on: inputs.OnGpu,
    asked: ProblemOptions,
    code: inputs.CodeOptions,
    models: inputs.PhysicalOptions,
    by: str = "energy",
    most_seconds: float | None = None,
    results: Path | None = None,
    run: str | None = None,
    run_seconds: Annotated[float, typer.Option(min=0.1)] = 60,
    measure: bool = False,
    device: int | None = None,
    predictions: Annotated[int, typer.Option(min=10)] = 500,
    budget: Annotated[int, typer.Option(min=1)] = 50,
    following: Annotated[int, typer.Option("--next", min=1)] = 5,
    gain: Annotated[float, typer.Option(min=0)] = 0.005,
    keep: Path | None = None,
    workers: Annotated[int | None, typer.Option(min=1)] = None,
    dask: str | None = None,
    as_json: inputs.AsJson = False,
    brief: inputs.Brief = False,
) -> output.Shown[Standing]:
    """Find the best tuning configuration with few measurements.

    Predicts all configurations, of a large space those that matter, then says which to measure
    next; with --run or --measure it measures them itself and stops where one more is not worth it.

    Args:
        space: JSON with tune_params, a T1 definition, T4 results or a cache of Kernel Tuner.
        by: Make time, energy or edp least.
        most_seconds: Configurations may take no longer than this.
        results: T4 file of measurements: read if it is there, and what is measured is added.
        run: Command that measures one configuration, {name} standing for its parameters; it prints
            seconds, or seconds and joules.
        run_seconds: A run that takes longer has failed.
        measure: Measure on the GPU of this machine, as `wattcast measure` does.
        device: CUDA device number. Required if there are several GPUs.
        predictions: Most predictions before a measurement; the rest is told from them.
        budget: Most measurements with --run or --measure.
        following: How many to propose.
        gain: Stop where one more measurement is expected to gain less, as a share.
        keep: File that remembers predictions, so that a later call need not wait.
        workers: Processes that compile and predict. Default: the cores.
        dask: Dask scheduler to predict on. Default: WATTCAST_DASK.
    """
    if run is not None and measure:
        inputs.fail("--run measures by a command, --measure by the GPU here; give one of them")
    inputs.check("--by", by, get_args(Objective))
    if most_seconds is not None and not most_seconds > 0:
        inputs.fail(f"--most-seconds {most_seconds}: expected a number above 0")
    found = tuning_file(space)
    problem = asked.of(found, on, code, models)
    different = {repr(sorted(one.parameters.items())): one for one in found.configurations}
    with ExitStack() as opened:
        made = output.predictor()
        runner: runners.Runner | None = None if run is None else runners.Command(run, run_seconds)
        if measure:  # before minutes of predicting rather than after
            energy = by != "time"
            runner = opened.enter_context(runners.here(made, problem, device, energy=energy))
        many: ranking.Crew | None = None
        shown = count(1)

        def predict(some: Sequence[Mapping[str, Value]]) -> Iterator[Forecast]:
            each = [Configuration(parameters, None, None) for parameters in some]
            for row in forecasts(made, problem, each, keep, many):
                progress.advance(next(shown), min(predictions, len(different)))
                yield row

        every = [one.parameters for one in different.values()]
        tuning = Tuning((), by, most_seconds, every, predict)  # type: ignore[arg-type]
        with crew(workers, dask or settings.Settings().dask) as workers_of:
            many = workers_of
            tuning.study(predictions, gain)
        many = None
        measured = [*found.configurations]
        if results is not None and results.exists():
            measured += tuning_file(results).configurations
        for one in measured:
            _tell(tuning, one)
        if runner is not None:
            _search(tuning, runner, results, budget, gain, quiet=as_json or brief)
    answer = tuning.answer(following, gain)
    refused = [
        f"{each['count']} refused ({each['kind']}), the first: "
        f"{named(each['first']['parameters'])}: {each['first']['problem']}"
        for each in failures(answer.refused)
    ]
    return output.Shown(answer, lambda: [*answer.report(), *map(Line, refused)])


def _tell(tuning: Tuning, one: Configuration) -> None:
    if one.valid and one.time_seconds is None and one.energy_joules is None:
        return
    tuning.tell(one.parameters, one.time_seconds, one.energy_joules)


def _search(
    tuning: Tuning,
    runner: runners.Runner,
    results: Path | None,
    budget: int,
    gain: float,
    *,
    quiet: bool,
) -> None:
    """Measure until one more is not worth it; every measurement is written at once."""
    from wattcast.measure.device import ContextBrokenError

    added = list(tuning_file(results).configurations) if results and results.exists() else []

    def keep(parameters: Mapping[str, Value], taken: runners.Taken) -> Configuration:
        good = taken.seconds is not None
        one = Configuration(dict(parameters), taken.seconds, taken.joules, good)
        added.append(one)
        if results is not None:
            _write(results, added)
        return one

    for number in range(1, budget + 1):
        proposed = tuning.propose()
        if not proposed or tuning.finished(gain):
            break
        place = tuning.place(proposed[0])
        expected = None if place is None else float(tuning.search.outlook().value[place])
        try:
            taken = runner.measure(proposed[0])
        except ContextBrokenError:
            keep(proposed[0], runners.Taken())  # the next start must not try it again
            raise
        _tell(tuning, keep(proposed[0], taken))
        if not quiet:
            _told(number, proposed[0], taken, expected, tuning)


def _write(file: Path, measured: list[Configuration]) -> None:
    """The whole file anew, in one step: an interruption leaves the old one."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=file.parent, prefix=file.name, delete=False
    ) as out:
        out.write(t4_text(measured))
    Path(out.name).replace(file)


def _told(
    number: int,
    parameters: Mapping[str, Value],
    taken: runners.Taken,
    expected: float | None,
    tuning: Tuning,
) -> None:
    """One measurement beside what was expected of it, and where the search stands after it."""
    from wattcast.models.processes import LEARNED_FROM

    given = ((taken.seconds, "s"), (taken.joules, "J"))
    values = ", ".join(quantity(value, unit) for value, unit in given if value is not None)
    told = f"{number}. {named(parameters)}: {values or 'failed'}"
    if taken.note is not None:
        told += f" ({taken.note})"
    elif expected is not None:
        told += f" ({quantity(expected, tuning.unit)} expected)"
    search = tuning.search
    if (best := search.best()) is not None:
        told += f"; best {quantity(median_high(search.measured[best]), tuning.unit)}"
        if len(search.measured) >= LEARNED_FROM:  # before, nothing is stopped for it
            told += f", one more may gain {float(search.outlook().gain.max()):.1%}"
    output.line(output.console(), told)
