"""One launch of one kernel as the thesis' time models take it, and what is uncertain about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from wattcast.features.analysis import ASSUMED_TRIP_RANGE, KernelAnalysis
from wattcast.features.attached import Attached
from wattcast.features.errors import Diagnostic, LaunchError, ModelError
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.features.gpus.sections import GlobalLatency, LatencyPiece
from wattcast.features.launch import WARP_SIZE, Launch
from wattcast.features.ptx.ir import Function
from wattcast.models.clocks import ClockPair, checked, default_clocks
from wattcast.models.intervals import Estimate
from wattcast.models.papers.thesis.code import GLOBAL_LOAD, GLOBAL_STORE, MISC, KernelCode
from wattcast.models.time.base import Regime, TimePrediction
from wattcast.models.time.calibration import estimate_within, spread

# What a GPU charges beside the schedule: memory latency, penalties, launch overhead.
#
# Source: the thesis (see ``algorithms.py``), sections 3.3, 3.4 and 4.4.5. Equation 4.8 adds cycles
# and microseconds as they come. Here every term is converted to core cycles before it is added.
#
# Units, by the only reading in which they cancel:
#
# * throughputs (Table 4.5) are MB/s: bytes / (MB/s) = microseconds;
# * the launch overhead is microseconds (section 3.4; its RMSE in Table 4.4 tells as much);
# * latencies are cycles, and so is the cache miss penalty, a number of misses times a latency.
#
# Where a GPU has no published number the stand-in is named in a Diagnostic, never left out.

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
        if count < threads[0]:
            return min(fitted[0], pieces[0].slope * count + pieces[0].constant)
        if count >= threads[-1]:
            return max(fitted[-1], last.slope * count + last.constant)
        return float(np.interp(count, threads, fitted))

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
    return model, assumed("latency", gpu, "global memory latency", f"that of {stand_in} was used")


def assumed(of: str, gpu: GpuProfile, missing: str, instead: str) -> tuple[Diagnostic, ...]:
    """The warning that a number is not published for a GPU, and what stands in."""
    said = f"no {missing} is published for {gpu.id}; {instead}"
    return (Diagnostic(f"{of}_assumed", said),)


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
        instead = "its peak bandwidth was used for the global memory penalty"
        diagnostics = assumed("throughput", gpu, "global memory throughput", instead)
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
        instead = "one word per bank and cycle was used for the shared memory penalty"
        diagnostics = assumed("throughput", gpu, "shared memory throughput", instead)
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
    instead = f"that of {OVERHEAD_STAND_IN} was used"
    return stand_in, assumed("launch_overhead", gpu, "launch overhead", instead)


@dataclass(frozen=True, slots=True)
class KernelWork:
    """One launch of one kernel, as plain numbers.

    ``trip_counts[l]`` is how often the body of loop l (index in the LoopForest) runs each time
    the loop is entered; a missing one counts 1 and is reported. ``registers_per_thread`` and
    ``shared_bytes_per_block`` (static and dynamic) limit the resident blocks.
    ``trip_ranges`` and ``register_range`` are the ends of what is uncertain about the kernel, for
    the interval; without them the values count as known.
    """

    code: KernelCode
    launch: Launch
    trip_counts: Sequence[float] = ()
    registers_per_thread: int = 0
    shared_bytes_per_block: int = 0
    trip_ranges: Sequence[tuple[float, float]] | None = None
    register_range: tuple[int, int] | None = None


_codes: Attached[Function, KernelCode] = Attached("time_code")


def work_of(analysis: KernelAnalysis) -> KernelWork:
    """An analysed launch as the scheduler takes it, with what was guessed as ranges."""
    function = analysis.function
    code = _codes.get(function)
    if code is None:
        code = _codes.set(function, KernelCode.of(function.body, analysis.cfg, analysis.loops))
    trips = analysis.trip_counts
    registers = analysis.registers
    return KernelWork(
        code=code,
        launch=analysis.launch,
        trip_counts=tuple(trip.count for trip in trips),
        registers_per_thread=registers.registers_per_thread,
        shared_bytes_per_block=analysis.static_shared_bytes + analysis.launch.dynamic_shared_bytes,
        trip_ranges=tuple(
            ASSUMED_TRIP_RANGE if trip.how == "assumed" else (trip.count, trip.count)
            for trip in trips
        ),
        register_range=(registers.low, registers.high),
    )


def memory_counts(code: KernelCode, multipliers: Sequence[float]) -> MemoryCounts:
    """nGM and nShM of one thread: every block reached, as Algorithms 4 and 6 visit every block."""
    totals = np.zeros(4)
    for block, times in zip(code.blocks, multipliers, strict=True):
        totals += times * block.memory
    return MemoryCounts(*totals.tolist())


def known_trips(work: KernelWork) -> tuple[tuple[float, ...], tuple[Diagnostic, ...]]:
    """A trip count for every loop, and a warning for each that is missing.

    Raises LaunchError for a negative one.
    """
    lines = work.code.loop_lines
    given = tuple(float(count) for count in work.trip_counts)[: len(lines)]
    for count in given:
        if not count >= 0:
            raise LaunchError(f"trip count {count} is negative or no number", field="loops")
    missing = tuple(
        Diagnostic("trip_count_assumed", "no trip count is given for this loop; 1 is used", line)
        for line in lines[len(given) :]
    )
    return given + (1.0,) * len(missing), missing


def other_cases(work: KernelWork, trips: tuple[float, ...]) -> list[tuple[tuple[float, ...], int]]:
    """Other cases the truth may be: the ends of the trip counts and of the registers."""
    ends = [trips]
    if work.trip_ranges is not None:
        ends += [tuple(float(part[end]) for part in work.trip_ranges) for end in (0, 1)]
    registers = {work.registers_per_thread, *(work.register_range or ())}
    cases = [(end, count) for end in dict.fromkeys(ends) for count in sorted(registers)]
    cases.remove((trips, work.registers_per_thread))
    return cases


def span_of_cases(
    work: KernelWork,
    trips: tuple[float, ...],
    likely: float,
    seconds: Callable[[tuple[float, ...], int], float],
) -> tuple[float, float]:
    """Least and most ``seconds`` of ``likely`` and of all other cases of trips and registers."""
    found = [likely]
    for other_trips, registers in other_cases(work, trips):
        try:
            found.append(seconds(other_trips, registers))
        except LaunchError:  # so many registers the kernel cannot have: it would not start
            continue
    return min(found), max(found)


def executed_span(work: KernelWork) -> tuple[float, float]:
    """How many instructions the ends of uncertain trip counts execute, over the likely number.

    ``(least, most)`` around 1: for models whose counts come from one analysis alone.
    """
    trips, _ = known_trips(work)
    sizes = [len(block.charges) for block in work.code.blocks]

    def executed(counts: Sequence[float]) -> float:
        multipliers = work.code.multipliers(counts)
        return sum(size * times for size, times in zip(sizes, multipliers, strict=True))

    likely = executed(trips)
    if not likely:
        return 1.0, 1.0
    ends = [executed(counts) / likely for counts, _ in other_cases(work, trips)]
    return min([1.0, *ends]), max([1.0, *ends])


def code_diagnostics(code: KernelCode) -> tuple[Diagnostic, ...]:
    """What the tables of latencies do not cover: opcodes without one, functions called."""
    told = "the time in the called function is not counted"
    calls = tuple(Diagnostic("call_not_timed", told, line) for line in code.calls)
    if not code.unmeasured:
        return calls
    opcodes = ", ".join(code.unmeasured)
    said = f"no latency was measured for {opcodes}; a default was used (docs/time.md)"
    return Diagnostic("latency_assumed", said), *calls


class Timed(NamedTuple):
    """Seconds of a launch in one case of trips and registers, and the model's ``parts`` of them."""

    seconds: float
    parts: Mapping[str, float]
    regime: Regime | None = None


class Machine(Protocol):
    """One launch with the numbers of a GPU at its clocks filled in."""

    diagnostics: tuple[Diagnostic, ...]

    def __init__(self, work: KernelWork, gpu: GpuProfile, clocks: ClockPair) -> None: ...

    def timed(self, trips: Sequence[float], registers: int) -> Timed:
        """Its time in one case. Raises LaunchError where no block fits on an SM."""


class CodeTimeModel:
    """A time model that reads a kernel's code. Stateless; safe to share between threads."""

    family: ClassVar[str]
    machine: ClassVar[type[Machine]]
    """What tells the time of every case. Raises ModelError for a GPU without latencies."""

    def estimate(self, seconds: float, low: float, high: float, gpu: GpuProfile) -> Estimate:
        """The interval around all cases: wider by what the model is known to err."""
        return estimate_within(seconds, low, high, spread(self.family, gpu.id))

    def predict(
        self, analysis: KernelAnalysis, gpu: GpuProfile, clocks: ClockPair | None = None
    ) -> TimePrediction:
        """Time of an analysed launch; see ``TimeModel``."""
        return self.predict_work(work_of(analysis), gpu, clocks)

    def predict_work(
        self, work: KernelWork, gpu: GpuProfile, clocks: ClockPair | None = None
    ) -> TimePrediction:
        """Time of a launch given as plain numbers.

        Raises ModelError for a GPU without published latencies and for a kernel of which the model
        counts nothing, LaunchError where no block fits on an SM, for clocks that are not above 0
        and for a negative trip count.
        """
        pair = checked(clocks or default_clocks(gpu))
        machine = self.machine(work, gpu, pair)
        trips, missing = known_trips(work)
        middle = machine.timed(trips, work.registers_per_thread)
        low, high = span_of_cases(
            work, trips, middle.seconds, lambda *case: machine.timed(*case).seconds
        )
        return TimePrediction(
            family=self.family,
            estimate=self.estimate(middle.seconds, low, high, gpu),
            clocks=pair,
            parts=middle.parts,
            regime=middle.regime,
            diagnostics=(*missing, *code_diagnostics(work.code), *machine.diagnostics),
        )
