"""``wattcast models``: list, registry, promotion and rollback; and ``wattcast worker``."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, Any

import typer

from wattcast.app.cli.inputs import AsJson, fail
from wattcast.app.cli.output import Shown, print_json, rows, services, show
from wattcast.app.settings import Settings

models = typer.Typer(help="List, promote or roll back trained models.", invoke_without_command=True)

GpuArgument = Annotated[str, typer.Argument(help="GPU id or alias.")]
Board = Annotated[str, typer.Option(help="Label of a board. Default: any board of the GPU.")]
Target = Annotated[str, typer.Option(help="power, or time (corrections from measured launches).")]
Why = Annotated[str, typer.Option(help="Reason, for the audit log.")]
ACTOR = "command line"


@models.callback()
def models_default(context: typer.Context, as_json: AsJson = False) -> None:
    """Without a subcommand: the list."""
    if context.invoked_subcommand is None:
        show(models_list(), as_json)


@models.command("list")
def models_list() -> Shown[Any]:
    """List trained models and their error on unseen kernels."""
    from wattcast.app.services import Services
    from wattcast.predictor import catalog

    power = Services(Settings()).power
    found = [catalog.model_summary(card, power.serving.coverage) for card in power.cards()]
    columns = ("gpu", "target", "family", "version", "schema", "unseen_kernel_mae_watts")
    for problem in power.problems():
        print(f"wattcast: left out: {problem}", file=sys.stderr)
    return Shown(found, lambda: rows(found, columns))


@models.command("registry")
def models_registry(gpu: GpuArgument, target: Target = "power") -> None:
    """Print champions, candidates and retrained versions of a GPU as JSON."""
    from wattcast.app.services.models import registry

    with services() as opened:
        print_json(registry.registry_of(opened, gpu, target))


@models.command("promote")
def models_promote(
    gpu: GpuArgument,
    name: str,
    board: Board = "",
    target: Target = "power",
    why: Why = "by hand",
) -> None:
    """Let a version serve, even if it failed the promotion gate.

    Args:
        name: FAMILY-SCHEMA-SOURCE/VERSION, as in the path of its card.
    """
    from wattcast.app.services.models import registry

    folder, _, number = name.rpartition("/")
    parts = folder.split("-")
    if len(parts) != 3 or not number.isdecimal():
        fail(f"{name!r} is not of the form FAMILY-SCHEMA-SOURCE/VERSION")
    which = parts[0], parts[1], parts[2], int(number)
    with services() as opened:
        print_json(registry.promote(opened, gpu, target, which, board, ACTOR, why))


@models.command("rollback")
def models_rollback(
    gpu: GpuArgument, board: Board = "", target: Target = "power", why: Why = "by hand"
) -> None:
    """Go back to the champion before the last promotion."""
    from wattcast.app.services.models import registry

    with services() as opened:
        print_json(registry.rollback(opened, gpu, target, board, ACTOR, why))


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
