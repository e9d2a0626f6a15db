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
from wattcast.models.clocks import ClockPair, bandwidth_bytes_per_second, smallest
from wattcast.models.time.beside import NOTHING_BESIDE, Beside
from wattcast.models.time.bottleneck import CONSTANTS, SHARED_BYTES_PER_LANE, Constants, dram_bytes
from wattcast.models.time.measured_work import FLOPS_PER_FMA, Work


class UnitActivities(NamedTuple):
    """Share of its peak, 0 to 1, at which each unit works on average over the launch.

    ``issue``: warp instructions of all schedulers; ``fma`` holds integer multiplication too;
    ``tensor``: the matrix units' dense FP16 rate; ``sfu``: special functions; ``load_store``:
    shared memory and load/store passes; ``dram``: bandwidth of device memory. ``sms``: SMs that
    have a block at all, of all SMs. Of several pairs of clocks each may be ``[n]``.
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
    return _at_work(
        gpu, clocks, time_seconds, dram_bytes(activity, constants),
        activity.blocks / max(1.0, activity.kernel_launches),
        issue=activity.warp_instructions_sass,
        fma=activity.fma_pipe_instructions * WARP_SIZE,
        fp16=activity.fp16_instructions * WARP_SIZE,
        tensor=more.tensor_fmas,
        alu=activity.alu_pipe_instructions * WARP_SIZE,
        fp64=activity.fp64_instructions * WARP_SIZE,
        sfu=activity.sfu_instructions * WARP_SIZE,
        load_store=load_store_passes(activity).both * WARP_SIZE,
        l2=activity.l2_sectors,
        texture=activity.texture_requests * WARP_SIZE,
    )  # fmt: skip


def per_cycle(gpu: GpuProfile) -> dict[str, float]:
    """What each unit of an SM does in a cycle at most; 0 for one that the GPU lacks."""
    sm = gpu.capability
    return {
        "issue": sm.warp_schedulers, "fma": sm.fp32_lanes, "fp16": sm.fp16_lanes / 2,
        "tensor": sm.tensor_fma_per_clock, "alu": sm.int_lanes, "fp64": sm.fp64_lanes,
        "sfu": sm.sfu_lanes, "load_store": sm.shared_bytes_per_clock / SHARED_BYTES_PER_LANE,
        "l2": L2_SECTORS_PER_CLOCK_OF_SM, "texture": sm.texture_lanes,
    }  # fmt: skip


def _at_work(
    gpu: GpuProfile, clocks: ClockPair, time_seconds: float, moved_bytes: float, blocks: float,
    **done: float,
) -> UnitActivities:  # fmt: skip
    """Activities of units that have ``done`` so much in ``time_seconds``."""
    cycles = gpu.sm_count * clocks.core_hz * time_seconds
    most = {name: each for name, each in per_cycle(gpu).items() if each and name in done}
    needed = {name: done[name] / each / cycles for name, each in most.items()}
    bandwidth = bandwidth_bytes_per_second(gpu, clocks.memory_mhz)
    needed["dram"] = moved_bytes / (bandwidth * time_seconds)
    shares = {name: smallest((1.0, share)) for name, share in needed.items()}
    return AT_REST._replace(**shares, sms=sms_at_work(blocks, gpu))


def work_activities(
    work: Work, gpu: GpuProfile, clocks: ClockPair, time_seconds: float
) -> UnitActivities:
    """The least activities that measured work means, where it takes ``time_seconds`` (> 0).

    What it does not tell counts as nothing: loads and stores, L2 hits, texture, special functions,
    tensor cores.
    """
    fma, fp64 = work.flops_sp / FLOPS_PER_FMA, work.flops_dp / FLOPS_PER_FMA
    return _at_work(
        gpu, clocks, time_seconds, work.dram_bytes, work.launch.blocks,
        issue=(work.int_ops + fma + fp64) / WARP_SIZE,
        fma=fma,
        alu=work.int_ops,
        fp64=fp64,
        l2=work.dram_bytes / SECTOR_BYTES,
    )  # fmt: skip


L2_SECTORS_PER_CLOCK_OF_SM = 1.0
"""The activity of L2 is told against one sector a cycle and SM, whatever an L2 achieves: the
weight fitted to it belongs to this scale."""
