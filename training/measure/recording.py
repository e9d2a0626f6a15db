"""Recordings as files: JSON Lines (``lines``) that grow by one at a time, each flushed to disk.

Whatever interrupts a measurement costs the line that was being made.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from wattcast.features.errors import DataError
from wattcast.features.plausible import check_measured
from wattcast.training.measure.device import Device, known_profile
from wattcast.training.measure.lines import (
    LINE,
    Configuration,
    Failure,
    Line,
    Provenance,
    PtxModule,
    SensorTraits,
    Session,
)
from wattcast.training.measure.workload import Workload


@dataclass(frozen=True)
class Recording:
    """A recording read back. ``torn`` tells that its last line was cut off and left out;
    ``doubts`` are values that were taken although they are odd, a sentence each."""

    sessions: tuple[Session, ...]
    sensor: SensorTraits
    modules: dict[str, str]
    configurations: tuple[Configuration, ...]
    failures: tuple[Failure, ...]
    torn: bool = False
    doubts: tuple[str, ...] = ()

    @property
    def device(self) -> Device:
        """The device measured."""
        return self.sessions[0].device

    @property
    def provenance(self) -> Provenance:
        """Where the numbers come from."""
        return self.sessions[0].provenance

    @property
    def settled(self) -> frozenset[str]:
        """Keys that need no further try."""
        done = {one.key for one in self.configurations}
        return frozenset(done | {one.key for one in self.failures if one.permanent})

    def workload(self, one: Configuration) -> Workload | None:
        """The workload of a configuration with its PTX; ``None`` where that is not known."""
        if one.ptx_sha256 is None:
            return None
        return Workload(**one.workload.model_dump(), ptx=self.modules[one.ptx_sha256])


def read_recording(path: Path) -> Recording:
    """Read and check a recording. Raises DataError (file, row) for a line that does not hold or
    cannot have been measured (``doubts_of``); a last line without its end is left out."""
    lines, torn = _lines(path)
    sessions: list[Session] = []
    sensor = SensorTraits()
    modules: dict[str, str] = {}
    configurations: dict[str, Configuration] = {}
    doubts: dict[str, tuple[str, ...]] = {}
    failures: dict[str, Failure] = {}
    for row, text in enumerate(lines, start=1):
        line = _parsed(text, path, row)
        if row == 1 and not isinstance(line, Session):
            raise DataError(f"{path.name}: a recording starts with its session", file=path.name)
        match line:
            case Session():
                sessions.append(line)
            case SensorTraits():
                sensor = line
            case PtxModule():
                if hashlib.sha256(line.ptx.encode()).hexdigest() != line.sha256:
                    raise _wrong(path, row, "the PTX is not that of its hash")
                modules[line.sha256] = line.ptx
            case Configuration():
                if line.ptx_sha256 is not None and line.ptx_sha256 not in modules:
                    raise _wrong(path, row, f"no module {line.ptx_sha256[:12]} before it")
                where = f"{path.name}, line {row}: {line.key}"
                doubts[line.key] = doubts_of(line, sessions[-1].device, where)
                configurations[line.key] = line
                failures.pop(line.key, None)
            case Failure():
                failures[line.key] = line
    if not sessions:
        raise DataError(f"{path.name}: an empty recording", file=path.name)
    return Recording(
        tuple(sessions),
        sensor,
        modules,
        tuple(configurations.values()),
        tuple(failures.values()),
        torn,
        tuple(text for each in doubts.values() for text in each),
    )


class _Rated(NamedTuple):
    """A board as its own driver rates it."""

    id: str
    tdp_watts: float
    idle_watts: float | None


def doubts_of(one: Configuration, device: Device, where: str) -> tuple[str, ...]:
    """What is odd about a result, a sentence each, by the limit that the driver told, else the
    profile's. Raises DataError, naming ``where``, for what cannot have been measured."""
    result, limit = one.result, device.power_limit_watts
    board = (
        known_profile(device) if limit is None else _Rated(device.name, limit, result.idle_watts)
    )
    notes = check_measured(
        board, power_watts=result.power_watts, time_seconds=result.time_seconds, where=where
    )
    return tuple(note.detail for note in notes)


def _parsed(text: str, path: Path, row: int) -> Line:
    try:
        return LINE.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the line"
        raise _wrong(path, row, f"{where}: {first['msg']}") from error


def _wrong(path: Path, row: int, what: str) -> DataError:
    return DataError(f"{path.name}, line {row}: {what}", file=path.name, row=row)


def _lines(path: Path) -> tuple[list[str], bool]:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", file=path.name) from error
    whole, newline, rest = text.rpartition(b"\n")
    try:
        return (whole.decode() if newline else "").splitlines(), bool(rest)
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name}: not UTF-8", file=path.name) from error


class Recorder:
    """Appends to a recording. A last line that was cut off is cut away first.

    ``known`` is what the file held before. Raises DataError where it holds another device's
    measurements, or is no recording.
    """

    def __init__(self, path: Path, session: Session) -> None:
        self.path = path
        self.known: Recording | None = None
        # Nothing but a torn first line: as if it were not there.
        if path.exists() and b"\n" in path.read_bytes():
            self.known = read_recording(path)
            before = self.known.device
            if (before.label, before.name) != (session.device.label, session.device.name):
                raise DataError(
                    f"{path.name} is of another device ({before.name}, {before.label}), not "
                    f"{session.device.name}, {session.device.label}",
                    file=path.name,
                )
            if self.known.provenance != session.provenance:
                raise DataError(f"{path.name} is {self.known.provenance}", file=path.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("r+b" if path.exists() else "x+b")
        whole = self._file.read().rfind(b"\n") + 1
        self._file.truncate(whole)
        self._file.seek(whole)
        self._modules = set(self.known.modules) if self.known else set()
        self.write(session)

    @property
    def settled(self) -> frozenset[str]:
        """Keys of the file before this session that need no further try."""
        return self.known.settled if self.known else frozenset()

    def write(self, line: Line) -> None:
        """Append one line and wait until it is on disk."""
        text = line.model_dump_json(exclude_none=True)
        self._file.write(text.encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def write_configuration(self, line: Configuration, ptx: str | None) -> None:
        """Append a configuration, and before it its module where the file lacks it."""
        if ptx is not None and line.ptx_sha256 is not None and line.ptx_sha256 not in self._modules:
            self.write(PtxModule(sha256=line.ptx_sha256, ptx=ptx))
            self._modules.add(line.ptx_sha256)
        self.write(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def rows(recording: Recording) -> Iterator[dict[str, Any]]:
    """One flat row per configuration, units in the names, for tables."""
    for one in recording.configurations:
        workload, result = one.workload, one.result
        yield {
            "key": one.key,
            "gpu": recording.device.name,
            "board": recording.device.label,
            "workload": workload.id,
            "role": workload.role,
            "family": workload.family,
            "kernel": workload.kernel,
            "ptx_sha256": one.ptx_sha256,
            **{f"grid_{axis}": n for axis, n in zip("xyz", workload.grid, strict=True)},
            **{f"block_{axis}": n for axis, n in zip("xyz", workload.block, strict=True)},
            "dynamic_shared_bytes": workload.dynamic_shared_bytes,
            "pattern": one.pattern,
            **result.model_dump(exclude={"notes"}),
            "throttle_reasons": " ".join(result.throttle_reasons),
            "unresolved": " ".join(result.unresolved),
        }
