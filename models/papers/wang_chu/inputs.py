"""What one launch is to Wang and Chu's model, from an analysed kernel.

The paper takes its inputs from NVIDIA's profiler, as ``studies/papers/wang_chu/forms.py`` does;
``launch_of`` takes the same quantities from the analysis of PTX (docs/frequency.md has the table
of which replaces which).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from wattcast.features.activity import Activity
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.errors import Diagnostic, ModelError
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.features.gpus.sections import DramQueueing
from wattcast.features.launch import WARP_SIZE
from wattcast.features.memory import SECTOR_BYTES
from wattcast.models.clocks import TYPICAL_STREAMING_SHARE
from wattcast.models.papers.roofline import matrix_flops
from wattcast.models.papers.thesis.work import assumed, launch_overhead_seconds
from wattcast.models.papers.wang_chu.network import (
    DramService,
    QueueingGpu,
    QueueingLaunch,
    smooth_service_cycles,
)
from wattcast.models.time.beside import dependent_cycles
from wattcast.models.time.measured_work import FLOPS_PER_FMA

# --- a GPU's parameters for Wang and Chu's model, from its profile ----------------------------
# What the paper measured lies in the profile of the GTX 980 (``[dram_queueing]``). Every other GPU
# gets parameters of its own where its profile has the facts, and the GTX 980's where it has not;
# each stand-in leaves a warning.


MEASURED_ON = "gtx-980"
"""The GPU of the paper: its latencies and the course of its service time stand in."""

BYTES_OF_A_PASS = 128
"""A pass through shared memory serves each of 32 lanes with a 4-byte word."""

L2_SERVICE_CYCLES = 1.0
"""l2_del: the paper takes one core cycle for a sector from L2 to an SM."""


@lru_cache(maxsize=1)
def _measured() -> tuple[GpuProfile, DramQueueing]:
    profile = load_gpu(MEASURED_ON)
    assert profile.dram_queueing is not None, "the shipped profile holds the paper's parameters"
    return profile, profile.dram_queueing


def gpu_parameters(gpu: GpuProfile) -> QueueingGpu:
    """Parameters of a GPU; its own ``[dram_queueing]`` where it has one.

    An SM issues one warp instruction a cycle from each of its schedulers. The paper's
    inst_cycle, 32 / cores of an SM, is the same on Maxwell and Pascal; from Volta on integer
    instructions have lanes of their own, which it leaves out (docs/frequency.md).
    """
    reference, measured = _measured()
    launch_seconds, diagnostics = launch_overhead_seconds(gpu, 0)
    own = gpu.dram_queueing
    latency_scale = ratio_scale = 1.0
    if own is None:
        latency_scale, ratio_scale, stand_ins = _scaled_latency(gpu, reference, measured)
        diagnostics += stand_ins
    section = own or measured
    assert reference.l2_latency_cycles is not None
    assert reference.shared_latency_cycles is not None
    return QueueingGpu(
        sm_count=gpu.sm_count,
        issue_cycles=1 / gpu.warp_schedulers,
        latency_core_cycles=section.latency_core_cycles.value * latency_scale,
        latency_memory_cycles=section.latency_memory_cycles.value * latency_scale,
        service=_service(gpu, own, measured),
        ratio_scale=ratio_scale,
        l2_latency=gpu.l2_latency_cycles or reference.l2_latency_cycles,
        l2_service=L2_SERVICE_CYCLES,
        shared_latency=gpu.shared_latency_cycles or reference.shared_latency_cycles,
        shared_service=BYTES_OF_A_PASS / gpu.capability.shared_bytes_per_clock,
        launch_seconds=launch_seconds,
        diagnostics=diagnostics,
    )


def _scaled_latency(
    gpu: GpuProfile, reference: GpuProfile, measured: DramQueueing
) -> tuple[float, float, tuple[Diagnostic, ...]]:
    """Eq. 4 moved to another GPU: factor of its cycles, factor of the ratio of clocks.

    Clocks of different memories do not compare (877 MHz of HBM2 is no slower an array than 3505
    MHz of GDDR5), so the ratio counts relative to that of the GPU's default clocks. There the
    latency is the profile's.
    """
    ratio = reference.core_mhz / reference.memory_mhz
    ratio_scale = ratio / (gpu.core_mhz / gpu.memory_mhz)
    known = gpu.dram_latency_cycles
    if known is None:
        instead = f"that of {reference.id} was used"
        return 1.0, ratio_scale, assumed("latency", gpu, "device memory latency", instead)
    at_default = measured.latency_core_cycles.value + measured.latency_memory_cycles.value * ratio
    return known / at_default, ratio_scale, ()


def _service(gpu: GpuProfile, own: DramQueueing | None, measured: DramQueueing) -> DramService:
    """The table where it was measured; elsewhere bandwidth, with the table's course.

    Table III tells how the service time rises as the memory clock falls from 1000 to 400 MHz,
    1000 being the highest it was measured at: another GPU's rises alike below its own default
    memory clock.
    """
    if own is not None:
        known = own.service_cycles
        return DramService(tuple(known), tuple(known.values()))
    clocks = measured.service_table.memory_mhz
    top = clocks[-1]
    assert measured.service_a is not None
    assert measured.service_b is not None
    a, b = measured.service_a.value, measured.service_b.value
    course = [smooth_service_cycles(a, b, clock) for clock in clocks]
    # The SMs share what device memory moves in one clock, as far as a stream reaches that. On the
    # GTX 980, 16 SMs x 32 bytes / 64 bytes = 8 cycles at the peak; Table III times its printed
    # efficiency gives 7.63 in every row, which is 8 divided by 1.048576: megabytes taken for
    # mebibytes.
    share = gpu.streaming_share or TYPICAL_STREAMING_SHARE
    best = gpu.sm_count * SECTOR_BYTES / (gpu.bytes_per_memory_clock * share)
    return DramService(
        tuple(clock / top * gpu.memory_mhz for clock in clocks),
        tuple(best * each / course[-1] for each in course),
    )


# --- what one launch is to Wang and Chu's model: from an analysed kernel, or from profiler coun


ACHIEVED_SHARE = 0.9
"""Warps really resident over those the occupancy calculation allows: blocks start and end at
different times. The kernels of the authors' data, most of which can fill an SM, achieve 0.88 to
0.95 of its warps in the median of each file (``achieved_occupancy``)."""

# --- from an analysis ---------------------------------------------------------------------------


class Chain(NamedTuple):
    """The dependent path of one warp: waits for global memory, and core cycles of the rest."""

    waits: float
    cycles: float


def launch_of(analysis: KernelAnalysis, gpu: GpuProfile, shared_latency: float) -> QueueingLaunch:
    """An analysed launch; ``shared_latency`` in core cycles enters the chain of one warp.

    Raises ModelError for matrix instructions on a GPU without tensor cores.
    """
    launch = launch_of_activity(analysis.activity, gpu)
    chain = chain_of(analysis, gpu, shared_latency)
    outer = outer_iterations(analysis)
    return replace(
        launch,
        extra_cycles=launch.extra_cycles + _matrices(analysis, gpu),
        outer_iterations=outer,
        inner_iterations=launch.shared_transactions / outer,
        mlp=launch.transactions / chain.waits if chain.waits else float("inf"),
        chain_cycles=chain.cycles,
    )


def launch_of_activity(activity: Activity, gpu: GpuProfile) -> QueueingLaunch:
    """What ``activity1`` alone tells of a launch: no loops, no dependences."""
    warps_per_block = ceil(activity.threads_per_block / WARP_SIZE)
    warps = activity.blocks * warps_per_block
    memory_instructions = activity.lsu_requests + activity.texture_requests
    instructions = max(0.0, activity.warp_instructions_sass - memory_instructions) / warps
    return QueueingLaunch(
        instructions=instructions,
        **traffic_shares(
            activity.l2_sectors / warps,
            (activity.dram_read_sectors + activity.dram_write_sectors) / warps,
        ),
        resident_warps=max(1.0, ACHIEVED_SHARE * activity.resident_warps_per_sm),
        warps_per_block=warps_per_block,
        blocks=activity.blocks,
        shared_transactions=activity.shared_transactions / warps,
        extra_cycles=_slow_pipes(activity, gpu, warps, instructions / gpu.warp_schedulers),
        texture_cycles=activity.texture_requests * WARP_SIZE / gpu.capability.texture_lanes / warps,
    )


def traffic_shares(transactions: float, dram: float) -> dict[str, float]:
    """g and the hit rate. What reaches device memory has passed L2, whatever was counted there."""
    most = max(transactions, dram)
    return {"transactions": most, "hit_rate": 1 - dram / most if most else 0.0}


def _slow_pipes(activity: Activity, gpu: GpuProfile, warps: float, issue: float) -> float:
    """Cycles of one warp on FP64 and special function units, and what arithmetic lanes take
    beyond the issue of all instructions (64 lanes need two cycles for what issues in one)."""
    sm = gpu.capability
    lanes = max(
        activity.fma_pipe_instructions / sm.fp32_lanes,
        activity.alu_pipe_instructions / sm.int_lanes,
    )
    slow = activity.fp64_instructions / sm.fp64_lanes + activity.sfu_instructions / sm.sfu_lanes
    return slow * WARP_SIZE / warps + max(0.0, lanes * WARP_SIZE / warps - issue)


def _matrices(analysis: KernelAnalysis, gpu: GpuProfile) -> float:
    """Cycles of one warp on the tensor cores, at their rate for dense FP16."""
    if not analysis.activity.tensor_instructions:
        return 0.0
    rate = gpu.capability.tensor_fma_per_clock
    if not rate:
        raise ModelError(f"{gpu.id} has no tensor cores for this kernel's matrices", gpu=gpu.id)
    warps = analysis.launch.blocks * analysis.launch.warps_per_block
    return matrix_flops(analysis) / (FLOPS_PER_FMA * rate * warps)


def chain_of(analysis: KernelAnalysis, gpu: GpuProfile, shared_latency: float) -> Chain:
    """What one warp waits for one after another (``features.activity.waiting``)."""
    waiting, activity = analysis.extras.waiting, analysis.activity
    if waiting is None:
        return Chain(0.0, 0.0)
    of_instruction = waiting.instructions * dependent_cycles(gpu) + waiting.shared * shared_latency
    return Chain(
        waiting.loads * activity.load_requests_per_warp,
        of_instruction * activity.instructions_per_warp,
    )


def outer_iterations(analysis: KernelAnalysis) -> float:
    """How often a warp gets data from global memory: its most executed access, at least once."""
    launch = analysis.launch
    most = 0.0
    for counts in analysis.counts.functions(None).values():
        accesses = counts.requests > 0
        if accesses.any():
            most = max(most, float(counts.warp_executions[accesses].max()))
    return max(1.0, most / (launch.blocks * launch.warps_per_block))
