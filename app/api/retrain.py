"""``POST /retrain``: better models out of measurements."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import FormData, UploadFile

from wattcast.app import problems
from wattcast.app.api.access import actor_of
from wattcast.app.api.jobs import job_answer
from wattcast.app.api.measurements import READING
from wattcast.app.api.route import Router, json_response, message
from wattcast.app.services import Services, services_of
from wattcast.app.services.measurements.rows import Label
from wattcast.app.services.measurements.upload import UploadOptions
from wattcast.app.services.retrain import plan, submit
from wattcast.app.services.retrain.messages import JobAnswer, PlanAnswer, RetrainRequest
from wattcast.app.store import database
from wattcast.features.errors import ServiceError

router = Router(tags=["retraining"])

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
    actor = actor_of(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == "multipart/form-data":
            async with request.form(max_files=1, max_fields=1100) as form:
                asked = await _uploaded(services, form, actor)
        else:
            read = await message(RetrainRequest, await request.body())
            if isinstance(read, Response):
                return read
            asked = read
    except ValidationError as error:
        return problems.from_validation(error.errors(include_url=False))
    if asked.dry_run:
        with database.store_errors("the database does not answer"):
            return json_response(await run_in_threadpool(plan, services, asked))
    with database.store_errors("the database does not answer; nothing was queued"):
        job, is_new = await run_in_threadpool(submit, services, asked, actor, idempotency_key)
    answer = json_response(job_answer(job), 202 if is_new else 200)
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
    board = TypeAdapter(Label).validate_python(asked.board) if asked.board else None
    options = UploadOptions(asked.gpu, board, asked.schema_id)
    with database.store_errors(problems.NOT_STORED):
        batch, _ = await services.uploads.run(services.reader.store, file.file, options, actor)
    return asked.model_copy(update={"batches": [*asked.batches[:-1], batch.id]})
