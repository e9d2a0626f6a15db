"""A GPU's parameters for Wang and Chu's model, from its profile.

What the paper measured lies in the profile of the GTX 980 (``[dram_queueing]``). Every other GPU
gets parameters of its own where its profile has the facts, and the GTX 980's where it has not;
each stand-in leaves a warning.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from wattcast.features.diagnostics import Diagnostic
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.features.gpus.dram_queueing import DramQueueing
from wattcast.models.clocks import TYPICAL_STREAMING_SHARE
from wattcast.models.time.penalties import launch_overhead_seconds
from wattcast.models.time.queueing import (
    DramService,
    QueueingGpu,
    portable_service_cycles,
    smooth_service_cycles,
)

MEASURED_ON = "gtx-980"
"""The GPU of the paper: its latencies and the course of its service time stand in."""

BYTES_OF_A_PASS = 128
"""A pass through shared memory serves each of 32 lanes with a 4-byte word."""

L2_SERVICE_CYCLES = 1.0
"""l2_del: the paper takes one core cycle for a sector from L2 to an SM."""


@dataclass(frozen=True, slots=True)
class GpuParameters:
    """What the model uses of a GPU, and what of it stands in for a missing fact."""

    gpu: QueueingGpu
    diagnostics: tuple[Diagnostic, ...]


@lru_cache(maxsize=1)
def _measured() -> tuple[GpuProfile, DramQueueing]:
    profile = load_gpu(MEASURED_ON)
    assert profile.dram_queueing is not None, "the shipped profile holds the paper's parameters"
    return profile, profile.dram_queueing


def gpu_parameters(gpu: GpuProfile) -> GpuParameters:
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
    return GpuParameters(
        QueueingGpu(
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
        ),
        diagnostics,
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
    if known is not None:
        at_default = (
            measured.latency_core_cycles.value + measured.latency_memory_cycles.value * ratio
        )
        return known / at_default, ratio_scale, ()
    return (
        1.0,
        ratio_scale,
        (
            Diagnostic(
                "latency_assumed",
                f"no device memory latency is published for {gpu.id}; that of {reference.id} "
                "is used",
            ),
        ),
    )


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
    course = [
        smooth_service_cycles(measured.service_a.value, measured.service_b.value, clock)
        for clock in clocks
    ]
    best = portable_service_cycles(
        gpu.sm_count, gpu.bytes_per_memory_clock, gpu.streaming_share or TYPICAL_STREAMING_SHARE
    )
    return DramService(
        tuple(clock / top * gpu.memory_mhz for clock in clocks),
        tuple(best * each / course[-1] for each in course),
    )
