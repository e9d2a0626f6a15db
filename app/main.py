"""The service: ``create_app(settings)`` puts routers, problems, logging and store together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from wattcast.app import logs, metrics, problems
from wattcast.app.api import (
    applications,
    catalog,
    health,
    kernels,
    measurements,
    pages,
    predictions,
    retrain,
)
from wattcast.app.api.access import Access, Load, describe
from wattcast.app.api.guard import Guard
from wattcast.app.services import Services
from wattcast.app.settings import Settings, installed_version

DESCRIPTION = """\
Power, time and energy of a CUDA kernel, predicted from its PTX or CUDA source before it runs, with
intervals, features, warnings and an explanation. Errors are RFC 9457 problem details;
`GET /problems` lists their types. Every answer carries an `X-Request-ID`.
"""


def create_app(settings: Settings | None = None, services: Services | None = None) -> FastAPI:
    """The application. Its lifespan migrates and opens the store and closes it at the end.

    ``services`` that are open already are taken over. Raises (at start) StoreError where the
    database cannot be opened.
    """
    settings = settings or Settings()
    logs.configure(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        opened = services or Services.open(settings)
        app.state.services = opened
        _watch(opened, app.state.load)
        warming = opened.warm_up()
        logs.log().info("started", version=opened.version, home=str(settings.home))
        try:
            yield
        finally:
            warming.join(1.0)  # a thread of its own that ends with the process
            opened.close()
            logs.log().info("stopped")

    app = FastAPI(
        title="Wattcast",
        version=installed_version(),
        description=DESCRIPTION,
        lifespan=lifespan,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        redirect_slashes=False,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    problems.install(app)
    load = app.state.load = Load(settings)
    app.add_middleware(Access, settings=settings, load=load)
    app.add_middleware(Guard, settings=settings)  # added last, so outermost
    # The busiest first: routes are tried in order.
    for router in (
        kernels.router,
        predictions.explaining,
        kernels.kept,
        applications.router,
        predictions.router,
        catalog.router,
        measurements.router,
        retrain.router,
        retrain.jobs,
        catalog.registry,
        health.router,
        pages.router,
    ):
        app.include_router(router)
    describe(app)
    return app


def _watch(services: Services, load: Load) -> None:
    """Gauges of what waits in the service."""
    watch, requests = metrics.watch, load.requests
    watch("running_requests", "Requests being served, event streams too.", lambda: requests.held)
    watch("waiting_analyses", "Analyses that wait or run.", lambda: services.analyses.pending)
    watch("waiting_uploads", "Uploads that wait or are read.", lambda: services.uploads.pending)
    if (store := services.store) is not None:
        what = "Predictions that are not written to the database yet."
        watch("waiting_predictions", what, lambda: store.waiting)
