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
from functools import partial
from math import ceil, inf
from typing import Any

import numpy as np

from wattcast.features.activity import Activity
from wattcast.features.activity.waiting import NO_COPIES, Waiting
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import WARP_SIZE
from wattcast.features.memory import SECTOR_BYTES, SECTORS_PER_LINE
from wattcast.features.trips import assumed_trips_of, told_trips
from wattcast.models import clocks as clocking
from wattcast.models.clocks import ClockPair, largest
from wattcast.models.intervals import EXTRAPOLATED_WIDENING, Estimate, Numbers, joined, weaker
from wattcast.models.time.base import Regime, TimePrediction
from wattcast.models.time.beside import (
    DEPENDENT_CYCLES,
    NOTHING_BESIDE,
    Beside,
    beside,
    bound_by,
    gap_seconds,
    major,
    tensor_cycles,
    waiting_seconds,
)
from wattcast.models.time.calibration import LEVEL, interval_of


@dataclass(frozen=True, slots=True)
class Constants:
    """Dimensionless constants shared by all GPUs, and one time (docs/bottleneck.md).

    ``overlap_norm`` and ``sm_norm``: exponents of the norms that combine the SM with memory, and
    what an SM does, ``unified_norm`` from compute capability 7.0 on; ``queue_norm`` that of units
    behind one queue. ``last_wave``: how much of what the last wave of blocks leaves idle is lost,
    as an exponent: 1 if a block takes as long however few share its SM, 0 if the SM does as much.
    ``reread_locality``: share of estimated DRAM re-reads that count; 1 for our own analysis, which
    follows reuse distances, less for estimates that do not (``studies.data.activity_tables``).
    ``load_store``, ``fp64`` and
    ``texture``: time a pipe takes over that at its peak rate. ``block_cycles`` and
    ``block_cycles_of_sm``: least core cycles between the starts of two blocks, over the whole
    GPU and on one SM. ``launch_seconds``: a launch itself. The last three count where the
    profile holds no measurement.
    """

    overlap_norm: float = 3.0
    sm_norm: float = 1.5
    unified_norm: float = 2.0
    queue_norm: float = 1.0
    last_wave: float = 0.5
    reread_locality: float = 1.0
    load_store: float = 1.02
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
banks (``features.activity.extras`` has the sources)."""
TWO_BANKS_FROM = 7.0
"""Compute capability from which it has two; before it has four (Jia et al. 2018)."""

HOT_WORD_CYCLES = 1.0
"""Core cycles between two atomics on the same word of global memory, each lane its own (GK110
whitepaper: one a clock; 2^26 of them take 35.7 to 37.8 ms on GTX 1650, RTX 2060, 3060, 3060 Ti and
3080, 1.8 to 1.9 billion a second: R100001/Programming-Massively-Parallel-Processors, histogram)."""

CONSTANT_CYCLES = 2.0
"""Cycles of an SM for each word, or pair of words, that a warp loads from constant memory at an
address that is no operand. A Quadro GV100 takes 24,208 cycles for 9,830 of an SM (dct8x8) and
691,893 for 220,000 beside 503,000 of issue (mri-q; ``python -m studies volta``): 2.0 and 2.2,
each kernel by itself."""
UNIFORM_CONSTANTS_FROM = 7.5
"""Compute capability from which a word that all lanes share is loaded once for the warp by its
uniform datapath, beside (Turing; CUDA Binary Utilities, ULDC)."""

PIECE_BYTES: Mapping[str, float] = {"GDDR5X": 46.0, "GDDR6": 72.0, "GDDR6X": 35.0}
"""Bytes of a stream that device memory takes as long for as for each piece of it, beside the bytes
of the piece, by kind; others show none. Transpositions by tiles of 16 x 16 write pieces of 64 bytes
where copies stream: on an RTX 2070 SUPER at 2080 / 7300 MHz (2.012 ms) it is 72, on a Titan X
Pascal at 2000 / 5000 (1.932) 46, on an RTX 3080 48 (4.297 ms; 21 by sums of columns, 128 bytes a
warp: stddev, 7.153 ms). A Tesla P100 and a GTX 980 take no longer than for a stream
(``dvfs/wang_*.csv`` and ``time/rtx_3080_launches.csv`` of the data folder)."""

FILL_BYTES_PER_CLOCK: Mapping[str, float] = {"5": 0.68}
"""Bytes that L2 takes from memory a core clock for each bit of the bus, by major capability.
The microbenchmark DRAM of a GTX Titan X (github.com/hpc-ulisboa/gpuPTXModel) takes 0.867 to 0.907
x 1164 / core MHz of its time at 1164 / 3505 MHz up to 975 MHz, and no less from 1013 on: 0.799 x
336.5 GB/s at 1029 MHz over 384 bits."""

LATENCY, GAPS = "latency", "gaps"

_REGIMES: Mapping[str, Regime] = {
    "dram": "memory",
    "blocks": "latency",
    "latency": "latency",
    "gaps": "latency",
    "atomics": "latency",
}


def resource_seconds(
    activity: Activity,
    gpu: GpuProfile,
    clocks: ClockPair,
    constants: Constants = CONSTANTS,
    more: Beside = NOTHING_BESIDE,
) -> dict[str, float]:
    """Seconds each resource would need if nothing else limited the launch; of each pair ``[n]``
    where ``clocks`` are several (``models.clocks.together``).

    Device memory runs at the memory clock, everything else at the core clock. What an SM does
    itself waits for the busiest SM, and in part for the last wave of blocks (``_imbalance``).
    """
    sm = gpu.capability
    hz = clocks.core_hz
    busiest = gpu.sm_count / _imbalance(activity, gpu, more, constants)
    # One warp has one scheduler and the pipes behind it (secp256k1 of time/rtx_3080_launches.csv:
    # 4.48 ms; .65 with all of an SM, 2.56 with a quarter).
    busy = activity.blocks if more.busy_blocks is None else more.busy_blocks
    together = min(max(1.0, activity.resident_blocks_per_sm), ceil(busy / gpu.sm_count))
    warps = max(1.0, together * ceil(activity.threads_per_block / WARP_SIZE))
    issuing = busiest * min(1.0, warps / sm.warp_schedulers)
    multiplications = max(0.0, activity.fma_pipe_instructions - activity.fp32_instructions)
    extra = multiplications * (MULTIPLY_INSTRUCTIONS.get(major(gpu), 1.0) - 1.0)
    lanes = sm.fp32_lanes
    multiply_lanes = lanes if major(gpu) in MULTIPLY_INSTRUCTIONS else min(lanes, MULTIPLY_LANES)
    shared_lanes = sm.shared_bytes_per_clock / SHARED_BYTES_PER_LANE
    queues_fp64 = sm.fp64_lanes <= SHARED_FP64_LANES and not _unified(gpu)

    def pipe(warp_instructions: float, lanes: float, sms: float = issuing) -> float:
        # A pipe the SM lacks (FP16 on Maxwell) does nothing: its work is counted elsewhere.
        return warp_instructions * WARP_SIZE / (lanes * sms) if lanes else 0.0

    uniform = float(gpu.compute_capability) >= UNIFORM_CONSTANTS_FROM
    constant_passes = max(0.0, more.constant_passes - uniform * more.constant_requests)
    # Least cycles between the starts of two blocks.
    between = max(constants.block_cycles, constants.block_cycles_of_sm / busiest)
    if gpu.block_start is not None:
        between = gpu.block_start.at(ceil(activity.threads_per_block / WARP_SIZE))
    # What memory streams at its clock, or L2 takes from it at the core clock if that is less.
    both = activity.dram_read_sectors + activity.dram_write_sectors
    written = activity.dram_write_sectors / both if both else 0.0
    streamed = clocking.streaming_bytes_per_second(gpu, clocks.memory_mhz, written)
    filled = FILL_BYTES_PER_CLOCK.get(major(gpu), inf) * gpu.memory.bus_bits.value
    moved = dram_bytes(activity, constants)
    moved *= 1.0 + more.pieces * PIECE_BYTES.get(gpu.memory_kind or "", 0.0) / SECTOR_BYTES

    cycles = {
        "l2": (activity.l2_sectors + more.store_headers) * SECTOR_BYTES / l2_bytes_per_clock(gpu),
        "l1": l1_cycles(activity, gpu, more.l1_cycles_per_sector) / busiest,
        SHARED if _unified(gpu) else "load_store": constants.load_store
        * pipe(
            _load_store_passes(activity, gpu, more.feed_passes) + more.atomic_passes,
            shared_lanes,
            busiest,
        ),
        "atomics": HOT_WORD_CYCLES * more.hottest_operations,
        # Asynchronous products read shared memory beside the warps: the slower of the two counts.
        "tensor": max(
            tensor_cycles(more, gpu) / busiest, pipe(more.feed_passes, shared_lanes, busiest)
        ),
        "issue": (activity.warp_instructions_sass + extra) / (sm.warp_schedulers * issuing),
        "fma": max(
            pipe(activity.fma_pipe_instructions + extra, sm.fp32_lanes),
            pipe(multiplications + extra, multiply_lanes),
            more.register_reads / (REGISTERS_PER_CLOCK * sm.warp_schedulers * issuing)
            if float(gpu.compute_capability) >= TWO_BANKS_FROM
            else 0.0,
        ),
        "alu": pipe(activity.alu_pipe_instructions, sm.int_lanes),
        "shared_fp64" if queues_fp64 else "fp64": constants.fp64
        * pipe(
            activity.fp64_instructions,
            sm.fp64_lanes,
            busiest if sm.fp64_lanes <= SHARED_FP64_LANES else issuing,
        ),
        "fp16": pipe(activity.fp16_instructions, sm.fp16_lanes / 2),
        "sfu": pipe(activity.sfu_instructions, sm.sfu_lanes),
        "constant": CONSTANT_CYCLES * constant_passes / busiest,
        "texture": constants.texture * pipe(activity.texture_requests, sm.texture_lanes, busiest),
        "blocks": activity.blocks * between,
    }
    parts = {
        "dram": largest((moved / streamed, moved / (filled * hz))),
        **{name: each / hz for name, each in cycles.items()},
        LATENCY: waiting_seconds(activity, gpu, clocks, more.waiting, more.copies),
    }
    # Without code the chain is too coarse to say what is left open beside it.
    if more.waiting is None:
        return {**parts, GAPS: 0.0}
    # Asynchronous copies go on while their block works: they leave no gap.
    waited = parts[LATENCY]
    if more.copies != NO_COPIES:
        waited = waiting_seconds(activity, gpu, clocks, more.waiting, NO_COPIES)
    slowest = 0.0
    if uneven := more.waiting.uneven:
        kinds = more.waiting._replace(loads=0.0), Waiting(0.0, 0.0, 0.0, 0.0)
        short, nothing = (waiting_seconds(activity, gpu, clocks, k, NO_COPIES) for k in kinds)
        slowest = uneven * (short - nothing)
    work = _sm_seconds(cycles, constants) / hz
    return {**parts, GAPS: gap_seconds(work, waited, slowest, activity, gpu)}


def _imbalance(activity: Activity, gpu: GpuProfile, more: Beside, constants: Constants) -> float:
    """How much longer the busiest SM takes than the mean, and the last wave than the others."""
    if more.busy_blocks is None:
        return activity.sm_imbalance
    waves = more.busy_blocks / (gpu.sm_count * max(1.0, activity.resident_blocks_per_sm))
    if waves <= 1.0:
        return activity.sm_imbalance
    part = constants.last_wave
    both = activity.sm_imbalance ** (1.0 - part) * (ceil(waves) / waves) ** part
    return max(activity.sm_imbalance, float(both))


ISSUED = ("issue", "fma", "alu", "fp64", "fp16", "sfu", "tensor")
"""One thing: an instruction takes its slot of the scheduler and its pipe at the same time, and
different pipes work side by side. The slowest of them counts."""

SHARED = "shared"
"""What ``load_store`` is from 7.0 on, where L1 has the requests of global memory."""

QUEUED = ("shared_fp64", "load_store")
SHARED_FP64_LANES = 4
"""One thing: units that the parts of an SM share and that take their instructions from one queue.
Double precision is such a unit where an SM has only a few lanes of it; others have some in each
part (an engineer of NVIDIA, forums.developer.nvidia.com/t/315200: on GPUs with lighter SMs FP64 is
a unit of the whole SM, and the MIO queues what such units do). Before 7.0 their times add up, by
three programs on a GTX 1080 Ti; on a Quadro RTX 8000 they do not (docs/bottleneck.md)."""

BESIDE_SM = ("dram", "l2", "blocks", "atomics")
"""What works beside the SMs: memory, L2 that does the atomics of global memory, and what hands out
blocks. All else is done by an SM in turns with what it issues. Where 2^26 values are counted in
shared memory and added to 512 words, the time of an RTX 3060, 3060 Ti, 3070 Ti and 3080 is that of
the atomics alone (``beside.LANES_OF_A_LINE``; 1.43 to 1.47 ms with 28 to 68 SMs)."""

_NOT_IN_TURNS = frozenset((*ISSUED, *QUEUED, *BESIDE_SM, LATENCY, GAPS))


def combined_seconds(resources: Mapping[str, Numbers], constants: Constants = CONSTANTS) -> Numbers:
    """A norm of what each resource needs, but no less than the latency; one, or ``[n]``.

    The slowest of ``ISSUED`` and what else an SM does are combined by one norm, the SM and
    ``BESIDE_SM`` by another: the largest where one resource dominates and more where several come
    close. ``latency`` is a chain rather than a resource: it leaves the others free, so the longer
    of the two counts, and ``gaps`` beside what an SM does. 0 where nothing is needed.
    """
    sm = _sm_seconds(resources, constants)
    busy = _norm((sm, *(resources.get(name, 0.0) for name in BESIDE_SM)), constants.overlap_norm)
    waited = largest((sm, resources.get(LATENCY, 0.0))) + resources.get(GAPS, 0.0)
    found: Numbers = largest((busy, waited))
    return found


def _sm_seconds(resources: Mapping[str, Numbers], constants: Constants) -> Any:
    """What an SM does, combined."""
    issued = largest([resources.get(name, 0.0) for name in ISSUED])
    queue = [resources.get(name, 0.0) for name in QUEUED]
    inside: list[Any] = [part for name, part in resources.items() if name not in _NOT_IN_TURNS]
    queued = _norm(queue, constants.queue_norm)
    exponent = constants.unified_norm if SHARED in resources else constants.sm_norm
    return _norm((issued, queued, *inside), exponent)


def _norm(parts: Sequence[Any], exponent: float) -> Any:
    # Of arrays number by number: numpy's powers of arrays differ in the last digit from those of
    # numbers, and a pair of clocks is answered among others as it is alone.
    for several in parts:
        if isinstance(several, np.ndarray):
            pairs = clocking.rows(several.size, *parts)
            return np.array([_norm(each, exponent) for each in pairs])
    most = max(parts)
    scale = most or 1.0
    return most * sum([(part / scale) ** exponent for part in parts]) ** (1 / exponent)


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


def l1_cycles(activity: Activity, gpu: GpuProfile, per_sector: float | None) -> float:
    """Cycles of L1 over all SMs. How long a request takes by its banks and lines is known of L1s
    that are one memory with shared memory (7.0 on); no less than its lanes take to be handed over.
    """
    each = SECTOR_BYTES / (gpu.l1_bytes_per_clock or L1_BYTES_PER_CLOCK)
    stored = activity.global_store_sectors * each
    # A request of local memory takes its pass (``_load_store_passes``), and longer where its lanes
    # go to more sectors than the four of one word.
    local = activity.local_sectors - SECTORS_PER_LINE * _other_requests(activity)
    stored += max(0.0, local) * each
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
    one, requests of global memory take their cycles there (``l1_cycles``), not twice."""
    conflicts = max(0.0, activity.shared_transactions - activity.shared_requests - feed_passes)
    if not _unified(gpu):
        return activity.lsu_requests + conflicts
    others = _other_requests(activity)
    handed = activity.shared_requests * WARP_SIZE / gpu.lsu_lanes
    width = gpu.capability.shared_bytes_per_clock / SHARED_BYTES_PER_LANE / WARP_SIZE
    return others + max(activity.shared_requests + conflicts, handed * width)


def _other_requests(activity: Activity) -> float:
    """Requests of the load/store unit that are neither of global nor of shared memory."""
    in_global = activity.global_load_requests + activity.global_store_requests
    return max(0.0, activity.lsu_requests - in_global - activity.shared_requests)


def _unified(gpu: GpuProfile) -> bool:
    """Whether L1 and shared memory are one memory behind one pipe (Volta tuning guide)."""
    return major(gpu) not in DEPENDENT_CYCLES


def l2_bytes_per_clock(gpu: GpuProfile) -> float:
    return gpu.l2_bytes_per_clock or L2_BYTES_PER_CLOCK_OF_SM * gpu.sm_count


class BottleneckTimeModel:
    """The default time model as a ``TimeModel``.

    ``parts`` are bounds: seconds each resource would need alone, and ``launch``, which is paid on
    top of what they combine to.
    """

    family = "bottleneck"

    combined = staticmethod(combined_seconds)

    def predict(
        self, analysis: KernelAnalysis, gpu: GpuProfile, clocks: ClockPair | None = None
    ) -> TimePrediction:
        """Time of an analysed launch; see ``TimeModel``. Raises as ``predictions``."""
        return self.predictions(analysis, gpu, [clocks or clocking.default_clocks(gpu)])[0]

    def predictions(
        self, analysis: KernelAnalysis, gpu: GpuProfile, pairs: Sequence[ClockPair]
    ) -> list[TimePrediction]:
        """Times of an analysed launch at each pair of clocks.

        Raises ClockError for clocks that are not above 0, AnalysisError where the kernel cannot
        be analysed dynamically.
        """
        at = clocking.together([clocking.checked(pair) for pair in pairs])
        activity, more = analysis.activity, beside(analysis.extras)
        resources = resource_seconds(activity, gpu, at, more=more)
        start = launch_seconds(activity, gpu)
        seconds = combined_seconds(resources) + start
        cases = [predicted_seconds(case, gpu, at, more=more) for case in analysis.activity_cases]
        slowest, likely, fastest = clocking.streaming_shares(gpu)
        for share in {slowest, fastest} - {likely}:
            streamed = {**resources, "dram": resources["dram"] * likely / share}
            cases.append(combined_seconds(streamed) + start)
        if analysis.trips_assumed and analysis.counts.never_entered:
            trips = assumed_trips_of(analysis.launch)[1] / told_trips(analysis.launch)
            cases.append(start + (seconds - start) * trips)
        error = 1.0 + analysis.coverage.error
        most = largest([seconds, *cases]) / seconds
        least = clocking.smallest([seconds, *cases]) / seconds
        level = LEVEL if gpu.time_interval is None else gpu.time_interval.level
        told = clocking.rows(len(pairs), seconds, least, most, *resources.values())
        found = []
        for pair, (value, shortest, longest, *needed) in zip(pairs, told, strict=True):
            parts = dict(zip(resources, needed, strict=True))
            bounded = regime(parts, start)
            own, basis = interval_of(gpu, bounded, assumed=bool(analysis.needs))
            width = own
            if analysis.cut_short:
                width, basis = width.widened(EXTRAPOLATED_WIDENING), weaker(basis, "extrapolated")
            low = value * joined(shortest, 1.0 / error, width.low_factor)
            high = value * joined(longest, error, width.high_factor)
            found.append(TimePrediction(
                family=self.family,
                estimate=Estimate(value, low, high, level, basis),
                clocks=pair,
                parts={**parts, "launch": start},
                regime=bounded,
                width=own,
                binds=partial(
                    bound_by, parts, start, activity, more, lambda: analysis.least,
                    partial(_again, gpu, pair),
                ),
                diagnostics=analysis.activity_diagnostics,
            ))  # fmt: skip
        return found


def _again(gpu: GpuProfile, clocks: ClockPair, did: Activity, more: Beside) -> dict[str, float]:
    return resource_seconds(did, gpu, clocks, more=more)


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
    # SHARED stays: it tells the norm.
    used = {
        name: part
        for name, part in resources.items()
        if (part > 0.0 and name not in (LATENCY, GAPS)) or name == SHARED
    }
    if combined_seconds(used, constants) < total:
        own = {name: part for name, part in used.items() if name not in BESIDE_SM}
        if _sm_seconds(own, constants) <= resources.get(LATENCY, 0.0):
            return {LATENCY: total}
        return {**resource_shares(own, constants), LATENCY: resources[GAPS]}
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
    norm = constants.unified_norm if SHARED in resources else constants.sm_norm

    def of(name: str, part: float) -> float:
        if name in QUEUED:
            return part / queued * _shared(queued, sm, norm)
        return _shared(part, sm, norm)

    shares = {
        **{name: _shared(part, total, constants.overlap_norm) for name, part in beside_sm.items()},
        **{name: of_sm * of(name, part) / sm for name, part in inside.items() if part},
    }
    return {name: part for name, part in shares.items() if part}


def _shared(part: float, total: float, exponent: float) -> float:
    return float(total * (part / total) ** exponent)
