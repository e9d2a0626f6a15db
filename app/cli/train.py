"""``wattcast calibrate`` and ``retrain``: models from measured rows."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from wattcast.app.cli.exits import Exit
from wattcast.app.cli.inputs import fail
from wattcast.app.cli.output import Shown, services, told
from wattcast.app.settings import Settings
from wattcast.predictor.reports import Block, Line

ACTOR = "command line"


def calibrate(
    measured: Annotated[Path, typer.Argument(metavar="MEASURED.csv")],
    predict: Annotated[Path | None, typer.Option("--predict", metavar="FILE.csv")] = None,
) -> Shown[Any]:
    """Adapt models of other GPUs to a new one from a few launches.

    Needs the power files (wattcast data check). Prints which mapping was chosen and the error of
    each one, leaving out one measured launch at a time. The median is always a candidate.

    Args:
        measured: Measured launches: power_watts and the features of docs/data.md.
        predict: Launches to predict: features only.
    """

    from wattcast.training.calibrate import calibrate as run

    found = run(measured, predict)
    errors, chosen = found.choice.left_out_mae_watts, found.choice.way
    answer = {
        "chosen": chosen,
        "measured_launches": found.measured,
        "left_out_mae_watts": dict(errors),
        "power_watts": list(found.predicted_watts),
    }
    lines = [f"{found.measured} measured launches; mean error, leaving out one at a time:"]
    for way, watts in errors.items():
        lines.append(f"  {way:14} {watts:7.1f} W{'  <- chosen' if way == chosen else ''}")
    for at, watts in enumerate(found.predicted_watts, start=1):
        lines.append(f"launch {at}: {watts:.1f} W")
    return told(answer, *lines)


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
    from wattcast.app.services.measurements.upload import UploadOptions, store_upload
    from wattcast.app.services.retrain import plan, submit
    from wattcast.app.services.retrain.messages import RetrainRequest
    from wattcast.app.store.private import private_folder

    settings = Settings()
    private_folder(settings.home)
    with services() as use:
        assert use.data is not None  # the database is open
        batches = list(batch or ())
        if file is not None:
            try:
                with file.open("rb") as opened:
                    options = UploadOptions(gpu, board, schema)
                    stored, _ = store_upload(use, opened, options, ACTOR)
            except OSError as error:
                fail(f"{file}: {error.strerror}")
            batches.append(str(stored.id))
            counts = f"{stored.accepted} rows, {stored.rejected} rejected"
            print(f"batch {stored.id}: {counts}", file=sys.stderr)
        body = {"gpu": gpu, "board": board, "mode": mode, "targets": target or ["power"]}
        more = {"batches": batches, "schema": schema, "dry_run": dry_run, "promote": promote}
        request = RetrainRequest.model_validate({**body, **more})
        if dry_run:
            planned = plan(use, request)
            return Shown(planned, lambda: [*_planned(planned.data())])
        job, _ = submit(use, request, ACTOR)
        with closing(Worker(settings, use.data.jobs, 1)) as worker:
            worker.start()
            while not job.ended:
                time.sleep(0.2)
                before, job = job.stage, use.data.jobs.get(job.id) or job
                if job.stage != before:
                    print(f"job {job.id}: {job.stage}", file=sys.stderr)
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
