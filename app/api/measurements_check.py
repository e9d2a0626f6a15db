"""``POST /measurements/check``: what an upload would be answered, without storing it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, File, Form, Request, UploadFile
from fastapi.responses import Response
from pydantic import BaseModel, Field

from wattcast.app import problems
from wattcast.app.api.measurements import Name, RejectedRow
from wattcast.app.api.route import json_response
from wattcast.app.services import services_of
from wattcast.app.services.measurements.rows import Label
from wattcast.app.services.measurements.upload import UploadOptions

router = APIRouter(prefix="/measurements", tags=["measurements"])


class CheckAnswer(BaseModel):
    """What would become of an upload."""

    accepted: int
    rejected: int
    rejections: list[RejectedRow] = Field(description="The first of the rejected rows.")


@router.post(
    "/check",
    response_model=CheckAnswer,
    responses=problems.documented(
        "bad-request",
        "too-large",
        "media-type",
        "data",
        "validation",
        "gpu",
        "schema",
        "busy",
        "time-limit",
    ),
    summary="Check measurements before they are uploaded",
)
async def check_measurements(
    request: Request,
    file: Annotated[UploadFile, File(description="As `POST /measurements` takes it.")],
    gpu: Annotated[Name | None, Form(description="GPU of rows without one.")] = None,
    board: Annotated[Label | None, Form(description="Board of rows without one.")] = None,
    schema_id: Annotated[Name | None, Form(alias="schema")] = None,
) -> Response:
    """The same rules as for an upload. Nothing is stored, and a table none of whose rows would be
    accepted is answered like any other."""
    services = services_of(request)
    options = UploadOptions(gpu, board, schema_id)
    return json_response(await services.uploads.run(services.readers.check, file.file, options))
