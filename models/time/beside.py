"""What a launch does beside ``activity1``, what it waits for, and what binds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from types import MappingProxyType
from typing import Any

import numpy as np

from wattcast.features.activity import Activity, Extras
from wattcast.features.activity.counts import LATENCY_PER_WAVE
from wattcast.features.activity.extras import TensorKind, TensorWork
from wattcast.features.activity.instructions import Least
from wattcast.features.activity.waiting import NO_COPIES, Copies, Waiting
from wattcast.features.attached import attached
from wattcast.features.gpus import CapabilityFacts, GpuProfile
from wattcast.features.launch import WARP_SIZE
from wattcast.models.clocks import ClockPair, largest, rows

TENSOR_COST: Mapping[TensorKind, float] = MappingProxyType(
    {
        "f16": 1.0,
        "tf32": 2.0,
        "f64": 16.0,
        "f8": 0.5,
        "f4": 0.25,
        "s8": 0.5,
        "s4": 0.25,
        "b1": 1 / 16,
    }
)
"""Time of a multiply-add of the matrix units over that of an FP16 one (A100 whitepaper: FP16 312,
TF32 156, FP64 19.5 TFLOPS; INT8 624, INT4 1248, binary 4992 TOPS. FP8 and FP4: H100 and Blackwell
whitepapers, twice and four times FP16). Sparse ones take half (same place)."""


LANES_OF_A_LINE = 1.6
"""Atomics on the words of one 128-byte line of global memory in the time of one on a single word,
a core clock. 2^21 blocks of 32 threads add 512 words each to the same 512 words, 16 lines, in 22.6
to 25.6 ms on GTX 1650, RTX 2060, 3060, 3060 Ti, 3060 Laptop, 3070 Ti and 3080 (4 to 40 slices of
L2): 25.6 lanes a clock, where 2^26 on one word tell the clock on the same boards: 1.57 to 1.60 a
line (R100001/Programming-Massively-Parallel-Processors, histogram with shared bins). Nothing is
published of more lines than these."""


FROM_REGISTERS: Mapping[str, float] = {"9": 1 / 0.629}
"""Time of a multiply-add by mma or wmma, whose factors come from registers, over that of the peak
rate, by major compute capability, else 1. Hopper reaches its peak by wgmma alone, and 62.9 % of it
by mma, the mean over types and shapes on an H800 PCIe (Luo et al., Dissecting the NVIDIA Hopper
Architecture through Microbenchmarking and Multiple Level Analysis, arXiv:2501.12084, 2025, section
6.2). Nothing is published of 10.0."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What a launch does beside ``activity1``, in the units of this model.

    ``tensor_fmas``: multiply-adds of the matrix units, as FP16 ones of the same time.
    ``atomic_passes``: passes of atomics over their lanes that meet at one address, each a
    load/store pass more. ``hottest_operations``: atomics on the word of global memory that most
    of them hit, which go one after the other, or as many as take the time of those on a line
    (``LANES_OF_A_LINE``).
    ``waiting``: dependent chains of a warp, for each machine instruction and each load that it
    executes. ``l1_cycles_per_sector`` of global loads; without it L1 delivers sectors at its full
    rate. ``register_reads`` of FP32 multiply-adds, by warps. ``feed_passes``:
    passes of shared memory that asynchronous products take; ``copies``: waits of a block for
    asynchronous copies. ``tensor_by_kind``: kinds of factors, multiply-adds and those of them from
    registers (mma and wmma), sparse ones as half; each kind runs at the rate that the GPU has for
    it.
    ``busy_blocks`` do more than leave, where that is known. ``constant_passes`` and
    ``constant_requests``: words and loads from constant memory at addresses that change.
    ``pieces`` of device memory for each sector; ``store_headers``: what stores send to L2 beyond
    whole lines, in sectors.
    """

    tensor_fmas: float = 0.0
    atomic_passes: float = 0.0
    hottest_operations: float = 0.0
    waiting: Waiting | None = None
    l1_cycles_per_sector: float | None = None
    register_reads: float = 0.0
    feed_passes: float = 0.0
    copies: Copies = NO_COPIES
    tensor_by_kind: tuple[tuple[TensorKind, float, float], ...] = ()
    busy_blocks: float | None = None
    constant_passes: float = 0.0
    constant_requests: float = 0.0
    pieces: float = 0.0
    store_headers: float = 0.0


NOTHING_BESIDE = Beside()


@attached
def beside(extras: Extras) -> Beside:
    """The extras of an analysis; what it does not know counts as no conflict."""
    tensor = sum(TENSOR_COST[work.kind] * _dense(work) for work in extras.tensor)
    held = {(work.kind, work.sparse): _dense(work) for work in extras.from_registers}
    passes = sum(
        max(0.0, use.passes - use.requests)
        for use in extras.atomics.uses
        if use.passes is not None and not use.aggregated
    )
    hottest = max(
        extras.atomics.hottest_operations or 0.0,
        (extras.atomics.line_operations or 0.0) / LANES_OF_A_LINE,
    )
    in_global = [use for use in extras.atomics.uses if use.space == "global"]
    if in_global and all(use.aggregated for use in in_global):
        hottest = min(hottest, extras.atomics.hottest_requests or 0.0)
    kinds = tuple(
        (work.kind, _dense(work), held.get((work.kind, work.sparse), 0.0)) for work in extras.tensor
    )
    return Beside(
        tensor, passes, hottest, extras.waiting, extras.l1_cycles_per_sector,
        extras.register_reads, extras.feed_passes, extras.copies, kinds, extras.busy_blocks,
        extras.constant_passes, extras.constant_requests, extras.pieces,
        extras.store_headers,
    )  # fmt: skip


def _dense(work: TensorWork) -> float:
    """Multiply-adds, sparse ones as half."""
    return work.multiply_adds * (0.5 if work.sparse else 1.0)


def tensor_cycles(more: Beside, gpu: GpuProfile) -> float:
    """Cycles of the matrix units over all SMs. Boards whose units add up in FP32 at half rate do
    integers at full rate."""
    sm = gpu.capability
    if not sm.tensor_fma_per_clock:
        return 0.0
    slower = FROM_REGISTERS.get(major(gpu), 1.0) - 1.0
    return sum(
        (done + slower * held) / tensor_rate(sm, kind) for kind, done, held in more.tensor_by_kind
    )


_TENSOR_ROWS: Mapping[TensorKind, str] = {
    "tf32": "tensor_tf32_fma_per_clock", "f64": "tensor_fp64_fma_per_clock",
    "f8": "tensor_fp8_fma_per_clock", "f4": "tensor_fp4_fma_per_clock",
    "s8": "tensor_int8_fma_per_clock",
}  # fmt: skip


def tensor_rate(sm: CapabilityFacts, kind: TensorKind) -> float:
    """Dense multiply-adds of an SM in a clock: what its capability tells, else by ``TENSOR_COST``
    from FP16 (of 4 and 1 bits from 8: no later whitepaper prints them)."""
    base: TensorKind = "s8" if kind in ("s4", "b1") and sm.tensor_int8_fma_per_clock else "f16"
    if kind in _TENSOR_ROWS and getattr(sm, _TENSOR_ROWS[kind]):
        base = kind
    rate: float = getattr(sm, _TENSOR_ROWS.get(base, "tensor_fma_per_clock"))
    return rate * TENSOR_COST[base] / TENSOR_COST[kind]


# --- What a launch waits for: the chain of one warp, and what of it others  --------------------


DEPENDENT_CYCLES: Mapping[str, float] = {"3": 9.0, "5": 6.0, "6": 6.0}
"""Core cycles from an arithmetic instruction to one that needs its result, by major compute
capability, else 4: Kepler 9, Maxwell and Pascal 6, Volta 4 (Jia et al. 2018, Table 4.1), and since
(Luo et al., Dissecting the NVIDIA Hopper Architecture through Microbenchmarking, 2025)."""


def dependent_cycles(gpu: GpuProfile) -> float:
    """``DEPENDENT_CYCLES`` of a GPU."""
    return DEPENDENT_CYCLES.get(major(gpu), 4.0)


BARRIER_CYCLES = 65.0
"""Core cycles from a warp's last instruction before a barrier of its block to its next one, stores
to shared memory seen by all. An RTX 3080 at 1440 MHz takes 758 and 756 ns for nine steps of a warp
of eight (four shared loads, two sums, a store, a barrier: lfib4, firstColGPU and colYGPU of
``time/rtx_3080_launches.csv`` of the data folder), 121 cycles each; the loads and the stalls that
ptxas 12.9 writes for sm_86 explain 56."""
SHARED_CYCLES, L1_CYCLES, L2_CYCLES = 24.0, 33.0, 216.0
"""Load latencies where a profile holds none: medians of Jia et al. 2018, Table 3.1, and Ernst,
gpu-benches (cuda-latency)."""
PASS_BYTES = 128.0
"""Of shared memory, 32 banks of 4 bytes: each further pass of an access comes so much later (the
CUDA C++ Programming Guide serialises them)."""
TWO_PARTITIONS = ("8.0", "9.0")
FAR_L2 = 2.0
"""L2 of A100 and H100 has two halves; what does not fit into the nearer one takes twice as long:
A100 211 cycles to 20 MB, 424 to 444 to 40 MB; H100 266 to 25 MB, 462 to 475 to 50 MB (Ernst,
gpu-benches, cuda-latency)."""
DRAM_SECONDS = 200e-9
"""What device memory adds to a hit in L2 where a profile holds no latency: mean over V100 (154 ns),
A100 (256), H100 (220), L40 (142; Ernst, gpu-benches, cuda-latency) and GTX 980 (222;
docs/frequency.md)."""
AT_MEMORY_CLOCK = 0.49
"""Share of what device memory adds to a hit in L2 that goes with the memory clock; the rest goes
with the core clock. GTX 980: 222.78 / memory clock + 277.32 / core clock (Wang and Chu 2018, Eq. 4)
at 1075 / 3505 MHz, less 207 cycles of L2 (profile of gtx-titan-x)."""


def waiting_seconds(
    activity: Activity, gpu: GpuProfile, clocks: ClockPair, waiting: Waiting | None,
    copies: Copies,
) -> float:  # fmt: skip
    """The chain of one warp times the waves; each load takes as long as the level it comes from.

    A copy takes as long as a load. Those of a loop's stages pass beside the chain, and the longer
    of the two counts (``features.activity.waiting``). What device memory adds to a load goes with
    both clocks (``AT_MEMORY_CLOCK``).
    """
    if waiting is None:
        return activity.latency_cycles / clocks.core_hz
    instructions = activity.instructions_per_warp
    cycles = (
        waiting.instructions * instructions * dependent_cycles(gpu)
        + waiting.shared * instructions * (gpu.shared_latency_cycles or SHARED_CYCLES)
        + waiting.passes * instructions * PASS_BYTES / gpu.capability.shared_bytes_per_clock
        + waiting.barriers * instructions * BARRIER_CYCLES
        + LATENCY_PER_WAVE
    )
    loads = waiting.loads * activity.load_requests_per_warp
    asked = max(activity.global_load_sectors + activity.local_sectors, 1.0)
    missed = min(1.0, max(0.0, activity.l2_sectors - activity.global_store_sectors) / asked)
    past_l1 = _slowest(missed, activity, waiting)
    past_l2 = _slowest(min(missed, activity.dram_read_sectors / asked), activity, waiting)
    near, far = gpu.l1_latency_cycles or L1_CYCLES, gpu.l2_latency_cycles or L2_CYCLES
    if gpu.compute_capability in TWO_PARTITIONS and 2 * activity.footprint_bytes > gpu.l2_bytes:
        far *= FAR_L2
    memory = DRAM_SECONDS * gpu.core_mhz * 1e6
    if gpu.dram_latency_cycles is not None:
        memory = max(0.0, gpu.dram_latency_cycles - far)
    each = near + past_l1 * (far - near) + past_l2 * (1.0 - AT_MEMORY_CLOCK) * memory
    cycles += loads * each
    slower = gpu.memory_mhz / clocks.memory_mhz / (gpu.core_mhz * 1e6)
    behind = past_l2 * AT_MEMORY_CLOCK * memory * slower
    chain = cycles / clocks.core_hz + loads * behind
    copy = each / clocks.core_hz + behind
    staged = copies.pipelined * copy + copies.between * chain
    longest: float = largest((chain, staged))
    return activity.waves * (longest + copies.exposed * copy)


def _slowest(share: float, activity: Activity, waiting: Waiting) -> float:
    """Share of waits that last until a load comes from behind a cache, of ``share`` of loads.

    A wait lasts as long as the slowest of the loads that a warp waits for together, and before a
    barrier as long as the slowest of those of all warps of the block.
    """
    waits = waiting.loads * activity.load_requests_per_warp
    if not waits:
        return share
    together = max(1.0, activity.load_requests_per_warp / waits)
    met = min(1.0, waiting.barriers * activity.instructions_per_warp / waits)
    warps = max(1, ceil(activity.threads_per_block / WARP_SIZE))
    alone, all_warps = (1.0 - pow(1.0 - share, together * each) for each in (1, warps))
    return float(alone + met * (all_warps - alone))


def major(gpu: GpuProfile) -> str:
    """Major compute capability of a GPU: ``"7"`` of 7.5."""
    return gpu.compute_capability.partition(".")[0]


def gap_seconds(work: Any, waited: Any, slowest: Any, activity: Activity, gpu: GpuProfile) -> Any:
    """Seconds in which the blocks of an SM wait at once, beyond the longer of what it works and
    what one of them waits; of several pairs of clocks ``[n]``.

    Where there are barriers a block waits and works in turns, but what its slowest warp alone waits
    for (``slowest`` seconds, of arithmetic and shared memory) passes beside what the others do. The
    few blocks of an SM are customers of a closed queue: each waits its chain, then the SM works for
    it (mean value analysis, Reiser and Lavenberg, Mean-Value Analysis of Closed Multichain Queuing
    Networks, JACM 1980).
    Without barriers each warp is one, and its own instructions are part of its chain; warps with a
    scheduler each wait for nobody.
    """
    if isinstance(work, np.ndarray):
        told = rows(len(work), work, waited, slowest)
        return np.array([gap_seconds(w, t, s, activity, gpu) for w, t, s in told])
    blocks = activity.blocks / max(1.0, activity.kernel_launches) / gpu.sm_count
    customers = max(1, round(min(activity.resident_blocks_per_sm, ceil(blocks))))
    if not work or not waited:
        return 0.0
    alone = max(0.0, waited - min(slowest, work / customers))
    if not activity.barriers:
        customers *= ceil(activity.threads_per_block / WARP_SIZE)
        if customers <= gpu.warp_schedulers:
            return 0.0
        alone = max(0.0, waited - work / customers)
    thought = alone * customers / work
    queued = stay = 0.0
    for number in range(1, customers + 1):
        stay = 1.0 + queued
        queued = number * stay / (thought + stay)
    return float(max(0.0, work * (thought + stay) / customers - max(work, waited)))


# --- What binds a launch, in the words that profilers and guides use ---------------------------


BOUNDS: Mapping[str, str] = {
    "dram": "DRAM bandwidth", "l2": "L2 bandwidth", "l1": "L1 bandwidth",
    "load_store": "load/store units", "shared": "shared memory bandwidth",
    "gaps": "latency: too few blocks to hide it", "latency": "latency",
    "atomics": "atomics contention", "tensor": "tensor throughput", "issue": "instruction issue",
    "fma": "FP32 throughput", "alu": "integer throughput", "fp64": "FP64 throughput",
    "shared_fp64": "FP64 throughput", "fp16": "FP16 throughput", "sfu": "special functions",
    "texture": "texture throughput", "constant": "constant cache",
    "blocks": "block scheduling", "launch": "launch overhead",
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
    "passes": CONFLICTS,
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
        asked = activity.global_load_sectors + activity.global_store_sectors
        if least().sectors <= (1 - CAUSE) * asked:
            close = replace(more, pieces=0.0, store_headers=0.0)
            yield UNCOALESCED, _coalesced(activity, least().sectors), close
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
    past_l2 = min(1.0, (share * before + activity.local_sectors) / dram) if dram else 1.0
    return replace(
        activity,
        global_load_sectors=share * activity.global_load_sectors,
        global_store_sectors=share * activity.global_store_sectors,
        l2_sectors=min(activity.l2_sectors, share * before + activity.local_sectors),
        dram_read_sectors=past_l2 * activity.dram_read_sectors,
        dram_write_sectors=past_l2 * activity.dram_write_sectors,
    )
