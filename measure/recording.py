"""Recordings as files: JSON Lines that grow by one at a time, each flushed to disk.

Whatever interrupts a measurement costs the line that was being made.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from wattcast.features.checked import check_measured
from wattcast.features.errors import DataError
from wattcast.measure.device import Device, Reading, known_profile
from wattcast.measure.workload import Described, Part, Pattern, Workload

# --- What a recording's lines hold -------------------------------------------------------------


SCHEMA_FILE = Path(__file__).with_name("recording.schema.json")
FORMAT: Literal["wattcast-recording-1"] = "wattcast-recording-1"
LICENCE = "CC-BY-4.0"

Provenance = Literal["measured", "simulated", "imported"]
Reason = Literal[
    "no_power_sensor",
    "sensor_period",
    "sensor_noise",
    "clocks_moved",
    "not_stable",
    "too_short",
    "energy_not_measured",
]
"""Why a number is missing. ``sensor_period``: too few updates in the longest window allowed;
``sensor_noise``: the confidence interval stayed wider than the bound; ``clocks_moved``: core clock
not held during the windows; ``not_stable``: still warming up when the time for that was over;
``too_short``: launches too short to keep the GPU busy."""


class Session(Part):
    """The head of a recording, and of each continuation."""

    type: Literal["session"] = "session"
    format: Literal["wattcast-recording-1"] = FORMAT
    provenance: Provenance
    licence: str = LICENCE
    started: str
    device: Device
    software: dict[str, str]
    settings: dict[str, float | int | str | bool | None] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()


class SensorTraits(Part):
    """How the sensors behave. Seconds; ``None`` where it could not be found out.

    ``power``: ``instant`` (NVML's field), ``usage`` (nvmlDeviceGetPowerUsage: averaged over 1 s on
    some boards), or none. ``lag_seconds``: time constant of a first-order lag, from the answer
    to a load that starts. ``idle_watts``: mean power of seconds without load.
    """

    type: Literal["sensor"] = "sensor"
    power: Literal["instant", "usage"] | None = None
    energy_counter: bool = False
    update_period_seconds: float | None = Field(default=None, gt=0)
    lag_seconds: float | None = Field(default=None, ge=0)
    idle_watts: float | None = Field(default=None, gt=0)
    notes: tuple[str, ...] = ()


class PtxModule(Part):
    """A PTX module."""

    type: Literal["module"] = "module"
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    ptx: str


class Samples(Part):
    """Raw readings, by column; only those that differ from the one before. ``at_seconds`` from
    the start of the configuration; absent columns are what the driver does not offer."""

    at_seconds: tuple[float, ...] = ()
    power_watts: tuple[float | None, ...] | None = None
    energy_joules: tuple[float | None, ...] | None = None
    core_mhz: tuple[float | None, ...] | None = None
    memory_mhz: tuple[float | None, ...] | None = None
    temperature_celsius: tuple[float | None, ...] | None = None
    throttle_reasons: tuple[int | None, ...] | None = None

    @classmethod
    def of(cls, readings: list[Reading], start: float) -> Samples:
        """Columns of readings; ``start`` becomes 0."""
        kept = [
            one
            for at, one in enumerate(readings)
            if at in (0, len(readings) - 1) or one[1:] != readings[at - 1][1:]
        ]
        columns: dict[str, Any] = {"at_seconds": [round(r.at_seconds - start, 6) for r in kept]}
        for at, name in enumerate(Reading._fields[1:], start=1):
            values = [None if (value := one[at]) is None else round(value, 6) for one in kept]
            if any(value is not None for value in values):
                columns[name] = values
        return cls.model_validate(columns)


class Window(Part):
    """A stretch of steady running. ``updates``: new values of the sensor within it;
    ``method``: difference of the energy counter, or mean of power samples corrected for lag."""

    start_seconds: float
    end_seconds: float
    watts: float | None
    updates: int
    method: Literal["counter", "samples"] | None


class Result(Part):
    """What a configuration came to, per launch. A power or energy that is ``None`` has its
    reasons in ``unresolved``. ``*_ci`` are half-widths of 95 % confidence intervals."""

    time_seconds: float | None = Field(default=None, gt=0)
    time_ci_seconds: float | None = None
    power_watts: float | None = Field(default=None, gt=0)
    power_ci_watts: float | None = None
    energy_joules: float | None = Field(default=None, gt=0)
    idle_watts: float | None = None
    core_mhz: float | None = Field(default=None, gt=0)
    memory_mhz: float | None = Field(default=None, gt=0)
    temperature_celsius: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    unresolved: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()


class Configuration(Part):
    """One workload on one data pattern. ``key`` is unique in a recording. ``batches`` are
    (launches, GPU seconds)."""

    type: Literal["configuration"] = "configuration"
    key: str
    workload: Described
    ptx_sha256: str | None = None
    pattern: Pattern
    warm_up_seconds: float = 0.0
    batches: tuple[tuple[int, float], ...] = ()
    windows: tuple[Window, ...] = ()
    samples: Samples = Samples()
    result: Result


class Failure(Part):
    """A configuration that was not measured. It is tried again on the next start unless
    ``permanent``."""

    type: Literal["failure"] = "failure"
    key: str
    kind: str
    detail: str
    permanent: bool


Line = Annotated[
    Session | SensorTraits | PtxModule | Configuration | Failure, Field(discriminator="type")
]
LINE: TypeAdapter[Line] = TypeAdapter(Line)
"""Reads and checks one."""


def schema() -> dict[str, Any]:
    """The JSON Schema of one line."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of a Wattcast recording",
        **LINE.json_schema(),
    }


# ------------------------------------------------------------------------------------------


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
