"""``wattcast models``: list, registry, promotion and rollback; and ``wattcast worker``."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from wattcast.app.cli import exits, output
from wattcast.app.cli.inputs import AsJson, Brief, fail, progress
from wattcast.app.settings import Settings
from wattcast.predictor import reports
from wattcast.predictor.messages.catalog import ModelSummary

models = typer.Typer(help="List, promote or roll back trained models.", invoke_without_command=True)

GpuArgument = Annotated[str, typer.Argument(help="GPU id or alias.")]
Board = Annotated[str, typer.Option(help="Label of a board. Default: any board of the GPU.")]
Target = Annotated[str, typer.Option(help="power, or time (corrections from measured launches).")]
Why = Annotated[str, typer.Option(help="Reason, for the audit log.")]
ACTOR = "command line"


@models.callback()
def models_default(context: typer.Context, as_json: AsJson = False, brief: Brief = False) -> None:
    """Without a subcommand: the list."""
    if context.invoked_subcommand is None:
        output.show(models_list(), as_json, brief)


@models.command("list")
def models_list() -> output.Shown[list[ModelSummary]]:
    """List trained models and their error on unseen kernels."""
    from wattcast.app.services import Services
    from wattcast.predictor import catalog

    power = Services(Settings()).power
    found = [catalog.model_summary(card, power.serving.coverage) for card in power.cards()]
    columns = ("gpu", "target", "family", "version", "schema", "unseen_kernel_mae_watts")
    for problem in power.problems():
        print(f"wattcast: left out: {problem}", file=sys.stderr)
    return output.Shown(found, lambda: [reports.members_table(found, columns)])


@models.command("registry")
def models_registry(gpu: GpuArgument, target: Target = "power") -> None:
    """Print champions, candidates and retrained versions of a GPU as JSON."""
    from wattcast.app.services.models import registry

    with output.services() as opened:
        output.print_json(registry.registry_of(opened, gpu, target))


@models.command("promote")
def models_promote(
    gpu: GpuArgument,
    name: str,
    board: Board = "",
    target: Target = "power",
    why: Why = "by hand",
    yes: bool = False,
) -> None:
    """Let a version serve, even if it failed the promotion gate.

    Shows its error beside that of the model that serves, and asks in a terminal.

    Args:
        name: FAMILY-SCHEMA-SOURCE/VERSION, as in the path of its card.
        yes: Do not ask.
    """
    from wattcast.app.services.models import registry
    from wattcast.predictor.catalog import model_summary

    folder, _, number = name.rpartition("/")
    parts = folder.split("-")
    if len(parts) != 3 or not number.isdecimal():
        fail(f"{name!r} is not of the form FAMILY-SCHEMA-SOURCE/VERSION")
    names = dict(zip(("family", "schema", "source"), parts, strict=True))
    asked = registry.PromoteRequest(**names, version=int(number), board=board, why=why)
    with output.services() as opened:
        serving, new = registry.cards(opened, gpu, target, asked)
        for role, card in (("serves now", serving), ("would serve", new)):
            told = {} if card is None else model_summary(card, {}).data()
            errors = [
                f"{reports.words(name)} {value:.3g}"
                for name, value in told.items()
                if name.startswith("unseen_") and value is not None
            ]
            name = "the default time model" if card is None else card.place
            progress(f"{role}: {name}: {', '.join(errors) or 'its error is not known'}")
        if not yes and sys.stdin.isatty() and not typer.confirm("Let it serve?", err=True):
            fail("not promoted", exits.Exit.NO_ANSWER)
        output.print_json(registry.promote(opened, gpu, target, asked, ACTOR))


@models.command("rollback")
def models_rollback(
    gpu: GpuArgument, board: Board = "", target: Target = "power", why: Why = "by hand"
) -> None:
    """Go back to the champion before the last promotion."""
    from wattcast.app.services.models import registry

    with output.services() as opened:
        asked = registry.RollbackRequest(board=board, why=why)
        output.print_json(registry.rollback(opened, gpu, target, asked, ACTOR))


def worker(jobs: int | None = None) -> None:
    """Run retraining jobs until interrupted.

    Run it beside the service, or on another machine that uses the same database.

    Args:
        jobs: Jobs run at once. Default: WATTCAST_JOB_WORKERS.
    """
    from wattcast.app import logs
    from wattcast.app.jobs.worker import Worker
    from wattcast.app.store.database import Pool, open_database
    from wattcast.app.store.jobs import JobStore
    from wattcast.app.store.private import UMASK, private_folder

    settings = Settings()
    logs.configure(settings)
    count = max(1, settings.job_workers) if jobs is None else jobs
    os.umask(UMASK)
    private_folder(settings.home)
    pool = Pool(most=settings.database_connections, seconds=settings.database_seconds)
    engine = open_database(settings.sqlalchemy_url, pool)
    working = Worker(settings, JobStore(engine), count)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: working.stop())
    working.start()
    logs.log().info("worker started", jobs=count, home=str(settings.home))
    working.wait()
    working.close()
    engine.dispose()


# ``wattcast calibrate`` and ``retrain``: models from measured rows.


def calibrate(
    measured: Annotated[Path, typer.Argument(metavar="MEASURED.csv")],
    predict: Annotated[Path | None, typer.Option("--predict", metavar="FILE.csv")] = None,
) -> output.Shown[Any]:
    """Adapt models of other GPUs to a new one from a few launches.

    Needs the power files (wattcast data check). Prints which mapping was chosen and the error of
    each one, leaving out one measured launch at a time. The median is always a candidate.

    Args:
        measured: Measured launches: power_watts and the features of docs/data.md.
        predict: Launches to predict: features only.
    """

    from wattcast.training.few_shot import calibrate as run

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
    return output.told(answer, *lines)


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
) -> output.Shown[Any]:
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
    with output.services() as use:
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
            return output.Shown(planned, lambda: [*_planned(planned.data())])
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
            exits.Exit.NO_ANSWER,
        )
    result = job.result
    return output.Shown(result, lambda: [*_retrained(result)])


def _planned(answer: Mapping[str, Any]) -> Iterator[reports.Block]:
    for one in answer["targets"]:
        yield _heading(one["target"], answer)
        yield reports.Line(f"mode {one['mode'] or 'none'}: {one['why']}")
        yield reports.Line(
            f"{one['rows']} rows of {len(one['kernels'])} kernels train; compared on "
            f"{one['judged_kernels']} kernels, left out in {one['folds']} folds"
        )
        reasons = [f"not used: {count} rows, {why}" for why, count in one["left_out"].items()]
        reasons += [f"nothing can be promoted: {text}" for text in one["obstacles"]]
        yield from map(reports.Line, (*reasons, *one["notes"]))


def _retrained(answer: Mapping[str, Any]) -> Iterator[reports.Block]:
    for one in (answer, *answer.get("also", ())):
        yield _heading(one["target"], one)
        model = one["candidate"]
        state = "serves now" if one["promoted"] else "is a candidate and does not serve"
        yield reports.Line(f"{model['family']} version {model['version']} {state}")
        for reason in (*one["verdict"]["reasons"], *one["verdict"]["notes"]):
            yield reports.Line(f"  {reason}")


def _heading(target: str, where: Mapping[str, Any]) -> reports.Line:
    board = f", board {where['board']}" if where["board"] else ""
    return reports.Line(f"{target} of {where['gpu']}{board}", "bold")
