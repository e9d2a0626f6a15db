"""What a GPU charges beside the schedule: memory latency, penalties, launch overhead.

Source: the thesis (see ``algorithms.py``), sections 3.3, 3.4 and 4.4.5. Equation 4.8 adds cycles
and microseconds as they come. Here every term is converted to core cycles before it is added.

Units, by the only reading in which they cancel:

* throughputs (Table 4.5) are MB/s: bytes / (MB/s) = microseconds;
* the launch overhead is microseconds (section 3.4; its RMSE in Table 4.4 tells as much);
* latencies are cycles, and so is the cache miss penalty, a number of misses times a latency.

Where a GPU has no published number the stand-in is named in a Diagnostic, never left out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from wattcast.features.diagnostics import Diagnostic
from wattcast.features.errors import ModelError
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.features.gpus.sections import GlobalLatency, LatencyPiece
from wattcast.features.launch import WARP_SIZE
from wattcast.models.papers.thesis.code import GLOBAL_LOAD, GLOBAL_STORE, MISC

MISC_LATENCY_CYCLES = 10.0
"""Latency of every opcode outside Table 3.2: what the authors' tool charges on each of its GPUs
(docs/schemas.md, latencies; its 2017 predecessor charges branches and barriers the same)."""

LATENCY_STAND_INS = {"quadro-k4200": "tesla-k20", "gtx-1050": "tesla-m60"}
"""Global memory latency where the thesis prints none: the GPU of its set that is nearest in
architecture (Kepler for Kepler, Maxwell for Pascal)."""

OVERHEAD_STAND_IN = "tesla-k20"
"""Section 3.4 fits a launch overhead for each GPU and prints only that of Tesla K20."""

GRID_POINTS_PER_PIECE = 512
"""Resolution of the nondecreasing latency; at 512 the worst step on K20 is 0.4 cycles."""


class MemoryCounts(NamedTuple):
    """Accesses of one thread over the whole kernel, loops multiplied (nGM, nShM), and bytes."""

    global_accesses: float
    global_bytes: float
    shared_accesses: float
    shared_bytes: float


def resource_units(gpu: GpuProfile) -> dict[str, int]:
    """R: threads that each kind of unit of an SM serves at once.

    A warp scheduler issues for a whole warp in a cycle, so WS counts 32 threads for each.
    """
    units = dict(gpu.resources)
    units["WS"] *= WARP_SIZE
    return units


# --- latencies ------------------------------------------------------------------------


@lru_cache(maxsize=64)
def nondecreasing(pieces: tuple[LatencyPiece, ...]) -> Callable[[float], float]:
    """The nondecreasing function of the thread count nearest to a piecewise linear latency.

    Table 3.3 falls where its pieces meet (336 to 271 cycles at 4096 threads) and along its
    last piece, so a larger launch would be the faster one. Nearest in least squares, every
    thread count below the last bound weighing the same (pool adjacent violators); equal to the
    printed function wherever that needs no repair.
    """
    if len(pieces) == 1 and pieces[0].slope >= 0:
        only = pieces[0]
        return lambda threads: only.slope * threads + only.constant
    threads, values, weights = [], [], []
    low = 1.0
    for piece in pieces:
        high = float(piece.below_threads or 2 * low)
        # Both ends are points, so a jump between pieces stays between two thread counts.
        step = (high - 1 - low) / (GRID_POINTS_PER_PIECE - 1)
        for index in range(GRID_POINTS_PER_PIECE):
            at = low + index * step
            threads.append(at)
            values.append(piece.slope * at + piece.constant)
            weights.append(max(step, 1 / GRID_POINTS_PER_PIECE))
        low = high
    pools: list[tuple[float, float, int]] = []  # mean, weight, points
    for value, weight in zip(values, weights, strict=True):
        mean, mass, points = value, weight, 1
        while pools and pools[-1][0] > mean:
            other_mean, other_mass, other_points = pools.pop()
            mean = (mean * mass + other_mean * other_mass) / (mass + other_mass)
            mass += other_mass
            points += other_points
        pools.append((mean, mass, points))
    fitted = [mean for mean, _, points in pools for _ in range(points)]
    last = pieces[-1]
    if last.slope < 0:
        raise ModelError("a latency that falls for ever has no nondecreasing counterpart")

    def latency(count: float) -> float:
        """Linear between the points of the grid, along the outer pieces beyond its ends."""
        at = bisect_right(threads, count)
        if at == 0:
            return min(fitted[0], pieces[0].slope * count + pieces[0].constant)
        if at == len(threads):
            return max(fitted[-1], last.slope * count + last.constant)
        x0, x1 = threads[at - 1], threads[at]
        y0, y1 = fitted[at - 1], fitted[at]
        return y0 + (y1 - y0) * (count - x0) / (x1 - x0)

    return latency


@lru_cache(maxsize=8)
def _published(gpu_id: str) -> GpuProfile:
    """A GPU whose numbers stand in; read once, because a look at the disk costs 0.5 ms."""
    return load_gpu(gpu_id)


def _latency_model(gpu: GpuProfile) -> tuple[GlobalLatency, tuple[Diagnostic, ...]]:
    if gpu.global_memory_latency is not None:
        return gpu.global_memory_latency, ()
    stand_in = LATENCY_STAND_INS.get(gpu.id)
    model = _published(stand_in).global_memory_latency if stand_in else None
    if model is None:
        raise ModelError(
            f"no global memory latency is published for {gpu.id}: the scheduling model of "
            "time does not cover it",
            gpu=gpu.id,
        )
    return model, (
        Diagnostic(
            "latency_assumed",
            f"no global memory latency is published for {gpu.id}; that of {stand_in} was used",
        ),
    )


class Latencies(NamedTuple):
    """Latency in whole cycles by key (``code.Charge.latency``), and what was assumed.

    Whole: the thesis defines L as a positive integer (section 4.1) and rounds 314.1 cycles of
    a load up to 315 in its example (section 4.4.4.2).
    """

    cycles: dict[str, float]
    diagnostics: tuple[Diagnostic, ...]


def latencies(gpu: GpuProfile, threads: int) -> Latencies:
    """All latencies with ``threads`` launched. Raises ModelError for a GPU without Table 3.2."""
    if not gpu.latency_cycles:
        raise ModelError(
            f"no instruction latencies are published for {gpu.id}: the scheduling model of "
            "time does not cover it",
            gpu=gpu.id,
        )
    model, diagnostics = _latency_model(gpu)
    cycles = {key: float(ceil(value)) for key, value in gpu.latency_cycles.items()}
    cycles[MISC] = MISC_LATENCY_CYCLES
    cycles[GLOBAL_LOAD] = float(ceil(nondecreasing(model.pieces)(threads)))
    cycles[GLOBAL_STORE] = (
        float(ceil(model.store_cycles.value)) if model.store_cycles else cycles[GLOBAL_LOAD]
    )
    return Latencies(cycles, diagnostics)


# --- penalties -------------------------------------------------------------------------


def global_penalty_seconds(
    gpu: GpuProfile, threads: int, counts: MemoryCounts
) -> tuple[float, tuple[Diagnostic, ...]]:
    """Equation 4.10: nB nT_b / R[LSU] x access_sz / TP(gm) x nGM, in seconds.

    nGM counts the accesses of one thread: all threads are in nB nT_b already, so counting them
    per wave and over all waves would charge them once for every wave. access_sz x nGM is the
    sum of the bytes really accessed. TP's argument is the number of load/store unit batches
    of the launch, nB nT_b / R[LSU] x nGM: with nGM alone (3 for a vector addition) the printed
    curve stays at 4 % of its asymptote whatever is launched. Less than one batch counts as one
    (the curves of b = 1 vanish at none).
    """
    batches = threads / gpu.lsu_lanes
    if not counts.global_accesses:
        return 0.0, ()
    megabytes = gpu.global_throughput(max(1.0, batches * counts.global_accesses))
    diagnostics: tuple[Diagnostic, ...] = ()
    if megabytes is None:
        megabytes = gpu.bandwidth_bytes_per_second / 1e6
        diagnostics = (
            Diagnostic(
                "throughput_assumed",
                f"no global memory throughput is published for {gpu.id}; "
                "its peak bandwidth was used for the global memory penalty",
            ),
        )
    return batches * counts.global_bytes / megabytes * 1e-6, diagnostics


def shared_penalty_seconds(
    gpu: GpuProfile, threads: int, counts: MemoryCounts
) -> tuple[float, tuple[Diagnostic, ...]]:
    """Equation 4.11: nB nT_b / (R[LSU] nSM) x access_sz / TP(sm) x nShM, in seconds.

    Counts and TP's argument as for ``global_penalty_seconds``, per SM. The seconds hold at the
    GPU's default clock; shared memory runs at the core clock, so its cycles are what stays.
    """
    batches = threads / (gpu.lsu_lanes * gpu.sm_count)
    if not counts.shared_accesses:
        return 0.0, ()
    megabytes = gpu.shared_throughput(max(1.0, batches * counts.shared_accesses))
    diagnostics: tuple[Diagnostic, ...] = ()
    if megabytes is None:
        # One 4-byte word per bank, cycle and SM: CUDA C++ Programming Guide, "Shared Memory".
        megabytes = gpu.capability.shared_banks * 4 * gpu.sm_count * gpu.core_mhz
        diagnostics = (
            Diagnostic(
                "throughput_assumed",
                f"no shared memory throughput is published for {gpu.id}; "
                "one word per bank and cycle was used for the shared memory penalty",
            ),
        )
    return batches * counts.shared_bytes / megabytes * 1e-6, diagnostics


def cache_penalty_cycles(
    gpu: GpuProfile, threads: int, counts: MemoryCounts, load_latency_cycles: float
) -> float:
    """Equation 4.12: nT_b nB nGM / (waves L2_sz / access_sz) x L(gm), in cycles.

    Here nGM is what Algorithm 8 has counted over all waves (its line 14), so the waves cancel:
    the bytes that all threads access, over the size of the L2 cache, is how often the cache is
    filled; each filling costs one latency. With nGM of one thread the penalty would fall as
    the waves grow in number.
    """
    return threads * counts.global_bytes / gpu.l2_bytes * load_latency_cycles


def launch_overhead_seconds(gpu: GpuProfile, threads: int) -> tuple[float, tuple[Diagnostic, ...]]:
    """Launch overhead (thesis section 3.4) in seconds; Tesla K20's where none is published."""
    own = gpu.launch_overhead_seconds(threads)
    if own is not None:
        return own, ()
    stand_in = _published(OVERHEAD_STAND_IN).launch_overhead_seconds(threads)
    assert stand_in is not None, "the shipped profile of Tesla K20 has the published line"
    return stand_in, (
        Diagnostic(
            "launch_overhead_assumed",
            f"no launch overhead is published for {gpu.id}; that of {OVERHEAD_STAND_IN} was used",
        ),
    )
