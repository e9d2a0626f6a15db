"""One campaign on one machine: what ``wattcast measure`` does, on a real GPU or a simulated one.

It measures many workloads into one recording, and goes on where it was stopped.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from math import inf
from pathlib import Path

from wattcast.features.errors import DataError, WattcastError
from wattcast.measure import catalogue
from wattcast.measure.device import (
    Clock,
    ContextBrokenError,
    Device,
    GpuLostError,
    MeasureError,
    Runner,
    SystemClock,
    WorkloadError,
)
from wattcast.measure.driver import CudaRunner
from wattcast.measure.nvml import Nvml, NvmlSensor
from wattcast.measure.protocol import Settings, behaviour, measure
from wattcast.measure.recording import (
    Failure,
    Provenance,
    Recorder,
    SensorTraits,
    Session,
    doubts_of,
)
from wattcast.measure.workload import Pattern, Workload


@dataclass(frozen=True, slots=True)
class Planned:
    """One configuration to come."""

    key: str
    workload: Workload
    pattern: Pattern


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a campaign did: configurations measured now, known before, failed, unresolved, and
    left for the next start because the time was over."""

    measured: int
    known: int
    failed: int
    unresolved: int
    left: int = 0


def plan(
    workloads: Iterable[Workload],
    capability: tuple[int, int],
    memory_bytes: int,
    patterns: Sequence[Pattern] = ("uniform",),
    label: str = "",
) -> tuple[list[Planned], list[str]]:
    """Configurations in order, and notes on workloads that this device cannot run.

    Workloads whose data make no difference, or that are there for their time, have one pattern.
    ``label`` names clocks that are held: the same workload may be measured at several.
    """
    planned: list[Planned] = []
    notes = []
    suffix = f"@{label}" if label else ""
    for one in workloads:
        if one.minimum_capability > capability:
            needed = ".".join(map(str, one.minimum_capability))
            notes.append(f"{one.id}: skipped, needs compute capability {needed}")
            continue
        if one.buffer_bytes > 0.8 * memory_bytes:
            notes.append(f"{one.id}: skipped, needs {one.buffer_bytes / 2**30:.1f} GiB")
            continue
        chosen = patterns if one.varied and not one.timed_only else patterns[:1]
        planned += [Planned(f"{one.id}/{pattern}{suffix}", one, pattern) for pattern in chosen]
    return planned, notes


def planned_seconds(planned: Sequence[Planned], settings: Settings) -> float:
    """How long a plan takes at least: a sensor without lag, and power that soon stands still."""
    watched = (
        2 * settings.idle_seconds
        + 2 * max(settings.warm_up_seconds, settings.window_seconds / 2)
        + settings.least_windows * settings.window_seconds
    )
    each = [2 * settings.timing_seconds if one.workload.timed_only else watched for one in planned]
    return sum(each) + 18.0  # finding out how the sensor behaves


@dataclass(frozen=True)
class Machine:
    """A GPU that runs kernels, the NVML that watches it, and the clock of both."""

    runner: Runner
    nvml: Nvml
    clock: Clock
    provenance: Provenance

    @classmethod
    def here(cls, index: int | None = None) -> Machine:
        """A GPU of this machine. Raises MeasureError where there is none, or several and no
        ``index``."""
        return cls(CudaRunner(index), Nvml(), SystemClock(), "measured")

    def close(self) -> None:
        """Give the context and the library back."""
        self.runner.close()
        self.nvml.close()


@dataclass(frozen=True)
class Request:
    """What to measure. ``only`` are starts of ids; ``held`` clocks in MHz and the power limit in
    watts by the names of ``NvmlSensor.locked``, ``None`` for what stays as it is. Nothing is begun
    after ``most_seconds``."""

    applications: bool = False
    patterns: tuple[Pattern, ...] = ("uniform",)
    only: tuple[str, ...] = ()
    held: Mapping[str, float | None] = field(default_factory=dict)
    most_seconds: float = inf


@dataclass(frozen=True)
class Campaign:
    """A request on a machine, ready to run: its configurations and how long they may take."""

    machine: Machine
    sensor: NvmlSensor
    device: Device
    planned: tuple[Planned, ...]
    notes: tuple[str, ...] = ()
    request: Request = field(default_factory=Request)
    settings: Settings = field(default_factory=Settings)

    @property
    def seconds(self) -> float:
        """Planned duration of all configurations, at least."""
        return planned_seconds(self.planned, self.settings)

    def run(self, path: Path, progress: Callable[[str], None] = lambda line: None) -> Outcome:
        """Measure what the recording at ``path`` lacks; begin nothing after the request's time.

        Raises GpuLostError where the device stops answering and ContextBrokenError where a kernel
        fails for all that come after it (the recording keeps all before, and the failure; a broken
        kernel is not tried again), DataError for a recording of another device, MeasureError where
        clocks or the limit cannot be held. What cannot have been measured is recorded as a failure
        and tried again on the next start.
        """
        for note in self.notes:
            progress(note)
        progress(
            f"{self.device.name}: {len(self.planned)} configurations, "
            f"at least {self.seconds / 60:.0f} minutes"
        )
        with (
            self.sensor.locked(**self.request.held),
            closing(Recorder(path, self._session())) as recorder,
        ):
            return self._measured(recorder, progress)

    def _measured(self, recorder: Recorder, progress: Callable[[str], None]) -> Outcome:
        machine, sensor = self.machine, self.sensor
        end = machine.clock.now() + self.request.most_seconds
        left = [one for one in self.planned if one.key not in recorder.settled]
        known = len(self.planned) - len(left)
        if known:
            progress(f"{known} of {len(self.planned)} configurations are recorded already")
        if not left:
            return Outcome(0, known, 0, 0)
        traits = self._traits(recorder, progress)
        failed = unresolved = 0
        for number, one in enumerate(left, start=1):
            if machine.clock.now() >= end:
                over = len(left) - number + 1
                progress(f"the time is over: {over} configurations left, run again to go on")
                return Outcome(number - 1 - failed, known, failed, unresolved, over)
            told = f"{number}/{len(left)} {one.key}"
            try:
                found = measure(
                    machine.runner, sensor, traits, machine.clock, one.workload, one.pattern,
                    one.key, self.settings,
                )  # fmt: skip
                doubts = doubts_of(found, self.device, one.key)
            except (GpuLostError, ContextBrokenError) as error:
                _failed(recorder, one, error, permanent=isinstance(error, ContextBrokenError))
                raise
            except (WorkloadError, DataError) as error:
                failed += 1
                # A sensor's whim may be over the next time.
                _failed(recorder, one, error, permanent=isinstance(error, WorkloadError))
                progress(f"{told}: {error.detail}")
                continue
            recorder.write_configuration(found, one.workload.ptx)
            result = found.result
            unresolved += bool(result.unresolved)
            watts = "" if result.power_watts is None else f", {result.power_watts:.1f} W"
            why = f" (not resolved: {', '.join(result.unresolved)})" if result.unresolved else ""
            progress(f"{told}: {_time(result.time_seconds)}{watts}{why}")
            for note in (*(f"{one.key}: {note}" for note in result.notes), *doubts):
                progress(note)
        return Outcome(len(left) - failed, known, failed, unresolved)

    def _session(self) -> Session:
        """The head of a recording made now."""
        software = {
            "wattcast": _version("wattcast"),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()}",
            **self.machine.runner.versions(),
        }
        held = {f"held_{name}": mhz for name, mhz in self.request.held.items() if mhz is not None}
        return Session(
            provenance=self.machine.provenance,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            device=self.device,
            software=software,
            settings={**asdict(self.settings), **held},
            notes=self.notes,
        )

    def _traits(self, recorder: Recorder, progress: Callable[[str], None]) -> SensorTraits:
        """Behaviour of the sensor, found out anew in every session: a driver may have changed."""
        machine, found = self.machine, self.sensor.traits
        failed = {one.key for one in recorder.known.failures} if recorder.known else set()
        left = [one for one in self.planned if one.key not in failed]
        energetic = [one for one in left if one.workload.kind == "energy"]
        heavy = [one for one in left if one.workload.kind is None]
        for one in (energetic or heavy or left)[:3]:
            try:
                found = behaviour(
                    machine.runner, self.sensor, found, machine.clock, one.workload, self.settings
                )
            except WorkloadError:
                continue  # another one will do
            except ContextBrokenError as error:
                _failed(recorder, one, error, permanent=True)
                raise
            break
        recorder.write(found)
        for note in found.notes:
            progress(note)
        if found.update_period_seconds is not None:
            progress(
                f"power sensor: new value every {found.update_period_seconds * 1e3:.0f} ms, lag "
                + ("unknown" if found.lag_seconds is None else f"{found.lag_seconds * 1e3:.0f} ms")
            )
        return found


def _failed(recorder: Recorder, one: Planned, error: WattcastError, *, permanent: bool) -> None:
    recorder.write(Failure(key=one.key, kind=error.slug, detail=error.detail, permanent=permanent))


def _time(seconds: float | None) -> str:
    return "no time" if seconds is None else f"{seconds * 1e6:.4g} us"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def prepare(machine: Machine, request: Request, settings: Settings | None = None) -> Campaign:
    """Look at the machine and plan. Raises MeasureError where nothing can be measured."""
    sensor = machine.nvml.sensor(machine.clock, machine.runner.pci_bus())
    device = _merged(machine.runner.device(), sensor.facts(), sensor.driver_version())
    label = "-".join(f"{value:g}" for value in request.held.values() if value is not None)
    board = device.board
    workloads = list(catalogue.micro(board))
    if request.applications:
        workloads += catalogue.applications(board)
    planned, notes = plan(
        [one for one in workloads if one.id.startswith(request.only or ("",))],
        board.compute_capability,
        board.memory_bytes,
        request.patterns,
        label,
    )
    if not planned:
        raise MeasureError("nothing to measure: no workload of the catalogue fits this GPU")
    return Campaign(
        machine, sensor, device, tuple(planned), tuple(notes), request, settings or Settings()
    )


def _merged(device: Device, facts: Mapping[str, float], driver: str | None) -> Device:
    """What CUDA and NVML tell together; NVML's clocks are the ones that are read later."""
    told = {name: facts[name] for name in ("power_limit_watts", "max_memory_mhz") if name in facts}
    bus = {"memory_bus_bits": int(facts["memory_bus_bits"])} if "memory_bus_bits" in facts else {}
    return device.model_copy(update={"driver_version": driver, **told, **bus})
