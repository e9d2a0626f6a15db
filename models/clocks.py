"""Core and memory clock of a GPU, as a pair: what time and power are predicted at."""

from __future__ import annotations

from typing import NamedTuple

from wattcast.features.errors import ClockError
from wattcast.features.gpus import GpuProfile


class ClockPair(NamedTuple):
    """Clocks in MHz; ``memory_mhz`` as NVML reports it (docs/gpus.md)."""

    core_mhz: float
    memory_mhz: float

    @property
    def core_hz(self) -> float:
        """Core cycles per second."""
        return self.core_mhz * 1e6


def default_clocks(gpu: GpuProfile) -> ClockPair:
    """What a prediction uses that names no clocks."""
    return ClockPair(gpu.core_mhz, gpu.memory_mhz)


def bandwidth_bytes_per_second(gpu: GpuProfile, memory_mhz: float) -> float:
    """Peak device memory bandwidth at a memory clock: the profile's, in proportion."""
    return gpu.bandwidth_bytes_per_second * memory_mhz / gpu.memory_mhz


TYPICAL_STREAMING_SHARE = 0.86
"""Share of peak bandwidth a stream reaches where nobody published it for a GPU: the median of
what the built-in profiles hold, 0.67 to 0.94 (0.80 over the boards measured themselves, most
of them old; docs/gpus.md)."""


def streaming_bytes_per_second(gpu: GpuProfile, memory_mhz: float) -> float:
    """Device memory bandwidth that streaming kernels reach at a memory clock."""
    share = gpu.streaming_share or TYPICAL_STREAMING_SHARE
    return share * bandwidth_bytes_per_second(gpu, memory_mhz)


def checked(clocks: ClockPair) -> ClockPair:
    """The pair itself. Raises ClockError naming the clock that is not above 0."""
    for name, value in zip(ClockPair._fields, clocks, strict=True):
        if not value > 0:
            raise ClockError(f"{name} is {value}; it must be above 0", field=name)
    return clocks
