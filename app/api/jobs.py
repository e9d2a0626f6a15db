"""``/jobs``: how far long work is, as it happens, and an end to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any
from uuid import UUID

from fastapi import Header, Request
from fastapi.responses import Response, StreamingResponse
from pydantic_core import to_json

from wattcast.app.api.access import actor_of
from wattcast.app.api.route import Limit, Router, existing, json_response, query
from wattcast.app.services import services_of
from wattcast.app.services.retrain.messages import JobAnswer
from wattcast.app.store.jobs import ENDED, Job, JobEvent, JobStore
from wattcast.app.store.tables import plain
from wattcast.features.errors import ServiceError

router = Router(prefix="/jobs", tags=["jobs"])

_LOOK_SECONDS = 0.3
"""How often a stream looks for news: one indexed query each."""

_ALIVE_SECONDS = 15.0
"""A comment this often keeps proxies from closing a stream that has no news."""


@router.answers("", list[JobAnswer], "validation store")
async def list_jobs(request: Request, limit: Limit = 100) -> Response:
    """Jobs, newest first.

    The latest jobs, in any state. Their results are without `held_out`.
    """
    found = await query(request, lambda of: of.database.jobs.latest(limit))
    return json_response([_listed(job) for job in found])


@router.answers("/{job_id}", JobAnswer, "unknown-job validation store")
async def get_job(request: Request, job_id: UUID) -> Response:
    """One job.

    State, stage, progress, and finally the result or the error. When a retraining is reported
    as done, this replica already serves what it promoted.
    """
    job = await _job(request, job_id)
    if job.ended:
        await _follow(request)
    return json_response(job_answer(job))


@router.answers(
    "/{job_id}/events",
    None,
    "unknown-job validation store",
    also={
        200: {
            "description": "Server-sent events: `event` is the job's state, `data` JSON.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    },
    response_class=Response,
)
async def get_events(
    request: Request,
    job_id: UUID,
    last_event_id: Annotated[int | None, Header(ge=0, le=2**63 - 1)] = None,
) -> Response:
    """Follow a job.

    Everything that happened to the job so far, then what happens, until it has ended. A
    client that reconnects with `Last-Event-ID` gets what came after.
    """
    await _job(request, job_id)
    return StreamingResponse(
        _stream(request, job_id, last_event_id or 0),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


@router.answers(
    "/{job_id}", JobAnswer, "unknown-job validation store", method="DELETE", status_code=202
)
async def cancel_job(request: Request, job_id: UUID) -> Response:
    """Cancel a job.

    A waiting job ends at once, a running one within a few seconds and without effect; one that
    has ended stays as it is.
    """
    actor = actor_of(request)
    found = await _job(request, job_id, lambda store, one: store.cancel(one, actor))
    return json_response(job_answer(found), 202)


def job_answer(job: Job) -> dict[str, Any]:
    """``JobAnswer``."""
    return plain(job, "actor")


def _listed(job: Job) -> dict[str, Any]:
    """The same without the launches that a picture shows."""
    answer = job_answer(job)
    if answer["result"] is not None:
        short = [
            {name: each for name, each in one.items() if name not in ("held_out", "also")}
            for one in (answer["result"], *answer["result"].get("also", ()))
        ]
        answer["result"] = {**short[0], **({"also": short[1:]} if short[1:] else {})}
    return answer


async def _job(
    request: Request, job_id: UUID, ask: Callable[[JobStore, UUID], Job | None] = JobStore.get
) -> Job:
    missing = "unknown-job", f"no job {job_id}"
    return await existing(request, lambda of: ask(of.database.jobs, job_id), missing)


async def _follow(request: Request) -> None:
    """Serve what the registry holds now: who hears that a job is done may count on its effects."""
    champions = services_of(request).champions
    if champions is not None:
        await query(request, lambda _: champions.refresh())


async def _events(request: Request, job_id: UUID, after: int) -> list[JobEvent]:
    return await query(request, lambda of: of.database.jobs.events(job_id, after))


async def _stream(request: Request, job_id: UUID, after: int) -> AsyncIterator[bytes]:
    quiet = 0.0
    while not await request.is_disconnected():
        try:
            events = await _events(request, job_id, after)
            if any(event.state in ENDED for event in events):
                await _follow(request)
        except ServiceError:
            return  # the client comes back with the last id it has seen
        for event in events:
            yield _sent(event)
            after = event.id
            if event.state in ENDED:
                return
        quiet = 0.0 if events else quiet + _LOOK_SECONDS
        if quiet >= _ALIVE_SECONDS:
            yield b": alive\n\n"
            quiet = 0.0
        await asyncio.sleep(_LOOK_SECONDS)


def _sent(event: JobEvent) -> bytes:
    data = to_json(plain(event, "id"))
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.id, event.state.encode(), data)
