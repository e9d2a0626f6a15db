"""Stored rows as CSV that no spreadsheet executes."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence

from wattcast.app.store.measurements import Batch, Measurement
from wattcast.features.schemas import get_schema

_COMMON = (
    "row",
    "gpu",
    "board",
    "kernel",
    "kernel_group",
    "ptx",
    "grid",
    "block",
    "dynamic_shared_bytes",
    "arguments",
    "loops",
    "registers_per_thread",
    "static_shared_bytes",
    "core_mhz",
    "memory_mhz",
    "power_watts",
    "time_seconds",
    "repeats",
)
_ROWS_AT_ONCE = 200


def harmless(text: str) -> str:
    """Text that a spreadsheet shows and does not execute.

    A cell that begins with one of ``= + - @``, a tab or a line break is taken for a formula; an
    apostrophe before it makes it text (OWASP, "CSV Injection").
    """
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else text


def export(batch: Batch, rows: Iterable[Measurement]) -> Iterator[str]:
    """The rows of a batch in pieces of CSV: what was measured, then ``<schema>.<field>``."""
    schemas = [(schema, [f.name for f in get_schema(schema).fields]) for schema in batch.schemas]
    yield _text([[*_COMMON, *(f"{s}.{name}" for s, names in schemas for name in names)]])
    waiting: list[list[object]] = []
    for row in rows:
        vectors = [row.vectors.get(schema, (math.nan,) * len(names)) for schema, names in schemas]
        waiting.append([*_common(row), *(_number(value) for vector in vectors for value in vector)])
        if len(waiting) == _ROWS_AT_ONCE:
            yield _text(waiting)
            waiting = []
    yield _text(waiting)


def _common(row: Measurement) -> list[object]:
    launch = row.launch or {}
    return [
        row.row,
        harmless(row.gpu),
        harmless(row.board or ""),
        harmless(row.kernel),
        harmless(row.kernel_group),
        row.ptx_sha256,
        _by_x(launch.get("grid")),
        _by_x(launch.get("block")),
        launch.get("dynamic_shared_bytes"),
        _json(launch.get("arguments")),
        _json(launch.get("loops")),
        launch.get("registers_per_thread"),
        launch.get("static_shared_bytes"),
        row.core_mhz,
        row.memory_mhz,
        row.power_watts,
        row.time_seconds,
        row.repeats,
    ]


def _by_x(dimensions: Sequence[int] | None) -> str | None:
    return None if dimensions is None else "x".join(str(size) for size in dimensions)


def _json(value: object) -> str | None:
    return json.dumps(value) if value else None


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _text(rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerows(rows)
    return out.getvalue()
