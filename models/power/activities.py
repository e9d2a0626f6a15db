"""How busy each unit of a GPU is while a launch runs: what its power follows.

An activity is work over what the unit could do in the predicted time, from 0 to 1. Counts come
from ``activity1``, the time from a time model: power predicted so is consistent with the time
predicted beside it (errors of a count cancel, docs/physical.md).
"""

from __future__ import annotations

from typing import NamedTuple

from wattcast.features.activity import Activity
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import WARP_SIZE
from wattcast.features.memory import SECTOR_BYTES
from wattcast.models.clocks import ClockPair, bandwidth_bytes_per_second
from wattcast.models.time.beside import NOTHING_BESIDE, Beside
from wattcast.models.time.bottleneck import CONSTANTS, SHARED_BYTES_PER_LANE, Constants, dram_bytes
from wattcast.models.time.measured_work import FLOPS_PER_FMA, Work


class UnitActivities(NamedTuple):
    """Share of its peak, 0 to 1, at which each unit works on average over the launch.

    ``issue``: warp instructions of all schedulers; ``fma`` holds integer multiplication too;
    ``tensor``: the matrix units' dense FP16 rate; ``sfu``: special functions; ``load_store``:
    shared memory and load/store passes; ``dram``: bandwidth of device memory. ``sms``: SMs that
    have a block at all, of all SMs.
    """

    issue: float
    fma: float
    fp16: float
    tensor: float
    alu: float
    fp64: float
    sfu: float
    load_store: float
    l2: float
    texture: float
    dram: float
    sms: float


AT_REST = UnitActivities(**{**dict.fromkeys(UnitActivities._fields, 0.0), "sms": 1.0})
"""Every SM has a block, and none of them does anything."""


def sms_at_work(blocks: float, gpu: GpuProfile) -> float:
    """Share of the SMs that get one of a launch's ``blocks``: they are dealt out one an SM."""
    return min(1.0, blocks / gpu.sm_count)


class LoadStorePasses(NamedTuple):
    """Passes of the load/store units, by warps: requests, and what bank conflicts add to them.

    ``both``: all of them. ``l1``: of these, requests of global and local memory; the rest is
    shared memory's.
    """

    both: float
    l1: float


def load_store_passes(activity: Activity) -> LoadStorePasses:
    """Of a launch, or launches."""
    conflicts = max(0.0, activity.shared_transactions - activity.shared_requests)
    l1 = max(0.0, activity.lsu_requests - activity.shared_requests)
    return LoadStorePasses(activity.lsu_requests + conflicts, l1)


def unit_activities(
    activity: Activity,
    gpu: GpuProfile,
    clocks: ClockPair,
    time_seconds: float,
    *,
    more: Beside = NOTHING_BESIDE,
    constants: Constants = CONSTANTS,
) -> UnitActivities:
    """Activities of a launch that takes ``time_seconds`` (> 0) at ``clocks``."""
    sm = gpu.capability
    cycles = gpu.sm_count * clocks.core_hz * time_seconds

    def share(done: float, per_cycle_and_sm: float) -> float:
        return min(1.0, done / (per_cycle_and_sm * cycles)) if per_cycle_and_sm else 0.0

    def pipe(warp_instructions: float, lanes: float) -> float:
        return share(warp_instructions * WARP_SIZE, lanes)

    bandwidth = bandwidth_bytes_per_second(gpu, clocks.memory_mhz)
    return UnitActivities(
        issue=share(activity.warp_instructions_sass, sm.warp_schedulers),
        fma=pipe(activity.fma_pipe_instructions, sm.fp32_lanes),
        fp16=pipe(activity.fp16_instructions, sm.fp16_lanes / 2),
        tensor=share(more.tensor_fmas, sm.tensor_fma_per_clock),
        alu=pipe(activity.alu_pipe_instructions, sm.int_lanes),
        fp64=pipe(activity.fp64_instructions, sm.fp64_lanes),
        sfu=pipe(activity.sfu_instructions, sm.sfu_lanes),
        load_store=pipe(
            load_store_passes(activity).both, sm.shared_bytes_per_clock / SHARED_BYTES_PER_LANE
        ),
        l2=share(activity.l2_sectors, L2_SECTORS_PER_CLOCK_OF_SM),
        texture=pipe(activity.texture_requests, sm.texture_lanes),
        dram=min(1.0, dram_bytes(activity, constants) / (bandwidth * time_seconds)),
        sms=sms_at_work(activity.blocks / max(1.0, activity.kernel_launches), gpu),
    )


def work_activities(
    work: Work, gpu: GpuProfile, clocks: ClockPair, time_seconds: float
) -> UnitActivities:
    """The least activities that measured work means, where it takes ``time_seconds`` (> 0).

    What it does not tell counts as nothing: loads and stores, L2 hits, texture, special functions,
    tensor cores.
    """
    sm = gpu.capability
    cycles = gpu.sm_count * clocks.core_hz * time_seconds

    def share(done: float, per_cycle_and_sm: float) -> float:
        return min(1.0, done / (per_cycle_and_sm * cycles)) if per_cycle_and_sm else 0.0

    fma, fp64 = work.flops_sp / FLOPS_PER_FMA, work.flops_dp / FLOPS_PER_FMA
    bandwidth = bandwidth_bytes_per_second(gpu, clocks.memory_mhz)
    return AT_REST._replace(
        issue=share((work.int_ops + fma + fp64) / WARP_SIZE, sm.warp_schedulers),
        fma=share(fma, sm.fp32_lanes),
        alu=share(work.int_ops, sm.int_lanes),
        fp64=share(fp64, sm.fp64_lanes),
        l2=share(work.dram_bytes / SECTOR_BYTES, L2_SECTORS_PER_CLOCK_OF_SM),
        dram=min(1.0, work.dram_bytes / (bandwidth * time_seconds)),
        sms=sms_at_work(work.launch.blocks, gpu),
    )


L2_SECTORS_PER_CLOCK_OF_SM = 1.0
"""The activity of L2 is told against one sector a cycle and SM, whatever an L2 achieves: the
weight fitted to it belongs to this scale."""
