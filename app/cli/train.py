"""``wattcast calibrate`` and ``retrain``: models from measured rows."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from wattcast.app.cli.exits import Exit
from wattcast.app.cli.inputs import AsJson, fail
from wattcast.app.cli.output import Shown
from wattcast.app.settings import Settings
from wattcast.predictor.reports import Block, Line

ACTOR = "command line"


def calibrate(
    measured: Annotated[Path, typer.Argument(metavar="MEASURED.csv")],
    predict: Annotated[Path | None, typer.Option("--predict", metavar="FILE.csv")] = None,
    as_json: AsJson = False,
) -> None:
    """Adapt models of other GPUs to a new one from a few launches.

    Needs the power files (wattcast data check). Prints which mapping was chosen and the error of
    each one, leaving out one measured launch at a time. The median is always a candidate.

    Args:
        measured: Measured launches: power_watts and the features of docs/data.md.
        predict: Launches to predict: features only.
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
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]")] = None,
    *,
    gpu: Annotated[str, typer.Option()],
    board: str | None = None,
    batch: list[str] | None = None,
    mode: str = "auto",
    target: list[str] | None = None,
    schema: str | None = None,
    dry_run: bool = False,
    promote: bool = True,
) -> Shown[Any]:
    """Retrain a board's power or time model on measurements.

    Runs the job here, as `wattcast worker` would. The exit status is 1 if the job failed.

    Args:
        file: Measurements to store first: a table, or a zip of it and PTX.
        gpu: GPU id or alias.
        board: Board of rows without one. Default: the one the rows name.
        batch: Id of a batch that is stored. Repeatable.
        mode: auto (start from what answers now), continue, full or new_gpu.
        target: power or time. Repeatable. Default: power.
        schema: Schema whose features the rows hold instead of PTX.
        dry_run: Tell what would be done, and train nothing.
        promote: Let a better model serve.
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
            planned = plan(services, request)
            return Shown(planned, lambda: [*_planned(planned.data())])
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
    result = job.result
    return Shown(result, lambda: [*_retrained(result)])


def _planned(answer: Mapping[str, Any]) -> Iterator[Block]:
    for one in answer["targets"]:
        yield _heading(one["target"], answer)
        yield Line(f"mode {one['mode'] or 'none'}: {one['why']}")
        yield Line(
            f"{one['rows']} rows of {len(one['kernels'])} kernels train; compared on "
            f"{one['judged_kernels']} kernels, left out in {one['folds']} folds"
        )
        reasons = [f"not used: {count} rows, {why}" for why, count in one["left_out"].items()]
        reasons += [f"nothing can be promoted: {text}" for text in one["obstacles"]]
        yield from map(Line, (*reasons, *one["notes"]))


def _retrained(answer: Mapping[str, Any]) -> Iterator[Block]:
    for one in (answer, *answer.get("also", ())):
        yield _heading(one["target"], one)
        model = one["candidate"]
        state = "serves now" if one["promoted"] else "is a candidate and does not serve"
        yield Line(f"{model['family']} version {model['version']} {state}")
        for reason in (*one["verdict"]["reasons"], *one["verdict"]["notes"]):
            yield Line(f"  {reason}")


def _heading(target: str, where: Mapping[str, Any]) -> Line:
    board = f", board {where['board']}" if where["board"] else ""
    return Line(f"{target} of {where['gpu']}{board}", "bold")
