"""An upload from its bytes to a stored batch."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import IO, TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from wattcast.app import metrics
from wattcast.app.services.archives import Limits
from wattcast.app.services.measurements.extraction import Extracted, Launch, extract_all
from wattcast.app.services.measurements.rows import (
    FeatureColumns,
    FeatureRow,
    Measured,
    PtxRow,
    group_of,
    rejections,
)
from wattcast.app.services.measurements.tables import RawRow, TableLimits, in_time, read_rows
from wattcast.app.services.measurements.unpack import unpacked
from wattcast.app.store.measurements import (
    Batch,
    Form,
    Measurement,
    NewBatch,
    Observation,
    Rejection,
)
from wattcast.app.store.predictions import answered
from wattcast.features.errors import ClockError, DataError, GpuError, WattcastError
from wattcast.features.gpus import GpuProfile
from wattcast.features.schemas import get_schema
from wattcast.models.clocks import admitted
from wattcast.models.estimate import Estimate
from wattcast.models.intervals import miss_score
from wattcast.predictor.messages import Clocks, LaunchRequest
from wattcast.predictor.parts import members

if TYPE_CHECKING:
    from wattcast.app.services import Services

RowT = TypeVar("RowT", bound=Measured)

MOST_REJECTIONS = 1000
"""Rejections that are told and stored; all are counted."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class UploadOptions:
    """What holds for every row that does not say otherwise.
    ``schema``: the rows hold its features; without it they name their PTX."""

    gpu: str | None = None
    board: str | None = None
    schema: str | None = None


@dataclass
class _Reading:
    """What has become of the rows so far."""

    accepted: list[Measurement] = field(default_factory=list)
    rejected: int = 0
    rejections: list[Rejection] = field(default_factory=list)

    def reject(self, number: int, why: Iterable[Rejection]) -> None:
        self.rejected += 1
        self.tell(number, why)

    def tell(self, number: int, why: Iterable[Rejection]) -> None:
        """Put up reasons, of which the first are kept, without rejecting the row."""
        room = MOST_REJECTIONS - len(self.rejections)
        self.rejections.extend([replace(one, row=number) for one in why][: max(0, room)])


def store_upload(
    services: Services, file: IO[bytes], options: UploadOptions, actor: str
) -> tuple[Batch, bool]:
    """Read, check and store an upload; ``False`` if the same rows were stored before.

    Takes its time: run it by ``services.readers``. Raises DataError where the file cannot be read
    or no row of it was accepted, SchemaError or GpuError for options that do not exist, and
    ServiceError ``too-large`` or ``time-limit``.
    """
    new = read_upload(services, file, options)
    new = replace(new, observed=_observed(services, new.rows))
    return services.database.measurements.add(new, actor)


def _observed(services: Services, rows: Sequence[Measurement]) -> list[Observation]:
    """What rows say of the intervals answered before: of each the latest answer to the very same
    launch on the same board at the same clocks, that knew no measured launch of the kernel."""
    hashes = {row.ptx_sha256 for row in rows if row.ptx_sha256 is not None}
    answers: dict[str, str] = {}
    for past in answered(services.database.engine, sorted(hashes)):
        asked = from_json(past.request)
        if asked.get("known") or asked.get("power_limit_watts"):
            continue
        with suppress(WattcastError, ValueError):  # of a GPU or a form that is gone
            gpu, board = services.gpus.load(past.gpu), asked.get("board")
            which = _question(past.ptx_sha256, past.kernel, gpu, board, asked["launch"], asked)
            answers.setdefault(which, past.result)
    found: list[Observation] = []
    for row in rows:
        if row.ptx_sha256 is not None and row.launch is not None:
            gpu, clocks = services.gpus.load(row.gpu), members(row, "core_mhz", "memory_mhz")
            told = {**row.launch, "clocks": clocks}
            which = _question(row.ptx_sha256, row.kernel, gpu, row.board, row.launch, told)
            if which in answers:
                found += _misses(row, from_json(answers[which]))
    return found


def _question(
    sha256: str,
    kernel: str,
    gpu: GpuProfile,
    board: str | None,
    launch: Mapping[str, Any],
    asked: Mapping[str, Any],
) -> str:
    """What makes two launches the same to a prediction."""
    names = LaunchRequest.model_fields
    how = LaunchRequest.model_validate({name: launch[name] for name in launch if name in names})
    sizes = [[one] if isinstance(one, int) else one for one in (how.grid, how.block or 0)]
    padded = [(*each, 1, 1)[:3] for each in sizes]
    clocks = Clocks.model_validate(asked.get("clocks") or {}).pair(gpu)
    rest = how.model_dump(mode="json", include={"dynamic_shared_bytes", "arguments"})
    loops = sorted((asked.get("loops") or {}).items())
    return json.dumps(
        [sha256, kernel, gpu.id, board or "", padded, rest, clocks, loops], sort_keys=True
    )


def _misses(row: Measurement, answer: Mapping[str, Any]) -> Iterator[Observation]:
    """How far the row lies from the answer's power and time, in half widths."""
    time_model = answer["time_model"] and (answer["time_model"]["model"] or answer["time_model"])
    for target, unit, measured, model in (
        ("power", "watts", row.power_watts, answer["model"]),
        ("time", "seconds", row.time_seconds, time_model),
    ):
        told = answer[target]
        if told is None or model is None or measured is None or told["low"] <= 0:
            continue
        ends = {name: told[name] for name in ("low", "high", "level", "basis")}
        estimate = Estimate(told[unit], **ends, widened=told.get("widened", 1.0))
        yield Observation(
            row=row.row,
            target=target,
            gpu=row.gpu,
            board=row.board or "",
            model=str(model.get("card", model["family"])).removeprefix("/models/"),
            kernel_group=row.kernel_group,
            level=estimate.level,
            score=miss_score(estimate, measured),
        )


def counted(stored: Batch) -> None:
    """Count a new batch in the metrics of this process."""
    metrics.UPLOADED_ROWS.labels("accepted").inc(stored.accepted)
    metrics.UPLOADED_ROWS.labels("rejected").inc(stored.rejected)


def check_upload(services: Services, file: IO[bytes], options: UploadOptions) -> dict[str, Any]:
    """What would become of an upload: how many rows are accepted and rejected, and why.
    Raises as ``store_upload``, but not where all rows are rejected."""
    try:
        found = read_upload(services, file, options)
    except DataError as error:
        if "rejections" not in error.context:
            raise
        rejections, rejected = error.context["rejections"], error.context["rejected"]
        return {"accepted": 0, "rejected": rejected, "rejections": rejections}
    return {
        "accepted": len(found.rows),
        "rejected": found.rejected,
        "rejections": [asdict(one) for one in found.rejections],
    }


def read_upload(services: Services, file: IO[bytes], options: UploadOptions) -> NewBatch:
    """The accepted rows of an upload with their features. Raises as ``store_upload``."""
    settings = services.settings
    until = time.monotonic() + settings.upload_seconds
    limits = Limits(settings.max_unpacked_bytes, settings.max_upload_files, settings.max_ptx_bytes)
    in_table = TableLimits(
        settings.max_upload_rows,
        settings.parquet_memory_bytes,
        settings.max_unpacked_bytes,
        until,
    )
    if options.gpu is not None:
        services.gpus.load(options.gpu)
    columns = None if options.schema is None else FeatureColumns(get_schema(options.schema))
    reading = _Reading()
    ptx: dict[str, str] = {}
    with unpacked(file, limits) as source:
        rows = read_rows(source, in_table)
        if columns is None:
            ptx = _with_ptx(services, rows, source.ptx, options, reading, until)
        else:
            _with_features(services, rows, columns, options, reading, until)
    if not reading.accepted:
        raise _nothing_accepted(reading)
    form: Form = "ptx" if columns is None else "features"
    used = {schema for row in reading.accepted for schema in row.vectors}
    schemas = {schema: get_schema(schema).sha256 for schema in sorted(used)}
    return NewBatch(
        content_sha256=_content_hash(form, schemas, reading.accepted),
        form=form,
        schemas=schemas,
        rows=reading.accepted,
        rejected=reading.rejected,
        rejections=reading.rejections,
        ptx=ptx,
    )


def _nothing_accepted(reading: _Reading) -> DataError:
    if not reading.rejected:
        return DataError("the table holds no rows")
    first = [asdict(one) for one in reading.rejections[:100]]
    one = reading.rejections[0]
    where = f"row {one.row}" + (f", column {one.column!r}" if one.column else "")
    return DataError(
        f"none of {reading.rejected} rows was accepted; {where}: {one.reason}",
        rejected=reading.rejected,
        rejections=first,
    )


def _with_features(
    services: Services,
    rows: Iterable[RawRow],
    columns: FeatureColumns,
    options: UploadOptions,
    reading: _Reading,
    until: float,
) -> None:
    names = frozenset(columns.names)
    for raw in rows:
        in_time(until)
        rest = {name: value for name, value in raw.cells.items() if name not in names}
        row = _checked(FeatureRow, services, replace(raw, cells=rest), options, reading)
        if row is None:
            continue
        gpu = services.gpus.load(row.gpu)
        vector, wrong = columns.read(raw.cells)
        if wrong:
            reading.reject(raw.number, wrong)
            continue
        reading.accepted.append(
            _measurement(raw.number, row, gpu, row.kernel, row.kernel, {columns.schema.id: vector})
        )


def _with_ptx(
    services: Services,
    rows: Iterable[RawRow],
    in_zip: Mapping[str, str],
    options: UploadOptions,
    reading: _Reading,
    until: float,
) -> dict[str, str]:
    """Rows with references to PTX; the answer is the texts that were used, by SHA-256."""
    checked: list[tuple[int, PtxRow]] = []
    for raw in rows:
        in_time(until)
        row = _checked(PtxRow, services, raw, options, reading)
        if row is not None:
            checked.append((raw.number, row))
    hash_of = {name: _sha256(text) for name, text in in_zip.items()}
    texts = {hash_of[name]: text for name, text in in_zip.items()}
    texts |= _stored(services, [row.ptx for _, row in checked], texts)
    launches: list[Launch] = []
    rows_of: list[PtxRow] = []
    for number, row in checked:
        sha256 = hash_of.get(row.ptx, row.ptx)
        text = texts.get(sha256)
        if text is None:
            why = "is neither a file of the zip nor the SHA-256 of a stored PTX"
            reading.reject(number, [Rejection(number, "ptx", why)])
            continue
        try:
            launches.append(Launch(number, sha256, row.request(text)))
        except ValidationError as error:
            reading.reject(number, rejections(number, error))
        else:
            rows_of.append(row)
    used: dict[str, str] = {}
    found = extract_all(services, launches, until)
    for launch, row, extracted in zip(launches, rows_of, found, strict=True):
        if isinstance(extracted, Rejection):
            reading.reject(launch.number, [extracted])
        else:
            reading.accepted.append(_launched(services, launch, row, extracted))
            used[launch.sha256] = texts[launch.sha256]
    # Rejections come of three passes over the rows.
    reading.rejections.sort(key=lambda one: one.row)
    return used


def _stored(services: Services, named: Sequence[str], known: dict[str, str]) -> dict[str, str]:
    """Stored texts that rows name by their hash, in one query."""
    wanted = {name for name in named if _SHA256.fullmatch(name) and name not in known}
    most = services.settings.max_upload_files
    if len(wanted) > most:
        raise DataError(
            f"the rows name {len(wanted)} stored PTX texts; at most {most} are looked up"
        )
    return services.database.measurements.ptx(sorted(wanted))


def _launched(services: Services, launch: Launch, row: PtxRow, found: Extracted) -> Measurement:
    request = launch.request
    given = {"loops", "registers_per_thread", "static_shared_bytes"}
    started: dict[str, Any] = {
        **request.launch.model_dump(mode="json"),
        **{"grid": row.grid, "block": row.block},
        **request.model_dump(mode="json", include=given, exclude_defaults=True),
    }
    gpu = services.gpus.load(row.gpu)
    made = _measurement(launch.number, row, gpu, found.kernel, found.demangled, dict(found.vectors))
    return replace(made, ptx_sha256=launch.sha256, launch=started)


def _checked(
    kind: type[RowT],
    services: Services,
    raw: RawRow,
    options: UploadOptions,
    reading: _Reading,
) -> RowT | None:
    """The row as its columns say, or ``None`` after rejecting it."""
    if raw.problem is not None:
        reading.reject(raw.number, [Rejection(raw.number, None, raw.problem)])
        return None
    defaults = {"gpu": options.gpu, "board": options.board}
    given = {name: value for name, value in defaults.items() if value is not None}
    try:
        row = kind.model_validate({**given, **raw.cells})
        gpu = services.gpus.load(row.gpu)
        admitted([Clocks(core_mhz=row.core_mhz, memory_mhz=row.memory_mhz).pair(gpu)], gpu)
    except ValidationError as error:
        reading.reject(raw.number, rejections(raw.number, error))
        return None
    except (GpuError, ClockError) as error:
        column = "gpu" if isinstance(error, GpuError) else error.field.rpartition(".")[2]
        reading.reject(raw.number, [Rejection(raw.number, column, str(error)[:500])])
        return None
    try:
        reading.tell(raw.number, row.doubts(gpu))
    except DataError as error:
        column, reason = str(error.context["field"]), str(error.context["reason"])
        reading.reject(raw.number, [Rejection(raw.number, column, reason)])
        return None
    return row


def _measurement(
    number: int,
    row: Measured,
    gpu: GpuProfile,
    kernel: str,
    readable: str,
    vectors: dict[str, tuple[float, ...]],
) -> Measurement:
    return Measurement(
        row=number,
        gpu=gpu.id,
        kernel=kernel,
        kernel_group=row.kernel_group or group_of(readable),
        ptx_sha256=None,
        launch=None,
        vectors=vectors,
        **members(row, "board", "core_mhz", "memory_mhz", "power_watts", "time_seconds", "repeats"),
    )


def _content_hash(form: Form, schemas: Mapping[str, str], rows: Sequence[Measurement]) -> str:
    """Hash of what the rows say: not of the file's format, nor of features extracted here.
    With another definition of a schema the same rows have other features: another batch."""
    digest = hashlib.sha256(json.dumps([form, sorted(schemas.items())]).encode())
    for row in rows:
        said = [
            *(row.gpu, row.board, row.kernel, row.kernel_group, row.ptx_sha256, row.launch),
            *(row.core_mhz, row.memory_mhz, row.power_watts, row.time_seconds, row.repeats),
            row.vectors if form == "features" else None,
        ]
        digest.update(json.dumps(said, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
