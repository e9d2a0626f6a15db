"""One campaign on one machine: what ``wattcast measure`` does, on a real GPU or a simulated one.

It measures many workloads into one recording, and goes on where it was stopped.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from math import inf
from pathlib import Path

from wattcast.features.errors import DataError
from wattcast.training.measure import catalogue
from wattcast.training.measure.device import (
    Clock,
    ContextBrokenError,
    Device,
    GpuLostError,
    MeasureError,
    Runner,
    Sensor,
    SystemClock,
    WorkloadError,
)
from wattcast.training.measure.driver import CudaRunner
from wattcast.training.measure.lines import Failure, Provenance, SensorTraits, Session
from wattcast.training.measure.nvml import Nvml, NvmlSensor
from wattcast.training.measure.protocol import TIMED_ONLY, Settings, behaviour, measure
from wattcast.training.measure.recording import Recorder, doubts_of
from wattcast.training.measure.workload import Pattern, Workload


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
        timed = one.probe is not None and one.probe.kind in TIMED_ONLY
        chosen = patterns if one.varied and not timed else patterns[:1]
        planned += [Planned(f"{one.id}/{pattern}{suffix}", one, pattern) for pattern in chosen]
    return planned, notes


def planned_seconds(planned: Sequence[Planned], settings: Settings) -> float:
    """How long a plan takes at least: a sensor without lag, and power that soon stands still."""
    watched = (
        2 * settings.idle_seconds
        + 2 * max(settings.warm_up_seconds, settings.window_seconds / 2)
        + settings.least_windows * settings.window_seconds
    )
    timed = 2 * settings.timing_seconds

    def each(one: Planned) -> float:
        probe = one.workload.probe
        return timed if probe is not None and probe.kind in TIMED_ONLY else watched

    return sum(map(each, planned)) + 18.0  # finding out how the sensor behaves


def session(
    runner: Runner,
    device: Device,
    provenance: Provenance,
    settings: Settings,
    notes: Sequence[str] = (),
    held: dict[str, float | None] | None = None,
) -> Session:
    """The head of a recording made now."""
    software = {
        "wattcast": _version("wattcast"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        **runner.versions(),
    }
    chosen = {f"held_{name}": value for name, value in (held or {}).items() if value is not None}
    return Session(
        provenance=provenance,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        device=device,
        software=software,
        settings={**asdict(settings), **chosen},
        notes=tuple(notes),
    )


def run_campaign(
    path: Path,
    head: Session,
    planned: Sequence[Planned],
    runner: Runner,
    sensor: Sensor,
    offered: SensorTraits,
    clock: Clock,
    settings: Settings,
    progress: Callable[[str], None] = lambda line: None,
    most_seconds: float = inf,
) -> Outcome:
    """Measure what the recording at ``path`` lacks; begin nothing after ``most_seconds``.

    Raises GpuLostError where the device stops answering and ContextBrokenError where a kernel
    fails for all that come after it (the recording keeps all before, and the failure; a broken
    kernel is not tried again), DataError for a recording of another device. What cannot have been
    measured is recorded as a failure and tried again on the next start.
    """
    end = clock.now() + most_seconds
    with Recorder(path, head) as recorder:
        settled = recorder.settled
        left = [one for one in planned if one.key not in settled]
        known = len(planned) - len(left)
        if known:
            progress(f"{known} of {len(planned)} configurations are recorded already")
        if not left:
            return Outcome(0, known, 0, 0)
        traits = _traits(recorder, runner, sensor, offered, clock, planned, settings, progress)
        failed = unresolved = 0
        for number, one in enumerate(left, start=1):
            if clock.now() >= end:
                over = len(left) - number + 1
                progress(f"the time is over: {over} configurations left, run again to go on")
                return Outcome(number - 1 - failed, known, failed, unresolved, over)
            told = f"{number}/{len(left)} {one.key}"
            try:
                found = measure(
                    runner, sensor, traits, clock, one.workload, one.pattern, one.key, settings
                )
                doubts = doubts_of(found, head.device, one.key)
            except (GpuLostError, ContextBrokenError) as error:
                broken = isinstance(error, ContextBrokenError)
                recorder.write(
                    Failure(key=one.key, kind=error.slug, detail=error.detail, permanent=broken)
                )
                raise
            except (WorkloadError, DataError) as error:
                failed += 1
                permanent = isinstance(error, WorkloadError)  # a sensor's whim is not
                recorder.write(
                    Failure(key=one.key, kind=error.slug, detail=error.detail, permanent=permanent)
                )
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


def _traits(
    recorder: Recorder,
    runner: Runner,
    sensor: Sensor,
    offered: SensorTraits,
    clock: Clock,
    planned: Sequence[Planned],
    settings: Settings,
    progress: Callable[[str], None],
) -> SensorTraits:
    """Behaviour of the sensor, found out anew in every session: a driver may have changed."""
    failed = {one.key for one in recorder.known.failures} if recorder.known else set()
    left = [one for one in planned if one.key not in failed]
    energetic = [one for one in left if _kind(one) == "energy"]
    heavy = [one for one in left if _kind(one) is None]
    found = offered
    for one in (energetic or heavy or left)[:3]:
        try:
            found = behaviour(runner, sensor, offered, clock, one.workload, settings)
        except WorkloadError:
            continue  # another one will do
        except ContextBrokenError as error:
            recorder.write(
                Failure(key=one.key, kind=error.slug, detail=error.detail, permanent=True)
            )
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


def _kind(one: Planned) -> str | None:
    """The kind of a microbenchmark's probe; ``None`` for an application."""
    return None if one.workload.probe is None else one.workload.probe.kind


def _time(seconds: float | None) -> str:
    return "no time" if seconds is None else f"{seconds * 1e6:.4g} us"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


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
    watts by the names of ``NvmlSensor.held``, ``None`` for what stays as it is. Nothing is begun
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
    notes: tuple[str, ...]
    request: Request
    settings: Settings

    @property
    def seconds(self) -> float:
        """Planned duration of all configurations, at least."""
        return planned_seconds(self.planned, self.settings)

    def run(self, path: Path, progress: Callable[[str], None] = lambda line: None) -> Outcome:
        """Measure what the recording at ``path`` lacks. Raises as ``run_campaign`` does, and
        MeasureError where clocks or the limit cannot be held."""
        for note in self.notes:
            progress(note)
        progress(
            f"{self.device.name}: {len(self.planned)} configurations, "
            f"at least {self.seconds / 60:.0f} minutes"
        )
        machine, sensor, held = self.machine, self.sensor, dict(self.request.held)
        with sensor.held(**held):
            head = session(
                machine.runner, self.device, machine.provenance, self.settings, self.notes, held
            )
            return run_campaign(
                path, head, self.planned, machine.runner, sensor, sensor.traits, machine.clock,
                self.settings, progress, self.request.most_seconds,
            )  # fmt: skip


def prepare(machine: Machine, request: Request, settings: Settings | None = None) -> Campaign:
    """Look at the machine and plan. Raises MeasureError where nothing can be measured."""
    sensor = machine.nvml.sensor(machine.clock, machine.runner.pci_bus())
    device = _merged(machine.runner.device(), sensor.facts(), sensor.driver_version())
    label = "-".join(f"{value:g}" for value in request.held.values() if value is not None)
    planned, notes = plan(
        _workloads(device, request),
        device.board.compute_capability,
        device.board.memory_bytes,
        request.patterns,
        label,
    )
    if not planned:
        raise MeasureError("nothing to measure: no workload of the catalogue fits this GPU")
    return Campaign(
        machine, sensor, device, tuple(planned), tuple(notes), request, settings or Settings()
    )


def _workloads(device: Device, request: Request) -> list[Workload]:
    found = list(catalogue.micro(device.board))
    if request.applications:
        found += catalogue.applications(device.board)
    return [one for one in found if one.id.startswith(request.only or ("",))]


def _merged(device: Device, facts: Mapping[str, float], driver: str | None) -> Device:
    """What CUDA and NVML tell together; NVML's clocks are the ones that are read later."""
    told = {name: facts[name] for name in ("power_limit_watts", "max_memory_mhz") if name in facts}
    bus = {"memory_bus_bits": int(facts["memory_bus_bits"])} if "memory_bus_bits" in facts else {}
    return device.model_copy(update={"driver_version": driver, **told, **bus})
