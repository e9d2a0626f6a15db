"""Stored rows as CSV that no spreadsheet executes."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from wattcast.app.store.measurements import Batch, Measurement
from wattcast.features.checked import harmless
from wattcast.features.schemas import get_schema

Cell = Callable[[Measurement], object]

_ROWS_AT_ONCE = 200


def export(batch: Batch, rows: Iterable[Measurement]) -> Iterator[str]:
    """The rows of a batch in pieces of CSV: what was measured, then ``<schema>.<field>``."""
    schemas = [(schema, [f.name for f in get_schema(schema).fields]) for schema in batch.schemas]
    yield _text([[*_CELLS, *(f"{s}.{name}" for s, names in schemas for name in names)]])
    waiting: list[list[object]] = []
    for row in rows:
        vectors = [row.vectors.get(schema, (math.nan,) * len(names)) for schema, names in schemas]
        waiting.append(
            [
                *(cell(row) for cell in _CELLS.values()),
                *(_number(value) for vector in vectors for value in vector),
            ]
        )
        if len(waiting) == _ROWS_AT_ONCE:
            yield _text(waiting)
            waiting = []
    yield _text(waiting)


def _by_x(dimensions: Sequence[int] | None) -> str | None:
    return None if dimensions is None else "x".join(str(size) for size in dimensions)


def _json(value: object) -> str | None:
    return json.dumps(value) if value else None


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _of_launch(name: str, told: Callable[[Any], object] = lambda value: value) -> Cell:
    return lambda row: told((row.launch or {}).get(name))


def _of_row(name: str) -> Cell:
    return attrgetter(name)


_CELLS: Mapping[str, Cell] = {
    "row": _of_row("row"),
    "gpu": lambda row: harmless(row.gpu),
    "board": lambda row: harmless(row.board or ""),
    "kernel": lambda row: harmless(row.kernel),
    "kernel_group": lambda row: harmless(row.kernel_group),
    "ptx": _of_row("ptx_sha256"),
    "grid": _of_launch("grid", _by_x),
    "block": _of_launch("block", _by_x),
    "dynamic_shared_bytes": _of_launch("dynamic_shared_bytes"),
    "arguments": _of_launch("arguments", _json),
    "loops": _of_launch("loops", _json),
    "registers_per_thread": _of_launch("registers_per_thread"),
    "static_shared_bytes": _of_launch("static_shared_bytes"),
    **{
        name: _of_row(name)
        for name in ("core_mhz", "memory_mhz", "power_watts", "time_seconds", "repeats")
    },
}
"""What each column holds of a row."""


def _text(rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerows(rows)
    return out.getvalue()
