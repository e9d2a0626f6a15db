"""The roofline of instructions, of the thesis' appendix.

G. Alavani, BITS Pilani, 2023, "Efficacy of Global Memory Throughput Model"; docs/time.md.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from wattcast.features.analysis import KernelAnalysis
from wattcast.features.errors import ModelError
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import WARP_SIZE
from wattcast.models.clocks import ClockPair, bandwidth_bytes_per_second, checked, default_clocks

APPENDIX_BYTES = 128
"""Bytes of one warp's memory instruction, as the appendix converts GB/s to instructions."""

_COMPUTE = ("compute", "move", "convert")
_MEMORY = (
    *("global_load", "global_store", "global_atomic"),
    *("generic_load", "generic_store", "generic_atomic"),
    "shared_copy",  # from global memory
)


class InstructionRoofline(NamedTuple):
    """``intensity`` compute per memory instruction, ``beta`` memory instructions a second,
    ``peak`` and ``performance`` compute instructions a second, all of warps; ``seconds`` of
    the launch's compute instructions at that performance.
    """

    intensity: float
    beta: float
    peak: float
    performance: float
    seconds: float


def attainable(peak: float, intensity: float, beta: float) -> float:
    """P = min(pi, I beta): the appendix' roofline; ``intensity`` may be infinite."""
    return min(peak, intensity * beta)


def instruction_roofline(
    analysis: KernelAnalysis,
    gpu: GpuProfile,
    clocks: ClockPair | None = None,
    beta: Literal["vendor", "thesis"] = "vendor",
) -> InstructionRoofline:
    """The appendix' roofline of a launch: I = compute over memory instructions.

    ``beta`` is the vendor's bandwidth or the thesis' throughput curve (Table 4.5, at the number
    of load/store batches of the launch, as in ``penalties.global_penalty_seconds``), over 128
    bytes an instruction. pi is one instruction a lane and cycle. Raises ModelError for a GPU
    without a curve and for a kernel that computes nothing.
    """
    pair = checked(clocks or default_clocks(gpu))
    mix = analysis.mix
    computes = sum(mix.get(name, 0.0) for name in _COMPUTE)
    accesses = sum(mix.get(name, 0.0) for name in _MEMORY)
    if not computes:
        raise ModelError("a kernel without compute instructions has no intensity")
    bandwidth: float | None = bandwidth_bytes_per_second(gpu, pair.memory_mhz)
    if beta == "thesis":
        megabytes = gpu.global_throughput(max(1.0, accesses * WARP_SIZE / gpu.lsu_lanes))
        if megabytes is None:
            raise ModelError(f"no global memory throughput is published for {gpu.id}", gpu=gpu.id)
        bandwidth = megabytes * 1e6
    assert bandwidth is not None
    per_second = bandwidth / APPENDIX_BYTES
    peak = gpu.fp32_lanes / WARP_SIZE * gpu.sm_count * pair.core_hz
    intensity = computes / accesses if accesses else float("inf")
    performance = attainable(peak, intensity, per_second)
    return InstructionRoofline(intensity, per_second, peak, performance, computes / performance)
