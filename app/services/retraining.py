"""Retraining: from a request for it to a judged candidate, as a durable job.

submit    POST /retrain: checks what can be checked at once, queues a job
run_job   the job's process: rows of the batches -> training.retrain.run -> one transaction that
          registers the versions, promotes the candidate or not, and ends the job
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from app.jobs.worker import work_folder
from app.logs import log
from app.problems import ServiceError, kind_of
from app.retrain_messages import RetrainRequest
from app.services.artifacts import RegistryArtifacts, name_of
from app.services.power import TARGET, unseen_error_watts
from app.services.retrain_launches import Launches
from app.services.retrain_opponents import Opponent, opponent, serving
from app.services.retrain_rows import Gathered, Rest, base_rows, gathered
from app.settings import Settings
from app.store.database import open_database
from app.store.jobs import Job, LeaseLostError
from app.store.measurements import Measurement
from app.store.registry import (
    ChampionMovedError,
    ModelName,
    NewVersion,
    Place,
    Snapshot,
)
from app.store.repositories import Repositories
from features.errors import WattcastError
from features.gpus import GpuProfile
from models.cards import CARD_NAME, ModelCard, sha256_of
from models.store import Artifact

if TYPE_CHECKING:
    from app.services import Services
    from training.retrain.run import Base, Champion, Retrained, Uploads

KIND = "retrain"
CONTINUABLE = ("xgboost", "catboost", "average")
"""Families that more trees can be added to; the packaged average is of the other two."""


def submit(
    services: Services,
    request: RetrainRequest,
    actor: str,
    key: str | None = None,
) -> tuple[Job, bool]:
    """Queue a retraining; ``False`` with the job that the idempotency key already named.

    Raises GpuError, ServiceError ``unknown-batch`` or ``idempotency-key``, and DataError for
    batches that hold no power of this GPU.
    """
    data = services.data
    assert data is not None
    gpu = services.gpus.load(request.gpu)
    found = data.measurements.get_many(request.batches)
    missing = [str(batch) for batch in request.batches if batch not in found]
    if missing:
        raise ServiceError("unknown-batch", f"no measurements {', '.join(missing[:5])}")
    stored = request.model_dump(mode="json", exclude_none=True) | {"gpu": gpu.id}
    job, is_new = data.jobs.submit(KIND, stored, actor, key)
    if is_new and services.worker is not None:
        services.worker.wake()
    return job, is_new


def run_job(settings: Settings, job_id: UUID, token: str) -> None:
    """Run a retraining under a lease, to its end. Raises LeaseLostError where that was lost.

    What the request or its rows cannot give fails the job for good; anything unforeseen is
    raised, so that the worker tries again.
    """
    from app.services import Services

    engine = open_database(settings.sqlalchemy_url)
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
        self.settings = settings
        self.data = data
        self.job = job
        self.token = token
        self.request = RetrainRequest.model_validate(job.request)
        self.artifacts = RegistryArtifacts(settings.home / "registry", settings.artifacts_url)
        self.work = work_folder(settings, job.id)

    def run(self) -> None:
        """Train, judge, and end the job with all its effects at once."""
        self.tell("rows", 0.0)
        snapshot = self.data.registry.snapshot()
        request = self.request
        gpu = self.services.gpus.load(request.gpu)
        batches = self.data.measurements.get_many(request.batches)
        rows = partial(self.data.measurements.rows, gpu=gpu.id)
        rest = Rest()
        found = gathered(batches, rows, gpu, request.board, request.schema_id, rest)
        place = Place(gpu.id, found.board, TARGET)
        answering = serving(self.services.power, self.artifacts, snapshot, place)
        champion = self._champion(answering, place, found.schema_id)
        uploads, measured = found.with_earlier(
            champion, place, self.data.measurements, rows, gpu, rest
        )
        base = base_rows(gpu.id, champion) if request.mode == "full" else None
        beside = self._opponent(answering, champion, measured, gpu)
        made = self._train(place, found, uploads, base, champion, beside)
        names = self._adopt(made)
        self._finish(snapshot, place, made, names, rest)

    def tell(self, stage: str, share: float, detail: str = "") -> None:
        """Tell the job's progress. Raises LeaseLostError where it is ours no more."""
        self.data.jobs.progress(self.job.id, self.token, stage, round(share, 4), detail)

    def _champion(
        self, answering: Artifact[ModelCard], place: Place, schema_id: str
    ) -> Champion | None:
        """The model to beat and to start from: the one that answers for this board now, or, where
        that one cannot be continued, the best of the packaged ones that can.

        ``None`` where there is none that takes the uploads' features.
        """
        from training.retrain.run import Champion

        card = answering.card
        if card.family in CONTINUABLE and card.feature_schema.id == schema_id:
            return Champion(answering)
        power = self.services.power
        known = [
            card
            for card in power.base_cards()
            if (card.gpu, card.feature_schema.id) == (place.gpu, schema_id)
            and card.family in CONTINUABLE
        ]
        return Champion(power.artifact(min(known, key=unseen_error_watts))) if known else None

    def _opponent(
        self,
        answering: Artifact[ModelCard],
        champion: Champion | None,
        rows: Sequence[Measurement],
        gpu: GpuProfile,
    ) -> Opponent | None:
        """The model that answers now, where that is not the champion."""
        if champion is not None and answering.card == champion.card:
            return None
        return opponent(answering, rows, Launches(self.services, gpu, self.data.measurements.ptx))

    def _train(
        self,
        place: Place,
        found: Gathered,
        uploads: Uploads,
        base: Base | None,
        champion: Champion | None,
        beside: Opponent | None,
    ) -> Retrained:
        from training.checkpoints import Checkpoints
        from training.engine import open_engine
        from training.retrain.gate import Policy
        from training.retrain.run import Order, retrain

        order = Order(
            gpu=place.gpu,
            board=place.board,
            schema=found.reference,
            features=found.inputs(champion),
            families=self._families(champion),
            mode=self.request.mode,
            version=self.data.registry.reserve_version(),
            policy=Policy(alpha=self.settings.gate_alpha, old_margin=self.settings.gate_old_margin),
        )
        shutil.rmtree(self.work / "made", ignore_errors=True)  # of an attempt that died
        with open_engine(self.settings.dask, self.settings.job_threads) as engine:
            return retrain(
                order,
                uploads,
                base,
                champion,
                self.work / "made",
                opponents={beside.name: beside.watts} if beside and beside.name else {},
                notes=(beside.note,) if beside and beside.note else (),
                engine=engine,
                checkpoints=Checkpoints(self.work / "folds"),
                progress=self.tell,
            )

    def _families(self, champion: Champion | None) -> tuple[str, ...]:
        if self.request.families:
            return tuple(dict.fromkeys(self.request.families))
        if self.request.mode == "continue" and champion is not None:
            singles = champion.artifact.members or (champion.artifact,)
            return tuple(single.card.family for single in singles)
        return ("xgboost", "catboost")

    def _adopt(self, made: Retrained) -> dict[ModelName, str]:
        """Put the artifacts where they stay; names and checksums of their cards.

        If we die after this, they lie there without ever being registered: no harm is done.
        """
        self.tell("storing", 0.99)
        names = {}
        for card in made.cards:
            self.artifacts.adopt(self.work / "made", card)
            names[name_of(card)] = sha256_of(self.artifacts.root / card.folder / CARD_NAME)
        return names

    def _finish(
        self,
        snapshot: Snapshot,
        place: Place,
        made: Retrained,
        names: dict[ModelName, str],
        rest: Rest,
    ) -> None:
        verdict = made.verdict.model_dump(mode="json")
        promote = made.verdict.promoted and self.request.promote
        new = {
            name: NewVersion(name, place.board, "retrained", sha256, verdict, self.job.id)
            for name, sha256 in names.items()
        }
        judged = name_of(made.judged)
        result = {
            "promoted": promote,
            "gpu": place.gpu,
            "board": place.board or None,
            "target": place.target,
            "versions": [name._asdict() for name in names],
            "candidate": judged._asdict(),
            "watts_factor": made.judged.watts_factor,
            "verdict": verdict,
            "scores": [scores.model_dump(mode="json") for scores in made.judged.scores],
            "left_out": rest.reasons,
        }
        jobs, registry = self.data.jobs, self.data.registry
        with self.data.engine.begin() as connection:
            jobs.finish(connection, self.job.id, self.token, result)
            ids = registry.register(connection, list(new.values()), new[judged])
            if promote:
                why = f"job {self.job.id}: better than the champion and than no information"
                registry.promote(
                    connection,
                    place,
                    ids[judged],
                    self.job.actor,
                    why,
                    expected=snapshot.move_id(place),
                )


__all__ = ["KIND", "run_job", "submit"]
