"""Power, energy, clocks, temperature and throttle reasons of one board, through NVML.

What a driver or board does not offer is found out once, when the sensor is opened, noted, and
left out of every reading. Bindings: nvidia-ml-py (extra ``measure``), imported when needed; tests
pass a module of their own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple

from wattcast.measure.device import Clock, GpuLostError, MeasureError, Reading
from wattcast.measure.recording import SensorTraits

INSTALL = "pip install 'wattcast[measure]'"

COUNTER_BITS = (32, 64)
"""Widths at which the energy counter may wrap: NVML tells 64-bit millijoules; values that passed
through 32 bits wrap after 4.3 MJ, 1.2 hours at 1 kW."""

MOST_WATTS = 3000.0
"""More than any board draws: a rise of the counter beyond it is no energy."""

REASONS = {
    0x1: "gpu_idle",
    0x2: "application_clocks",
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "software_thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
    0x100: "display_clocks",
}
"""Bits of nvmlClocksEventReasons (nvml.h)."""

HARMLESS = frozenset({"gpu_idle", "application_clocks", "sync_boost", "display_clocks"})
"""Reasons that do not mean that the board was held back by heat or power."""


def reason_names(mask: int) -> tuple[str, ...]:
    """Names of the bits that are set, unknown ones as numbers."""
    known = tuple(name for bit, name in REASONS.items() if mask & bit)
    rest = mask & ~sum(REASONS)
    return (*known, f"unknown_{rest:#x}") if rest else known


class NvmlDevice(NamedTuple):
    """A board as NVML lists it."""

    number: int
    name: str
    pci_bus: str


class Nvml:
    """The library, initialised. Raises MeasureError where it is not there or does not start."""

    def __init__(self, module: Any = None) -> None:
        if module is None:
            try:
                module = importlib.import_module("pynvml")
            except ImportError as error:
                raise MeasureError(f"NVML's bindings are not installed: {INSTALL}") from error
        self.module = module
        try:
            module.nvmlInit()
        except module.NVMLError as error:
            raise MeasureError(_start_problem(module, error)) from error

    def close(self) -> None:
        """Shut the library down."""
        try:
            self.module.nvmlShutdown()
        except self.module.NVMLError:
            return  # a lost GPU: there is nothing left to shut down

    def devices(self) -> list[NvmlDevice]:
        """All boards. Raises MeasureError."""
        found = []
        try:
            for index in range(self.module.nvmlDeviceGetCount()):
                handle = self.module.nvmlDeviceGetHandleByIndex(index)
                bus = _text(self.module.nvmlDeviceGetPciInfo(handle).busId)
                found.append(NvmlDevice(index, _text(self.module.nvmlDeviceGetName(handle)), bus))
        except self.module.NVMLError as error:
            raise MeasureError(f"NVML cannot list the GPUs: {error}") from error
        return found

    def sensor(self, clock: Clock, pci_bus: str | None = None) -> NvmlSensor:
        """The sensors of a board: the only one, or that at ``pci_bus``.
        Raises MeasureError where there is none, or several and none is named."""
        devices = self.devices()
        if not devices:
            raise MeasureError("NVML sees no GPU")
        if pci_bus is None:
            if len(devices) > 1:
                listed = "; ".join(f"{d.number}: {d.name} at {d.pci_bus}" for d in devices)
                raise MeasureError(f"several GPUs, choose one with --device: {listed}")
            pci_bus = devices[0].pci_bus
        for device in devices:
            if _same_bus(device.pci_bus, pci_bus):
                return NvmlSensor(self.module, device.number, clock)
        known = ", ".join(device.pci_bus for device in devices)
        raise MeasureError(f"NVML sees no GPU at {pci_bus}; it sees {known}")


class NvmlSensor:
    """The sensors of one board. ``traits`` tells what there is, and why not what is not."""

    def __init__(self, module: Any, index: int, clock: Clock) -> None:
        self._nvml, self._clock = module, clock
        self._handle = module.nvmlDeviceGetHandleByIndex(index)
        notes: list[str] = []
        self._power = self._power_source(notes)
        reads: dict[str, Callable[[], float]] = {
            "energy counter": lambda: self._told_by("TotalEnergyConsumption"),
            "core clock": lambda: self._clock_of("SM"),
            "memory clock": lambda: self._clock_of("MEM"),
            "temperature": lambda: self._told_by("Temperature", module.NVML_TEMPERATURE_GPU),
            "throttle reasons": self._read_reasons,
        }
        self._energy, *self._others = [self._offered(*each, notes) for each in reads.items()]
        if self._power is None:
            # Without a power sensor the counter would be all there is; boards have both or none.
            notes.append("no power is recorded: times alone")
            self._energy = None
        self.traits = SensorTraits(
            power=self._power, energy_counter=self._energy is not None, notes=tuple(notes)
        )
        self._last_energy: tuple[float, int] | None = None
        self._energy_offset = 0
        self._told: list[str] = []

    # --- readings -------------------------------------------------------------------------

    def read(self) -> Reading:
        """Look at everything there is. Raises GpuLostError where the board does not answer."""
        now = self._clock.now()
        reads = {"instant": self._read_instant, "usage": self._read_usage, None: None}
        power = self._value(reads[self._power])
        energy = self._counted(now, self._value(self._energy))
        *others, reasons = map(self._value, self._others)
        whole = None if reasons is None else int(reasons)
        return Reading._make((now, power, energy, *others, whole))

    def events(self) -> tuple[str, ...]:
        """Wraps and restarts of the energy counter since the last call."""
        told, self._told = tuple(self._told), []
        return told

    def _counted(self, now: float, millijoules: float | None) -> float | None:
        """Joules since the first look, without wraps; ``None`` for good after a jump that no wrap
        explains."""
        if millijoules is None:
            return None
        raw = int(millijoules)
        if self._last_energy is None:
            self._energy_offset = -raw  # a float of joules resolves no millijoules of 2^64
        else:
            before, last = self._last_energy
            if raw < last:
                most = MOST_WATTS * (now - before + 1.0) * 1e3
                widths = [1 << bits for bits in COUNTER_BITS if last < 1 << bits]
                wrapped = [width for width in widths if raw - last + width <= most]
                if not wrapped:
                    # The driver was loaded anew, or the counter is not one.
                    self._energy = None
                    self._told.append(
                        f"the energy counter fell from {last * 1e-3:.0f} to {raw * 1e-3:.0f} J, "
                        "which no wrap explains: power is that of samples from here on"
                    )
                    return None
                self._energy_offset += wrapped[0]
                self._told.append(
                    f"the energy counter wrapped after {last * 1e-3:.0f} J: energies go on counting"
                )
        self._last_energy = (now, raw)
        return (raw + self._energy_offset) * 1e-3

    def _value(self, read: Callable[[], float] | None) -> float | None:
        """A reading that may fail once: what is offered may still be missing for a moment."""
        if read is None:
            return None
        try:
            return read()
        except self._nvml.NVMLError as error:
            self._lost(error)
            return None

    def _lost(self, error: Any) -> None:
        lost = (self._nvml.NVML_ERROR_GPU_IS_LOST, self._nvml.NVML_ERROR_RESET_REQUIRED)
        if error.value in lost:
            raise GpuLostError(
                "the GPU is lost (NVML: it fell off the bus or needs a reset); what was recorded "
                "is kept: start again to go on"
            ) from error

    # --- what is offered ------------------------------------------------------------------

    def _offered(
        self, name: str, read: Callable[[], float], notes: list[str]
    ) -> Callable[[], float] | None:
        try:
            read()
        except self._nvml.NVMLError as error:
            self._lost(error)
            notes.append(f"{name}: {_why(self._nvml, error)}")
            return None
        except AttributeError:
            notes.append(f"{name}: unknown to these bindings")
            return None
        return read

    def _power_source(self, notes: list[str]) -> Literal["instant", "usage"] | None:
        if self._mig():
            notes.append(
                "MIG is enabled: the power sensor reads the whole board, of which this is a part"
            )
            return None
        if self._offered("instant power", self._read_instant, notes) is not None:
            return "instant"
        if self._offered("power", self._read_usage, notes) is not None:
            return "usage"
        return None

    def _mig(self) -> bool:
        try:
            current, _ = self._nvml.nvmlDeviceGetMigMode(self._handle)
        except (self._nvml.NVMLError, AttributeError):
            return False  # boards and drivers before MIG
        return bool(current)

    def _read_instant(self) -> float:
        field = self._nvml.NVML_FI_DEV_POWER_INSTANT
        (found,) = self._nvml.nvmlDeviceGetFieldValues(self._handle, [field])
        if found.nvmlReturn != 0:
            raise self._nvml.NVMLError(found.nvmlReturn)
        return float(found.value.uiVal) * 1e-3

    def _told_by(self, what: str, *which: Any) -> float:
        return float(getattr(self._nvml, f"nvmlDeviceGet{what}")(self._handle, *which))

    def _read_usage(self) -> float:
        return self._told_by("PowerUsage") * 1e-3

    def _clock_of(self, which: str) -> float:
        return self._told_by("ClockInfo", getattr(self._nvml, f"NVML_CLOCK_{which}"))

    def _read_reasons(self) -> float:
        # Its new name first; drivers before 2023 know the old one alone.
        for name in ("ClocksEventReasons", "ClocksThrottleReasons"):
            read = getattr(self._nvml, f"nvmlDeviceGetCurrent{name}", None)
            if read is not None:
                try:
                    return float(read(self._handle))
                except self._nvml.NVMLError as error:
                    if error.value != self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                        raise
        raise AttributeError("throttle reasons")

    # --- facts and settings ---------------------------------------------------------------

    def facts(self) -> dict[str, float]:
        """Limits that the driver tells: ``power_limit_watts``, the ends of what it may be set to
        (``min_limit_watts``, ``max_limit_watts``), ``max_core_mhz``, ``max_memory_mhz``,
        ``memory_bus_bits``; absent where it does not."""
        nvml, handle = self._nvml, self._handle
        found = {}
        reads: dict[str, Callable[[], float]] = {
            "power_limit_watts": lambda: self._told_by("PowerManagementDefaultLimit") / 1e3,
            "min_limit_watts": lambda: limits(handle)[0] / 1e3,
            "max_limit_watts": lambda: limits(handle)[1] / 1e3,
            "max_core_mhz": lambda: self._told_by("MaxClockInfo", nvml.NVML_CLOCK_SM),
            "max_memory_mhz": lambda: self._told_by("MaxClockInfo", nvml.NVML_CLOCK_MEM),
            "memory_bus_bits": lambda: self._told_by("MemoryBusWidth"),
        }

        def limits(handle: Any) -> Any:
            return nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)

        for name, read in reads.items():
            try:
                found[name] = float(read())
            except (nvml.NVMLError, AttributeError):
                continue  # a fact that a profile or a flag has to bring
        return found

    def driver_version(self) -> str | None:
        """The kernel driver's version."""
        try:
            return _text(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError:
            return None

    @contextmanager
    def locked(
        self,
        core_mhz: float | None = None,
        memory_mhz: float | None = None,
        power_limit_watts: float | None = None,
    ) -> Iterator[None]:
        """Hold clocks or power limit while inside; afterwards they are as before.

        Nothing is touched for what is ``None``. Raises MeasureError where the driver refuses
        (changing them needs root on most systems); what was changed by then is undone.
        """
        nvml, handle = self._nvml, self._handle
        undo: list[Callable[[], Any]] = []
        problems: list[str] = []
        try:
            for what, kind, mhz in (
                ("the core clock", "Gpu", core_mhz),
                ("the memory clock", "Memory", memory_mhz),
            ):
                if mhz is not None:
                    self._call(what, f"nvmlDeviceSet{kind}LockedClocks", int(mhz), int(mhz))
                    undo.append(
                        partial(getattr(nvml, f"nvmlDeviceReset{kind}LockedClocks"), handle)
                    )
            if power_limit_watts is not None:
                what, change = "the power limit", "nvmlDeviceSetPowerManagementLimit"
                before = self._call(what, "nvmlDeviceGetPowerManagementLimit")
                self._call(what, change, int(power_limit_watts * 1e3))
                undo.append(partial(getattr(nvml, change), handle, before))
            yield
        finally:
            for step in reversed(undo):
                try:
                    step()
                except nvml.NVMLError as error:
                    problems.append(str(error))
        if problems:
            raise MeasureError(f"clocks or limit could not be set back: {'; '.join(problems)}")

    def _call(self, what: str, name: str, *arguments: int) -> Any:
        try:
            return getattr(self._nvml, name)(self._handle, *arguments)
        except self._nvml.NVMLError as error:
            raise MeasureError(f"{what} cannot be held: {_why(self._nvml, error)}") from error
        except AttributeError as error:
            raise MeasureError(f"{what} cannot be held: unknown to these bindings") from error


def _start_problem(nvml: Any, error: Any) -> str:
    if error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return "no NVIDIA driver: its library NVML (libnvidia-ml) is not installed"
    if error.value == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return "the NVIDIA driver is installed, but not loaded"
    if error.value == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return "NVML and the loaded driver are of different versions: reboot, or reload the driver"
    return f"NVML does not start: {_why(nvml, error)}"


def _why(nvml: Any, error: Any) -> str:
    if error.value == nvml.NVML_ERROR_NO_PERMISSION:
        return "no permission (NVML asks for root)"
    if error.value == nvml.NVML_ERROR_NOT_SUPPORTED:
        return "not offered by this board or driver"
    if error.value == nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
        return "not offered by this driver"
    return str(error)


def _same_bus(left: str, right: str) -> bool:
    """CUDA writes 0000:3B:00.0, NVML 00000000:3B:00.0."""

    def parts(bus: str) -> tuple[int, ...]:
        return tuple(int(part, 16) for part in bus.replace(".", ":").split(":"))

    return parts(left) == parts(right)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
