"""Features of measured launches, from their PTX: what a prediction of the same launch would see."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING, Any

from pydantic_core import from_json, to_json

from wattcast.app.logs import configure, log
from wattcast.app.services.measurements.tables import in_time
from wattcast.app.settings import Settings, foreign_environment
from wattcast.app.store.measurements import Rejection
from wattcast.features.cuda.isolation import Limited
from wattcast.features.errors import (
    AnalysisError,
    GpuError,
    KernelError,
    LaunchError,
    PtxError,
    ServiceError,
    WattcastError,
)
from wattcast.features.schemas import activity_schema, published_schemas
from wattcast.predictor import Predictor, parts
from wattcast.predictor.messages.analyze import AnalyzeRequest

if TYPE_CHECKING:
    from wattcast.app.services import Services

NICENESS = 5
"""Predictions come first."""

ROWS_HERE = 64
"""Launches analysed in the service itself; more go to a process of their own, whose start costs
about as much, so that predictions need not share an interpreter with an upload of thousands."""

_COLUMN_OF = {PtxError: "ptx", AnalysisError: "ptx", KernelError: "kernel", GpuError: "gpu"}


@dataclass(frozen=True, slots=True)
class Extracted:
    """The kernel of a row, and its vectors by schema, every field in the schema's order."""

    kernel: str
    demangled: str
    vectors: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Launch:
    """A measured launch: its row, the SHA-256 of its PTX, and the request about it."""

    number: int
    sha256: str
    request: AnalyzeRequest


def extract_all(
    services: Services, launches: Sequence[Launch], until: float
) -> Iterator[Extracted | Rejection]:
    """What each launch gives, in their order; a launch that cannot be analysed is rejected.
    Raises ServiceError ``time-limit`` once the clock (monotonic) shows ``until``."""
    if len(launches) > ROWS_HERE:
        yield from _elsewhere(services, launches, until)
        return
    for launch in launches:
        in_time(until)
        yield extract(services, launch)


def extract(services: Predictor, launch: Launch) -> Extracted | Rejection:
    """``activity1`` and every published schema with a table for the GPU, or why there is nothing.
    A kernel that cannot be analysed dynamically has the published schemas alone."""
    try:
        return _extract(services, launch.request)
    except WattcastError as error:
        return Rejection(launch.number, _column_of(error), str(error)[:500])


def _extract(services: Predictor, request: AnalyzeRequest) -> Extracted:
    gpu = services.gpus.load(request.gpu)
    source = services.sources.read(request, gpu)
    analysis = parts.analysed(services, request, source, gpu, ptxas=True)
    vectors: dict[str, tuple[float, ...]] = {}
    for schema in published_schemas().values():
        if gpu.id in schema.gpus:
            vectors[schema.id] = tuple(analysis.vector(schema.id).values.values())
    activity = activity_schema().id
    try:
        vectors[activity] = tuple(analysis.vector(activity).values.values())
    except AnalysisError:
        if not vectors:
            raise
    return Extracted(analysis.function.name, analysis.function.demangled, vectors)


def _column_of(error: WattcastError) -> str | None:
    if isinstance(error, LaunchError):
        return error.field.partition(".")[0]
    return next((column for kind, column in _COLUMN_OF.items() if isinstance(error, kind)), None)


def _elsewhere(
    services: Services, launches: Sequence[Launch], until: float
) -> Iterator[Extracted | Rejection]:
    """The same in a process of its own (``serve``), which is killed when time is over."""
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as errors:
        _write(services, launches, asked)
        asked.seek(0)
        with Limited(
            [sys.executable, "-P", "-m", "wattcast.app.services.measurements.extraction"],
            {"seconds": max(1, math.ceil(until - time.monotonic())), "niceness": NICENESS},
            stdin=asked,
            stdout=subprocess.PIPE,
            stderr=errors,
            # What it inherits is what it needs: no address of a database, no secret of another.
            env=foreign_environment(),
        ) as child:
            assert child.stdout is not None
            for _ in launches:
                line = child.stdout.readline()
                in_time(until)
                if not line:
                    errors.seek(0)
                    said = errors.read(10_000).decode("utf-8", "replace")
                    log().error("extraction process died", code=child.wait(), stderr=said)
                    raise ServiceError("internal", "the analysis of the upload broke off")
                yield _outcome(from_json(line))


def _write(services: Services, launches: Sequence[Launch], to: IO[bytes]) -> None:
    settings = services.settings.model_dump(mode="json", exclude={"database_url"})
    to.write(to_json({"settings": settings}) + b"\n")
    written: set[str] = set()
    for launch in launches:
        if launch.sha256 not in written:
            written.add(launch.sha256)
            to.write(to_json({"sha256": launch.sha256, "ptx": launch.request.ptx}) + b"\n")
        request = launch.request.model_dump(mode="json", exclude={"ptx"})
        to.write(
            to_json({"number": launch.number, "sha256": launch.sha256, "request": request}) + b"\n"
        )


def _outcome(said: dict[str, Any]) -> Extracted | Rejection:
    if "reason" in said:
        return Rejection(**said)
    vectors = {schema: tuple(vector) for schema, vector in said.pop("vectors").items()}
    return Extracted(**said, vectors=vectors)


def serve(source: IO[bytes], target: IO[bytes]) -> None:
    """Answer the launches that ``_write`` wrote, a line of JSON each."""
    settings = Settings(**from_json(source.readline())["settings"])
    configure(settings)  # whatever is logged goes to stderr, out of the way of the answers
    services = Predictor(settings)
    texts: dict[str, str] = {}
    for line in source:
        said = from_json(line)
        if "ptx" in said:
            texts[said["sha256"]] = said["ptx"]
            continue
        request = AnalyzeRequest.model_validate({**said["request"], "ptx": texts[said["sha256"]]})
        found = extract(services, Launch(said["number"], said["sha256"], request))
        target.write(to_json(asdict(found), inf_nan_mode="constants") + b"\n")
        target.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
