"""What a GPU profile holds: physical facts, each with its unit and source.

A profile is one TOML file. Every number in it is a ``Fact``: value, unit, source and, where
the source needs correcting, a note. What is the same for all GPUs of a compute capability
lies once in ``compute_capability.toml``; a profile refers to it and may override single rows
in its ``[sm]`` table. Consumers use the flat properties of ``GpuProfile``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Generic, Self, TypeVar

from pydantic import ConfigDict, Field

from wattcast.features.checked import Strict
from wattcast.features.gpus import facts, sections

T = TypeVar("T")


class Row(Generic[T]):
    """A fact of a section as a plain number of the profile, ``None`` if it may be unpublished.

    ``key`` is its name in the section where that is not the property's own.
    """

    def __init__(self, section: str, text: str, key: str = "") -> None:
        self.__doc__ = text
        self._section = section
        self._key = key

    def __set_name__(self, owner: type, name: str) -> None:
        self._name, self._key = name, self._key or name

    def __get__(self, profile: GpuProfile, owner: type) -> T:
        found = getattr(getattr(profile, self._section), self._key)
        value: T = found.value if isinstance(found, facts.Fact) else found
        vars(profile)[self._name] = value  # from now on it is found there
        return value


class GpuProfile(Strict):
    """Physical facts of one GPU. Load it with ``wattcast.features.gpus.load_gpu``.

    The sections hold the sourced facts; the properties give plain numbers in the unit their
    name carries. Optional facts nobody published are ``None``: a model that needs one has
    to say so.
    """

    model_config = ConfigDict(ignored_types=(cached_property, Row))

    def __copy__(self) -> Self:
        """Without what was found of another's sections."""
        copied = super().__copy__()
        for name in vars(copied).keys() - type(self).model_fields.keys():
            del vars(copied)[name]
        return copied

    id: sections.GpuId
    name: str
    aliases: tuple[sections.GpuId, ...] = ()
    driver: sections.DriverNames | None = None
    architecture: str
    compute_capability: sections.CapabilityId
    notes: tuple[str, ...] = ()
    sources: Mapping[str, str]
    chip: sections.Chip
    clocks: sections.Clocks
    memory: sections.MemorySystem
    power: sections.Power
    printed: Mapping[sections.PeakName, sections.PrintedPeak] = Field(default_factory=dict)
    sm: Mapping[str, facts.Integer] = Field(default_factory=dict)
    latencies: Mapping[str, facts.Cycles] = Field(default_factory=dict)
    issue_rates: Mapping[str, sections.IssueRate] = Field(default_factory=dict)
    global_memory_latency: sections.GlobalLatency | None = None
    global_memory_throughput: sections.ThroughputCurve | None = None
    shared_memory_throughput: sections.ThroughputCurve | None = None
    kernel_launch: sections.LaunchOverhead | None = None
    block_start: sections.BlockStart | None = None
    memory_timing: sections.MemoryTiming = Field(default_factory=sections.MemoryTiming)
    dram_queueing: sections.DramQueueing | None = None
    time_interval: sections.TimeInterval | None = None
    capability: sections.CapabilityFacts

    # --- chip and clocks --------------------------------------------------------

    sm_count = Row[int]("chip", "Streaming multiprocessors (the thesis' nSM).")
    l2_bytes = Row[int]("chip", "Second-level cache of the whole GPU.")
    core_mhz = Row[float]("clocks", "Core clock that predictions use unless the request names one.")
    memory_mhz = Row[float]("clocks", "Memory clock as NVML reports it.")
    base_core_mhz = Row[float | None](
        "clocks", "Lowest guaranteed core clock of the vendor's specification."
    )

    @property
    def max_core_mhz(self) -> float:
        """Highest core clock of the vendor's specification; ``core_mhz`` if none is stated."""
        return self.clocks.max_core_mhz.value if self.clocks.max_core_mhz else self.core_mhz

    @property
    def supported_pairs(self) -> tuple[tuple[float, float], ...]:
        """Pairs (core, memory) in MHz known to be selectable, sorted; empty if none is published.

        For the GPUs of published frequency measurements, the pairs measured.
        """
        return self.clocks.supported_pairs

    @property
    def supported_core_mhz(self) -> tuple[float, ...]:
        """Core clocks known to be selectable, ascending; empty if none is published."""
        known = self.clocks.supported_core_mhz
        return known.value if known else _distinct(core for core, _ in self.supported_pairs)

    @property
    def supported_memory_mhz(self) -> tuple[float, ...]:
        """Memory clocks known to be selectable, ascending; empty if none is published."""
        known = self.clocks.supported_memory_mhz
        return known.value if known else _distinct(memory for _, memory in self.supported_pairs)

    bandwidth_bytes_per_second = Row[float](
        "memory", "Peak device memory bandwidth at ``memory_mhz``."
    )
    streaming_share = Row[float | None](
        "memory", "Share of the peak bandwidth that streaming kernels reach, if published."
    )

    @property
    def bytes_per_memory_clock(self) -> float:
        """Bytes device memory moves in one clock of ``memory_mhz``."""
        return self.memory.bus_bits.value / 8 * self.memory.transfers_per_clock.value

    memory_bytes = Row[int | None]("memory", "Size of device memory.", "bytes")
    memory_kind = Row[str | None](
        "memory", "Kind of device memory (``GDDR6X``), ``None`` if not stated.", "kind"
    )
    tdp_watts = Row[float]("power", "Power limit of one GPU as the board ships.")

    @property
    def limit_range_watts(self) -> tuple[float, float] | None:
        """Lowest and highest power limit that can be set, ``None`` if not published."""
        low, high = self.power.min_limit_watts, self.power.max_limit_watts
        return None if low is None or high is None else (low.value, high.value)

    idle_watts = Row[float | None]("power", "Idle power of one GPU, if the vendor states it.")
    lowest_voltage = Row[float | None](
        "power", "Core voltage at low clocks over that at the highest one, where measured."
    )

    # --- limits and units of one SM ----------------------------------------------

    max_threads_per_sm = Row[int]("capability", "Resident threads of an SM at most.")
    max_warps_per_sm = Row[int]("capability", "Resident warps of an SM at most.")
    max_blocks_per_sm = Row[int](
        "capability", "Resident blocks of an SM at most (the thesis' nB^M)."
    )
    registers_per_sm = Row[int]("capability", "32-bit registers of an SM.")
    max_registers_per_block = Row[int](
        "capability", "32-bit registers of a block at most (the thesis' reg_b^M)."
    )
    max_registers_per_thread = Row[int]("capability", "32-bit registers of a thread at most.")
    shared_bytes_per_sm = Row[int]("capability", "Shared memory of an SM at most.")
    fp32_lanes = Row[int]("capability", "FP32 lanes of an SM (CUDA cores).")
    fp64_lanes = Row[int]("capability", "FP64 lanes of an SM.")
    int_lanes = Row[int]("capability", "32-bit integer lanes of an SM.")
    fp16_lanes = Row[int](
        "capability",
        "FP16 results of an SM in a clock, values packed in pairs; 0 where FP32 does it.",
    )
    sfu_lanes = Row[int]("capability", "Special function lanes of an SM.")
    lsu_lanes = Row[int]("capability", "Load/store lanes of an SM.")
    texture_lanes = Row[int](
        "capability", "Texture units of an SM: filtered texture reads in a clock."
    )
    warp_schedulers = Row[int]("capability", "Warp schedulers of an SM.")
    dispatch_units = Row[int]("capability", "Dispatch units of an SM.")
    tensor_fma_per_clock = Row[int](
        "capability",
        "Dense FP16 multiply-adds of an SM's tensor cores in a clock, accumulating in FP32.",
    )

    def peak(self, name: sections.PeakName, core_mhz: float | None = None) -> float:
        """Operations a second at ``core_mhz`` (default: the highest clock), a multiply-add
        counted as two: 2 x SMs x lanes x clock. For ``memory`` bytes a second at
        ``memory_mhz``."""
        if name == "memory":
            return self.bytes_per_memory_clock * self.memory_mhz * 1e6
        row = "tensor_fma_per_clock" if name == "tensor_fp16" else f"{name}_fma_per_clock"
        lanes: int = getattr(self.capability, row if "tensor" in name else f"{name}_lanes")
        return 2 * self.sm_count * lanes * (core_mhz or self.max_core_mhz) * 1e6

    @property
    def resources(self) -> Mapping[str, int]:
        """Units of one SM under the thesis' names (Algorithms 6 to 8): SP, SFU, DPU, LSU, WS."""
        return MappingProxyType({
            "SP": self.fp32_lanes, "SFU": self.sfu_lanes, "DPU": self.fp64_lanes,
            "LSU": self.lsu_lanes, "WS": self.warp_schedulers,
        })  # fmt: skip

    # --- memory timing -----------------------------------------------------------

    l1_latency_cycles = Row[float | None](
        "memory_timing", "Core cycles of a global load that hits L1, if published.", "l1_latency"
    )
    l2_latency_cycles = Row[float | None](
        "memory_timing", "Core cycles of a global load that hits L2, if published.", "l2_latency"
    )
    dram_latency_cycles = Row[float | None](
        "memory_timing",
        "Core cycles of a global load that misses all caches, if published.",
        "dram_latency",
    )
    shared_latency_cycles = Row[float | None](
        "memory_timing",
        "Core cycles of a shared load without conflicts, if published.",
        "shared_latency",
    )
    l1_bytes_per_clock = Row[float | None](
        "memory_timing", "Bytes one SM reads from L1 in a core cycle, if published."
    )
    l2_bytes_per_clock = Row[float | None](
        "memory_timing", "Bytes all SMs together read from L2 in a core cycle, if published."
    )

    # --- measured behaviour ---------------------------------------------------------

    @cached_property
    def latency_cycles(self) -> Mapping[str, float]:
        """Measured latencies in cycles by ``<opcode>.<type>`` (thesis Table 3.2); may be empty.

        Keys: add.f32 add.s32 sub.f32 sub.s32 mul.f32 mul.s32 and.b32 fma.f32 mad.s32 div.f32
        div.s32 cvt sqrt.f32 setp mov ld.shared st.shared.
        """
        return MappingProxyType({key: fact.value for key, fact in self.latencies.items()})

    def global_throughput(self, instructions: float) -> float | None:
        """Global memory throughput in MB/s (thesis Table 4.5), ``None`` if not published."""
        curve = self.global_memory_throughput
        return curve.at(instructions) if curve else None

    def shared_throughput(self, instructions: float) -> float | None:
        """Shared memory throughput in MB/s (thesis Table 4.5), ``None`` if not published."""
        curve = self.shared_memory_throughput
        return curve.at(instructions) if curve else None

    def launch_overhead_seconds(self, total_threads: int) -> float | None:
        """Seconds a launch costs besides the kernel's own work, ``None`` if not published."""
        line = self.kernel_launch
        if line is None:
            return None
        return (line.microseconds_per_thread * total_threads + line.microseconds) * 1e-6


def _distinct(clocks: Iterable[float]) -> tuple[float, ...]:
    return tuple(sorted(set(clocks)))
