"""Command line: ``wattcast serve | predict | features | analyze | gpus | models | keys | ...``.

Each command lies in the file of its name. Errors are one line on stderr; exit status 1 where the
request cannot be answered, 2 where the command was used wrongly.
"""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer
from pydantic import ValidationError

from wattcast.app.cli.advise import advise
from wattcast.app.cli.analyze import analyze
from wattcast.app.cli.bulk import bulk
from wattcast.app.cli.compare import diff
from wattcast.app.cli.cost import cost
from wattcast.app.cli.data import data
from wattcast.app.cli.dvfs import counters, dvfs
from wattcast.app.cli.explain import explain
from wattcast.app.cli.features import features, schemas
from wattcast.app.cli.gpus import gpus
from wattcast.app.cli.hotspots import hotspots
from wattcast.app.cli.inputs import fail
from wattcast.app.cli.keys import audit, keys
from wattcast.app.cli.measure import measure, onboard
from wattcast.app.cli.models import models, worker
from wattcast.app.cli.predict import predict
from wattcast.app.cli.rank import rank
from wattcast.app.cli.serve import serve, settings
from wattcast.app.cli.sweep import sweep
from wattcast.app.cli.train import calibrate, retrain, train
from wattcast.app.cli.tune import tune
from wattcast.features.errors import GivenUpError, MissingExtraError, WattcastError

app = typer.Typer(
    name="wattcast",
    help="Power, time and energy of a CUDA kernel from its PTX or source, before anyone runs it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
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


# In the order of --help: what most people want first.
for _command in (
    predict,
    explain,
    hotspots,
    advise,
    sweep,
    dvfs,
    counters,
    diff,
    cost,
    rank,
    tune,
    bulk,
):
    app.command()(_command)
for _command in (analyze, features, schemas):
    app.command()(_command)
for _command in (serve, worker, settings, audit):
    app.command()(_command)
for _command in (measure, onboard, retrain, calibrate):
    app.command()(_command)
_FOREIGN = {"allow_extra_args": True, "ignore_unknown_options": True}
app.command(context_settings=_FOREIGN, add_help_option=False)(train)  # argparse reads its options
for _name, _group in (("gpus", gpus), ("models", models), ("data", data), ("keys", keys)):
    app.add_typer(_group, name=_name)


if __name__ == "__main__":
    main()
