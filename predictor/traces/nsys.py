"""SQLite exports of Nsight Systems (``nsys export --type sqlite``).

Tables and columns by NVIDIA's "SQLite Export Schema Reference" (Nsight Systems 2021.5,
docs.nvidia.com/nsight-systems/2021.5/nsys-exporter/exported_data.html). Later versions, up to
2026.2, only added columns: ``mangledName``, ``graphNodeId`` and others, used where they are.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np

from wattcast.features.checked import text, whole
from wattcast.features.errors import DataError, GivenUpError, checkpoint
from wattcast.predictor.traces import trace as rows

if TYPE_CHECKING:
    from wattcast.predictor.traces import Progress

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
COPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
SET = "CUPTI_ACTIVITY_KIND_MEMSET"

PUSH_POP, START_END = 59, 60
"""``eventType`` of NVTX ranges: NvtxPushPopRange and NvtxStartEndRange."""

PROCESS = 0xFFFFFFFFFF000000
"""Bits of a ``globalTid`` that are the ``globalPid`` of its process: the reference's "Serialized
GlobalId"; the six hexadecimal digits below are the thread."""

COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
"""``copyKind``: CUpti_ActivityMemcpyKind."""

OPERATION = re.compile(r", (?:op_id|seq) = .*$")
"""What PyTorch's ``emit_nvtx`` appends to an operator's name."""

INSTRUCTIONS = 100_000
"""Of SQLite's machine between two looks whether to go on: some milliseconds."""

ROWS = 50_000
MOST_TABLES, MOST_STRINGS = 10_000, 1_000_000
"""Tables that are looked at, and texts of StringIds."""

MOST_TEXT = 1 << 20
"""Bytes of one value that SQLite hands out."""


def read(path: Path, name: str, progress: Progress, limited: bool = False) -> rows.Trace:
    """The trace of an export. Raises DataError."""
    try:
        with closing(_opened(path)) as database:
            return _Export(name, database, progress, limited).trace()
    except (sqlite3.Error, OverflowError) as error:
        checkpoint()  # it may have been interrupted
        raise DataError(f"{name}: SQLite cannot read it: {error}", file=name) from error


def _opened(path: Path) -> sqlite3.Connection:
    """The file as it is: nothing is written, and nothing of the file is run: no view, no generated
    column (``_columns`` lists none), no function. A statement is given up with its request."""
    uri = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
    database = sqlite3.connect(uri, uri=True)
    database.text_factory = lambda text: text.decode("utf-8", "replace")
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_TEXT)
    database.execute("PRAGMA trusted_schema = OFF")
    database.execute("PRAGMA query_only = ON")
    database.set_progress_handler(_is_over, INSTRUCTIONS)
    return database


def _is_over() -> bool:
    """Whether this thread's work is given up: SQLite ends its statement then."""
    try:
        checkpoint()
    except GivenUpError:
        return True
    return False


class _Export:
    def __init__(
        self, name: str, database: sqlite3.Connection, progress: Progress, limited: bool
    ) -> None:
        self._name, self._db, self._progress = name, database, progress
        self._most = rows.MOST_LAUNCHES if limited else None
        self._ranges_most = rows.MOST_RANGES if limited else None
        tables = database.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' LIMIT ?", (MOST_TABLES,)
        )
        # The others are virtual.
        self._tables = {str(n) for n, sql in tables if str(sql).upper().startswith("CREATE TABLE")}
        self._strings: dict[int, str] = {}
        self._names = rows.Names(MOST_STRINGS)
        self._named = self._holds("StringIds", "id", "value")

    def trace(self) -> rows.Trace:
        if KERNEL not in self._tables:
            known = "CUPTI_ACTIVITY_KIND tables: " + (
                ", ".join(sorted(t for t in self._tables if t.startswith("CUPTI"))) or "none"
            )
            raise DataError(
                f"{self._name}: no table {KERNEL}: not an Nsight Systems export with CUDA kernels "
                f"(nsys profile --trace=cuda,nvtx); {known}",
                file=self._name,
            )
        build = rows.Builder(self._name, self._source(), self._most)
        gpus = self._gpus()
        for table in (KERNEL, COPY, SET):
            if table in self._tables:
                self._launches(build, table, gpus)
        calls = self._calls()
        ranges, steps = self._ranges(build)
        # The NVTX range around the call of each launch, and when that call began.
        met, call = calls.found(build.column("link"))
        operator, launched = (np.full(len(met), rows.NONE, dtype=np.int64) for _ in range(2))
        launched[met] = calls.column("start")[call]
        inside = ranges.innermost(ranges.threads_of(calls, call), launched[met])
        operator[met] = build.named(ranges, inside)
        return build.built(operator, launched, steps)

    def _source(self) -> str:
        if self._holds("META_DATA_EXPORT", "name", "value"):
            row = self._db.execute(
                "SELECT value FROM META_DATA_EXPORT WHERE name = 'EXPORT_PRODUCT_VERSION'"
            ).fetchone()
            if row is not None and (version := text(row[0], 40)):
                return f"Nsight Systems {version}"
        return "Nsight Systems"

    def _holds(self, table: str, *columns: str) -> bool:
        return table in self._tables and self._columns(table).issuperset(columns)

    def _columns(self, table: str) -> set[str]:
        return {str(row[1]) for row in self._db.execute(f'PRAGMA table_info("{table}")')}

    def _rows(
        self, table: str, wanted: tuple[str, ...], needed: tuple[str, ...] = ()
    ) -> Iterator[tuple[object, ...]]:
        """Rows with the columns wanted, ``None`` for one that the table lacks."""
        known = self._columns(table)
        if missing := [name for name in needed if name not in known]:
            raise DataError(
                f"{self._name}: table {table} lacks {', '.join(missing)}: not the schema of "
                "Nsight Systems",
                file=self._name,
            )
        named = ", ".join(f'"{name}"' if name in known else "NULL" for name in wanted)
        cursor = self._db.execute(f'SELECT {named} FROM "{table}"')  # noqa: S608 - fixed names
        while rows := cursor.fetchmany(ROWS):
            checkpoint()
            yield from rows

    def _string(self, number: object) -> str:
        if not isinstance(number, int):
            return ""
        found = self._strings.get(number)
        if found is None:
            row = None
            if self._named:
                row = self._db.execute(
                    "SELECT value FROM StringIds WHERE id = ?", (number,)
                ).fetchone()
            found = self._strings[number] = "" if row is None else text(row[0])
            self._names.number(found)
        return found

    def _gpus(self) -> dict[tuple[int, int | None], rows.Device]:
        """Boards by (CUDA's number, process); by (number, None) where no process is told."""
        boards: dict[int, rows.Device] = {}
        if "TARGET_INFO_GPU" in self._tables:
            for number, name, sms in self._rows("TARGET_INFO_GPU", ("id", "name", "smCount")):
                at = whole(number)
                if len(boards) >= rows.MOST_DEVICES:
                    break
                boards[at] = rows.Device(at, text(name), whole(sms) or None)
        found: dict[tuple[int, int | None], rows.Device] = {
            (at, None): b for at, b in boards.items()
        }
        if "TARGET_INFO_CUDA_DEVICE" in self._tables:
            wanted = ("gpuId", "cudaId", "pid", "numMultiprocessors")
            for gpu, cuda, pid, sms in self._rows("TARGET_INFO_CUDA_DEVICE", wanted):
                board = boards.get(whole(gpu, rows.NONE))
                if board is not None:
                    mine = whole(sms) or board.sm_count
                    found[whole(cuda), whole(pid)] = rows.Device(board.id, board.name, mine)
        return found

    def _launches(
        self, build: rows.Builder, table: str, gpus: dict[tuple[int, int | None], rows.Device]
    ) -> None:
        base = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
        more: tuple[str, ...] = ("copyKind",) if table == COPY else ()
        if table == KERNEL:
            more = (
                *("demangledName", "mangledName", "shortName", "registersPerThread"),
                *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
                *("staticSharedMemory", "dynamicSharedMemory"),
            )
        needed = ("start", "end", "deviceId", "streamId")
        for count, row in enumerate(self._rows(table, (*base, *more), needed), 1):
            if count % ROWS == 0:
                self._progress("launches", len(build))
            start, end, device, context, stream, link, process = row[:7]
            pid = _pid(process)
            number = whole(device)
            known = gpus.get((number, pid)) or gpus.get((number, None)) or rows.Device(number)
            build.devices.setdefault(known.id, known)
            where = f"stream {whole(stream)}"
            if whole(context, 1) != 1:
                where = f"context {whole(context)} {where}"
            kind = self._kind(table, row[7:])
            joined = _link(process, link)
            build.add(kind, whole(start), whole(end, -1), known.id, where, joined)

    def _kind(self, table: str, more: tuple[object, ...]) -> rows.Kind:
        if table != KERNEL:
            name = f"Memcpy {COPIES.get(whole(more[0]), 'other')}" if more else "Memset"
            return rows.Kind(name, "", "copy" if more else "set", (0, 0, 0), (0, 0, 0), 0, 0, 0)
        name = self._string(more[0]) or self._string(more[2])
        sizes = [whole(each, 0, rows.MOST_SIZE) for each in more[3:]]
        return rows.Kind(
            name or "unnamed kernel",
            self._string(more[1]),
            "kernel",
            (sizes[1], sizes[2], sizes[3]),
            (sizes[4], sizes[5], sizes[6]),
            sizes[0],
            sizes[7],
            sizes[8],
        )

    def _calls(self) -> rows.Ranges:
        """Calls of the CUDA runtime."""
        calls = rows.Ranges(self._ranges_most)
        if RUNTIME in self._tables:
            wanted = ("start", "end", "globalTid", "correlationId")
            for start, end, thread, link in self._rows(RUNTIME, wanted):
                tid = whole(thread)
                calls.add(tid, whole(start), whole(end), "", _link(tid & PROCESS, link))
        return calls

    def _ranges(self, build: rows.Builder) -> tuple[rows.Ranges, list[tuple[int, int, str]]]:
        ranges = rows.Ranges(self._ranges_most)
        steps: list[tuple[int, int, str]] = []
        if "NVTX_EVENTS" in self._tables:
            wanted = ("start", "end", "eventType", "text", "textId", "globalTid")
            for start, end, event, words, text_id, thread in self._rows("NVTX_EVENTS", wanted):
                if end is None or event not in (PUSH_POP, START_END):
                    continue
                name = text(words) if words is not None else self._string(text_id)
                if rows.STEP.match(name):
                    build.step(steps, whole(start), whole(end), name)
                elif event == PUSH_POP:
                    plain = OPERATION.sub("", name) or "unnamed range"
                    ranges.add(whole(thread), whole(start), whole(end), plain)
        return ranges, steps


def _pid(process: object) -> int | None:
    return (process >> 24) & 0xFFFFFF if isinstance(process, int) else None


def _link(process: object, link: object) -> int:
    """Process and correlation as one key; correlation ids are unique within a process."""
    if not isinstance(link, int):
        return rows.NONE
    number = (_pid(process) or 0) & 0xFFFFFF
    return (number << 38) | (link & ((1 << 38) - 1))
