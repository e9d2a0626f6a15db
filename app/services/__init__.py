"""What the service has besides predicting (``wattcast.predictor``).

analyses      threads in which kernels are analysed, with limits
measurements/ measurements uploaded: read, checked, stored
models/       versions of models; serving what the registry has promoted
retrain/      POST /retrain, as a job: rows that count, candidates, what must be beaten, the gate
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from wattcast.app.settings import Settings, installed_version
from wattcast.features.errors import ServiceError
from wattcast.predictor import Predictor
from wattcast.predictor.parts.memory import Memory
from wattcast.predictor.parts.sources import isolation

if TYPE_CHECKING:
    from fastapi import Request

    from wattcast.app.jobs.worker import Worker
    from wattcast.app.services.models.champions import Champions
    from wattcast.app.store import predictions, repositories


UPLOADS_AT_ONCE, WAITING_UPLOADS = 1, 64
"""Uploads read at the same time: one already fills a core and some hundred megabytes. Others wait;
beyond these they are answered 429."""


class Services(Predictor):
    """A predictor, and what a service has besides: what it keeps, jobs, threads with limits.

    ``store`` and ``data`` are ``None`` where nothing is stored (the CLI's predictions). ``own``:
    whoever asks brings files of their own, which are compiled even where that cannot be isolated.
    ``memory`` is what they share with everything else that is remembered.
    """

    settings: Settings
    store: predictions.PredictionStore | None

    def __init__(
        self,
        settings: Settings,
        store: predictions.PredictionStore | None = None,
        data: repositories.Repositories | None = None,
        memory: Memory | None = None,
        *,
        own: bool = False,
    ) -> None:
        from wattcast.app.services.analyses import AnalysisPool  # here: commands need no threads
        from wattcast.app.services.measurements.readers import UploadReader

        super().__init__(settings, store, memory, own=own)
        self.data = data
        self.version = installed_version()
        self.analyses = AnalysisPool(
            settings.analyses_at_once,
            settings.waiting_analyses,
            settings.analysis_seconds,
            spare=1,
        )
        self.champions: Champions | None = None
        self.worker: Worker | None = None
        self.uploads = AnalysisPool(
            UPLOADS_AT_ONCE, WAITING_UPLOADS, settings.upload_seconds, "upload"
        )
        self.reader = UploadReader(self)

    @classmethod
    def open(cls, settings: Settings) -> Services:
        """With the prediction store of ``settings``, migrated. Raises StoreError."""
        from wattcast.app.store.database import Pool, open_database
        from wattcast.app.store.predictions import PredictionStore
        from wattcast.app.store.private import private_folder
        from wattcast.app.store.repositories import Repositories

        memory = Memory(settings.cache_bytes)
        pool = Pool(most=settings.database_connections, seconds=settings.database_seconds)
        engine = open_database(settings.sqlalchemy_url, pool)
        private_folder(settings.home)
        store = PredictionStore(engine, memory=memory, seconds=settings.database_seconds)
        services = cls(settings, store, Repositories(engine), memory)
        services._watch()
        return services

    @property
    def database(self) -> repositories.Repositories:
        """``data``, where the caller needs it."""
        assert self.data is not None
        return self.data

    def _watch(self) -> None:
        """Serve the registry's champions from now on, and work on jobs."""
        from wattcast.app.jobs.worker import Worker
        from wattcast.app.services.models.artifacts import RegistryArtifacts
        from wattcast.app.services.models.champions import Champions

        settings, data = self.settings, self.database
        artifacts = RegistryArtifacts.of(settings)
        self.champions = Champions(self.power, data.registry, artifacts)
        self.champions.start()
        self.worker = Worker(settings, data.jobs)
        self.worker.start()

    def check(self) -> dict[str, str]:
        """What was checked: ``ok``, or what is weak but no obstacle.

        Raises StoreError when predictions cannot be stored or the tables are not this program's,
        and ServiceError ``not-ready`` where no model passes its checks, a promoted one cannot be
        loaded, or the service is saturated.
        """
        from wattcast.app.store import HEAD
        from wattcast.app.store.database import StoreError, revision, store_errors

        found: dict[str, str] = {}
        if self.store is not None:
            self.store.check()
            if not self.store.healthy:
                raise StoreError("predictions are not being written; see the log")
            found["database"] = "ok"
        if self.data is not None:
            with store_errors():
                current = revision(self.data.engine)
            if current != HEAD:
                raise StoreError(f"the database is at migration {current}, not at {HEAD}")
            found["migrations"] = "ok"
        if not self.power.cards():
            raise ServiceError("not-ready", "no power model passes its checks; see the log")
        found["compilers"] = isolation(self.settings)
        left_out = self.power.problems()
        found["artifacts"] = f"{len(left_out)} left out; see the log" if left_out else "ok"
        if self.champions is not None:
            if problems := self.champions.problems:
                raise ServiceError("not-ready", "; ".join(problems))
            found["promoted"] = "ok"
        found |= self._room()
        return found

    def _room(self) -> dict[str, str]:
        """Whether another request finds room. Raises ServiceError ``not-ready`` where no analysis
        would; uploads that must wait are no obstacle to predictions."""
        settings = self.settings
        most = settings.analyses_at_once + settings.waiting_analyses
        if (pending := self.analyses.pending) >= most:
            raise ServiceError(
                "not-ready",
                f"saturated: {pending} analyses wait or run, no more are taken "
                "(WATTCAST_WAITING_ANALYSES)",
            )
        full = self.uploads.pending >= UPLOADS_AT_ONCE + WAITING_UPLOADS
        return {"analyses": "ok", "uploads": "no more are taken just now" if full else "ok"}

    def warm_up(self) -> threading.Thread:
        """Load the power models in the background, so that the first request need not."""

        def load() -> None:
            try:
                self.power.warm_up()
            except Exception as error:  # a broken artifact must not end the service
                from wattcast.app.logs import log

                log().warning("power models not warmed up", why=str(error))

        thread = threading.Thread(target=load, name="warm-up", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """Tell everything that runs to end; does not wait."""
        for part in (self.worker, self.champions, self.uploads, self.analyses, self.reader):
            if part is not None:
                part.stop()

    def close(self) -> None:
        """Give up what runs and write what is queued. Running jobs go back to the queue."""
        self.stop()
        pools = self.reader, self.uploads, self.analyses
        for part in (*pools, self.worker, self.champions, self.store):
            if part is not None:
                part.close()


def services_of(request: Request) -> Services:
    """The services of the application that serves this request."""
    services = request.app.state.services
    assert isinstance(services, Services)
    return services
