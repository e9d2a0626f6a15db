"""Measures many workloads into one recording, and goes on where it was stopped."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from math import inf
from pathlib import Path

from wattcast.features.errors import DataError
from wattcast.training.measure.device import (
    Clock,
    ContextBrokenError,
    Device,
    GpuLostError,
    MeasureError,
    Runner,
    Sensor,
    WorkloadError,
)
from wattcast.training.measure.lines import Failure, Provenance, SensorTraits, Session
from wattcast.training.measure.observer import Settings
from wattcast.training.measure.protocol import TIMED_ONLY, behaviour, measure
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
        settings={**settings.told(), **chosen},
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


def require(planned: Sequence[Planned]) -> None:
    """Raises MeasureError where there is nothing to measure."""
    if not planned:
        raise MeasureError("nothing to measure: no workload of the catalogue fits this GPU")
