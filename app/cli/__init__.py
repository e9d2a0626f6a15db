"""Command line: ``wattcast serve | predict | features | analyze | gpus | models | keys | ...``.

Errors are one line on stderr; exit status 1 where the request cannot be answered, 2 where the
command was used wrongly.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from pydantic import ValidationError

from wattcast.app.cli.bulk import bulk
from wattcast.app.cli.calibrate import calibrate
from wattcast.app.cli.compare import diff
from wattcast.app.cli.data import data
from wattcast.app.cli.explain import explain
from wattcast.app.cli.inputs import (
    AsJson,
    Block,
    CoreMhz,
    Gpu,
    Grid,
    Known,
    MaybePtx,
    MemoryMhz,
    PowerModel,
    Ptx,
    TimeModel,
    Work,
    clock_request,
    fail,
    known_request,
    pair_request,
)
from wattcast.app.cli.insight import advise, cost, hotspots
from wattcast.app.cli.keys import audit, keys
from wattcast.app.cli.launch import LaunchOptions, with_options
from wattcast.app.cli.measure import measure, onboard
from wattcast.app.cli.models import models, worker
from wattcast.app.cli.output import console as _console
from wattcast.app.cli.output import predictor as _predictor
from wattcast.app.cli.output import print_json as _print_json
from wattcast.app.cli.rank import rank
from wattcast.app.cli.sweep import sweep
from wattcast.app.settings import Settings
from wattcast.features.errors import GivenUpError, MissingExtraError, WattcastError

app = typer.Typer(
    name="wattcast",
    help="Power, time and energy of a CUDA kernel from its PTX or source, before anyone runs it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
gpus = typer.Typer(help="List, show or check GPU profiles.", invoke_without_command=True)


GIVEN_UP = 4
"""Exit status where ``--analysis-seconds`` ended before the answer: nothing is wrong with it."""


def main() -> NoReturn:
    """Entry point: every foreseen error is one line on stderr and an exit status."""
    try:
        app()
    except ValidationError as error:
        fail(_one_line(error))
    except GivenUpError as error:
        fail(str(error), GIVEN_UP)
    except WattcastError as error:
        fail(str(error))
    except ModuleNotFoundError as error:
        if (missing := MissingExtraError.of(error)) is None:
            raise
        fail(str(missing))
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output is gone; say nothing more
        sys.exit(1)
    sys.exit(0)


def _one_line(error: ValidationError) -> str:
    from wattcast.predictor.messages import field_problems

    found = field_problems(error.errors(include_url=False))
    return "; ".join(f"{part['path'] or 'request'}: {part['message']}" for part in found)


def _show_version(wanted: bool) -> None:
    if wanted:
        from wattcast.app.settings import installed_version

        print(f"wattcast {installed_version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Options before the command."""


def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. Default: WATTCAST_HOST.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on. Default: WATTCAST_PORT.")
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="First print a real prediction made over HTTP.")
    ] = False,
) -> None:
    """Run the HTTP service until interrupted."""
    from wattcast.app.cli import tables as report
    from wattcast.app.server import demonstrate
    from wattcast.app.server import serve as run

    given = {"host": host, "port": port}
    settings = Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]

    def ready(url: str) -> None:
        if demo:
            prediction = demonstrate(url)
            _console().print(f"POST {url}/predict answered:", highlight=False)
            report.prediction(_console(), prediction)
        _console().print(
            f"wattcast serves on {url} (API documentation: {url}/docs)", highlight=False
        )

    run(settings, ready)


@with_options
def predict(
    gpu: Annotated[list[str], typer.Option("--gpu", help="GPU id or alias. Repeatable.")],
    grid: Grid,
    block: Block,
    file: MaybePtx = None,
    work: Work = None,
    known: Known = None,
    *,
    launch: LaunchOptions,
    core_mhz: CoreMhz = None,
    memory_mhz: MemoryMhz = None,
    time_model: TimeModel = "auto",
    model: PowerModel = "auto",
    board: Annotated[
        str | None, typer.Option(help="Which board, if models are kept per board.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also print SHAP contributions.")
    ] = False,
    registry: Annotated[
        bool, typer.Option(help="Use the models promoted in the service's database, if any.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Predict the power, time and energy of a kernel launch."""
    from wattcast.app.cli import tables as report
    from wattcast.predictor.messages.predict import PredictRequest
    from wattcast.predictor.predict import predict as run

    body: dict[str, Any] = {
        **launch.request_or_work(file, work, grid, block),
        "known": known_request(known),
        **({"gpu": gpu[0]} if len(gpu) == 1 else {"gpus": gpu}),
        "clocks": clock_request(core_mhz, memory_mhz),
        "time_model": time_model,
        "model": model,
        "board": board,
        "explain": "shap" if explain else None,
    }
    answer = run(_predictor(registry=registry), PredictRequest.model_validate(body))
    if as_json:
        _print_json(answer)
        return
    for number, one in enumerate(answer.get("predictions", [answer])):
        if number:
            _console().print()
        report.prediction(_console(), one)


@with_options
def dvfs(
    file: Ptx,
    gpu: Gpu,
    grid: Grid,
    block: Block,
    launch: LaunchOptions,
    clocks: Annotated[
        list[str] | None,
        typer.Option(
            help="Clock pair CORE/MEMORY in MHz. Repeatable. Default: all pairs of the GPU."
        ),
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="Clock pair that ratios refer to. Default: the highest.")
    ] = None,
    max_slowdown: Annotated[
        float | None,
        typer.Option(help="Longest time allowed, relative to the reference, e.g. 1.1."),
    ] = None,
    max_power_watts: Annotated[
        float | None, typer.Option(help="Highest power allowed, in watts.")
    ] = None,
    deadline_seconds: Annotated[
        float | None, typer.Option(help="Longest time allowed, in seconds.")
    ] = None,
    time_model: TimeModel = "auto",
    model: PowerModel = "physical",
    as_json: AsJson = False,
) -> None:
    """Predict a launch at many clocks and pick the best pair.

    Prints the scaling, the Pareto set and the best pair under the constraints.
    """
    from wattcast.app.cli import tables as report
    from wattcast.predictor.dvfs import dvfs as run
    from wattcast.predictor.messages.dvfs import DvfsRequest

    body = {
        **launch.request(file, grid, block),
        "gpu": gpu,
        "clocks": [pair_request("--clocks", text) for text in clocks] if clocks else "grid",
        "reference": pair_request("--reference", reference) if reference else None,
        "constraints": {
            "max_slowdown": max_slowdown,
            "max_power_watts": max_power_watts,
            "deadline_seconds": deadline_seconds,
        },
        "time_model": time_model,
        "model": model,
    }
    answer = run(_predictor(), DvfsRequest.model_validate(body))
    if as_json:
        _print_json(answer)
        return
    report.dvfs(_console(), answer)


@with_options
def features(
    file: Ptx,
    gpu: Gpu,
    grid: Grid,
    block: Block,
    schema: Annotated[
        str, typer.Option(help="Feature schema; wattcast schemas lists them.")
    ] = "alavani2023",
    *,
    launch: LaunchOptions,
    as_json: AsJson = False,
) -> None:
    """Print the feature vector that a model sees."""
    from wattcast.app.cli import tables as report
    from wattcast.predictor.features import features as run
    from wattcast.predictor.messages.features import FeaturesRequest

    body = {
        **launch.request(file, grid, block),
        "gpu": gpu,
        "schema": schema,
    }
    answer = run(_predictor(), FeaturesRequest.model_validate(body))
    if as_json:
        _print_json(answer)
        return
    report.rows(_console(), answer["features"], ("name", "value", "unit"))
    report.warnings(_console(), answer["warnings"])


@with_options
def analyze(
    file: Ptx,
    gpu: Gpu,
    grid: Grid,
    block: Block,
    launch: LaunchOptions,
    as_json: AsJson = False,
) -> None:
    """Show what a launch does: loops, memory, occupancy, hot lines."""
    from wattcast.app.cli import tables as report
    from wattcast.predictor.analyze import analyze as run
    from wattcast.predictor.messages.analyze import AnalyzeRequest

    body = {
        **launch.request(file, grid, block),
        "gpu": gpu,
    }
    answer = run(_predictor(), AnalyzeRequest.model_validate(body))
    if as_json:
        _print_json(answer)
        return
    report.analysis(_console(), answer)


@gpus.callback()
def gpus_default(context: typer.Context) -> None:
    """Without a subcommand: the list."""
    if context.invoked_subcommand is None:
        gpus_list()


@gpus.command("list")
def gpus_list(as_json: AsJson = False) -> None:
    """List all GPUs with a profile."""
    from wattcast.app.cli import tables as report
    from wattcast.predictor import catalog

    predictor = _predictor()
    found = catalog.gpu_summaries(predictor.gpus, predictor.power.cards())
    if as_json:
        _print_json(found)
        return
    columns = ("id", "name", "compute_capability", "sm_count", "power_models", "schemas")
    report.rows(_console(), found, columns)


@gpus.command("show")
def gpus_show(gpu: Annotated[str, typer.Argument(help="GPU id or alias.")]) -> None:
    """Print one GPU profile as JSON: every fact, its unit and its source."""
    from wattcast.predictor import catalog

    predictor = _predictor()
    _print_json(catalog.gpu_details(predictor.gpus, gpu, predictor.power.cards()))


@gpus.command("check")
def gpus_check(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Profile files. Default: all known profiles.")
    ] = None,
) -> None:
    """Check GPU profiles. The exit status is 1 if one has errors."""
    from wattcast.features.gpus import check_profile

    if not files:
        found = _predictor().gpus.all()
        _console().print(f"{len(found)} profiles are valid", highlight=False)
        return
    broken = False
    for path in files:
        problems = check_profile(path)
        broken = broken or bool(problems)
        for problem in problems:
            print(f"{path}: {problem}", file=sys.stderr)
        if not problems:
            _console().print(f"{path}: valid", highlight=False)
    if broken:
        raise typer.Exit(1)


def schemas(as_json: AsJson = False) -> None:
    """List the feature schemas and the GPUs each one supports."""
    from wattcast.app.cli import tables as report
    from wattcast.predictor import catalog

    found = catalog.schema_summaries()
    if as_json:
        _print_json(found)
        return
    report.rows(_console(), found, ("id", "version", "title", "gpus"))


def train(context: typer.Context) -> None:
    """Train the power models or search their hyperparameters."""
    from wattcast.training.__main__ import main as run

    raise typer.Exit(run(context.args))


def settings() -> None:
    """List every setting, its current value and its meaning.

    Also says how compilers are isolated on this machine.
    """
    from wattcast.app.cli import tables as report
    from wattcast.predictor.parts.sources import isolation

    current = Settings()
    rows = [
        {
            "variable": f"WATTCAST_{name.upper()}",
            "value": str(getattr(current, name)),
            "meaning": field.description,
        }
        for name, field in Settings.model_fields.items()
    ]
    report.rows(_console(), rows, ("variable", "value", "meaning"))
    _console().print(f"Compilers are isolated by: {isolation(current)}")


# In the order of --help: what most people want first.
for _command in (predict, explain, hotspots, advise, sweep, dvfs, diff, cost, rank, bulk):
    app.command()(_command)
for _command in (analyze, features, schemas):
    app.command()(_command)
for _command in (serve, worker, settings, audit):
    app.command()(_command)
for _command in (measure, onboard, calibrate):
    app.command()(_command)
_FOREIGN = {"allow_extra_args": True, "ignore_unknown_options": True}
app.command(context_settings=_FOREIGN, add_help_option=False)(train)  # argparse reads its options
for _name, _group in (("gpus", gpus), ("models", models), ("data", data), ("keys", keys)):
    app.add_typer(_group, name=_name)


if __name__ == "__main__":
    main()
