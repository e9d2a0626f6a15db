"""Retraining: from a request for it to a judged candidate, as a durable job.

plan      POST /retrain with dry_run: what a retraining would do (plan.py)
submit    POST /retrain: checks what can be checked at once, queues a job
run_job   the job's process: rows of the batches -> a judged candidate for each target -> one
          transaction that registers the versions, promotes the candidates or not, and ends the job

The candidates: ``candidates.py``; what each must beat: ``attempt.py``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy.engine import Connection

from wattcast.app.jobs.worker import work_folder
from wattcast.app.logs import log
from wattcast.app.problems import kind_of
from wattcast.app.services.models.artifacts import RegistryArtifacts, name_of
from wattcast.app.services.models.champions import TIME
from wattcast.app.services.retrain.attempt import Attempt, Outcome
from wattcast.app.services.retrain.candidates import calibrate_power, calibrate_time, retrain_power
from wattcast.app.services.retrain.messages import RetrainRequest
from wattcast.app.services.retrain.plan import chosen, planned
from wattcast.app.settings import Settings
from wattcast.app.store.database import Pool, open_database
from wattcast.app.store.jobs import Job, LeaseLostError
from wattcast.app.store.measurements import Batch
from wattcast.app.store.registry import ChampionMovedError, ModelName, NewVersion, Snapshot
from wattcast.app.store.repositories import Repositories
from wattcast.features.errors import DataError, ServiceError, WattcastError
from wattcast.models.cards import CARD_NAME, sha256_of
from wattcast.predictor.parts.power_models import PHYSICAL_SCHEMA

if TYPE_CHECKING:
    from wattcast.app.services import Services

KIND = "retrain"

JOB_DATABASE_SECONDS = 60.0
"""A job reads all rows of its batches in one statement, and nobody waits for its answer."""


def submit(
    services: Services,
    request: RetrainRequest,
    actor: str,
    key: str | None = None,
) -> tuple[Job, bool]:
    """Queue a retraining; ``False`` with the job that the idempotency key already named.

    Raises GpuError, ServiceError ``unknown-batch`` or ``idempotency-key``, and DataError for
    batches that hold no features, or no times, of what is asked.
    """
    data = services.database
    gpu = _checked(services, request)
    stored = request.model_dump(mode="json", exclude_none=True) | {"gpu": gpu}
    job, is_new = data.jobs.submit(KIND, stored, actor, key)
    if is_new and services.worker is not None:
        services.worker.wake()
    return job, is_new


def plan(services: Services, request: RetrainRequest) -> dict[str, Any]:
    """``PlanAnswer``: what a retraining would do. Raises as ``submit``, and DataError where no row
    would be left."""
    gpu = _checked(services, request)
    snapshot = services.database.registry.snapshot()
    found = []
    for target in request.targets:
        board, told = planned(
            _attempt(services, services.database, request, snapshot, target, Path()), target
        )
        found.append(told)
    return {"gpu": gpu, "board": board or None, "targets": found}


def _attempt(
    services: Services,
    data: Repositories,
    request: RetrainRequest,
    snapshot: Snapshot,
    target: str,
    work: Path,
    tell: Callable[[str, float], None] = lambda stage, share: None,
) -> Attempt:
    """An attempt at one target, its mode chosen. ``work`` is the folder of its files."""
    from wattcast.training.retrain.gate import Policy

    settings = services.settings
    attempt = Attempt(
        services=services,
        data=data,
        artifacts=RegistryArtifacts(settings.home / "registry", settings.artifacts_url),
        snapshot=snapshot,
        gpu=services.gpus.load(request.gpu),
        request=request,
        policy=Policy(alpha=settings.gate_alpha, old_margin=settings.gate_old_margin),
        made=work / "made",
        kept=work / "folds",
        tell=tell,
    )
    if target == TIME:
        return replace(attempt, why="the default time model is corrected, whatever the mode")
    mode, why = chosen(attempt)
    return replace(attempt, mode=mode, why=why)


def _checked(services: Services, request: RetrainRequest) -> str:
    """The id of the GPU of a request that can be tried. Raises as ``submit``."""
    data, gpu = services.database, services.gpus.load(request.gpu)
    found = data.measurements.get_many(request.batches)
    missing = [str(batch) for batch in request.batches if batch not in found]
    if missing:
        raise ServiceError("unknown-batch", f"no measurements {', '.join(missing[:5])}")
    _check(data, request, gpu.id, found.values())
    return gpu.id


def _check(data: Repositories, request: RetrainRequest, gpu: str, batches: Iterable[Batch]) -> None:
    """What no row can mend. Raises DataError."""
    physical = request.mode == "new_gpu" or "power" not in request.targets
    schemas = {schema for batch in batches for schema in batch.schemas}
    looks = physical or "time" in request.targets
    other = physical and request.schema_id not in (None, PHYSICAL_SCHEMA)
    if other or (looks and PHYSICAL_SCHEMA not in schemas):
        raise DataError(
            f"mode new_gpu and target time look at {PHYSICAL_SCHEMA}: upload rows that name their "
            f"PTX, or hold its features (these hold {', '.join(sorted(schemas))}); mode full takes "
            "any schema",
            field="schema",
        )
    times = data.measurements.times
    if "time" in request.targets and not times(request.batches, gpu, request.board):
        of = f"{gpu} board {request.board!r}" if request.board else gpu
        raise DataError(
            f"target time needs rows with time_seconds; the batches hold none of {of}",
            field="targets",
        )


def run_job(settings: Settings, job_id: UUID, token: str) -> None:
    """Run a retraining under a lease, to its end. Raises LeaseLostError where that was lost.

    What the request or its rows cannot give fails the job for good; anything unforeseen is
    raised, so that the worker tries again.
    """
    from wattcast.app.services import Services

    seconds = max(JOB_DATABASE_SECONDS, settings.database_seconds)
    engine = open_database(settings.sqlalchemy_url, Pool(seconds=seconds))
    services = Services(settings)
    try:
        data = Repositories.over(engine)
        job = data.jobs.get(job_id)
        if job is None or job.ended:
            raise LeaseLostError(job_id)
        try:
            _Run(services, data, job, token).run()
        except LeaseLostError:
            raise
        except ChampionMovedError as error:
            log().warning("judging again", job=str(job_id), why=error.detail)
            data.jobs.release(job_id, token, error.detail)
        except WattcastError as error:
            kind = kind_of(error)
            if kind in ("internal", "store"):
                raise
            told = {"kind": kind, "detail": error.detail, **error.context}
            data.jobs.fail(job_id, token, told)
    finally:
        services.close()
        engine.dispose()


class _Run:
    """One attempt at a retraining."""

    def __init__(self, services: Services, data: Repositories, job: Job, token: str) -> None:
        settings = services.settings
        self.services = services
        self.data = data
        self.job = job
        self.token = token
        self.request = RetrainRequest.model_validate(job.request)
        self.artifacts = RegistryArtifacts(settings.home / "registry", settings.artifacts_url)
        self.work = work_folder(settings, job.id)

    def run(self) -> None:
        """Train, judge, and end the job with all its effects at once."""
        self.tell("rows", 0.0)
        shutil.rmtree(self.work / "made", ignore_errors=True)  # of an attempt that died
        snapshot = self.data.registry.snapshot()
        outcomes = [self._outcome(snapshot, number) for number in range(len(self.request.targets))]
        self.tell("storing", 0.99)
        names = [self._adopt(outcome) for outcome in outcomes]
        self._finish(snapshot, list(zip(outcomes, names, strict=True)))

    def tell(self, stage: str, share: float) -> None:
        """Tell the job's progress. Raises LeaseLostError where it is ours no more."""
        self.data.jobs.progress(self.job.id, self.token, stage, round(share, 4))

    def _outcome(self, snapshot: Snapshot, number: int) -> Outcome:
        """Candidate and verdict of one target."""
        request = self.request
        count, target = len(request.targets), request.targets[number]
        attempt = _attempt(
            self.services,
            self.data,
            request,
            snapshot,
            target,
            self.work,
            lambda stage, share: self.tell(stage, (number + share) / count),
        )
        if target == TIME:
            return calibrate_time(attempt)
        return calibrate_power(attempt) if attempt.mode == "new_gpu" else retrain_power(attempt)

    def _adopt(self, outcome: Outcome) -> dict[ModelName, str]:
        """Put the artifacts where they stay; names and checksums of their cards.
        If we die after this, they lie there without ever being registered: no harm is done."""
        names = {}
        for card in outcome.retrained.cards:
            self.artifacts.adopt(self.work / "made", card)
            names[name_of(card)] = sha256_of(self.artifacts.root / card.folder / CARD_NAME)
        return names

    def _finish(
        self, snapshot: Snapshot, outcomes: Sequence[tuple[Outcome, dict[ModelName, str]]]
    ) -> None:
        """Register, promote and end the job, all or nothing."""
        first, *also = [
            outcome.told(self._promotes(outcome), list(names)) for outcome, names in outcomes
        ]
        result = {**first, "also": also} if also else first
        with self.data.engine.begin() as connection:
            self.data.jobs.finish(connection, self.job.id, self.token, result)
            for outcome, names in outcomes:
                self._register(connection, snapshot, outcome, names)

    def _register(
        self,
        connection: Connection,
        snapshot: Snapshot,
        outcome: Outcome,
        names: dict[ModelName, str],
    ) -> None:
        place, verdict = outcome.place, outcome.retrained.verdict.model_dump(mode="json")
        new = {
            name: NewVersion(name, place.board, "retrained", sha256, verdict, self.job.id)
            for name, sha256 in names.items()
        }
        judged = name_of(outcome.card)
        registry = self.data.registry
        ids = registry.register(connection, list(new.values()), new[judged])
        if self._promotes(outcome):
            why = f"job {self.job.id}: better than the champion and than no information"
            expected = snapshot.move_id(place)
            registry.promote(connection, place, ids[judged], self.job.actor, why, expected=expected)

    def _promotes(self, outcome: Outcome) -> bool:
        return outcome.retrained.verdict.promoted and self.request.promote
