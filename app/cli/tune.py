"""``wattcast tune``: which configuration of a space to measure next, and when to stop."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich.text import Text

from wattcast.app.cli import inputs
from wattcast.app.cli.exits import Exit
from wattcast.app.cli.output import Answer, console, line, plain_table, predictor, print_json
from wattcast.app.cli.progress import advance
from wattcast.app.cli.rank import Divisors, problem_of, tuning_file
from wattcast.app.python.asked import crew
from wattcast.app.settings import Settings
from wattcast.models.estimate import quantity

if TYPE_CHECKING:
    from wattcast.predictor.forecasts import Forecast
    from wattcast.predictor.tune import Tuning
    from wattcast.predictor.tuning_files import Configuration, Value


@inputs.with_options
def tune(
    space: Annotated[
        Path,
        typer.Argument(
            metavar="SPACE",
            help="JSON with tune_params, a T1 definition, T4 results or a cache of Kernel Tuner.",
        ),
    ],
    file: inputs.Ptx,
    gpu: inputs.Gpu,
    problem_size: Annotated[
        str | None, typer.Option(help="Problem size: 1048576 or 4096x4096. Default: from the file.")
    ] = None,
    grid_div_x: Divisors = None,
    grid_div_y: Divisors = None,
    grid_div_z: Divisors = None,
    by: Annotated[str, typer.Option(help="Make time, energy or edp least.")] = "energy",
    most_seconds: Annotated[
        float | None, typer.Option(help="Configurations may take no longer than this.")
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            help="T4 file of measurements: read if it is there, and what --run measures is added."
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            help="Command that measures one configuration, {name} standing for its parameters; "
            "it prints seconds, or seconds and joules."
        ),
    ] = None,
    run_seconds: Annotated[
        float, typer.Option(min=0.1, help="A run that takes longer has failed.")
    ] = 60,
    budget: Annotated[int, typer.Option(min=1, help="Most measurements with --run.")] = 50,
    following: Annotated[int, typer.Option("--next", min=1, help="How many to propose.")] = 5,
    gain: Annotated[
        float,
        typer.Option(
            min=0, help="Stop where one more measurement is expected to gain less, as a share."
        ),
    ] = 0.005,
    keep: Annotated[
        Path | None,
        typer.Option(help="File that remembers predictions, so that a later call need not wait."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that compile and predict. Default: the cores."),
    ] = None,
    dask: Annotated[
        str | None, typer.Option(help="Dask scheduler to predict on. Default: WATTCAST_DASK.")
    ] = None,
    *,
    code: inputs.CodeOptions,
    models: inputs.PhysicalOptions,
    as_json: inputs.AsJson = False,
) -> None:
    """Find the best tuning configuration with few measurements.

    Predicts all configurations, then says which to measure next; with --run it measures them
    itself and stops where one more is not worth it.
    """
    from wattcast.predictor.forecasts import forecasts
    from wattcast.predictor.tune import Objective, Tuning
    from wattcast.predictor.tuning_files import Configuration
    from wattcast.training.engine import ClusterError

    if by not in get_args(Objective):
        inputs.fail(f"--by {by!r}: expected time, energy or edp")
    if most_seconds is not None and not most_seconds > 0:
        inputs.fail(f"--most-seconds {most_seconds}: expected a number above 0")
    found = tuning_file(space)
    divisors = (grid_div_x, grid_div_y, grid_div_z)
    problem = problem_of(found, file, gpu, problem_size, divisors, code, models)
    different = {repr(sorted(one.parameters.items())): one for one in found.configurations}
    wanted = list(different.values())
    try:
        with crew(workers, dask or Settings().dask) as many:
            asked = forecasts(predictor(), problem, wanted, keep, many)
            tuning = Tuning(_shown(asked, len(wanted)), by, most_seconds)  # type: ignore[arg-type]
    except ClusterError as error:
        inputs.fail(str(error), Exit.NO_ANSWER)
    measured = [
        one
        for one in found.configurations
        if one.time_seconds is not None or one.energy_joules is not None or not one.valid
    ]
    if results is not None and results.exists():
        measured += tuning_file(results).configurations
    for one in measured:
        _tell(tuning, one)
    if run is not None:
        added = list(tuning_file(results).configurations) if results and results.exists() else []
        for _ in range(budget):
            proposed = tuning.propose()
            if not proposed or tuning.search.finished(gain):
                break
            parameters = proposed[0]
            seconds, joules = _measured(run, parameters, run_seconds)
            one = Configuration(dict(parameters), seconds, joules, seconds is not None)
            _tell(tuning, one)
            added.append(one)
            if results is not None:
                _write(results, added)
            if not as_json:
                _told(one)
    answer = tuning.answer(following, gain)
    if as_json:
        print_json(answer)
    else:
        _report(answer)


def _shown(asked: Iterator[Forecast], total: int) -> Iterator[Forecast]:
    for number, row in enumerate(asked, 1):
        advance(number, total)
        yield row


def _tell(tuning: Tuning, one: Configuration) -> None:
    if one.valid and one.time_seconds is None and one.energy_joules is None:
        return
    tuning.tell(one.parameters, one.time_seconds, one.energy_joules)


def _measured(
    command: str, parameters: Mapping[str, Value], most: float
) -> tuple[float | None, float | None]:
    """Seconds and joules that a command printed last; nothing where it failed."""
    try:
        words = [each.format_map(dict(parameters)) for each in shlex.split(command)]
    except (KeyError, ValueError, IndexError) as error:
        inputs.fail(f"--run {command!r}: {error} is no parameter of the space")
    try:
        done = subprocess.run(  # noqa: S603  the command that the user gave
            words, capture_output=True, text=True, timeout=most, check=False
        )
    except subprocess.TimeoutExpired:
        return None, None
    except OSError as error:
        inputs.fail(f"--run {words[0]!r}: {error.strerror}")
    if done.returncode != 0:
        return None, None
    last = (done.stdout.strip().splitlines() or [""])[-1].split()
    try:
        numbers = [float(each) for each in last]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 2 or not all(0 < each < float("inf") for each in numbers):
        inputs.fail(
            f"--run: {shlex.join(words)} printed {' '.join(last)!r} last; "
            "expected seconds, or seconds and joules",
        )
    return numbers[0], numbers[1] if len(numbers) == 2 else None


def _write(file: Path, measured: list[Configuration]) -> None:
    """The whole file anew, in one step: an interruption leaves the old one."""
    from wattcast.predictor.tuning_files import t4_text

    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=file.parent, prefix=file.name, delete=False
    ) as out:
        out.write(t4_text(measured))
    Path(out.name).replace(file)


def _named(parameters: Mapping[str, Value]) -> str:
    return ", ".join(f"{name}={value}" for name, value in parameters.items())


def _told(one: Configuration) -> None:
    given = ((one.time_seconds, "s"), (one.energy_joules, "J"))
    values = ", ".join(quantity(value, unit) for value, unit in given if value is not None)
    line(console(), f"{_named(one.parameters)}: {values or 'failed'}")


def _report(answer: Answer) -> None:
    from wattcast.predictor.forecasts import failures

    out = console()
    unit = answer["unit"]
    told = f"{answer['measured']} of {answer['configurations']} measured"
    if answer["failed"]:
        told += f", {answer['failed']} failed"
    line(out, told)
    if (best := answer["best"]) is not None:
        value = quantity(sorted(best["measured"])[len(best["measured"]) // 2], unit)
        line(out, f"best {answer['objective']}: {value} at {_named(best['configuration'])}")
    for each in failures(answer["refused"]):
        first = each["first"]
        told = f"{_named(first['parameters'])}: {first['problem']}"
        out.print(f"{each['count']} refused ({each['kind']}), the first: {told}", markup=False)
    if answer["finished"]:
        line(out, "one more measurement is not expected to gain enough: stop here")
        return
    table = plain_table("measure next", "expected", "90 % interval", "expected gain")
    for row in answer["next"]:
        table.add_row(
            Text(_named(row["configuration"])),
            quantity(row["expected"], unit),
            f"{quantity(row['low'], unit)} to {quantity(row['high'], unit)}",
            f"{row['gain']:.1%}" if answer["measured"] else "-",
        )
    out.print(table)
