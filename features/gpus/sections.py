"""The sections of a GPU profile: numbers with unit and source, the board, its clocks and timing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise, product
from math import exp
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from wattcast.features.checked import PositiveFloat, PositiveInt, Strict, Text
from wattcast.features.gpus import facts

GpuId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
PciId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{4}$")]
CapabilityId = Annotated[str, StringConstraints(pattern=r"^\d{1,2}\.\d$")]


# --- clocks: what it runs at, and which pairs can be set --------------------------------------
# Selectable clocks are written as one grid (``supported_core_mhz`` with ``supported_memory_mhz``)
# or, where the core clocks depend on the memory clock, as several (``supported_grids``). Either
# gives the same thing: ``Clocks.supported_pairs``.


_MOST_IN_A_RANGE = 1000
"""Drivers list some 200 core clocks; a longer range is a slip of the step."""


class _Range(Strict):
    """``from``, ``from + step``, ... up to ``to``: the compact form of a list of clocks."""

    first: PositiveFloat = Field(alias="from")
    last: PositiveFloat = Field(alias="to")
    step: PositiveFloat

    def clocks(self) -> tuple[float, ...]:
        """Every clock. Raises ValueError where ``to`` is not met by whole steps."""
        steps = (self.last - self.first) / self.step
        if steps < 0 or steps != round(steps) or steps >= _MOST_IN_A_RANGE:
            raise ValueError(
                f"from {self.first:g} to {self.last:g} must be at most {_MOST_IN_A_RANGE} "
                f"whole steps of {self.step:g} upwards"
            )
        return tuple(self.first + self.step * index for index in range(round(steps) + 1))


def _expanded(value: Any) -> Any:
    """The clocks of a range; anything else unchanged. Raises ValueError for a bad range."""
    if not isinstance(value, dict):
        return value
    try:
        return _Range.model_validate(value).clocks()
    except ValidationError as error:
        item = error.errors()[0]
        key = ".".join(str(part) for part in item["loc"])
        raise ValueError(f"range {{ from, to, step }}: {key}: {item['msg']}") from None


def _ascending(clocks: tuple[float, ...]) -> tuple[float, ...]:
    if list(clocks) != sorted(set(clocks)):
        raise ValueError("clocks must ascend without repeating")
    return clocks


ClockList = Annotated[
    tuple[PositiveFloat, ...],
    Field(min_length=1),
    BeforeValidator(_expanded),
    AfterValidator(_ascending),
]


class _Clocks(facts.Fact):
    """Clocks that a GPU runs at."""

    value: ClockList


MegahertzList = Annotated[_Clocks, AfterValidator(facts.InUnit("MHz"))]


class ClockGrid(Strict):
    """Core clocks that can be set at each of the memory clocks, all in MHz.

    ``reference_mhz``: the pair (core, memory) that the source's own figures relate to, where
    the grid is one of published measurements.
    """

    core_mhz: ClockList
    memory_mhz: ClockList
    reference_mhz: tuple[PositiveFloat, PositiveFloat] | None = None
    source: Text
    note: Text | None = None

    def pairs(self) -> Iterator[tuple[float, float]]:
        """Every pair of the grid."""
        return product(self.core_mhz, self.memory_mhz)


class Clocks(Strict):
    """Clocks in MHz. Memory clocks as NVML reports them (two transfers a clock).

    ``core_mhz``: what the board runs compute kernels at, and what predictions use when the
    request names no clock. ``base_core_mhz`` and ``max_core_mhz`` are the ends the vendor states.
    """

    model_config = ConfigDict(ignored_types=(cached_property,))

    core_mhz: facts.Megahertz
    memory_mhz: facts.Megahertz
    base_core_mhz: facts.Megahertz | None = None
    max_core_mhz: facts.Megahertz | None = None
    supported_core_mhz: MegahertzList | None = None
    supported_memory_mhz: MegahertzList | None = None
    supported_grids: Annotated[tuple[ClockGrid, ...], Field(min_length=1)] | None = None

    @cached_property
    def supported_pairs(self) -> tuple[tuple[float, float], ...]:
        """Pairs (core, memory) known to be selectable, sorted; empty if none is published."""
        if self.supported_grids:
            return tuple(sorted({pair for grid in self.supported_grids for pair in grid.pairs()}))
        if self.supported_core_mhz and self.supported_memory_mhz:
            return tuple(product(self.supported_core_mhz.value, self.supported_memory_mhz.value))
        return ()

    def problems(self) -> Iterator[str]:
        """What does not agree within the section, as ``key: what``."""
        if self.supported_grids and (self.supported_core_mhz or self.supported_memory_mhz):
            yield (
                "clocks.supported_grids: takes the place of supported_core_mhz and "
                "supported_memory_mhz, which are given too"
            )
        for index, grid in enumerate(self.supported_grids or ()):
            if grid.reference_mhz is not None and grid.reference_mhz not in set(grid.pairs()):
                yield (
                    f"clocks.supported_grids.{index}.reference_mhz: "
                    f"{grid.reference_mhz} is not a pair of the grid"
                )


# --- the chip, the memory and the board -------------------------------------------------------


class DriverNames(Strict):
    """What the driver calls the board: product names as nvidia-smi prints them, and PCI device
    ids (four hexadecimal digits; the vendor is 10de)."""

    names: tuple[Text, ...] = ()
    pci_ids: tuple[PciId, ...] = ()
    source: Text
    note: Text | None = None


class PrintedPeak(facts.Measure):
    """A peak as the vendor or a catalogue prints it. ``at_mhz``: the core clock it is of, where
    that is not ``max_core_mhz``."""

    at_mhz: PositiveFloat | None = None


PeakName = Literal[
    "fp32", "fp64", "fp16", "tensor_fp16", "tensor_bf16", "tensor_tf32", "tensor_fp64",
    "tensor_int8", "tensor_fp8", "tensor_fp4", "memory",
]  # fmt: skip
"""Peaks a profile may print: tensor rates dense, FP16 and FP8 with FP32 accumulation."""


class Chip(Strict):
    """The die as sold: multiprocessors and the cache they share."""

    sm_count: facts.Count
    l2_bytes: facts.Bytes


MemoryKind = Literal[
    "GDDR5", "GDDR5X", "GDDR6", "GDDR6X", "GDDR7", "HBM2", "HBM2e", "HBM3", "HBM3e",
    "LPDDR5", "LPDDR5X",
]  # fmt: skip


class _Memory(facts.Fact):
    """A kind of memory."""

    value: MemoryKind


class MemorySystem(Strict):
    """Device memory. Bandwidth = bus width / 8 x transfers a clock x memory clock.

    ``streaming_share`` of it is what a streaming kernel was measured to reach.
    """

    kind: Annotated[_Memory, AfterValidator(facts.InUnit("type"))] | None = None
    bytes: facts.Bytes | None = None
    bus_bits: facts.Bits
    transfers_per_clock: facts.Count
    bandwidth_bytes_per_second: facts.BytesPerSecond
    streaming_share: facts.Share | None = None


class Power(Strict):
    """Board power in watts, per GPU where a board carries two.

    ``tdp_watts`` is the limit the board ships with; ``nvidia-smi -pl`` takes ``min_limit_watts``
    to ``max_limit_watts``. For a laptop's GPU they are the ends of what its maker may choose.
    ``lowest_voltage``: the core's at low clocks over that at the highest one.
    """

    tdp_watts: facts.Watts
    min_limit_watts: facts.Watts | None = None
    max_limit_watts: facts.Watts | None = None
    idle_watts: facts.Watts | None = None
    lowest_voltage: facts.Share | None = None


class LatencyPiece(Strict):
    """``slope x threads + constant`` cycles for thread counts below ``below_threads``.

    The last piece has no upper bound. ``source`` where it is not that of the whole model.
    """

    below_threads: PositiveInt | None = None
    slope: float
    constant: PositiveFloat
    source: Text | None = None


class GlobalLatency(Strict):
    """Latency in cycles of a global load (and store) as a function of all threads launched.

    ``store_cycles`` is given where stores were measured apart from loads.
    """

    unit: Annotated[str, StringConstraints(pattern="^cycle$")]
    source: str
    note: str | None = None
    pieces: Annotated[tuple[LatencyPiece, ...], Field(min_length=1)]
    store_cycles: facts.Cycles | None = None


class ThroughputCurve(Strict):
    """``a (b - exp(-c n))`` in MB/s, n the memory instructions (thesis section 4.4.5)."""

    unit: Annotated[str, StringConstraints(pattern="^MB/s$")]
    source: str
    note: str | None = None
    a: PositiveFloat
    b: Annotated[float, Field(ge=1.0)]
    c: PositiveFloat

    def at(self, n: float) -> float:
        """Throughput in MB/s at ``n`` memory instructions (n >= 0)."""
        return self.a * (self.b - exp(-self.c * n))


class LaunchOverhead(Strict):
    """``microseconds_per_thread x threads + microseconds``."""

    unit: Annotated[str, StringConstraints(pattern="^us$")]
    source: str
    note: str | None = None
    microseconds_per_thread: Annotated[float, Field(ge=0)]
    microseconds: PositiveFloat


class BlockStart(Strict):
    """Least core cycles between the starts of two blocks of a full GPU:
    ``cycles + cycles_per_warp x warps of a block``."""

    unit: Annotated[str, StringConstraints(pattern="^cycle$")]
    source: str
    note: str | None = None
    cycles: Annotated[float, Field(ge=0)]
    cycles_per_warp: Annotated[float, Field(ge=0)]

    def at(self, warps: float) -> float:
        """Core cycles of a block of ``warps``."""
        return self.cycles + self.cycles_per_warp * warps


class TimeInterval(Strict):
    """How far the default time model lay from kernels measured on this GPU, as factors on its
    answer that hold a new kernel with probability ``level``; ``kernels`` are those it rests on."""

    source: str
    level: Annotated[float, Field(gt=0, lt=1)]
    low_factor: Annotated[float, Field(gt=0, le=1)]
    high_factor: Annotated[float, Field(ge=1)]
    kernels: PositiveInt


# --- limits and units of one SM, the same for every GPU of a compute capability ---------------


class CapabilityFacts(NamedTuple):
    """Limits and units of one SM (compute_capability.toml); units are in that file."""

    max_threads_per_block: int
    max_block_x: int
    max_block_y: int
    max_block_z: int
    max_grid_x: int
    max_grid_y: int
    max_grid_z: int
    max_threads_per_sm: int
    max_warps_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int
    max_registers_per_block: int
    max_registers_per_thread: int
    register_allocation_unit: int
    sub_partitions_per_sm: int
    sub_partitions_at_launch: int
    shared_bytes_per_sm: int
    max_shared_bytes_per_block: int
    max_shared_bytes_per_block_opt_in: int
    reserved_shared_bytes_per_block: int
    shared_allocation_unit: int
    shared_banks: int
    shared_bytes_per_clock: int
    l1_bytes_per_sm: int
    fp32_lanes: int
    fp64_lanes: int
    int_lanes: int
    fp16_lanes: int
    sfu_lanes: int
    lsu_lanes: int
    texture_lanes: int
    warp_schedulers: int
    dispatch_units: int
    tensor_cores: int
    tensor_fma_per_clock: int
    tensor_bf16_fma_per_clock: int
    tensor_tf32_fma_per_clock: int
    tensor_fp64_fma_per_clock: int
    tensor_int8_fma_per_clock: int
    tensor_fp8_fma_per_clock: int
    tensor_fp4_fma_per_clock: int
    most_sm_count: int
    most_l2_bytes: int
    most_core_mhz: int
    most_board_watts: int


# --- how fast an SM issues one kind of instruction --------------------------------------------


class IssueRate(Strict):
    """Peak throughput of one instruction by instruction-level parallelism (thesis Table 3.1).

    ``throughput[i]``: results of an SM per core cycle with ``i + 1`` independent instructions a
    warp (the thesis' TP); ``peak_warps[i]``: the fewest warps of an SM that reach it (its
    peakWarps). What was measured at 1 alone has one entry each.
    """

    unit: Annotated[str, StringConstraints(pattern="^thread/cycle$")]
    source: str
    note: Text | None = None
    throughput: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)]
    peak_warps: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]

    @property
    def problem(self) -> str | None:
        """What cannot hold: unequal numbers of throughputs and peak warps."""
        if len(self.throughput) == len(self.peak_warps):
            return None
        return f"{len(self.throughput)} throughputs and {len(self.peak_warps)} peak warps"


# --- how far away each level of memory is, and how wide the caches are ------------------------


class MemoryTiming(Strict):
    """Unloaded latencies in core cycles and cache bandwidths in bytes a core cycle.

    ``dram_latency``: a global load that misses every cache, at ``core_mhz`` and ``memory_mhz``
    unless the note says otherwise. ``l1_bytes_per_clock`` is per SM, ``l2_bytes_per_clock`` that
    of reads by the whole GPU; the note says whether it was measured or is the design's. From 7.0 on
    ``l1_bytes_per_clock`` times stores alone, and loads whose banks and lines were not counted.
    """

    l1_latency: facts.Cycles | None = None
    l2_latency: facts.Cycles | None = None
    dram_latency: facts.Cycles | None = None
    shared_latency: facts.Cycles | None = None
    l1_bytes_per_clock: facts.BytesPerCycle | None = None
    l2_bytes_per_clock: facts.BytesPerCycle | None = None

    @property
    def problem(self) -> str | None:
        """What cannot hold at once: a cache slower than the level behind it."""
        levels = [
            (name, fact.value)
            for name in ("l1_latency", "l2_latency", "dram_latency")
            if (fact := getattr(self, name)) is not None
        ]
        for (near, cycles), (far, more) in pairwise(levels):
            if cycles >= more:
                return f"memory_timing.{near}: {cycles:g} is not below {far} {more:g}"
        return None


# --- device memory as a queue -----------------------------------------------------------------


CycleMegahertz = Annotated[facts.Measure, AfterValidator(facts.InUnit("cycle MHz"))]


class ServiceTable(Strict):
    """Core cycles between two 32-byte sectors that one SM gets when all SMs stream.

    ``cycles[i]`` was measured with core and memory clock both at ``memory_mhz[i]``.
    """

    unit: Annotated[str, StringConstraints(pattern="^cycle$")]
    source: str
    note: Text | None = None
    memory_mhz: ClockList
    cycles: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _a_rising_clock_serves_sooner(self) -> ServiceTable:
        if len(self.cycles) != len(self.memory_mhz):
            raise ValueError(f"{len(self.memory_mhz)} clocks but {len(self.cycles)} cycles")
        if any(later > sooner for sooner, later in pairwise(self.cycles)):
            raise ValueError("cycles must not rise with the memory clock")
        return self


class DramQueueing(Strict):
    """Parameters of Wang and Chu's memory model (docs/frequency.md), in core cycles.

    A load that misses every cache takes ``latency_core_cycles`` plus ``latency_memory_cycles``
    x core clock / memory clock (their Eq. 4). ``service_table`` is their Table III,
    ``service_a`` / memory MHz + ``service_b`` a smooth curve through it, where one was fitted.
    """

    model_config = ConfigDict(ignored_types=(cached_property,))

    latency_core_cycles: facts.Cycles
    latency_memory_cycles: facts.Cycles
    service_table: ServiceTable
    service_a: CycleMegahertz | None = None
    service_b: facts.Cycles | None = None

    @cached_property
    def service_cycles(self) -> Mapping[float, float]:
        """The table: memory clock in MHz to core cycles at a ratio of clocks of 1."""
        table = self.service_table
        return MappingProxyType(dict(zip(table.memory_mhz, table.cycles, strict=True)))
