"""What binds a launch, in the words that profilers and guides use.

The resource that needs longest (``wattcast.models.time.bottleneck``) and, where one cause makes a
third of its time or more, that cause: bank conflicts, uncoalesced accesses, atomics that meet,
barriers, memory that is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from wattcast.features.activity import Activity
from wattcast.features.activity.operations import Least
from wattcast.features.activity.waiting import NO_COPIES
from wattcast.models.time.beside import Beside

BOUNDS: Mapping[str, str] = {
    "dram": "DRAM bandwidth", "l2": "L2 bandwidth", "l1": "L1 bandwidth",
    "load_store": "load/store units", "shared": "shared memory bandwidth",
    "gaps": "latency: too few blocks to hide it", "latency": "latency",
    "atomics": "atomics contention", "tensor": "tensor throughput", "issue": "instruction issue",
    "fma": "FP32 throughput", "alu": "integer throughput", "fp64": "FP64 throughput",
    "shared_fp64": "FP64 throughput", "fp16": "FP16 throughput", "sfu": "special functions",
    "texture": "texture throughput", "blocks": "block scheduling", "launch": "launch overhead",
}  # fmt: skip
"""What binds, in words, by resource."""

CONFLICTS, UNCOALESCED, BARRIERS = (
    "shared-memory bank conflicts",
    "uncoalesced accesses",
    "barriers",
)

CAUSE = 1 / 3
"""Share of its resource's time from which a cause is told instead of the resource. Two lanes in one
bank make half of the passes of their access."""

WAITS = {
    "loads": "memory latency",
    "shared": "shared memory latency",
    "barriers": BARRIERS,
    "instructions": "latency of dependent instructions",
}
"""What a warp waits for, by field of ``Waiting``."""

Again = Callable[[Activity, Beside], Mapping[str, float]]
"""Seconds by resource of a launch that does something else."""


def bound_by(
    resources: Mapping[str, float],
    start_seconds: float,
    activity: Activity,
    more: Beside,
    least: Callable[[], Least],
    again: Again,
) -> str:
    """What binds the launch whose ``resources`` are those of ``activity`` and ``more``.

    ``start_seconds`` is what its start takes, ``least`` what its accesses could take, asked for
    where memory binds; ``again`` tells the seconds of a changed launch.
    """
    name = max(resources, key=lambda each: resources[each])
    if start_seconds > resources[name]:
        return BOUNDS["launch"]
    for word, did, beside in _without(name, activity, more, least):
        if again(did, beside)[name] <= (1 - CAUSE) * resources[name]:
            return word
    if name in ("shared", "load_store"):
        return BOUNDS["shared" if activity.shared_requests else "load_store"]
    if name == "gaps" and activity.barriers:
        return BARRIERS
    if name == "fma" and activity.fp32_instructions < activity.fma_pipe_instructions / 2:
        return "integer multiplication throughput"
    return BOUNDS[name]


def _without(
    name: str, activity: Activity, more: Beside, least: Callable[[], Least]
) -> Iterator[tuple[str, Activity, Beside]]:
    """Causes of a resource's time, the likeliest first, and the launch without each."""
    if name == "tensor" and more.feed_passes:
        yield (
            "shared memory that feeds the tensor cores",
            activity,
            replace(more, feed_passes=0.0),
        )
    if name in ("shared", "load_store"):
        passes = max(least().shared_passes, activity.shared_requests)
        fewer = min(activity.shared_transactions, passes)
        yield CONFLICTS, replace(activity, shared_transactions=fewer), more
        yield BOUNDS["atomics"], activity, replace(more, atomic_passes=0.0)
    if name in ("l1", "l2", "dram"):
        yield UNCOALESCED, _coalesced(activity, least().sectors), more
    if name == "latency":
        yield (
            "asynchronous copies, for want of stages",
            activity,
            replace(more, copies=NO_COPIES),
        )
        if more.waiting is not None:
            for field, word in WAITS.items():
                less = more.waiting._replace(**{field: 0.0})
                yield word, activity, replace(more, waiting=less)


def _coalesced(activity: Activity, sectors: float) -> Activity:
    """The launch whose accesses of global memory touch ``sectors`` alone: what passes L1 and L2 is
    no more than that, and no more than it was."""
    before = activity.global_load_sectors + activity.global_store_sectors
    share = min(1.0, sectors / before) if before else 1.0
    dram = activity.dram_read_sectors + activity.dram_write_sectors
    past_l2 = min(1.0, share * before / dram) if dram else 1.0
    return replace(
        activity,
        global_load_sectors=share * activity.global_load_sectors,
        global_store_sectors=share * activity.global_store_sectors,
        l2_sectors=min(activity.l2_sectors, share * before + activity.local_sectors),
        dram_read_sectors=past_l2 * activity.dram_read_sectors,
        dram_write_sectors=past_l2 * activity.dram_write_sectors,
    )
