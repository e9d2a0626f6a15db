"""The default time model: what a launch physically does, over the rate of what does it.

Every resource gets the seconds it would need alone (``resource_seconds``). Resources work at the
same time but never overlap perfectly, so a p-norm a little above the largest combines them, and
a launch takes no less than its longest chain of waiting (``combined_seconds``); its start comes
on top. Rates come from the GPU's profile; no
constant was fitted to the time of an application. Sources of the constants, and how far the
result lies from measured times: docs/bottleneck.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from wattcast.features.activity import Activity
from wattcast.features.activity.counts import LATENCY_PER_BARRIER, LATENCY_PER_WAVE
from wattcast.features.activity.waiting import Copies, Waiting
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import WARP_SIZE
from wattcast.features.memory import SECTOR_BYTES
from wattcast.models.clocks import ClockPair, checked, default_clocks, streaming_bytes_per_second
from wattcast.models.estimate import Estimate, unsure
from wattcast.models.intervals import loosened
from wattcast.models.time.base import Floats, Regime, TimePrediction
from wattcast.models.time.beside import FROM_REGISTERS, NOTHING_BESIDE, TENSOR_COST, Beside, beside
from wattcast.models.time.spread import interval_of, level_of


@dataclass(frozen=True, slots=True)
class Constants:
    """Dimensionless constants shared by all GPUs, and one time (docs/bottleneck.md).

    ``overlap_norm`` and ``sm_norm``: exponents of the norms that combine the SM with memory, and
    what an SM does; ``queue_norm`` that of units behind one queue. ``reread_locality``: share of
    estimated DRAM re-reads that count; 1 for our own analysis, which follows reuse distances, less
    for estimates that do not (``studies.data.activity_tables``). ``load_store``, ``fp64`` and
    ``texture``: time a pipe takes over that at its peak rate. ``block_cycles`` and
    ``block_cycles_of_sm``: least core cycles between the starts of two blocks, over the whole
    GPU and on one SM. ``launch_seconds``: a launch itself. The last three count where the
    profile holds no measurement.
    """

    overlap_norm: float = 3.0
    sm_norm: float = 1.5
    queue_norm: float = 1.0
    reread_locality: float = 1.0
    load_store: float = 1.15
    fp64: float = 1.1
    texture: float = 1.1
    block_cycles: float = 1.7
    block_cycles_of_sm: float = 114.0
    launch_seconds: float = 2.5e-6


CONSTANTS = Constants()

MULTIPLY_INSTRUCTIONS: Mapping[str, float] = {"5": 3.0, "6": 3.0}
"""Machine instructions of a 32-bit integer multiplication by major compute capability, else 1.

Maxwell and Pascal multiply 16 bits at a time (XMAD; the CUDA C++ Programming Guide's table of
arithmetic throughput says "multiple instructions" for 5.x and 6.x).
"""

MULTIPLY_LANES = 64
"""Lanes of an SM that multiply 32-bit integers from compute capability 7.0 on, where FP32 has 128
too (CUDA C++ Programming Guide, throughput of native arithmetic instructions; dp4a likewise)."""

SHARED_BYTES_PER_LANE = 4
"""A load/store pass serves each lane with one bank's word (CUDA C++ Programming Guide)."""

L1_BYTES_PER_CLOCK = 128
"""What L1 of an SM delivers a clock at most, where a profile holds no measurement: one line
(CUDA C++ Programming Guide, compute capability 5.x on)."""

L2_BYTES_PER_CLOCK_OF_SM = 32
"""What an SM draws from L2 a clock, where a profile holds no measurement: one sector."""

REGISTERS_PER_CLOCK = 2
"""Registers of a warp that a scheduler's register file delivers a clock: one from each of its two
banks (``features.activity.reads`` has the sources)."""
TWO_BANKS_FROM = 7.0
"""Compute capability from which it has two; before it has four (Jia et al. 2018)."""

HOT_WORD_CYCLES = 1.0
"""Core cycles between two atomics on the same word of global memory (GK110 whitepaper: one a
clock; nothing newer is published)."""

HOT_WORD_LANES = 16
"""Lanes of a warp whose atomics on one word reach L2 as one, from 7.0 on: 163,840 of them were
10,240 on a Quadro GV100 (github.com/accel-sim/gpgpu-sim_distribution, pull request 33)."""

LATENCY = "latency"

_REGIMES: Mapping[str, Regime] = {
    "dram": "memory",
    "blocks": "latency",
    "latency": "latency",
    "atomics": "latency",
}


def resource_seconds(
    activity: Activity,
    gpu: GpuProfile,
    clocks: ClockPair,
    constants: Constants = CONSTANTS,
    more: Beside = NOTHING_BESIDE,
) -> dict[str, float]:
    """Seconds each resource would need if nothing else limited the launch.

    Device memory runs at the memory clock, everything else at the core clock. What an SM does
    itself waits for the busiest SM (``sm_imbalance``).
    """
    sm = gpu.capability
    hz = clocks.core_hz
    busiest = gpu.sm_count * hz / activity.sm_imbalance
    multiplications = max(0.0, activity.fma_pipe_instructions - activity.fp32_instructions)
    extra = multiplications * (MULTIPLY_INSTRUCTIONS.get(_major(gpu), 1.0) - 1.0)
    shared_lanes = sm.shared_bytes_per_clock / SHARED_BYTES_PER_LANE

    def pipe(warp_instructions: float, lanes: float) -> float:
        # A pipe the SM lacks (FP16 on Maxwell) does nothing: its work is counted elsewhere.
        return warp_instructions * WARP_SIZE / (lanes * busiest) if lanes else 0.0

    return {
        "dram": dram_bytes(activity, constants)
        / streaming_bytes_per_second(gpu, clocks.memory_mhz),
        "l2": activity.l2_sectors * SECTOR_BYTES / (_l2_bytes_per_clock(gpu) * hz),
        "l1": _l1_cycles(activity, gpu, more.l1_cycles_per_sector) / busiest,
        "load_store": constants.load_store
        * pipe(
            _load_store_passes(activity, gpu, more.feed_passes) + more.atomic_passes, shared_lanes
        ),
        "atomics": _hot_word_cycles(more, gpu) / hz,
        # Asynchronous products read shared memory beside the warps: the slower of the two counts.
        "tensor": max(_tensor_cycles(more, gpu) / busiest, pipe(more.feed_passes, shared_lanes)),
        "issue": (activity.warp_instructions_sass + extra) / (sm.warp_schedulers * busiest),
        "fma": max(
            pipe(activity.fma_pipe_instructions + extra, sm.fp32_lanes),
            pipe(multiplications + extra, min(sm.fp32_lanes, _multiply_lanes(gpu))),
            more.register_reads / (REGISTERS_PER_CLOCK * sm.warp_schedulers * busiest)
            if float(gpu.compute_capability) >= TWO_BANKS_FROM
            else 0.0,
        ),
        "alu": pipe(activity.alu_pipe_instructions, sm.int_lanes),
        "shared_fp64" if _queues_fp64(gpu) else "fp64": constants.fp64
        * pipe(activity.fp64_instructions, sm.fp64_lanes),
        "fp16": pipe(activity.fp16_instructions, sm.fp16_lanes / 2),
        "sfu": pipe(activity.sfu_instructions, sm.sfu_lanes),
        "texture": constants.texture * pipe(activity.texture_requests, sm.texture_lanes),
        "blocks": activity.blocks * _block_seconds(activity, gpu, hz, busiest, constants),
        "latency": _waiting_seconds(activity, gpu, clocks, more.waiting, more.copies),
    }


ISSUED = ("issue", "fma", "alu", "fp64", "fp16", "sfu", "tensor")
"""One thing: an instruction takes its slot of the scheduler and its pipe at the same time, and
different pipes work side by side. The slowest of them counts."""

QUEUED = ("shared_fp64", "load_store")
SHARED_FP64_LANES = 4
"""One thing: units that the parts of an SM share and that take their instructions from one queue.
Double precision is such a unit where an SM has only a few lanes of it; others have some in each
part (an engineer of NVIDIA, forums.developer.nvidia.com/t/315200: on GPUs with lighter SMs FP64 is
a unit of the whole SM, and the MIO queues what such units do). Before 7.0 their times add up, by
three programs on a GTX 1080 Ti; on a Quadro RTX 8000 they do not (docs/bottleneck.md)."""

BESIDE_SM = ("dram", "l2", "blocks")
"""What works beside the SMs: memory, and what hands out blocks. All else is done by an SM in turns
with what it issues."""


def combined_seconds(resources: Mapping[str, float], constants: Constants = CONSTANTS) -> float:
    """A norm of what each resource needs, but no less than the latency.

    The slowest of ``ISSUED`` and what else an SM does are combined by one norm, the SM and
    ``BESIDE_SM`` by another: the largest where one resource dominates and more where several come
    close. ``latency`` is a chain rather than a resource: it leaves the others free, so the longer
    of the two counts. 0 where nothing is needed.
    """
    issued = max((resources.get(name, 0.0) for name in ISSUED), default=0.0)
    queue = [resources.get(name, 0.0) for name in QUEUED]
    outside = (*ISSUED, *QUEUED, *BESIDE_SM, LATENCY)
    inside = [part for name, part in resources.items() if name not in outside]
    queued = _norm(queue, constants.queue_norm)
    sm = _norm((issued, queued, *inside), constants.sm_norm)
    busy = _norm((sm, *(resources.get(name, 0.0) for name in BESIDE_SM)), constants.overlap_norm)
    return max(busy, resources.get(LATENCY, 0.0))


def _norm(parts: Sequence[float], exponent: float) -> float:
    largest = max(parts)
    if not largest:
        return 0.0
    return largest * float(sum((part / largest) ** exponent for part in parts) ** (1 / exponent))


def launch_seconds(activity: Activity, gpu: GpuProfile, constants: Constants = CONSTANTS) -> float:
    """What starting the launches of ``activity`` costs."""
    line = gpu.kernel_launch
    each = constants.launch_seconds if line is None else line.microseconds * 1e-6
    return each * activity.kernel_launches


def predicted_seconds(
    activity: Activity,
    gpu: GpuProfile,
    clocks: ClockPair,
    constants: Constants = CONSTANTS,
    more: Beside = NOTHING_BESIDE,
) -> float:
    """Seconds of the launch, or launches, that ``activity`` totals."""
    resources = resource_seconds(activity, gpu, clocks, constants, more)
    return combined_seconds(resources, constants) + launch_seconds(activity, gpu, constants)


def regime(resources: Mapping[str, float], start_seconds: float) -> Regime:
    """What bounds a launch: its largest resource, or its start."""
    name = max(resources, key=lambda each: resources[each])
    if start_seconds > resources[name]:
        return "launch"
    return _REGIMES.get(name, "compute")


def dram_bytes(activity: Activity, constants: Constants = CONSTANTS) -> float:
    """Bytes between L2 and device memory: distinct ones once, re-reads as far as they count."""
    sectors = activity.dram_read_sectors + activity.dram_write_sectors
    distinct = activity.kernel_launches * activity.footprint_bytes / SECTOR_BYTES
    again = max(0.0, sectors - distinct)
    return (sectors - (1 - constants.reread_locality) * again) * SECTOR_BYTES


def _block_seconds(
    activity: Activity, gpu: GpuProfile, hz: float, busiest: float, constants: Constants
) -> float:
    """Least seconds between the starts of two blocks."""
    if gpu.block_start is not None:
        return gpu.block_start.at(ceil(activity.threads_per_block / WARP_SIZE)) / hz
    return max(constants.block_cycles / hz, constants.block_cycles_of_sm / busiest)


DEPENDENT_CYCLES: Mapping[str, float] = {"3": 9.0, "5": 6.0, "6": 6.0}
"""Core cycles from an arithmetic instruction to one that needs its result, by major compute
capability, else 4: Kepler 9, Maxwell and Pascal 6, Volta 4 (Jia et al. 2018, Table 4.1), and since
(Luo et al., Dissecting the NVIDIA Hopper Architecture through Microbenchmarking, 2025)."""


def dependent_cycles(gpu: GpuProfile) -> float:
    """``DEPENDENT_CYCLES`` of a GPU."""
    return DEPENDENT_CYCLES.get(_major(gpu), 4.0)


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


def _waiting_seconds(
    activity: Activity, gpu: GpuProfile, clocks: ClockPair, waiting: Waiting | None,
    copies: Copies,
) -> float:  # fmt: skip
    """The chain of one warp times the waves; each load takes as long as the level it comes from.

    A copy that is waited for in the round that asks for it takes as long as a load; those asked for
    rounds ahead pass beside the chain, and the longer of the two counts. What device memory adds to
    a load goes with the memory clock.
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
    loads = waiting.loads * activity.load_requests_per_warp + copies.exposed
    asked = max(activity.global_load_sectors, 1.0)
    past_l1 = min(1.0, max(0.0, activity.l2_sectors - activity.global_store_sectors) / asked)
    past_l2 = min(past_l1, activity.dram_read_sectors / asked)
    near, far = gpu.l1_latency_cycles or L1_CYCLES, gpu.l2_latency_cycles or L2_CYCLES
    if gpu.compute_capability in TWO_PARTITIONS and 2 * activity.footprint_bytes > gpu.l2_bytes:
        far *= FAR_L2
    each = near + past_l1 * (far - near)
    cycles += loads * each
    memory = DRAM_SECONDS
    if gpu.dram_latency_cycles is not None:
        memory = max(0.0, gpu.dram_latency_cycles - far) / (gpu.core_mhz * 1e6)
    behind = past_l2 * memory * gpu.memory_mhz / clocks.memory_mhz
    chain = cycles / clocks.core_hz + loads * behind
    beside = copies.pipelined * (each / clocks.core_hz + behind)
    return activity.waves * max(chain, beside)


def _major(gpu: GpuProfile) -> str:
    return gpu.compute_capability.partition(".")[0]


def _hot_word_cycles(more: Beside, gpu: GpuProfile) -> float:
    together = HOT_WORD_LANES if _unified(gpu) else 1
    return HOT_WORD_CYCLES * max(
        more.hottest_operations / together, min(more.hottest_requests, more.hottest_operations)
    )


def _tensor_cycles(more: Beside, gpu: GpuProfile) -> float:
    """Cycles of the matrix units over all SMs. Boards whose units add up in FP32 at half rate do
    integers at full rate."""
    sm = gpu.capability
    if not sm.tensor_fma_per_clock:
        return 0.0
    integer = more.tensor_int8_fmas if sm.tensor_int8_fma_per_clock else 0.0
    others = more.tensor_fmas - TENSOR_COST["s8"] * integer
    others += more.register_fmas * (FROM_REGISTERS.get(_major(gpu), 1.0) - 1.0)
    return others / sm.tensor_fma_per_clock + integer / max(1, sm.tensor_int8_fma_per_clock)


def _l1_cycles(activity: Activity, gpu: GpuProfile, per_sector: float | None) -> float:
    """Cycles of L1 over all SMs. How long a request takes by its banks and lines is known of L1s
    that are one memory with shared memory (7.0 on); no less than its lanes take to be handed over.
    """
    each = SECTOR_BYTES / (gpu.l1_bytes_per_clock or L1_BYTES_PER_CLOCK)
    stored = activity.global_store_sectors * each
    if not _unified(gpu):
        return activity.global_load_sectors * each + stored
    request = WARP_SIZE / gpu.lsu_lanes
    loaded = activity.global_load_sectors * (each if per_sector is None else per_sector)
    return max(loaded, request * activity.global_load_requests) + max(
        stored, request * activity.global_store_requests
    )


def _load_store_passes(activity: Activity, gpu: GpuProfile, feed_passes: float) -> float:
    """Requests of the load/store unit and what bank conflicts add, less the passes that feed
    asynchronous products beside it. Where L1 and shared memory are
    one, requests of global memory take their cycles there (``_l1_cycles``), not twice."""
    conflicts = max(0.0, activity.shared_transactions - activity.shared_requests - feed_passes)
    if not _unified(gpu):
        return activity.lsu_requests + conflicts
    in_global = activity.global_load_requests + activity.global_store_requests
    others = max(0.0, activity.lsu_requests - in_global - activity.shared_requests)
    handed = activity.shared_requests * WARP_SIZE / gpu.lsu_lanes
    width = gpu.capability.shared_bytes_per_clock / SHARED_BYTES_PER_LANE / WARP_SIZE
    return others + max(activity.shared_requests + conflicts, handed * width)


def _queues_fp64(gpu: GpuProfile) -> bool:
    return gpu.capability.fp64_lanes <= SHARED_FP64_LANES and not _unified(gpu)


def _unified(gpu: GpuProfile) -> bool:
    """Whether L1 and shared memory are one memory behind one pipe (Volta tuning guide)."""
    return _major(gpu) not in DEPENDENT_CYCLES


def _multiply_lanes(gpu: GpuProfile) -> float:
    return gpu.fp32_lanes if _major(gpu) in MULTIPLY_INSTRUCTIONS else MULTIPLY_LANES


def _l2_bytes_per_clock(gpu: GpuProfile) -> float:
    return gpu.l2_bytes_per_clock or L2_BYTES_PER_CLOCK_OF_SM * gpu.sm_count


class BottleneckTimeModel:
    """The default time model as a ``TimeModel``.

    ``parts`` are bounds: seconds each resource would need alone, and ``launch``, which is paid on
    top of what they combine to.
    """

    family = "bottleneck"

    @staticmethod
    def combined(parts: Mapping[str, Floats]) -> Floats:
        """``combined_seconds`` for arrays."""

        def norm(rows: Sequence[Floats], exponent: float) -> Floats:
            scale = np.max(rows, axis=0)
            shares = np.asarray(rows) / np.where(scale > 0, scale, 1.0)
            found: Floats = scale * (shares**exponent).sum(axis=0) ** (1 / exponent)
            return found

        nothing: Floats = np.zeros_like(next(iter(parts.values())))
        issued = np.max([nothing, *(parts[name] for name in ISSUED if name in parts)], axis=0)
        queued = np.sum([nothing, *(parts[name] for name in QUEUED if name in parts)], axis=0)
        outside = (*ISSUED, *QUEUED, *BESIDE_SM, LATENCY)
        inside = (parts[name] for name in parts if name not in outside)
        sm = norm([issued, queued, *inside], CONSTANTS.sm_norm)
        beside_sm = (parts[name] for name in BESIDE_SM if name in parts)
        busy = norm([sm, *beside_sm], CONSTANTS.overlap_norm)
        found: Floats = np.maximum(busy, parts.get(LATENCY, nothing))
        return found

    def predict(
        self, analysis: KernelAnalysis, gpu: GpuProfile, clocks: ClockPair | None = None
    ) -> TimePrediction:
        """Time of an analysed launch; see ``TimeModel``.

        Raises ClockError for clocks that are not above 0, AnalysisError where the kernel cannot
        be analysed dynamically.
        """
        pair = checked(clocks or default_clocks(gpu))
        activity, more = analysis.activity, beside(analysis.extras)
        resources = resource_seconds(activity, gpu, pair, more=more)
        start = launch_seconds(activity, gpu)
        seconds = combined_seconds(resources) + start
        cases = [predicted_seconds(case, gpu, pair, more=more) for case in analysis.activity_cases]
        width, basis = interval_of(gpu)
        estimate = Estimate(
            seconds,
            min([seconds, *cases]) * width.low_factor,
            max([seconds, *cases]) * width.high_factor,
            level_of(gpu),
            basis,
        )
        estimate = unsure(estimate, analysis.coverage.error)
        return TimePrediction(
            family=self.family,
            estimate=loosened(estimate) if analysis.cut_short else estimate,
            clocks=pair,
            parts={**resources, "launch": start},
            regime=regime(resources, start),
            diagnostics=analysis.activity_diagnostics,
        )


# --- how much of a predicted time each resource accounts for ----------------------------------
# A norm ``T`` of the seconds ``R_i`` that each resource would need alone is homogeneous of degree
# one: by Euler's theorem ``T = sum_i R_i dT/dR_i``, and ``R_i dT/dR_i = T (R_i / T)^p``. So each
# share is what T would lose first if the resource got a little faster, and the shares sum to T
# without a rest. Norms of norms share on. Where the chain of waiting is longer, it accounts for
# all.


def resource_shares(
    resources: Mapping[str, float], constants: Constants = CONSTANTS
) -> dict[str, float]:
    """Seconds of ``combined_seconds(resources)`` by resource; they sum to it.

    Resources that account for nothing are left out.
    """
    total = combined_seconds(resources, constants)
    used = {name: part for name, part in resources.items() if part > 0.0 and name != LATENCY}
    if combined_seconds(used, constants) < total:
        return {LATENCY: total}
    beside_sm = {name: part for name, part in used.items() if name in BESIDE_SM}
    slowest = max((name for name in used if name in ISSUED), key=used.__getitem__, default=None)
    inside = {
        name: part
        for name, part in used.items()
        if name == slowest or name not in (*ISSUED, *BESIDE_SM)
    }
    sm = combined_seconds(inside, constants)
    of_sm = _shared(sm, total, constants.overlap_norm) if sm else 0.0
    queued = sum(inside.get(name, 0.0) for name in QUEUED)
    return {
        **{name: _shared(part, total, constants.overlap_norm) for name, part in beside_sm.items()},
        **{
            name: of_sm
            * (
                part / queued * _shared(queued, sm, constants.sm_norm)
                if name in QUEUED
                else _shared(part, sm, constants.sm_norm)
            )
            / sm
            for name, part in inside.items()
        },
    }


def _shared(part: float, total: float, exponent: float) -> float:
    return float(total * (part / total) ** exponent)
