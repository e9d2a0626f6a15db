"""What a recording's lines hold.

    session        who measured what on which device, with which software; one per start
    sensor         what the sensors offer and how they behave, as found out
    module         a PTX module, once, by its hash
    configuration  one workload on one data pattern: raw samples, windows, result
    failure        a configuration that could not be measured, and why

``recording.schema.json`` is the JSON Schema of a line (``python -m studies reference`` writes it);
docs/measuring.md tells units and meaning of every field.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from wattcast.training.measure.device import Device, Reading
from wattcast.training.measure.workload import Described, Part, Pattern

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
