"""Liveness, readiness and metrics, and what each kind of problem means."""

from __future__ import annotations

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse, Response

from wattcast.app import metrics, problems
from wattcast.app.api.route import Router, json_response
from wattcast.app.services import services_of
from wattcast.predictor.messages import Answer, Described

router = Router(tags=["service"])


class Health(Described):
    """State of the service: ``ok`` or what is wrong."""

    status: str
    version: str


class Readiness(Health):
    """What was looked at, and what was found."""

    checks: dict[str, str]
    """`database`, `migrations`, `artifacts`, `promoted`, `analyses`, `uploads`: `ok`, or what is
    weak but no obstacle. `compilers`: what keeps them from the machine's files: `namespaces`, or
    none."""


class ProblemKind(Answer):
    """A kind of problem: what a ``type`` of ``/problems/{slug}`` stands for."""

    type: str
    status: int
    title: str
    description: str


@router.answers("/healthz", Health)
async def healthz(request: Request) -> Response:
    """Is the process alive?

    Answers as long as the event loop runs; checks nothing else.
    """
    return json_response({"status": "ok", "version": services_of(request).version})


@router.answers("/readyz", Readiness, "store not-ready")
async def readyz(request: Request) -> Response:
    """Can it answer predictions?

    Checks that the database answers, stores predictions and has the tables of this program;
    that there are models and all promoted ones can be loaded; and that there is room for another
    analysis and another request.
    """
    requests = request.app.state.load.requests
    if requests.full:
        busy = f"{requests.held} requests are being served, as many as may be"
        return problems.response("not-ready", busy)
    services = services_of(request)
    checks = await run_in_threadpool(services.check)
    return json_response({"status": "ok", "version": services.version, "checks": checks})


@router.answers("/metrics", None, also=problems.documented(), response_class=PlainTextResponse)
async def get_metrics(request: Request) -> Response:
    """Metrics for Prometheus.

    Prometheus' text format: requests, latency, predictions by GPU and basis, jobs, models,
    drift, and more.
    """
    services = services_of(request)
    content, media = await run_in_threadpool(lambda: metrics.page(metrics.families(services)))
    return Response(content, media_type=media)


@router.answers("/problems", list[ProblemKind])
async def list_problems() -> Response:
    """Every kind of problem.

    The registry of problem types.
    """
    return json_response([_kind(slug) for slug in problems.TYPES])


@router.answers("/problems/{slug}", ProblemKind, "not-found validation")
async def get_problem(slug: str) -> Response:
    """One kind of problem.

    What a problem's ``type`` points to.
    """
    if slug not in problems.TYPES:
        return problems.response("not-found", f"no kind of problem {slug!r}")
    return json_response(_kind(slug))


def _kind(slug: str) -> ProblemKind:
    return ProblemKind.from_attributes(problems.TYPES[slug], type=f"/problems/{slug}")
