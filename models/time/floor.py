"""The least time a launch can take: what its start takes, and what surely moves at peak rates.

Ends of intervals are kept above it. Only what no board can do without counts: the operations that
were executed, at the highest clock of the board, and the bytes of the footprint that do not fit
into L2, at the datasheet's bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterable

from wattcast.features.activity import Activity
from wattcast.features.gpus import GpuProfile
from wattcast.models.clocks import ClockPair, bandwidth_bytes_per_second

LEAST_LAUNCH_SECONDS = 1e-6
"""Of a launch that does nothing. The shortest of 2,596 launches that a profiler timed on an RTX
3080 took 1.7 us (docs/data.md, measured work); the round figure below leaves newer boards room."""


def least_seconds(activities: Iterable[Activity], gpu: GpuProfile, clocks: ClockPair) -> float:
    """Of a launch, or launches, that may be any of the cases; at least the start of one."""
    return min((_least(each, gpu, clocks) for each in activities), default=LEAST_LAUNCH_SECONDS)


def _least(activity: Activity, gpu: GpuProfile, clocks: ClockPair) -> float:
    from wattcast.models.time.roofline import lane_flops, peaks_per_second  # reads tables

    peaks = peaks_per_second(gpu, max(clocks.core_mhz, gpu.max_core_mhz))
    flops = lane_flops(activity, 0.0, gpu)
    memory = bandwidth_bytes_per_second(gpu, max(clocks.memory_mhz, gpu.memory_mhz))
    moved = max(0.0, activity.footprint_bytes - gpu.l2_bytes)
    bounds = [flops[name] / peaks[name] for name in flops if peaks[name] > 0]
    return max(LEAST_LAUNCH_SECONDS * max(1.0, activity.kernel_launches), moved / memory, *bounds)
