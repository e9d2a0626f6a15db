"""``POST /applications``: energy of a whole application from its trace."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any, Literal

from fastapi import File, Form, Query, Request, UploadFile
from fastapi.responses import Response

from wattcast.app.api import predictions, route
from wattcast.app.services import Services, services_of
from wattcast.app.services.analyses import CALLER
from wattcast.app.services.archives import Budget, Limits, archived, copy, members, too_large
from wattcast.features.errors import ServiceError
from wattcast.predictor.application import application
from wattcast.predictor.explain.page import POLICY, STYLE
from wattcast.predictor.messages.application import ApplicationAnswer, ApplicationRequest
from wattcast.predictor.reports.html import page
from wattcast.predictor.traces import read_trace, totals, trace
from wattcast.predictor.traces.code import TOLD, Library, add_file, holds_code
from wattcast.predictor.traces.energy import MOST_BYTES, compared

router = route.Router(tags=["prediction"])

MOST_CODE_FILES = 256
MOST_CODE_CHARACTERS = 1 << 27
"""Characters of all PTX of a request, which is held while it is answered."""

FILES_BESIDE = 8
"""Files of a cache beside each that is read: Triton writes its stages, inductor its graphs."""

ZIPPED_FROM = 1 << 16
"""Bytes from which an answer is compressed for callers that read gzip."""

Format = Literal["json", "html", "csv"]

MEDIA: dict[str, str] = {"json": "application/json", "html": "text/html", "csv": "text/csv"}

_FORMATS: dict[int | str, dict[str, Any]] = {
    200: {"content": {name: {"schema": {"type": "string"}} for name in ("text/html", "text/csv")}}
}
_NESTED = (".zip", ".tar", ".tgz", ".gz", ".xz", ".bz2", ".zst")


@router.answers(
    "/applications",
    ApplicationAnswer,
    "bad-request json too-large media-type data validation gpu clocks model busy time-limit",
    method="POST",
    also=_FORMATS,
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
        list[UploadFile] | None,
        File(
            description="Code of its kernels, any number of files: PTX, binaries and shared "
            "libraries with PTX in them, and zips, tars and gzipped tars of those (Triton's and "
            "inductor's caches)."
        ),
    ] = None,
    against: Annotated[
        UploadFile | None, File(description="An older trace: `changes` tells what changed since.")
    ] = None,
    energy: Annotated[
        UploadFile | None,
        File(
            description="Log of the measured energy, beside which `measured` sets the prediction: "
            "`dcgmi dmon -e 155,156`, CSV of dcgm-exporter's fields over time, or `sacct "
            "--parsable2` with JobID, ElapsedRaw and ConsumedEnergyRaw."
        ),
    ] = None,
    options: Annotated[
        str,
        Form(
            description="JSON object: `gpu`, `gpus`, `clocks`, `model`, `board`, `tariff`, "
            "`grams_co2_per_kwh`, `most_slowdown`, `advice`, `launches`."
        ),
    ] = "{}",
    format: Annotated[  # noqa: A002 - the parameter's name
        Format | None,
        Query(
            description="`html`: a report; `csv`: the kernels. Default: from the Accept header, "
            "else JSON."
        ),
    ] = None,
) -> Response:
    """Energy of a whole application from its trace.

    Measured durations, predicted power: joules by kernel, operator, stream and step, gaps at
    idle power, the total with its interval. Nothing is stored.
    """
    asked = await route.message(ApplicationRequest, options)
    if isinstance(asked, Response):
        return asked
    services = services_of(request)
    wanted = format or predictions.chosen(request.headers.get("accept"), MEDIA)
    CALLER.set(request.receive)  # who hangs up leaves the place to the next
    zips = "gzip" in request.headers.get("accept-encoding", "")
    return await services.uploads.run(
        _answered, request, services, file, code or [], against, energy, asked, wanted, zips
    )


def _answered(
    request: Request,
    services: Services,
    file: UploadFile,
    code: Sequence[UploadFile],
    against: UploadFile | None,
    energy: UploadFile | None,
    asked: ApplicationRequest,
    wanted: str,
    zips: bool,
) -> Response:
    """In a thread. Raises what reading and answering do, and ServiceError ``too-large``."""
    with tempfile.TemporaryDirectory(prefix="wattcast-trace-") as folder:
        library = _library(services, code, Path(folder))
        trace = _trace(services, file, Path(folder) / "trace")
        answer = application(services, trace, asked, library)
        if against is not None:
            trace = _trace(services, against, Path(folder) / "against")
            plain = asked.model_copy(update={"launches": False, "advice": 0})
            older = application(services, trace, plain, library)
            answer = answer.model_copy(update={"changes": totals.changes(older, answer)})
    if energy is not None:
        log = energy.file.read(MOST_BYTES + 1)
        if len(log) > MOST_BYTES:
            raise ServiceError("too-large", f"energy has more than {MOST_BYTES} bytes")
        answer = compared(answer, log.decode("utf-8", "replace"))
    if wanted == "json":
        made = route.told(request, answer)
    elif wanted == "csv":
        made = Response(answer.table(), media_type=MEDIA[wanted])
    else:
        text = page(_name(file, "trace"), answer.report(100), STYLE)
        headers = {"Content-Security-Policy": POLICY}
        made = Response(text, media_type=MEDIA[wanted], headers=headers)
    if zips and len(made.body) >= ZIPPED_FROM:
        made.body = gzip.compress(made.body, 1)
        made.headers["Content-Encoding"] = "gzip"
        made.headers["Content-Length"] = str(len(made.body))
    made.headers["Vary"] = "Accept, Accept-Encoding"
    return made


def _trace(services: Services, file: UploadFile, path: Path) -> trace.Trace:
    most = services.settings.max_unpacked_bytes
    _copied(file.file, path, Budget(most))
    return read_trace(path, name=_name(file, "trace"), most_characters=most)


def _library(services: Services, code: Sequence[UploadFile], folder: Path) -> Library:
    """All code that came. Raises DataError and ServiceError ``too-large``."""
    if len(code) > MOST_CODE_FILES:
        raise ServiceError("too-large", f"{len(code)} files of code; at most {MOST_CODE_FILES}")
    settings = services.settings
    most = settings.max_unpacked_bytes
    limits = Limits(most, settings.max_upload_files, settings.max_ptx_bytes, FILES_BESIDE)
    found, budget = Library(most_characters=MOST_CODE_CHARACTERS), Budget(most)
    for number, each in enumerate(code):
        name, known = _name(each, "code.ptx"), len(found.kernels)
        start = each.file.read(4096)
        own = folder / f"code-{number}"
        own.mkdir()
        if (kind := archived(start)) is not None:
            listed = _unpacked(each.file, kind, limits, budget, own, found)
        else:
            listed = [(name, own / ("0.so" if b"\0" in start else "0.ptx"))]
            _copied(each.file, listed[0][1], budget)
        for called, path in sorted(listed, key=lambda one: PurePosixPath(one[0])):
            if path.suffix.lower() == ".ptx" and path.stat().st_size > limits.ptx_bytes:
                raise too_large(f"{called} has more than {limits.ptx_bytes} bytes", "MAX_PTX_BYTES")
            add_file(found, path, called)
        if len(found.kernels) == known:
            found.skipped.append(f"{name}: no PTX of another kernel in it")
    return found


def _unpacked(
    file: IO[bytes], kind: str, limits: Limits, budget: Budget, folder: Path, found: Library
) -> list[tuple[str, Path]]:
    """Names and places of an archive's files that may hold code. Their places are numbers: those
    of one name, but for its suffix, lie beside each other as Triton's metadata must."""

    def wanted(name: str) -> bool:
        if name.lower().endswith(_NESTED):
            found.skipped.append(f"{name}: an archive inside an archive is not looked into")
            return False
        return holds_code(name) or name.lower().endswith(TOLD)

    numbers: dict[PurePosixPath, int] = {}
    listed = []
    for name, content in members(file, kind, wanted, limits):
        path = PurePosixPath(name)
        stem, suffix = (path, ".so") if ".so." in name else (path.with_suffix(""), path.suffix)
        place = folder / f"{numbers.setdefault(stem, len(numbers))}{suffix}"
        with place.open("wb") as written:
            copy(content, written, budget)
        if holds_code(name):
            listed.append((name, place))
    return listed


def _copied(file: IO[bytes], path: Path, budget: Budget) -> None:
    file.seek(0)
    with path.open("wb") as written:
        copy(file, written, budget)


def _name(file: UploadFile, otherwise: str) -> str:
    return PurePosixPath(file.filename or otherwise).name[:100]
