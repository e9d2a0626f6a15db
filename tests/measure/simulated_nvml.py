"""NVML of a simulated board, with its faults (``simulated.Faults``)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.measure.simulated import SimulatedGpu


class SimulatedNvmlError(Exception):
    """``pynvml.NVMLError``."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class SimulatedNvml:
    """The part of pynvml that ``nvml.py`` uses, over a simulated board and its faults."""

    NVMLError = SimulatedNvmlError
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_RESET_REQUIRED = 16
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
    NVML_FI_DEV_POWER_INSTANT = 186
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, gpu: SimulatedGpu) -> None:
        self.gpu = gpu
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if not name.startswith("nvml"):
            return found
        short = name.removeprefix("nvml")
        faults = self.gpu.faults
        self.calls.append(short)
        if short in faults.not_supported:
            return _raising(self.NVML_ERROR_NOT_SUPPORTED)
        if short in faults.no_permission:
            return _raising(self.NVML_ERROR_NO_PERMISSION)
        if self.gpu.lost and short.startswith("Device") and short != "DeviceGetCount":
            return _raising(self.NVML_ERROR_GPU_IS_LOST)
        return found

    def nvmlInit(self) -> None:
        """Start, or not."""
        if self.gpu.faults.start_error is not None:
            raise SimulatedNvmlError(self.gpu.faults.start_error)

    def nvmlShutdown(self) -> None:
        """Nothing to end."""

    def nvmlSystemGetDriverVersion(self) -> str:
        return "simulated"

    def nvmlDeviceGetCount(self) -> int:
        return self.gpu.faults.boards

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return f"Simulated GPU {handle}"

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=f"00000000:{handle + 1:02X}:00.0")

    def nvmlDeviceGetMigMode(self, _: int) -> tuple[int, int]:
        return (int(self.gpu.faults.mig),) * 2

    def nvmlDeviceGetFieldValues(self, _: int, fields: list[int]) -> list[Any]:
        offered = self.gpu.faults.instant_power and fields == [self.NVML_FI_DEV_POWER_INSTANT]
        value = SimpleNamespace(uiVal=round(self.gpu.shown_watts * 1e3))
        result = 0 if offered else self.NVML_ERROR_NOT_SUPPORTED
        return [SimpleNamespace(nvmlReturn=result, value=value)]

    def nvmlDeviceGetPowerUsage(self, _: int) -> int:
        return round(self.gpu.shown_watts * 1e3)

    def nvmlDeviceGetTotalEnergyConsumption(self, _: int) -> int:
        faults = self.gpu.faults
        counted = faults.counter_start_millijoules + round(self.gpu.shown_joules * 1e3)
        return counted % (1 << faults.counter_bits)

    def nvmlDeviceGetClockInfo(self, _: int, kind: int) -> int:
        clock = self.gpu.shown_core_mhz() if kind == self.NVML_CLOCK_SM else self.gpu.memory_mhz
        return round(clock)

    def nvmlDeviceGetMaxClockInfo(self, _: int, kind: int) -> int:
        profile = self.gpu.truth.profile
        return round(profile.max_core_mhz if kind == self.NVML_CLOCK_SM else profile.memory_mhz)

    def nvmlDeviceGetMemoryBusWidth(self, _: int) -> int:
        return self.gpu.truth.profile.memory.bus_bits.value

    def nvmlDeviceGetTemperature(self, _: int, __: int) -> int:
        return round(self.gpu.degrees)

    def nvmlDeviceGetCurrentClocksEventReasons(self, _: int) -> int:
        return 0 if self.gpu.busy else 1

    def nvmlDeviceGetPowerManagementDefaultLimit(self, _: int) -> int:
        return round(self.gpu.truth.profile.tdp_watts * 1e3)

    def nvmlDeviceGetPowerManagementLimitConstraints(self, _: int) -> list[int]:
        return [100_000, round(self.gpu.truth.profile.tdp_watts * 1e3)]

    def nvmlDeviceGetPowerManagementLimit(self, _: int) -> int:
        return round(self.gpu.limit_watts * 1e3)

    def nvmlDeviceSetPowerManagementLimit(self, _: int, milliwatts: int) -> None:
        self.gpu.limit_watts = milliwatts * 1e-3

    def nvmlDeviceSetGpuLockedClocks(self, _: int, low: int, __: int) -> None:
        self.gpu.core_mhz = float(low)

    def nvmlDeviceResetGpuLockedClocks(self, _: int) -> None:
        self.gpu.core_mhz = self.gpu.truth.profile.core_mhz

    def nvmlDeviceSetMemoryLockedClocks(self, _: int, low: int, __: int) -> None:
        self.gpu.memory_mhz = float(low)

    def nvmlDeviceResetMemoryLockedClocks(self, _: int) -> None:
        self.gpu.memory_mhz = self.gpu.truth.profile.memory_mhz


def _raising(value: int) -> Any:
    def call(*_: Any) -> Any:
        raise SimulatedNvmlError(value)

    return call
