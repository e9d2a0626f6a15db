"""``wattcast train``, ``calibrate`` and ``retrain``: models from published or measured rows."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from wattcast.app.cli.exits import Exit
from wattcast.app.cli.group import show_examples
from wattcast.app.cli.inputs import AsJson, fail
from wattcast.app.cli.output import Answer, line, show
from wattcast.app.settings import Settings

ACTOR = "command line"


def train(context: typer.Context) -> None:
    """Train the power models or search their hyperparameters."""
    from wattcast.training.__main__ import main as run

    try:
        raise typer.Exit(run(context.args))
    finally:
        if {"-h", "--help"} & set(context.args):  # argparse writes the rest of its help
            formatter = context.make_formatter()
            show_examples(context, formatter)
            print(f"\n{formatter.getvalue()}", end="")


def calibrate(
    measured: Annotated[
        Path,
        typer.Argument(
            metavar="MEASURED.csv",
            help="Measured launches: power_watts and the features of docs/data.md.",
        ),
    ],
    predict: Annotated[
        Path | None,
        typer.Option("--predict", metavar="FILE.csv", help="Launches to predict: features only."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Adapt models of other GPUs to a new one from a few launches.

    Needs the power files (wattcast data check). Prints which mapping was chosen and the error of
    each one, leaving out one measured launch at a time. The median is always a candidate.
    """

    from wattcast.training.calibrate import calibrate as run

    found = run(measured, predict)
    errors = found.choice.left_out_mae_watts
    if as_json:
        answer = {
            "chosen": found.choice.way,
            "measured_launches": found.measured,
            "left_out_mae_watts": dict(errors),
            "power_watts": list(found.predicted_watts),
        }
        print(json.dumps(answer, indent=2))
        return
    print(f"{found.measured} measured launches; mean error, leaving out one at a time:")
    for way, watts in errors.items():
        mark = "  <- chosen" if way == found.choice.way else ""
        print(f"  {way:14} {watts:7.1f} W{mark}")
    for at, watts in enumerate(found.predicted_watts, start=1):
        print(f"launch {at}: {watts:.1f} W")


def retrain(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="Measurements to store first: a table, or a zip of it and PTX."
        ),
    ] = None,
    *,
    gpu: Annotated[str, typer.Option(help="GPU id or alias.")],
    board: Annotated[
        str | None, typer.Option(help="Board of rows without one. Default: the one the rows name.")
    ] = None,
    batch: Annotated[
        list[str] | None, typer.Option(help="Id of a batch that is stored. Repeatable.")
    ] = None,
    mode: Annotated[
        str, typer.Option(help="auto (start from what answers now), continue, full or new_gpu.")
    ] = "auto",
    target: Annotated[
        list[str] | None, typer.Option(help="power or time. Repeatable. Default: power.")
    ] = None,
    schema: Annotated[
        str | None, typer.Option(help="Schema whose features the rows hold instead of PTX.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell what would be done, and train nothing.")
    ] = False,
    promote: Annotated[bool, typer.Option(help="Let a better model serve.")] = True,
    as_json: AsJson = False,
) -> None:
    """Retrain a board's power or time model on measurements.

    Runs the job here, as `wattcast worker` would. The exit status is 1 if the job failed.
    """
    from wattcast.app.jobs.worker import Worker
    from wattcast.app.services import Services
    from wattcast.app.services.measurements.upload import UploadOptions, store_upload
    from wattcast.app.services.retrain import plan, submit
    from wattcast.app.services.retrain.messages import RetrainRequest
    from wattcast.app.store.database import open_database
    from wattcast.app.store.private import private_folder
    from wattcast.app.store.repositories import Repositories

    settings = Settings()
    private_folder(settings.home)
    engine = open_database(settings.sqlalchemy_url)
    worker = None
    try:
        data = Repositories.over(engine)
        services = Services(settings, data=data)
        batches = list(batch or ())
        if file is not None:
            try:
                with file.open("rb") as opened:
                    options = UploadOptions(gpu, board, schema)
                    stored, _ = store_upload(services, opened, options, ACTOR)
            except OSError as error:
                fail(f"{file}: {error.strerror}")
            batches.append(str(stored.id))
            told = f"batch {stored.id}: {stored.accepted} rows, {stored.rejected} rejected"
            print(told, file=sys.stderr)
        body = {"gpu": gpu, "board": board, "mode": mode, "targets": target or ["power"]}
        more = {"batches": batches, "schema": schema, "dry_run": dry_run, "promote": promote}
        request = RetrainRequest.model_validate({**body, **more})
        if dry_run:
            show(plan(services, request), as_json, _planned)
            return
        job, _ = submit(services, request, ACTOR)
        worker = Worker(settings, data.jobs, 1)
        worker.start()
        while not job.ended:
            time.sleep(0.2)
            before, job = job.stage, data.jobs.get(job.id) or job
            if job.stage != before:
                print(f"job {job.id}: {job.stage}", file=sys.stderr)
    finally:
        if worker is not None:
            worker.close()
        engine.dispose()
    if job.result is None:
        fail(
            f"the job {job.state}: {(job.error or {}).get('detail', 'it was cancelled')}",
            Exit.NO_ANSWER,
        )
    show(job.result, as_json, _retrained)


def _planned(out: Console, answer: Answer) -> None:
    for one in answer["targets"]:
        _heading(out, one["target"], answer)
        line(out, f"mode {one['mode'] or 'none'}: {one['why']}")
        line(
            out,
            f"{one['rows']} rows of {len(one['kernels'])} kernels train; compared on "
            f"{one['judged_kernels']} kernels, left out in {one['folds']} folds",
        )
        told = [f"not used: {count} rows, {why}" for why, count in one["left_out"].items()]
        told += [f"nothing can be promoted: {text}" for text in one["obstacles"]]
        for text in (*told, *one["notes"]):
            line(out, text)


def _retrained(out: Console, answer: Answer) -> None:
    for one in (answer, *answer.get("also", ())):
        _heading(out, one["target"], one)
        named = one["candidate"]
        told = "serves now" if one["promoted"] else "is a candidate and does not serve"
        line(out, f"{named['family']} version {named['version']} {told}")
        for reason in (*one["verdict"]["reasons"], *one["verdict"]["notes"]):
            line(out, f"  {reason}")


def _heading(out: Console, target: str, where: Answer) -> None:
    board = f", board {where['board']}" if where["board"] else ""
    out.print(Text(f"{target} of {where['gpu']}{board}", "bold"))
