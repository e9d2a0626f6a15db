"""What a launch waits for: the chain of one warp, and what of it others do not fill."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from wattcast.features.activity import Activity
from wattcast.features.activity.counts import LATENCY_PER_BARRIER, LATENCY_PER_WAVE
from wattcast.features.activity.waiting import Copies, Waiting
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import WARP_SIZE
from wattcast.models.clocks import ClockPair

DEPENDENT_CYCLES: Mapping[str, float] = {"3": 9.0, "5": 6.0, "6": 6.0}
"""Core cycles from an arithmetic instruction to one that needs its result, by major compute
capability, else 4: Kepler 9, Maxwell and Pascal 6, Volta 4 (Jia et al. 2018, Table 4.1), and since
(Luo et al., Dissecting the NVIDIA Hopper Architecture through Microbenchmarking, 2025)."""


def dependent_cycles(gpu: GpuProfile) -> float:
    """``DEPENDENT_CYCLES`` of a GPU."""
    return DEPENDENT_CYCLES.get(major(gpu), 4.0)


SHARED_CYCLES, L1_CYCLES, L2_CYCLES = 24.0, 33.0, 216.0
"""Load latencies where a profile holds none: medians of Jia et al. 2018, Table 3.1, and Ernst,
gpu-benches (cuda-latency)."""
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
        + waiting.barriers * instructions * LATENCY_PER_BARRIER
        + LATENCY_PER_WAVE
    )
    loads = waiting.loads * activity.load_requests_per_warp
    asked = max(activity.global_load_sectors, 1.0)
    past_l1 = min(1.0, max(0.0, activity.l2_sectors - activity.global_store_sectors) / asked)
    past_l2 = min(past_l1, activity.dram_read_sectors / asked)
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
    return activity.waves * (max(chain, staged) + copies.exposed * copy)


def major(gpu: GpuProfile) -> str:
    """Major compute capability of a GPU: ``"7"`` of 7.5."""
    return gpu.compute_capability.partition(".")[0]


def gap_seconds(work: float, waited: float, activity: Activity, gpu: GpuProfile) -> float:
    """Seconds in which the blocks of an SM wait at once, beyond the longer of what it works and
    what one of them waits.

    Where there are barriers a block waits and works in turns. The few blocks of an SM are customers
    of a closed queue: each waits its chain, then the SM works for it (mean value analysis,
    Reiser and Lavenberg, Mean-Value Analysis of Closed Multichain Queuing Networks, JACM 1980).
    Without barriers each warp is one, and its own instructions are part of its chain; warps with a
    scheduler each wait for nobody.
    """
    blocks = activity.blocks / max(1.0, activity.kernel_launches) / gpu.sm_count
    customers = max(1, round(min(activity.resident_blocks_per_sm, ceil(blocks))))
    if not work or not waited:
        return 0.0
    alone = waited
    if not activity.barriers:
        customers *= ceil(activity.threads_per_block / WARP_SIZE)
        if customers <= gpu.warp_schedulers:
            return 0.0
        alone = max(0.0, waited - work / customers)
    queued = each = 0.0
    for others in range(customers):
        stay = work * (1.0 + queued)
        each = (alone * customers + stay) / (others + 1)
        queued = stay / each
    return max(0.0, each - max(work, waited))
