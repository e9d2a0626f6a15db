"""An upload from its bytes to a stored batch."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import IO, TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from wattcast.app import metrics
from wattcast.app.services.archives import Limits
from wattcast.app.services.measurements import rows as forms
from wattcast.app.services.measurements.tables import RawRow, in_time, read_rows, unpacked
from wattcast.app.store import measurements as store
from wattcast.app.store import predictions, registry
from wattcast.features import errors, gpus
from wattcast.features.launch import dim3
from wattcast.features.schemas import activity_schema, get_schema, published_schemas
from wattcast.models.clocks import admitted
from wattcast.models.intervals import Estimate, miss_score
from wattcast.predictor import Predictor, parts
from wattcast.predictor.messages import Clocks, LaunchRequest, analyze
from wattcast.predictor.parts import members
from wattcast.predictor.traces.energy import EnergyLog, mean_watts, read_energy

if TYPE_CHECKING:
    from wattcast.app.services import Services

RowT = TypeVar("RowT", bound=forms.Measured)
Vectors = dict[str, tuple[float, ...]]
"""Every field of each schema, in the schema's order."""

MOST_REJECTIONS = 1000
"""Rejections that are listed and stored; all are counted."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_COLUMN_OF = {
    errors.PtxError: "ptx",
    errors.AnalysisError: "ptx",
    errors.KernelError: "kernel",
    errors.GpuError: "gpu",
}


@dataclass(frozen=True, slots=True)
class UploadOptions:
    """What holds for every row that does not say otherwise.
    ``schema``: the rows hold its features; without it they name their PTX."""

    gpu: str | None = None
    board: str | None = None
    schema: str | None = None


class _Upload:
    """The rows of one upload, as far as they have been read."""

    def __init__(self, services: Services, options: UploadOptions) -> None:
        self.services = services
        self.until = time.monotonic() + services.settings.upload_seconds
        self.accepted: list[store.Measurement] = []
        self.rejected = 0
        self.rejections: list[store.Rejection] = []
        self.ptx: dict[str, str] = {}
        """Texts by SHA-256 that accepted rows refer to."""
        told = {"gpu": options.gpu, "board": options.board}
        self._defaults = {name: value for name, value in told.items() if value is not None}
        self.files: Mapping[str, str] = {}
        self._logs: dict[str, EnergyLog] = {}

    def read_features(self, rows: Iterable[RawRow], columns: forms.FeatureColumns) -> None:
        """Rows that hold the features of a schema."""
        names = frozenset(columns.names)
        for raw in rows:
            in_time(self.until)
            rest = {name: value for name, value in raw.cells.items() if name not in names}
            row = self._checked(forms.FeatureRow, raw._replace(cells=rest))
            if row is None:
                continue
            vector, defects = columns.read(raw.cells)
            if defects:
                self._reject(raw.number, defects)
            else:
                self._accept(raw.number, row, row.kernel, row.kernel, {columns.schema.id: vector})

    def read_launches(self, rows: Iterable[RawRow]) -> None:
        """Rows that name their PTX: a file of the zip, or the hash of a stored text."""
        checked: list[tuple[int, forms.PtxRow]] = []
        for raw in rows:
            in_time(self.until)
            row = self._checked(forms.PtxRow, raw)
            if row is not None:
                checked.append((raw.number, row))
        hash_of = {name: _sha256(text) for name, text in self.files.items()}
        texts = {hash_of[name]: text for name, text in self.files.items()}
        texts |= self._stored([row.ptx for _, row in checked], texts)
        for number, row in checked:
            in_time(self.until)
            sha256 = hash_of.get(row.ptx, row.ptx)
            if sha256 not in texts:
                why = "is neither a file of the zip nor the SHA-256 of a stored PTX"
                self._reject(number, [("ptx", why)])
                continue
            try:
                request = row.request(texts[sha256])
                kernel, demangled, vectors = extracted(self.services, request)
            except ValidationError as error:
                self._reject(number, forms.defects_of(error))
            except errors.GivenUpError:
                raise
            except errors.WattcastError as error:
                self._reject(number, [(_column_of(error), str(error)[:500])])
            else:
                launch = row.launch(request)
                self._accept(number, row, kernel, demangled, vectors, sha256, launch)
                self.ptx[sha256] = texts[sha256]
        self.rejections.sort(key=lambda rejection: rejection.row)  # they come of two passes

    def _checked(self, kind: type[RowT], raw: RawRow) -> RowT | None:
        """The row as its columns say, or ``None`` after rejecting it."""
        if raw.problem is not None:
            self._reject(raw.number, [(None, raw.problem)])
            return None
        try:
            cells = {**self._defaults, **raw.cells}
            log = cells.pop("energy_log", None)
            row = kind.model_validate(cells if log is None else {"power_watts": 0.0, **cells})
            if log is not None:
                row = row.model_copy(update={"power_watts": self._logged(row, str(log))})
            gpu = self.services.gpus.load(row.gpu)
            admitted([Clocks(core_mhz=row.core_mhz, memory_mhz=row.memory_mhz).pair(gpu)], gpu)
            self._list(raw.number, row.doubts(gpu))
        except ValidationError as error:
            self._reject(raw.number, forms.defects_of(error))
        except (errors.GpuError, errors.ClockError) as error:
            column = "gpu" if isinstance(error, errors.GpuError) else error.field.rpartition(".")[2]
            self._reject(raw.number, [(column, str(error)[:500])])
        except errors.DataError as error:
            self._reject(raw.number, [(str(error.context["field"]), str(error.context["reason"]))])
        else:
            return row
        return None

    def _logged(self, row: forms.Measured, log: str) -> float:
        """Mean watts that a log of the zip tells of this row. Raises DataError."""
        try:
            if log not in self.files:
                raise errors.DataError("is no file of the zip")
            if row.power_watts:
                raise errors.DataError("stands beside power_watts: give one of them")
            if log not in self._logs:
                self._logs[log] = read_energy(self.files[log])
            lasted = None if row.time_seconds is None else row.time_seconds * row.repeats
            return mean_watts(self._logs[log], lasted)
        except errors.DataError as error:
            why = str(error)
            raise errors.DataError(why, field="energy_log", reason=why) from error

    def _stored(self, named: Sequence[str], known: Mapping[str, str]) -> dict[str, str]:
        """Stored texts that rows name by their hash, in one query."""
        wanted = {name for name in named if _SHA256.fullmatch(name) and name not in known}
        most = self.services.settings.max_upload_files
        if len(wanted) > most:
            raise errors.DataError(
                f"the rows name {len(wanted)} stored PTX texts; at most {most} are looked up"
            )
        return self.services.database.measurements.ptx(sorted(wanted))

    def _accept(
        self,
        number: int,
        row: forms.Measured,
        kernel: str,
        readable: str,
        vectors: Vectors,
        ptx_sha256: str | None = None,
        launch: Mapping[str, Any] | None = None,
    ) -> None:
        own = "board", "core_mhz", "memory_mhz", "power_watts", "time_seconds", "repeats"
        self.accepted.append(
            store.Measurement(
                row=number,
                gpu=self.services.gpus.load(row.gpu).id,
                kernel=kernel,
                kernel_group=row.kernel_group or forms.group_of(readable),
                ptx_sha256=ptx_sha256,
                launch=launch,
                vectors=vectors,
                **members(row, *own),
            )
        )

    def _reject(self, number: int, defects: Iterable[forms.Defect]) -> None:
        self.rejected += 1
        self._list(number, defects)

    def _list(self, number: int, defects: Iterable[forms.Defect]) -> None:
        """Add defects of a row, of which the first are kept."""
        for column, reason in defects:
            if len(self.rejections) < MOST_REJECTIONS:
                self.rejections.append(store.Rejection(number, column, reason))

    def nothing_accepted(self) -> errors.DataError:
        """The error of an upload without an accepted row."""
        if not self.rejected:
            return errors.DataError("the table holds no rows")
        first = self.rejections[0]
        where = f"row {first.row}" + (f", column {first.column!r}" if first.column else "")
        return errors.DataError(
            f"none of {self.rejected} rows was accepted; {where}: {first.reason}",
            rejected=self.rejected,
            rejections=[asdict(rejection) for rejection in self.rejections[:100]],
        )


def extracted(predictor: Predictor, request: analyze.AnalyzeRequest) -> tuple[str, str, Vectors]:
    """A kernel's name, its readable name, and its features: what a prediction would see.

    They are ``activity1`` and every published schema with a table for the GPU. A kernel that cannot
    be analysed dynamically has the published schemas alone. Raises WattcastError.
    """
    gpu = predictor.gpus.load(request.gpu)
    source = predictor.sources.read(request, gpu)
    analysis = parts.analysed(predictor, request, source, gpu, ptxas=True)
    vectors: Vectors = {}
    for schema in published_schemas().values():
        if gpu.id in schema.gpus:
            vectors[schema.id] = tuple(analysis.vector(schema.id).values.values())
    activity = activity_schema().id
    try:
        vectors[activity] = tuple(analysis.vector(activity).values.values())
    except errors.AnalysisError:
        if not vectors:
            raise
    return analysis.function.name, analysis.function.demangled, vectors


def _column_of(error: errors.WattcastError) -> str | None:
    if isinstance(error, errors.LaunchError):
        return error.field.partition(".")[0]
    return next((column for kind, column in _COLUMN_OF.items() if isinstance(error, kind)), None)


def store_upload(
    services: Services, file: IO[bytes], options: UploadOptions, actor: str
) -> tuple[store.Batch, bool]:
    """Read, check and store an upload; ``False`` if the same rows were stored before.

    Takes its time: run it by ``services.reader``. Raises DataError where the file cannot be read
    or no row of it was accepted, SchemaError or GpuError for options that do not exist, and
    ServiceError ``too-large`` or ``time-limit``.
    """
    new = read_upload(services, file, options)
    new = replace(new, observed=_observed(services, new.rows))
    return services.database.measurements.add(new, actor)


def _observed(services: Services, rows: Sequence[store.Measurement]) -> list[registry.Observation]:
    """What rows say about the intervals answered before: of each the latest answer to the very same
    launch on the same board at the same clocks, given without a measured launch of the kernel."""
    hashes = {row.ptx_sha256 for row in rows if row.ptx_sha256 is not None}
    answers: dict[str, str] = {}
    for past in predictions.answered(services.database.engine, sorted(hashes)):
        request = from_json(past.request)
        if request.get("known") or request.get("power_limit_watts"):
            continue
        with suppress(errors.WattcastError, ValueError):  # of a GPU or a form that is gone
            gpu, board = services.gpus.load(past.gpu), request.get("board")
            key = _question(past.ptx_sha256, past.kernel, gpu, board, request["launch"], request)
            answers.setdefault(key, past.result)
    observations: list[registry.Observation] = []
    for row in rows:
        if row.ptx_sha256 is not None and row.launch is not None:
            gpu, clocks = services.gpus.load(row.gpu), members(row, "core_mhz", "memory_mhz")
            asked = {**row.launch, "clocks": clocks}
            key = _question(row.ptx_sha256, row.kernel, gpu, row.board, row.launch, asked)
            if key in answers:
                observations += _misses(row, from_json(answers[key]))
    return observations


def _question(
    sha256: str,
    kernel: str,
    gpu: gpus.GpuProfile,
    board: str | None,
    launch: Mapping[str, Any],
    asked: Mapping[str, Any],
) -> str:
    """What makes two launches the same to a prediction."""
    own = {name: launch[name] for name in LaunchRequest.model_fields if name in launch}
    request = LaunchRequest.model_validate(own)
    padded = [dim3("launch", size) for size in (request.grid, request.block or 0)]
    clocks = Clocks.model_validate(asked.get("clocks") or {}).pair(gpu)
    rest = request.model_dump(mode="json", exclude={"grid", "block"})
    loops = sorted((asked.get("loops") or {}).items())
    return json.dumps(
        [sha256, kernel, gpu.id, board or "", padded, rest, clocks, loops], sort_keys=True
    )


def _misses(row: store.Measurement, answer: Mapping[str, Any]) -> Iterator[registry.Observation]:
    """How far the row lies from the answer's power and time, in half widths."""
    time_model = answer["time_model"] and (answer["time_model"]["model"] or answer["time_model"])
    for target, unit, measured, model in (
        ("power", "watts", row.power_watts, answer["model"]),
        ("time", "seconds", row.time_seconds, time_model),
    ):
        quantity = answer[target]
        if quantity is None or model is None or measured is None or quantity["low"] <= 0:
            continue
        ends = {name: quantity[name] for name in ("low", "high", "level", "basis")}
        estimate = Estimate(quantity[unit], **ends, widened=quantity.get("widened", 1.0))
        yield registry.Observation(
            row=row.row,
            target=target,
            gpu=row.gpu,
            board=row.board or "",
            model=str(model.get("card", model["family"])).removeprefix("/models/"),
            kernel_group=row.kernel_group,
            level=estimate.level,
            score=miss_score(estimate, measured),
        )


def counted(stored: store.Batch) -> None:
    """Count a new batch in the metrics of this process."""
    metrics.UPLOADED_ROWS.labels("accepted").inc(stored.accepted)
    metrics.UPLOADED_ROWS.labels("rejected").inc(stored.rejected)


def check_upload(services: Services, file: IO[bytes], options: UploadOptions) -> dict[str, Any]:
    """What would become of an upload: how many rows are accepted and rejected, and why.
    Raises as ``store_upload``, but not where all rows are rejected."""
    try:
        batch = read_upload(services, file, options)
    except errors.DataError as error:
        if "rejections" not in error.context:
            raise
        rejections, rejected = error.context["rejections"], error.context["rejected"]
        return {"accepted": 0, "rejected": rejected, "rejections": rejections}
    return {
        "accepted": len(batch.rows),
        "rejected": batch.rejected,
        "rejections": [asdict(rejection) for rejection in batch.rejections],
    }


def read_upload(services: Services, file: IO[bytes], options: UploadOptions) -> store.NewBatch:
    """The accepted rows of an upload with their features. Raises as ``store_upload``."""
    settings = services.settings
    limits = Limits(settings.max_unpacked_bytes, settings.max_upload_files, settings.max_ptx_bytes)
    if options.gpu is not None:
        services.gpus.load(options.gpu)
    columns = None if options.schema is None else forms.FeatureColumns(get_schema(options.schema))
    upload = _Upload(services, options)
    with unpacked(file, limits) as source:
        rows = read_rows(source, settings, upload.until)
        upload.files = source.ptx
        if columns is None:
            upload.read_launches(rows)
        else:
            upload.read_features(rows, columns)
    if not upload.accepted:
        raise upload.nothing_accepted()
    form: store.Form = "ptx" if columns is None else "features"
    used = {schema for row in upload.accepted for schema in row.vectors}
    schemas = {schema: get_schema(schema).sha256 for schema in sorted(used)}
    return store.NewBatch(
        content_sha256=_content_hash(form, schemas, upload.accepted),
        form=form,
        schemas=schemas,
        rows=upload.accepted,
        rejected=upload.rejected,
        rejections=upload.rejections,
        ptx=upload.ptx,
    )


def _content_hash(
    form: store.Form, schemas: Mapping[str, str], rows: Sequence[store.Measurement]
) -> str:
    """Hash of what the rows say: not of the file's format, nor of features extracted here.
    With another definition of a schema the same rows have other features: another batch."""
    digest = hashlib.sha256(json.dumps([form, sorted(schemas.items())]).encode())
    for row in rows:
        content = [
            *(row.gpu, row.board, row.kernel, row.kernel_group, row.ptx_sha256, row.launch),
            *(row.core_mhz, row.memory_mhz, row.power_watts, row.time_seconds, row.repeats),
            row.vectors if form == "features" else None,
        ]
        digest.update(json.dumps(content, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
