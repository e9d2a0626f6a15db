"""One campaign on one machine: what ``wattcast measure`` does, on a real GPU or a simulated one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from wattcast.training.measure import catalogue
from wattcast.training.measure.campaign import (
    Outcome,
    Planned,
    plan,
    planned_seconds,
    require,
    run_campaign,
    session,
)
from wattcast.training.measure.device import Clock, Device, Runner, SystemClock
from wattcast.training.measure.driver import CudaRunner
from wattcast.training.measure.lines import Provenance
from wattcast.training.measure.nvml import Nvml, NvmlSensor
from wattcast.training.measure.observer import Settings
from wattcast.training.measure.workload import Pattern, Workload


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
    require(planned)
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
