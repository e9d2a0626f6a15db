"""What the service can do, for routers, command line and Python alike.

catalog       GPUs, schemas, models
modules       parsed PTX, kept by hash
sources       PTX as sent, or compiled from CUDA source; cuda_names, arguments: who is who
parts         the analysis of a request, kept; what several answers share
analysis      POST /analyze
clocks        which clocks a request means
timing        time of a launch, corrected by measured ones
power         the power models and which one answers; watts: what they say of a launch
prediction    POST /predict
work          the same from measured work
dvfs          POST /dvfs
features      POST /features
explanation   GET /explain
analyses      threads in which PTX is analysed, with limits
"""

from __future__ import annotations

import threading
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from fastapi import Request

from app.logs import log
from app.services import parts
from app.services.analyses import AnalysisPool
from app.services.gpus import Gpus
from app.services.modules import ModuleCache
from app.services.power import PowerModels
from app.services.sources import Sources
from app.services.work import WorkTimeModels
from app.settings import Settings

if TYPE_CHECKING:
    from app.store.predictions import PredictionStore


def installed_version() -> str:
    """Version of the installed package."""
    try:
        return version("wattcast")
    except PackageNotFoundError:
        return "unknown"


class Services:
    """Everything a face needs. ``store`` is ``None`` where predictions are not kept (CLI)."""

    def __init__(self, settings: Settings, store: PredictionStore | None = None) -> None:
        self.settings = settings
        self.store = store
        self.version = installed_version()
        self.gpus = Gpus(settings.home)
        self.modules = ModuleCache(settings.module_cache_bytes, settings.max_ptx_bytes)
        self.sources = Sources(settings, self.modules)
        self.analysed = parts.kept_analyses(settings.analysis_cache_bytes)
        self.power = PowerModels(settings.home)
        self.work_time = WorkTimeModels(settings.home)
        self.analyses = AnalysisPool(
            settings.analyses_at_once, settings.waiting_analyses, settings.analysis_seconds
        )

    @classmethod
    def open(cls, settings: Settings) -> Services:
        """With the prediction store of ``settings``, migrated. Raises StoreError."""
        from app.store.database import open_database
        from app.store.predictions import PredictionStore

        store = PredictionStore(
            open_database(settings.sqlalchemy_url),
            recent=settings.recent_predictions,
            queue_rows=settings.store_queue_rows,
            flush_seconds=settings.store_flush_milliseconds / 1e3,
        )
        return cls(settings, store)

    def check(self) -> None:
        """Raises StoreError when predictions cannot be stored."""
        from app.store.database import StoreError

        if self.store is not None:
            self.store.check()
            if not self.store.healthy:
                raise StoreError("predictions are not being written; see the log")

    def warm_up(self) -> threading.Thread:
        """Load the power models in the background, so that the first request need not."""

        def load() -> None:
            try:
                self.power.warm_up()
            except Exception as error:  # a broken artifact must not end the service
                log().warning("power models not warmed up", why=str(error))

        thread = threading.Thread(target=load, name="warm-up", daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        """Write what is queued; let running analyses end."""
        self.analyses.close()
        if self.store is not None:
            self.store.close()


def services_of(request: Request) -> Services:
    """The services of the application that serves this request."""
    services = request.app.state.services
    assert isinstance(services, Services)
    return services
