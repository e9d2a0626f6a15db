"""What measuring needs of a GPU: launches in batches, their GPU time, and a clock.

    Runner   one device: its facts, and workloads loaded into it   (driver.py, simulated.py)
    Sensor   its power, energy, clocks and temperature             (nvml.py)
    Clock    the time both are seen against

The host only enqueues and polls, in one thread, so that the same protocol runs against simulated
time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol

from wattcast.features.errors import GpuError, WattcastError
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.measure.workload import Board, Part, Pattern, Workload


class MeasureError(WattcastError):
    """Nothing can be measured, or not this; the message says why and what helps."""

    slug = "measure"


class GpuLostError(MeasureError):
    """The GPU stopped answering: what was recorded before it stays."""

    slug = "gpu-lost"


class WorkloadError(MeasureError):
    """This workload does not run on this GPU; others may."""

    slug = "workload"


class ContextBrokenError(MeasureError):
    """A kernel failed so that this process can use the GPU no more: a new one can."""

    slug = "context-broken"


class Clock(Protocol):
    """Seconds from an arbitrary start; never goes back."""

    def now(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own."""

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class Device(Part):
    """A GPU as its driver describes it. What a driver does not tell is ``None``.

    ``label`` tells boards apart without naming them: the start of a hash of the UUID.
    ``pci_bus`` is what CUDA and NVML both know a device by; it is not recorded.
    """

    name: str
    label: str
    board: Board
    driver_version: str | None = None
    cuda_version: str | None = None
    memory_bus_bits: int | None = None
    max_memory_mhz: float | None = None
    power_limit_watts: float | None = None


def profile_id(name: str) -> str:
    """Id of a device without a profile: its name in lower case with hyphens."""
    found = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return found.removeprefix("nvidia-") or "gpu"


def known_profile(device: Device, gpu: str | None = None) -> GpuProfile | None:
    """The profile of ``gpu``, or the one that the device's name finds.
    Raises GpuError for a ``gpu`` that is unknown."""
    return named_profile(device.name) if gpu is None else load_gpu(gpu)


def named_profile(*names: str | None) -> GpuProfile | None:
    """The profile of the first name that finds one; ``None`` for other spellings, names of several
    boards, and unknown ones."""
    for name in names:
        with suppress(GpuError):
            if name:
                return load_gpu(name)
    return None


class Batch(NamedTuple):
    """Launches that ran one after the other, and GPU seconds from the first start to the end."""

    launches: int
    seconds: float


class Loaded(Protocol):
    """A workload in device memory. Close it to give the memory back."""

    def enqueue(self, launches: int) -> None:
        """Add a batch behind those under way; does not wait for it."""

    def pending(self) -> int:
        """Batches under way. Raises GpuLostError, ContextBrokenError, WorkloadError."""

    def finished(self) -> list[Batch]:
        """Batches that ended since the last call, in order."""

    def close(self) -> None:
        """Wait for what is under way and free the memory."""


class Runner(Protocol):
    """One device with a context of ours."""

    def device(self) -> Device: ...
    def pci_bus(self) -> str: ...
    def versions(self) -> Mapping[str, str]: ...
    def load(self, workload: Workload, pattern: Pattern) -> Loaded:
        """Compile the PTX, allocate and fill. Raises WorkloadError, GpuLostError."""

    def close(self) -> None: ...


class Reading(NamedTuple):
    """One look at the sensors; ``None`` where the driver offers none.

    ``energy_joules`` counts from an arbitrary start and never falls (wraps are undone).
    ``throttle_reasons`` is NVML's bit mask.
    """

    at_seconds: float
    power_watts: float | None = None
    energy_joules: float | None = None
    core_mhz: float | None = None
    memory_mhz: float | None = None
    temperature_celsius: float | None = None
    throttle_reasons: int | None = None


class Sensor(Protocol):
    """The sensors of one device."""

    def read(self) -> Reading:
        """Look. Raises GpuLostError."""

    def events(self) -> tuple[str, ...]:
        """What befell the sensors since the last call, a sentence each."""
