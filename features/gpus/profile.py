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

from pydantic import ConfigDict, Field

from wattcast.features.checked import Strict
from wattcast.features.gpus.sections import (
    BlockStart,
    CapabilityFacts,
    CapabilityId,
    Chip,
    Clocks,
    Cycles,
    DramQueueing,
    DriverNames,
    Fact,
    GlobalLatency,
    GpuId,
    IssueRate,
    LaunchOverhead,
    MemorySystem,
    MemoryTiming,
    PeakName,
    Power,
    PrintedPeak,
    ThroughputCurve,
    TimeInterval,
)


class GpuProfile(Strict):
    """Physical facts of one GPU. Load it with ``wattcast.features.gpus.load_gpu``.

    The sections hold the sourced facts; the properties give plain numbers in the unit their
    name carries. Optional facts nobody published are ``None``: a model that needs one has
    to say so.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, ignored_types=(cached_property,)
    )

    id: GpuId
    name: str
    aliases: tuple[GpuId, ...] = ()
    driver: DriverNames | None = None
    architecture: str
    compute_capability: CapabilityId
    notes: tuple[str, ...] = ()
    sources: Mapping[str, str]
    chip: Chip
    clocks: Clocks
    memory: MemorySystem
    power: Power
    printed: Mapping[PeakName, PrintedPeak] = Field(default_factory=dict)
    sm: Mapping[str, Fact[int]] = Field(default_factory=dict)
    latencies: Mapping[str, Cycles] = Field(default_factory=dict)
    issue_rates: Mapping[str, IssueRate] = Field(default_factory=dict)
    global_memory_latency: GlobalLatency | None = None
    global_memory_throughput: ThroughputCurve | None = None
    shared_memory_throughput: ThroughputCurve | None = None
    kernel_launch: LaunchOverhead | None = None
    block_start: BlockStart | None = None
    memory_timing: MemoryTiming = Field(default_factory=MemoryTiming)
    dram_queueing: DramQueueing | None = None
    time_interval: TimeInterval | None = None
    capability: CapabilityFacts

    # --- chip and clocks --------------------------------------------------------

    @property
    def sm_count(self) -> int:
        """Streaming multiprocessors (the thesis' nSM)."""
        return self.chip.sm_count.value

    @property
    def l2_bytes(self) -> int:
        """Second-level cache of the whole GPU."""
        return self.chip.l2_bytes.value

    @property
    def core_mhz(self) -> float:
        """Core clock that predictions use unless the request names one."""
        return self.clocks.core_mhz.value

    @property
    def memory_mhz(self) -> float:
        """Memory clock as NVML reports it."""
        return self.clocks.memory_mhz.value

    @property
    def base_core_mhz(self) -> float | None:
        """Lowest guaranteed core clock of the vendor's specification."""
        return self.clocks.base_core_mhz.value if self.clocks.base_core_mhz else None

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

    @property
    def bandwidth_bytes_per_second(self) -> float:
        """Peak device memory bandwidth at ``memory_mhz``."""
        return self.memory.bandwidth_bytes_per_second.value

    @property
    def streaming_share(self) -> float | None:
        """Share of the peak bandwidth that streaming kernels reach, if published."""
        return self.memory.streaming_share.value if self.memory.streaming_share else None

    @property
    def bytes_per_memory_clock(self) -> float:
        """Bytes device memory moves in one clock of ``memory_mhz``."""
        return self.memory.bus_bits.value / 8 * self.memory.transfers_per_clock.value

    @property
    def memory_bytes(self) -> int | None:
        """Size of device memory."""
        return self.memory.bytes.value if self.memory.bytes else None

    @property
    def memory_kind(self) -> str | None:
        """Kind of device memory (``GDDR6X``), ``None`` if not stated."""
        return self.memory.kind.value if self.memory.kind else None

    @property
    def tdp_watts(self) -> float:
        """Power limit of one GPU as the board ships."""
        return self.power.tdp_watts.value

    @property
    def limit_range_watts(self) -> tuple[float, float] | None:
        """Lowest and highest power limit that can be set, ``None`` if not published."""
        low, high = self.power.min_limit_watts, self.power.max_limit_watts
        return None if low is None or high is None else (low.value, high.value)

    @property
    def idle_watts(self) -> float | None:
        """Idle power of one GPU, if the vendor states it."""
        return self.power.idle_watts.value if self.power.idle_watts else None

    # --- limits and units of one SM ----------------------------------------------

    @property
    def max_threads_per_block(self) -> int:
        """Threads of a block at most."""
        return self.capability.max_threads_per_block

    @property
    def max_threads_per_sm(self) -> int:
        """Resident threads of an SM at most."""
        return self.capability.max_threads_per_sm

    @property
    def max_warps_per_sm(self) -> int:
        """Resident warps of an SM at most."""
        return self.capability.max_warps_per_sm

    @property
    def max_blocks_per_sm(self) -> int:
        """Resident blocks of an SM at most (the thesis' nB^M)."""
        return self.capability.max_blocks_per_sm

    @property
    def registers_per_sm(self) -> int:
        """32-bit registers of an SM."""
        return self.capability.registers_per_sm

    @property
    def max_registers_per_block(self) -> int:
        """32-bit registers of a block at most (the thesis' reg_b^M)."""
        return self.capability.max_registers_per_block

    @property
    def max_registers_per_thread(self) -> int:
        """32-bit registers of a thread at most."""
        return self.capability.max_registers_per_thread

    @property
    def shared_bytes_per_sm(self) -> int:
        """Shared memory of an SM at most."""
        return self.capability.shared_bytes_per_sm

    @property
    def max_shared_bytes_per_block(self) -> int:
        """Shared memory of a block without opting in (the thesis' shm_b^M)."""
        return self.capability.max_shared_bytes_per_block

    @property
    def max_shared_bytes_per_block_opt_in(self) -> int:
        """Static and dynamic shared memory of a block after opting in."""
        return self.capability.max_shared_bytes_per_block_opt_in

    @property
    def fp32_lanes(self) -> int:
        """FP32 lanes of an SM (CUDA cores)."""
        return self.capability.fp32_lanes

    @property
    def fp64_lanes(self) -> int:
        """FP64 lanes of an SM."""
        return self.capability.fp64_lanes

    @property
    def int_lanes(self) -> int:
        """32-bit integer lanes of an SM."""
        return self.capability.int_lanes

    @property
    def fp16_lanes(self) -> int:
        """FP16 results of an SM in a clock, values packed in pairs; 0 where FP32 does it."""
        return self.capability.fp16_lanes

    @property
    def sfu_lanes(self) -> int:
        """Special function lanes of an SM."""
        return self.capability.sfu_lanes

    @property
    def lsu_lanes(self) -> int:
        """Load/store lanes of an SM."""
        return self.capability.lsu_lanes

    @property
    def texture_lanes(self) -> int:
        """Texture units of an SM: filtered texture reads in a clock."""
        return self.capability.texture_lanes

    @property
    def warp_schedulers(self) -> int:
        """Warp schedulers of an SM."""
        return self.capability.warp_schedulers

    @property
    def dispatch_units(self) -> int:
        """Dispatch units of an SM."""
        return self.capability.dispatch_units

    @property
    def tensor_cores(self) -> int:
        """Tensor cores of an SM."""
        return self.capability.tensor_cores

    @property
    def tensor_fma_per_clock(self) -> int:
        """Dense FP16 multiply-adds of an SM's tensor cores in a clock, accumulating in FP32."""
        return self.capability.tensor_fma_per_clock

    def peak(self, name: PeakName, core_mhz: float | None = None) -> float:
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
        return MappingProxyType(
            {
                "SP": self.fp32_lanes,
                "SFU": self.sfu_lanes,
                "DPU": self.fp64_lanes,
                "LSU": self.lsu_lanes,
                "WS": self.warp_schedulers,
            }
        )

    # --- memory timing -----------------------------------------------------------

    @property
    def l1_latency_cycles(self) -> float | None:
        """Core cycles of a global load that hits L1, ``None`` if not published."""
        return _value(self.memory_timing.l1_latency)

    @property
    def l2_latency_cycles(self) -> float | None:
        """Core cycles of a global load that hits L2, ``None`` if not published."""
        return _value(self.memory_timing.l2_latency)

    @property
    def dram_latency_cycles(self) -> float | None:
        """Core cycles of a global load that misses all caches, ``None`` if not published."""
        return _value(self.memory_timing.dram_latency)

    @property
    def shared_latency_cycles(self) -> float | None:
        """Core cycles of a shared load without conflicts, ``None`` if not published."""
        return _value(self.memory_timing.shared_latency)

    @property
    def l1_bytes_per_clock(self) -> float | None:
        """Bytes one SM reads from L1 in a core cycle, ``None`` if not published."""
        return _value(self.memory_timing.l1_bytes_per_clock)

    @property
    def l2_bytes_per_clock(self) -> float | None:
        """Bytes all SMs together read from L2 in a core cycle, ``None`` if not published."""
        return _value(self.memory_timing.l2_bytes_per_clock)

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


def _value(fact: Fact[float] | None) -> float | None:
    return None if fact is None else fact.value


def _distinct(clocks: Iterable[float]) -> tuple[float, ...]:
    return tuple(sorted(set(clocks)))
