"""How busy a kernel kept each part of a GPU, by hardware counters: what scaling starts from.

A use is a share of what the part could do in the kernel's time, 0 to 1 (a counter's definition
may let it pass 1 a little). Which core units there are depends on the profiler; device memory is
always apart, since it has a clock of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from wattcast.features.errors import DataError
from wattcast.features.gpus import GpuProfile
from wattcast.models.clocks import ClockPair, bandwidth_bytes_per_second, checked

Floats = NDArray[np.float64]

CounterKind = Literal["nvprof", "utilisation", "dcgm"]
"""Profiler a use comes from: nvprof's counts, Guerreiro et al.'s utilisations, DCGM's fields."""

UNITS: Mapping[CounterKind, tuple[str, ...]] = MappingProxyType(
    {
        "nvprof": ("issue", "sp", "int", "dp", "sfu", "shared", "l2", "texture"),
        "utilisation": ("sp", "int", "dp", "sfu", "cf", "l2", "shared"),
        "dcgm": ("sp", "dp", "sm_active"),
    }
)
"""Units of the core's clock domain whose use each profiler tells.

``issue`` slots of the warp schedulers; ``sp``, ``int``, ``dp``, ``sfu`` lanes; ``cf`` control
flow; ``shared`` memory passes; ``l2`` sectors between L2 and the SMs; ``texture`` cache
transactions; ``sm_active``: share of the time in which an SM holds at least one warp.
"""

LANES_OF_A_QUAD = 4
SECTOR_BYTES = 32
"""Bytes of a DRAM or L2 transaction as nvprof counts them."""


@dataclass(frozen=True, slots=True)
class KernelUse:
    """One kernel's counters at ``clocks``: shares of each core unit and of device memory.

    ``core`` holds every unit of ``UNITS[kind]``. ``time_seconds`` is the kernel's time there,
    ``None`` if unknown.
    """

    kind: CounterKind
    core: Mapping[str, float]
    dram: float
    clocks: ClockPair
    time_seconds: float | None = None

    def __post_init__(self) -> None:
        if tuple(self.core) != UNITS[self.kind]:
            raise DataError(
                f"{self.kind} counters are of {', '.join(UNITS[self.kind])}, in this order",
                column=next(iter(set(self.core) ^ set(UNITS[self.kind])), None),
            )
        for name, share in (*self.core.items(), ("dram", self.dram)):
            if not (np.isfinite(share) and share >= 0):
                raise DataError(f"the use of {name} is {share}", column=name)
        if self.time_seconds is not None and not self.time_seconds > 0:
            raise DataError(f"time_seconds is {self.time_seconds}", column="time_seconds")
        checked(self.clocks)


@dataclass(frozen=True, eq=False)
class UseTable:
    """Uses as arrays, a row per kernel or measurement.

    ``core`` ``[n, k]`` in the order of ``units``; ``dram`` ``[n]``; ``seconds`` ``[n]`` at the
    counters' clocks, NaN where unknown.
    """

    units: tuple[str, ...]
    core: Floats
    dram: Floats
    seconds: Floats

    @classmethod
    def of(cls, uses: Sequence[KernelUse]) -> UseTable:
        """Several kernels' counters of one kind."""
        return cls(
            units=UNITS[uses[0].kind],
            core=np.array([list(use.core.values()) for use in uses], dtype=np.float64),
            dram=np.array([use.dram for use in uses], dtype=np.float64),
            seconds=np.array([use.time_seconds or np.nan for use in uses], dtype=np.float64),
        )

    def select(self, units: Sequence[str]) -> Floats:
        """Columns of some units, ``[n, len(units)]``."""
        return self.core[:, [self.units.index(unit) for unit in units]]

    def take(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> UseTable:
        """The chosen rows."""
        return UseTable(self.units, self.core[rows], self.dram[rows], self.seconds[rows])

    def __len__(self) -> int:
        return len(self.dram)


def nvprof_use(
    counts: Mapping[str, float], time_seconds: float, gpu: GpuProfile, clocks: ClockPair
) -> KernelUse:
    """Use from nvprof's counts of one launch that took ``time_seconds`` at ``clocks``.

    ``counts`` by nvprof's names; a missing instruction count is 0, ``inst_issued`` stands in
    for ``inst_executed``. Raises DataError for a missing memory count.
    """
    cycles = gpu.sm_count * checked(clocks).core_hz * time_seconds

    def memory(*names: str) -> float:
        missing = [name for name in names if name not in counts]
        if missing:
            raise DataError(f"no count {missing[0]}", column=missing[0])
        return float(sum(counts[name] for name in names))

    def share(name: str, per_cycle_and_sm: float) -> float:
        return float(counts.get(name, 0.0)) / (per_cycle_and_sm * cycles)

    sm = gpu.capability
    sectors = memory("l2_read_transactions", "l2_write_transactions")
    dram_bytes = SECTOR_BYTES * memory("dram_read_transactions", "dram_write_transactions")
    issued = "inst_executed" if "inst_executed" in counts else "inst_issued"
    bandwidth = bandwidth_bytes_per_second(gpu, clocks.memory_mhz)
    return KernelUse(
        kind="nvprof",
        core={
            "issue": share(issued, sm.warp_schedulers),
            "sp": share("inst_fp_32", sm.fp32_lanes),
            "int": share("inst_integer", sm.int_lanes),
            "dp": share("inst_fp_64", sm.fp64_lanes),
            "sfu": share("flop_count_sp_special", sm.sfu_lanes),
            "shared": memory("shared_load_transactions", "shared_store_transactions") / cycles,
            # One sector a cycle and SM, whatever an L2 achieves: the capacity is fitted.
            "l2": sectors / cycles,
            # A texture unit serves a quad of lanes a cycle.
            "texture": share("tex_cache_transactions", sm.texture_lanes / LANES_OF_A_QUAD),
        },
        dram=dram_bytes / (bandwidth * time_seconds),
        clocks=clocks,
        time_seconds=time_seconds,
    )
