"""``/measurements``: what users have measured, uploaded in batches."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Annotated
from uuid import UUID

from fastapi import Depends, File, Form, Request, UploadFile
from fastapi.responses import Response, StreamingResponse
from pydantic import StringConstraints

from wattcast.app import problems
from wattcast.app.api import access, route
from wattcast.app.services import services_of
from wattcast.app.services.measurements import rows, upload
from wattcast.app.store import database, measurements, tables
from wattcast.features.checked import harmless
from wattcast.features.schemas import get_schema
from wattcast.predictor.messages import Described

router = route.Router(prefix="/measurements", tags=["measurements"])

Name = Annotated[str, StringConstraints(min_length=1, max_length=64)]
Table = Annotated[
    UploadFile,
    File(
        description="CSV, JSON lines or Parquet, also gzipped; or a zip of one such table and "
        "the PTX files that its rows name."
    ),
]


async def _upload(
    file: Table,
    gpu: Annotated[Name | None, Form(description="GPU of rows without one.")] = None,
    board: Annotated[rows.Label | None, Form(description="Board of rows without one.")] = None,
    schema_id: Annotated[
        Name | None,
        Form(
            alias="schema",
            description="The rows hold this schema's features; without it they name their PTX.",
        ),
    ] = None,
) -> tuple[IO[bytes], upload.UploadOptions]:
    return file.file, upload.UploadOptions(gpu, board, schema_id)


Upload = Annotated[tuple[IO[bytes], upload.UploadOptions], Depends(_upload)]

READING = "bad-request too-large media-type data validation gpu schema busy time-limit"
"""Problems of a call that brings a table of measurements."""


class RejectedRow(Described):
    """Why a row was not taken."""

    row: int
    """From 1, without the header of a CSV."""
    column: str | None
    """Null if the row as a whole is wrong."""
    reason: str


class BatchSummary(Described):
    """A batch of measurements."""

    id: UUID
    created: str
    uploaded_by: str
    form: str
    """`ptx` or `features`."""
    schemas: dict[str, str]
    """Hash of each schema's definition, by its id."""
    content_sha256: str
    """Hash of the accepted rows."""
    accepted: int
    rejected: int


class UploadedBatch(BatchSummary):
    """A batch with its rejected rows."""

    rejections: list[RejectedRow]
    """The first of the rejected rows, and of rows that were accepted although their values are odd:
    their reason begins with `taken, but`."""


class CheckAnswer(Described):
    """What would become of an upload."""

    accepted: int
    rejected: int
    rejections: list[RejectedRow]
    """The first of the rejected rows."""


@router.answers(
    "",
    UploadedBatch,
    f"{READING} store",
    method="POST",
    also={200: {"model": UploadedBatch, "description": "The same rows were uploaded before."}},
    status_code=201,
)
async def post_measurements(request: Request, upload: Upload) -> Response:
    """Upload measurements.

    Each row is checked by itself, so a wrong row does not affect the others. The same rows
    again, in any format, are the same batch. docs/measurements.md lists all columns.
    """
    services = services_of(request)
    with database.store_errors(problems.NOT_STORED):
        batch, is_new = await services.uploads.run(
            services.reader.store, *upload, access.actor_of(request)
        )
    answer = route.json_response(tables.plain(batch), 201 if is_new else 200)
    answer.headers["Location"] = f"/measurements/{batch.id}"
    return answer


@router.answers("/check", CheckAnswer, READING, method="POST")
async def check_measurements(request: Request, upload: Upload) -> Response:
    """Check measurements before they are uploaded.

    The same rules as for an upload. Nothing is stored, and a table none of whose rows would be
    accepted is answered like any other.
    """
    services = services_of(request)
    return route.json_response(await services.uploads.run(services.reader.check, *upload))


@router.answers("", list[BatchSummary], "validation store")
async def list_measurements(
    request: Request, limit: route.Limit = 100, before: route.Before = None
) -> Response:
    """Batches of measurements, newest first.

    One page of batches without their rejections.
    """
    found = await route.query(
        request,
        lambda of: of.database.measurements.latest(limit=limit, before=before),
        problems.NOT_STORED,
    )
    return route.json_response([tables.plain(batch, "rejections") for batch in found])


@router.answers("/{batch_id}", UploadedBatch, "unknown-batch validation store")
async def get_batch(request: Request, batch_id: UUID) -> Response:
    """One batch of measurements.

    A batch with the rows that were rejected.
    """
    return route.json_response(tables.plain(await _batch(request, batch_id)))


@router.answers(
    "/{batch_id}/rows",
    None,
    "unknown-batch validation store",
    also={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
    response_class=Response,
)
async def get_rows(request: Request, batch_id: UUID) -> Response:
    """The rows of a batch as CSV.

    Every accepted row with its features. Text that a spreadsheet would execute begins with an
    apostrophe.
    """
    batch = await _batch(request, batch_id)
    rows = (row for _, row in services_of(request).database.measurements.rows([batch.id]))
    return StreamingResponse(
        export(batch, rows),
        media_type="text/csv",
        headers={"Content-Disposition": f'attachment; filename="{batch.id}.csv"'},
    )


@router.answers(
    "/{batch_id}",
    None,
    "unknown-batch validation store",
    method="DELETE",
    status_code=204,
    response_class=Response,
)
async def delete_batch(request: Request, batch_id: UUID) -> Response:
    """Delete a batch.

    Deletes the rows for good; that it was done, and by whom, stays in the audit log. Models
    that were trained on them stay as they are.
    """
    actor = access.actor_of(request)
    await _stored(request, batch_id, lambda store: store.delete(batch_id, actor))
    return Response(status_code=204)


async def _batch(request: Request, batch_id: UUID) -> measurements.Batch:
    return await _stored(request, batch_id, lambda store: store.get(batch_id))


async def _stored(
    request: Request, batch_id: UUID, ask: Callable[[measurements.MeasurementStore], route.T | None]
) -> route.T:
    missing = "unknown-batch", f"no measurements {batch_id}"
    return await route.existing(
        request, lambda of: ask(of.database.measurements), missing, problems.NOT_STORED
    )


# --- Stored rows as CSV that no spreadsheet executes ---

_ROWS_AT_ONCE = 200
_TEXTS = ("gpu", "board", "kernel", "kernel_group")
_SHAPES, _PLAIN = ("grid", "block"), ("registers_per_thread", "static_shared_bytes")
_MEASURED = ("core_mhz", "memory_mhz", "power_watts", "time_seconds", "repeats")
_COLUMNS = (
    *("row", *_TEXTS, "ptx", *_SHAPES, "dynamic_shared_bytes", "arguments", "loops"),
    *(*_PLAIN, *_MEASURED),
)


def export(batch: measurements.Batch, rows: Iterable[measurements.Measurement]) -> Iterator[str]:
    """The rows of a batch in pieces of CSV: what was measured, then ``<schema>.<field>``."""
    schemas = [(schema, [f.name for f in get_schema(schema).fields]) for schema in batch.schemas]
    waiting: list[list[object]] = [
        [*_COLUMNS, *(f"{schema}.{name}" for schema, names in schemas for name in names)]
    ]
    for row in rows:
        vectors = [row.vectors.get(schema, (math.nan,) * len(names)) for schema, names in schemas]
        values = (None if math.isnan(each) else each for vector in vectors for each in vector)
        waiting.append([*_cells(row), *values])
        if len(waiting) == _ROWS_AT_ONCE:
            yield _text(waiting)
            waiting = []
    yield _text(waiting)


def _cells(row: measurements.Measurement) -> list[object]:
    """What a row holds under ``_COLUMNS``."""
    launch = row.launch or {}
    sizes = (launch.get(name) for name in _SHAPES)
    return [
        row.row,
        *(harmless(getattr(row, name) or "") for name in _TEXTS),
        row.ptx_sha256,
        *(None if each is None else "x".join(map(str, each)) for each in sizes),
        launch.get("dynamic_shared_bytes"),
        *(
            json.dumps(launch[name]) if launch.get(name) else None
            for name in ("arguments", "loops")
        ),
        *(launch.get(name) for name in _PLAIN),
        *(getattr(row, name) for name in _MEASURED),
    ]


def _text(rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerows(rows)
    return out.getvalue()
