"""``POST /applications``: energy of a whole application from its trace."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from fastapi import APIRouter, File, Form, Request, UploadFile
from fastapi.responses import Response
from pydantic import ValidationError

from wattcast.app import problems
from wattcast.app.api.route import json_response
from wattcast.app.services import Services, services_of
from wattcast.features.errors import ServiceError
from wattcast.predictor.application import application
from wattcast.predictor.messages.application import ApplicationAnswer, ApplicationRequest
from wattcast.predictor.traces import read_trace
from wattcast.predictor.traces.code import Library, add_text

router = APIRouter(tags=["prediction"])

MOST_CODE_FILES = 256


@router.post(
    "/applications",
    response_model=ApplicationAnswer,
    responses=problems.documented(
        *("bad-request", "json", "too-large", "media-type", "data", "validation", "gpu", "clocks"),
        *("model", "busy", "time-limit"),
    ),
    summary="Energy of a whole application from its trace",
)
async def post_applications(
    request: Request,
    file: Annotated[
        UploadFile,
        File(
            description="SQLite export of Nsight Systems, or JSON trace of the PyTorch profiler, "
            "also gzipped."
        ),
    ],
    code: Annotated[
        list[UploadFile] | None, File(description="PTX of its kernels, any number of files.")
    ] = None,
    options: Annotated[
        str,
        Form(
            description="JSON object: `gpu`, `gpus`, `clocks`, `model`, `board`, `tariff`, "
            "`grams_co2_per_kwh`, `most_slowdown`, `advice`, `launches`."
        ),
    ] = "{}",
) -> Response:
    """Measured durations, predicted power: joules by kernel, operator, stream and step, gaps at
    idle power, the total with its interval. Nothing is stored."""
    try:
        asked = ApplicationRequest.model_validate_json(options)
    except ValidationError as error:
        return problems.from_validation(error.errors(include_url=False))
    services = services_of(request)
    found = await services.uploads.run(_answered, services, file, code or [], asked)
    return json_response(found)


def _answered(
    services: Services, file: UploadFile, code: list[UploadFile], asked: ApplicationRequest
) -> dict[str, Any]:
    """In a thread. Raises what reading and answering do, and ServiceError ``too-large``."""
    if len(code) > MOST_CODE_FILES:
        raise ServiceError("too-large", f"{len(code)} files of code; at most {MOST_CODE_FILES}")
    most = services.settings.max_ptx_bytes
    found = Library()
    for each in code:
        name = PurePosixPath(each.filename or "code.ptx").name[:100]
        text = each.file.read(most + 1)
        if len(text) > most:
            raise ServiceError(
                "too-large", f"{name} has more than {most} bytes (WATTCAST_MAX_PTX_BYTES)"
            )
        add_text(found, text.decode("utf-8", "replace"), name)
    name = PurePosixPath(file.filename or "trace").name[:100]
    with tempfile.TemporaryDirectory(prefix="wattcast-trace-") as folder:
        path = Path(folder) / "trace"
        with path.open("wb") as copy:
            file.file.seek(0)
            shutil.copyfileobj(file.file, copy, 1 << 20)
        trace = read_trace(path, name=name, most_characters=services.settings.max_unpacked_bytes)
    return application(services, trace, asked, found)
