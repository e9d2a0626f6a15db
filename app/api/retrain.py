"""``POST /retrain``: better models out of measurements; ``/jobs``: how far they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any
from uuid import UUID

from fastapi import Header, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response, StreamingResponse
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json
from starlette.datastructures import FormData, UploadFile

from wattcast.app import problems
from wattcast.app.api import access, route
from wattcast.app.api.measurements import READING
from wattcast.app.services import Services, services_of
from wattcast.app.services.measurements import rows, upload
from wattcast.app.services.retrain import plan, submit
from wattcast.app.services.retrain.messages import JobAnswer, PlanAnswer, RetrainRequest
from wattcast.app.store import database, tables
from wattcast.app.store.jobs import ENDED, Job, JobEvent, JobStore
from wattcast.features.errors import ServiceError

router = route.Router(tags=["retraining"])

_JSON: dict[str, Any] = RetrainRequest.model_json_schema()
_MULTIPART = {
    "type": "object",
    "required": ["file", "gpu"],
    "properties": {
        "file": {
            "type": "string",
            "format": "binary",
            "description": "Measurements, as `POST /measurements` takes them.",
        },
        **{name: field for name, field in _JSON["properties"].items() if name != "dry_run"},
    },
}
_LISTS = ("families", "targets", "batches")


@router.answers(
    "/retrain",
    JobAnswer,
    f"{READING} json idempotency-key unknown-batch store",
    method="POST",
    also={
        200: {
            "model": JobAnswer | PlanAnswer,
            "description": "The idempotency key named this job already; or, with `dry_run`, what "
            "would be done.",
        }
    },
    status_code=202,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": _JSON},
                "multipart/form-data": {"schema": _MULTIPART},
            },
        }
    },
)
async def post_retrain(
    request: Request,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=200)] = None,
) -> Response:
    """Retrain a GPU's power or time model on measurements.

    Batches uploaded before, as JSON; or measurements as a file beside the options, stored as a
    batch first. The answer names a job, whose result says whether the new model serves, and why if
    it does not. `dry_run` (JSON) only tells what would be done: the mode, the rows by kernel, those
    that would not train and why, and what is left out to judge.
    """
    services = services_of(request)
    actor = access.actor_of(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == "multipart/form-data":
            async with request.form(max_files=1, max_fields=1100) as form:
                asked = await _uploaded(services, form, actor)
        else:
            read = await route.message(RetrainRequest, await request.body())
            if isinstance(read, Response):
                return read
            asked = read
    except ValidationError as error:
        return problems.from_validation(error.errors(include_url=False))
    if asked.dry_run:
        with database.store_errors("the database does not answer"):
            return route.json_response(await run_in_threadpool(plan, services, asked))
    with database.store_errors("the database does not answer; nothing was queued"):
        job, is_new = await run_in_threadpool(submit, services, asked, actor, idempotency_key)
    answer = route.json_response(job_answer(job), 202 if is_new else 200)
    answer.headers["Location"] = f"/jobs/{job.id}"
    return answer


async def _uploaded(services: Services, form: FormData, actor: str) -> RetrainRequest:
    """The request of a form, its file stored as a batch. Raises ValidationError and as uploads."""
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise ServiceError("validation", "file: the form has no file", field="file")
    given: dict[str, Any] = {
        name: form.getlist(name) if name in _LISTS else value
        for name, value in form.multi_items()
        if name != "file"
    }
    if "dry_run" in given:
        why = "dry_run is of batches that are stored; POST /measurements/check looks at a file"
        raise ServiceError("validation", why, field="dry_run")
    # Everything but the batch is checked before the file is read.
    placeholder = "00000000-0000-0000-0000-000000000000"
    asked = RetrainRequest.model_validate(
        {**given, "batches": [*given.get("batches", ()), placeholder]}
    )
    board = TypeAdapter(rows.Label).validate_python(asked.board) if asked.board else None
    options = upload.UploadOptions(asked.gpu, board, asked.schema_id)
    with database.store_errors(problems.NOT_STORED):
        batch, _ = await services.uploads.run(services.reader.store, file.file, options, actor)
    return asked.model_copy(update={"batches": [*asked.batches[:-1], batch.id]})


# --- jobs: how far long work is, as it happens, and an end to it ---

jobs = route.Router(prefix="/jobs", tags=["jobs"])

_LOOK_SECONDS = 0.3
"""How often a stream looks for news: one indexed query each."""

_ALIVE_SECONDS = 15.0
"""A comment this often keeps proxies from closing a stream that has no news."""


@jobs.answers("", list[JobAnswer], "validation store")
async def list_jobs(request: Request, limit: route.Limit = 100) -> Response:
    """Jobs, newest first.

    The latest jobs, in any state. Their results are without `held_out`.
    """
    found = await route.query(request, lambda of: of.database.jobs.latest(limit))
    return route.json_response([_listed(job) for job in found])


@jobs.answers("/{job_id}", JobAnswer, "unknown-job validation store")
async def get_job(request: Request, job_id: UUID) -> Response:
    """One job.

    State, stage, progress, and finally the result or the error. When a retraining is reported
    as done, this replica already serves what it promoted.
    """
    job = await _job(request, job_id)
    if job.ended:
        await _follow(request)
    return route.json_response(job_answer(job))


@jobs.answers(
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


@jobs.answers(
    "/{job_id}", JobAnswer, "unknown-job validation store", method="DELETE", status_code=202
)
async def cancel_job(request: Request, job_id: UUID) -> Response:
    """Cancel a job.

    A waiting job ends at once, a running one within a few seconds and without effect; one that
    has ended stays as it is.
    """
    actor = access.actor_of(request)
    found = await _job(request, job_id, lambda store, one: store.cancel(one, actor))
    return route.json_response(job_answer(found), 202)


def job_answer(job: Job) -> dict[str, Any]:
    """``JobAnswer``."""
    return tables.plain(job, "actor")


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
    return await route.existing(request, lambda of: ask(of.database.jobs, job_id), missing)


async def _follow(request: Request) -> None:
    """Serve what the registry holds now: who hears that a job is done may count on its effects."""
    champions = services_of(request).champions
    if champions is not None:
        await route.query(request, lambda _: champions.refresh())


async def _events(request: Request, job_id: UUID, after: int) -> list[JobEvent]:
    return await route.query(request, lambda of: of.database.jobs.events(job_id, after))


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
    data = to_json(tables.plain(event, "id"))
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.id, event.state.encode(), data)
