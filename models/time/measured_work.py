"""Time of a launch from work that was measured: bytes, operations and the launch itself.

What a profiler counts on one GPU (floating-point and integer operations, bytes between L2 and
DRAM) is nearly the same on another. The physical estimate asks how long each part of a GPU takes
for it (``PARTS``) and combines them by a p-norm, since parts overlap but never perfectly. Rates
come from the profile and the clocks; constants, the same for all GPUs, from ``work1.toml``.
``work_model`` adds what measurements of a GPU teach on top. Method, accuracy and limits:
docs/work.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from wattcast.features.checked import checked as checked_table
from wattcast.features.checked import read_toml
from wattcast.features.errors import LaunchError
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import WARP_SIZE, Launch
from wattcast.features.memory import SECTOR_BYTES
from wattcast.features.occupancy import check_launch
from wattcast.features.schemas.tables import SchemaFile, hash_of
from wattcast.models.clocks import ClockPair, bandwidth_bytes_per_second, checked

# --- schema ``work1``: the residual's inputs, and the constants of the physical estimate under
# It lies here and not among ``features/schemas``, which make vectors of PTX: its inputs are terms
# of a time model, and most are no facts of a kernel but shares of an estimate. One file holds both,
# so that one hash pins inputs and constants: a card made with other constants is not loaded.


SCHEMA_ID = "work1"
_FILE = Path(__file__).with_name("work1.toml")


@dataclass(frozen=True, slots=True)
class WorkConstants:
    """How each part of ``measured_work.PARTS`` multiplies, and the ``norm`` that combines them."""

    factors: Mapping[str, float]
    norm: float


class WorkSchema(SchemaFile):
    """The file as read. ``least`` holds what no factor, nor the ``norm``, can be below."""

    constants: WorkConstants
    least: WorkConstants

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the model inputs, in order."""
        return tuple(field.name for field in self.fields if field.model_input)


@lru_cache(maxsize=1)
def work_schema() -> WorkSchema:
    """``work1`` as the package defines it."""
    raw = read_toml(_FILE)
    entries, norm = raw["constants"], raw["norm"]

    def constants(key: str) -> WorkConstants:
        factors = {name: float(entry.get(key, 0.0)) for name, entry in entries.items()}
        return WorkConstants(MappingProxyType(factors), float(norm[key]))

    told = {name: one for name, one in raw.items() if name not in ("constants", "norm")}
    made = {"constants": constants("value"), "least": constants("least"), "sha256": hash_of(raw)}
    return checked_table(WorkSchema, {**told, **made}, _FILE.name)


# --- time of a launch from work that was measured: bytes, operations and the launch itself ----


Float64s = NDArray[np.float64]
Runtime = Literal["cuda", "openmp", "unknown"]
RUNTIMES: tuple[Runtime, ...] = ("cuda", "openmp", "unknown")

PARTS = ("dram", "fp32", "fp64", "issue", "thread", "wave", "fetch", "blocks", "launch")
"""What a launch loads, in the order of ``work1``.

dram     bytes over bandwidth, waiting for the busiest SM
fp32     single-precision operations over the peak rate of a fused multiply-add, busiest SM
fp64     the same for double precision
issue    counted instructions over the rate of the warp schedulers, busiest SM
thread   integer operations of one thread, one after another
wave     the same once for each wave of resident blocks
fetch    bytes each resident thread waits for
blocks   blocks of an SM
launch   the launch itself
"""

FLOPS_PER_FMA = 2
"""Operations of a fused multiply-add, as the profiler's flop metrics count it and peaks do."""

SM_BYTES_PER_CYCLE = SECTOR_BYTES
"""What one SM draws from L2 a core cycle while others idle: as in models.time.bottleneck."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one launch does, as a profiler counts it over all threads.

    ``dram_bytes``: read and written between L2 and DRAM. ``int_ops``: thread-level integer
    instructions. ``flops_sp`` and ``flops_dp``: floating-point operations, a fused multiply-add
    is two. ``runtime``: how the kernel was made, where known; OpenMP offloading adds work of
    its own. Raises LaunchError naming the field for a value that is no finite number or negative.
    """

    launch: Launch
    dram_bytes: float
    int_ops: float
    flops_sp: float = 0.0
    flops_dp: float = 0.0
    runtime: Runtime = "unknown"

    def __post_init__(self) -> None:
        for name in ("dram_bytes", "int_ops", "flops_sp", "flops_dp"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
                raise LaunchError(f"{name} is {value!r}; it must be a finite number", field=name)
            if value < 0:
                raise LaunchError(f"{name} is {value:g}; it cannot be negative", field=name)
        if self.runtime not in RUNTIMES:
            raise LaunchError(
                f"runtime is {self.runtime!r}; it must be one of {', '.join(RUNTIMES)}",
                field="runtime",
            )


FACTS = (
    "sm_count", "fp32_lanes", "fp64_lanes", "warp_schedulers", "max_warps_per_sm",
    "max_blocks_per_sm", "bandwidth_bytes_per_second", "memory_mhz",
)  # fmt: skip
"""All the estimate takes from a profile: units of an SM, and bandwidth at ``memory_mhz``."""


def facts_of(gpu: GpuProfile) -> dict[str, float]:
    """The ``FACTS`` of a profile."""
    return {name: getattr(gpu, name) for name in FACTS}


def unit_seconds(work: Work, gpu: GpuProfile, clocks: ClockPair) -> dict[str, float]:
    """Seconds of each of ``PARTS`` where every constant is 1 (see ``work1.toml`` for their units).

    Raises LaunchError for a launch the GPU refuses, ClockError for clocks that are not above 0.
    """
    launch = work.launch
    check_launch(gpu, launch, 0, 0)
    checked(clocks)
    blocks, warps, sms = launch.blocks, launch.warps_per_block, gpu.sm_count
    cycle = 1 / clocks.core_hz
    # Registers and shared memory are not among what is measured: blocks and warps alone limit.
    resident = min(gpu.max_blocks_per_sm, gpu.max_warps_per_sm // warps)
    busy_sms = min(blocks, sms)
    resident_warps = min(blocks * warps / busy_sms, resident * warps)
    waves = ceil(blocks / (sms * resident))
    imbalance = ceil(blocks / sms) * sms / blocks
    bandwidth = bandwidth_bytes_per_second(gpu, clocks.memory_mhz)
    most_imbalance = max(1.0, bandwidth * cycle / SM_BYTES_PER_CYCLE)
    flops = work.flops_sp + work.flops_dp
    integer_per_thread = work.int_ops / launch.threads

    def busiest(operations: float, per_cycle_of_sm: float) -> float:
        return operations / (per_cycle_of_sm * sms) * imbalance * cycle

    return {
        "dram": work.dram_bytes / bandwidth * min(imbalance, most_imbalance),
        "fp32": busiest(work.flops_sp, FLOPS_PER_FMA * gpu.fp32_lanes),
        "fp64": busiest(work.flops_dp, FLOPS_PER_FMA * gpu.fp64_lanes),
        "issue": busiest(work.int_ops + flops / FLOPS_PER_FMA, gpu.warp_schedulers * WARP_SIZE),
        "thread": integer_per_thread * cycle,
        "wave": integer_per_thread * waves * cycle,
        "fetch": work.dram_bytes / (busy_sms * resident_warps * WARP_SIZE) * cycle,
        "blocks": blocks / sms * cycle,
        "launch": cycle,
    }


def part_seconds(work: Work, gpu: GpuProfile, clocks: ClockPair) -> dict[str, float]:
    """Seconds each of ``PARTS`` would take alone. Raises as ``unit_seconds``."""
    factors = work_schema().constants.factors
    units = unit_seconds(work, gpu, clocks)
    return {name: factors[name] * seconds for name, seconds in units.items()}


def p_norm(parts: Float64s, norm: float) -> Float64s:
    """Combine parts ``[k, n]`` to ``[n]``: never less than the longest, nor more than their sum."""
    longest = parts.max(axis=0)
    return np.asarray(longest * ((parts / longest) ** norm).sum(axis=0) ** (1 / norm))


def combined_seconds(parts: Mapping[str, float]) -> float:
    """All parts of one launch by ``p_norm``."""
    norm = work_schema().constants.norm
    return float(p_norm(np.array(list(parts.values()))[:, None], norm)[0])
