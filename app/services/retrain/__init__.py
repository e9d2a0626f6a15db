"""Retraining: from a request for it to a judged candidate, as a durable job.

    plan      POST /retrain with dry_run: what a retraining would do
    submit    POST /retrain: checks what can be checked at once, queues a job
    run_job   the job's process: rows of the batches -> a judged candidate for each target -> one
              transaction that registers the versions, promotes the candidates or not, and ends the
              job

Rows that count are chosen in ``rows.py``. ``candidates.decide`` picks one of two ways to train,
both in ``wattcast.training``: *boosted* (modes ``full`` and ``continue``) and *calibrated* (mode
``new_gpu``, and times).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy.engine import Connection

from wattcast.app import logs, problems
from wattcast.app.jobs.worker import work_folder
from wattcast.app.services.models.artifacts import name_of
from wattcast.app.services.retrain.messages import PlanAnswer, RetrainRequest
from wattcast.app.settings import Settings
from wattcast.app.store import database, jobs, repositories
from wattcast.app.store.registry import ChampionMovedError, ModelName, NewVersion
from wattcast.features.errors import DataError, ServiceError, WattcastError
from wattcast.models.cards import CARD_NAME, sha256_of
from wattcast.predictor.parts.power_models import PHYSICAL_SCHEMA

if TYPE_CHECKING:
    from wattcast.app.services import Services
    from wattcast.app.services.retrain.candidates import Outcome

KIND = "retrain"

JOB_DATABASE_SECONDS = 60.0
"""A job reads all rows of its batches in one statement, and nobody waits for its answer."""


def submit(
    services: Services,
    request: RetrainRequest,
    actor: str,
    key: str | None = None,
) -> tuple[jobs.Job, bool]:
    """Queue a retraining; ``False`` with the job that the idempotency key already named.

    Raises GpuError, ServiceError ``unknown-batch`` or ``idempotency-key``, and DataError for
    batches that hold no features, or no times, of what is asked.
    """
    gpu = _checked(services, request)
    stored = request.model_dump(mode="json", exclude_none=True) | {"gpu": gpu}
    job, is_new = services.database.jobs.submit(KIND, stored, actor, key)
    if is_new and services.worker is not None:
        services.worker.wake()
    return job, is_new


def plan(services: Services, request: RetrainRequest) -> PlanAnswer:
    """What a retraining would do. Raises as ``submit``, and DataError where no row would train."""
    # What trains is loaded by whoever asks for it.
    from wattcast.app.services.retrain.candidates import Retraining, planned, prepare

    gpu = _checked(services, request)
    asked = Retraining(services, services.database, request, Path())
    targets = [prepare(asked, target) for target in request.targets]
    plans = [planned(target) for target in targets]
    return PlanAnswer(gpu=gpu, board=targets[-1].place.board or None, targets=plans)


def _checked(services: Services, request: RetrainRequest) -> str:
    """The id of a request's GPU, after checks of what no row can mend. Raises as ``submit``."""
    measurements, gpu = services.database.measurements, services.gpus.load(request.gpu).id
    batches = measurements.get_many(request.batches)
    missing = [str(batch) for batch in request.batches if batch not in batches]
    if missing:
        raise ServiceError("unknown-batch", f"no measurements {', '.join(missing[:5])}")
    physical = request.mode == "new_gpu" or "power" not in request.targets
    schemas = {schema for batch in batches.values() for schema in batch.schemas}
    other = physical and request.schema_id not in (None, PHYSICAL_SCHEMA)
    needed = physical or "time" in request.targets
    if other or (needed and PHYSICAL_SCHEMA not in schemas):
        raise DataError(
            f"mode new_gpu and target time look at {PHYSICAL_SCHEMA}: upload rows that name their "
            f"PTX, or hold its features (these hold {', '.join(sorted(schemas))}); mode full takes "
            "any schema",
            field="schema",
        )
    if "time" in request.targets and not measurements.times(request.batches, gpu, request.board):
        of = f"{gpu} board {request.board!r}" if request.board else gpu
        raise DataError(
            f"target time needs rows with time_seconds; the batches hold none of {of}",
            field="targets",
        )
    return gpu


def run_job(settings: Settings, job_id: UUID, token: str) -> None:
    """Run a retraining under a lease, to its end. Raises LeaseLostError where that was lost.

    What the request or its rows cannot give fails the job for good; anything unforeseen is
    raised, so that the worker tries again.
    """
    from wattcast.app.services import Services

    seconds = max(JOB_DATABASE_SECONDS, settings.database_seconds)
    engine = database.open_database(settings.sqlalchemy_url, database.Pool(seconds=seconds))
    services = Services(settings)
    try:
        data = repositories.Repositories(engine)
        job = data.jobs.get(job_id)
        if job is None or job.ended:
            raise jobs.LeaseLostError(job_id)
        try:
            _run(services, data, job, token)
        except jobs.LeaseLostError:
            raise
        except ChampionMovedError as error:
            logs.log().warning("judging again", job=str(job_id), why=error.detail)
            data.jobs.release(job_id, token, error.detail)
        except WattcastError as error:
            kind = problems.kind_of(error)
            if kind in ("internal", "store"):
                raise
            problem = {"kind": kind, "detail": error.detail, **error.context}
            data.jobs.fail(job_id, token, problem)
    finally:
        services.close()
        engine.dispose()


def _run(services: Services, data: repositories.Repositories, job: jobs.Job, token: str) -> None:
    """Train, judge, and end the job with all its effects at once."""
    from wattcast.app.services.retrain.candidates import Retraining, prepare, train

    request = RetrainRequest.model_validate(job.request)
    count, number = len(request.targets), 0

    def progress(stage: str, share: float) -> None:
        """Store the job's progress. Raises LeaseLostError where it is no longer ours."""
        done = share if stage == "storing" else (number + share) / count
        data.jobs.progress(job.id, token, stage, round(done, 4))

    progress("rows", 0.0)
    work = work_folder(services.settings, job.id)
    shutil.rmtree(work / "made", ignore_errors=True)  # of an attempt that died
    asked = Retraining(services, data, request, work, progress)
    outcomes = []
    for number, target in enumerate(request.targets):  # noqa: B007 - ``progress`` reads it
        outcomes.append(train(prepare(asked, target)))
    progress("storing", 0.99)
    versions = [_adopt(outcome) for outcome in outcomes]
    result, *also = [
        outcome.result(list(names)) for outcome, names in zip(outcomes, versions, strict=True)
    ]
    with data.engine.begin() as connection:
        ended = {**result, "also": also} if also else result
        data.jobs.finish(connection, job.id, token, ended)
        for outcome, names in zip(outcomes, versions, strict=True):
            _register(connection, job, outcome, names)


def _adopt(outcome: Outcome) -> dict[ModelName, str]:
    """Put the artifacts where they stay; names and checksums of their cards.
    If we die after this, they lie there without ever being registered: no harm is done."""
    asked, names = outcome.prepared.asked, {}
    for card in outcome.candidate.cards:
        asked.artifacts.adopt(asked.work / "made", card)
        names[name_of(card)] = sha256_of(asked.artifacts.root / card.folder / CARD_NAME)
    return names


def _register(
    connection: Connection, job: jobs.Job, outcome: Outcome, names: dict[ModelName, str]
) -> None:
    """Register the versions of a target and promote its candidate, if it won."""
    asked, place = outcome.prepared.asked, outcome.prepared.place
    verdict = outcome.candidate.verdict.model_dump(mode="json")
    new = [
        NewVersion(name, place.board, "retrained", sha256, verdict, job.id)
        for name, sha256 in names.items()
    ]
    registry, judged = asked.data.registry, name_of(outcome.candidate.card)
    ids = registry.register(connection, new, next(each for each in new if each.name == judged))
    if outcome.promotes:
        why = f"job {job.id}: better than the champion and than no information"
        expected = asked.snapshot.move_id(place)
        registry.promote(connection, place, ids[judged], job.actor, why, expected=expected)
