"""Time of a launch by the thesis' first model: delays divided by parallelism, blocks in rounds.

    t_kernel = ts_kernel + l_overhead + b_penalty                       (4.2)
    ts_kernel = n_serial x n_ic x d_k / core clock                      (Algorithms 4 and 5)

Nothing is fitted to measured times. The steps are in ``delay_steps.py``, choices and how far the
result lies from measured times in docs/time.md. Source: see ``delay_steps.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from wattcast.features.analysis import KernelAnalysis
from wattcast.features.diagnostics import Diagnostic
from wattcast.features.errors import LaunchError
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import WARP_SIZE
from wattcast.models.clocks import ClockPair, bandwidth_bytes_per_second, checked, default_clocks
from wattcast.models.time.base import TimePrediction, summed
from wattcast.models.time.code import (
    DEFAULT_ACCESS_BYTES,
    GLOBAL_LOAD,
    GLOBAL_STORE,
    Charge,
    KernelCode,
)
from wattcast.models.time.delay_steps import (
    at_parallelism,
    bottleneck,
    compute_delay,
    global_penalty,
    instruction_level_parallelism,
    issue_rounds,
    kernel_delay,
    memory_delay,
    parallel_degree,
    serial_blocks,
    shared_penalty,
)
from wattcast.models.time.penalties import latencies, launch_overhead_seconds, resource_units
from wattcast.models.time.spread import delay_spread, estimate_within
from wattcast.models.time.work import (
    KernelWork,
    code_diagnostics,
    known_trips,
    other_cases,
    wave_plan,
    work_of,
)

Parallelism = Literal["active", "hardware"]
"""What TLP is: the warps active on an SM, or their hardware limit whatever is launched."""

SEQUENCE_PEAK_WARPS = {"div.f32": 32.0, "div.s32": 32.0, "sqrt.f32": 40.0}
"""Warps that keep a division or root busy: Tesla K20's (Table 3.1). They are long instruction
sequences, whose throughput no number of lanes tells."""

_GLOBAL = frozenset({GLOBAL_LOAD, GLOBAL_STORE})
_SHARED = frozenset({"ld.shared", "st.shared"})


class Rate(NamedTuple):
    """TP by ILP in threads a cycle and SM, and peakWarps of equation 4.3."""

    throughput: tuple[float, ...]
    peak_warps: float


def issue_rate(gpu: GpuProfile, cost: Charge, latency: float, lanes: int) -> Rate:
    """Measured rate of an instruction (Table 3.1), or what stands in for it.

    The measured peakWarps are those at ILP 1: in ILP x TLP an independent instruction counts as
    a warp. Nobody measured a row, or it is that of another unit (float64 shares the row of
    float32): TP is one result a lane and cycle, and peakWarps the warps that take,
    L TP / 32 (Little's law), which is Table 3.1 within a quarter but for mov.
    """
    measured = gpu.issue_rates.get(cost.latency)
    if measured is not None and max(measured.throughput) <= lanes:
        return Rate(measured.throughput, float(measured.peak_warps[0]))
    throughput = float(lanes)
    if cost.latency in SEQUENCE_PEAK_WARPS:
        throughput = min(throughput, WARP_SIZE * SEQUENCE_PEAK_WARPS[cost.latency] / latency)
    return Rate((throughput,), max(1.0, latency * throughput / WARP_SIZE))


class DelayTerms(NamedTuple):
    """The terms of equation 4.2 in seconds, and what they come from.

    ``thread_cycles`` is d_k at the clock predicted for, ``active_warps`` TLP, ``rounds`` n_ic,
    ``blocks`` n_serial.
    """

    schedule_seconds: float
    bottleneck_seconds: float
    overhead_seconds: float
    thread_cycles: float
    active_warps: int
    rounds: int
    blocks: int

    @property
    def seconds(self) -> float:
        """t_kernel."""
        return self.schedule_seconds + self.bottleneck_seconds + self.overhead_seconds


class DelayTimeModel:
    """The time model of the thesis' section 4.3. Stateless; safe to share between threads.

    ``parts`` are summands: ``schedule``, ``memory_bottleneck``, ``launch_overhead``. More blocks,
    more trips or a lower clock of either kind never shorten a prediction.
    """

    family = "delay"
    combined = staticmethod(summed)

    def __init__(self, parallelism: Parallelism = "active") -> None:
        self._parallelism: Parallelism = parallelism

    def predict(
        self, analysis: KernelAnalysis, gpu: GpuProfile, clocks: ClockPair | None = None
    ) -> TimePrediction:
        """Time of an analysed launch; see ``TimeModel``."""
        return self.predict_work(work_of(analysis), gpu, clocks)

    def predict_work(
        self, work: KernelWork, gpu: GpuProfile, clocks: ClockPair | None = None
    ) -> TimePrediction:
        """Time of a launch given as plain numbers.

        Raises ModelError for a GPU without published latencies, LaunchError where no block fits
        on an SM, for clocks that are not above 0 and for a negative trip count.
        """
        pair = checked(clocks or default_clocks(gpu))
        machine = _Machine(work, gpu, pair, self._parallelism)
        trips, missing = known_trips(work)
        middle = machine.terms(trips, work.registers_per_thread)
        low = high = middle.seconds
        for other_trips, registers in other_cases(work, trips):
            try:
                seconds = machine.terms(other_trips, registers).seconds
            except LaunchError:  # so many registers the kernel cannot have: it would not start
                continue
            low, high = min(low, seconds), max(high, seconds)
        return TimePrediction(
            family=self.family,
            estimate=estimate_within(middle.seconds, low, high, delay_spread(gpu.id)),
            clocks=pair,
            parts={
                "schedule": middle.schedule_seconds,
                "memory_bottleneck": middle.bottleneck_seconds,
                "launch_overhead": middle.overhead_seconds,
            },
            diagnostics=(*missing, *code_diagnostics(work.code), *machine.diagnostics),
        )

    def terms(
        self, work: KernelWork, gpu: GpuProfile, clocks: ClockPair | None = None
    ) -> DelayTerms:
        """What a prediction consists of, without its interval. Raises as ``predict_work``."""
        machine = _Machine(work, gpu, checked(clocks or default_clocks(gpu)), self._parallelism)
        return machine.terms(known_trips(work)[0], work.registers_per_thread)


class _Machine:
    """A GPU at its clocks, with the latencies of one launch."""

    def __init__(
        self, work: KernelWork, gpu: GpuProfile, clocks: ClockPair, parallelism: Parallelism
    ) -> None:
        self.work, self.gpu, self.clocks, self.parallelism = work, gpu, clocks, parallelism
        threads = work.launch.threads
        known = latencies(gpu, threads)
        self.latencies = known.cycles
        # What the hardware needs to be full does not change with the launch.
        self.full_latencies = latencies(gpu, gpu.max_threads_per_sm * gpu.sm_count).cycles
        self.units = resource_units(gpu)
        self.bandwidth = bandwidth_bytes_per_second(gpu, clocks.memory_mhz)
        self.overhead_seconds, for_overhead = launch_overhead_seconds(gpu, threads)
        self.diagnostics = (*known.diagnostics, *_assumed_rates(gpu), *for_overhead)

    def terms(self, trips: Sequence[float], registers: int) -> DelayTerms:
        work, gpu = self.work, self.gpu
        launch = work.launch
        multipliers = work.code.multipliers(trips)
        plan = wave_plan(work, gpu, registers)
        resident = -(-plan.threads_per_wave // launch.threads_per_block)
        active = gpu.max_warps_per_sm
        if self.parallelism == "active":
            active = min(active, resident * launch.warps_per_block)
        thread_cycles = kernel_delay(self._block_delays(active), multipliers)
        rounds = issue_rounds(launch.warps_per_block, gpu.fp32_lanes)
        blocks = serial_blocks(launch.blocks, gpu.sm_count, resident)
        return DelayTerms(
            schedule_seconds=blocks * rounds * thread_cycles / self.clocks.core_hz,
            bottleneck_seconds=self._bottleneck_seconds(multipliers, resident),
            overhead_seconds=self.overhead_seconds,
            thread_cycles=thread_cycles,
            active_warps=active,
            rounds=rounds,
            blocks=blocks,
        )

    def _block_delays(self, active_warps: int) -> list[list[float]]:
        """d_i of every instruction of every block, in cycles at the clock predicted for."""
        dispatch = max(1, self.gpu.dispatch_units // self.gpu.warp_schedulers)
        delays = []
        for block in self.work.code.blocks:
            ilp = instruction_level_parallelism(block.predecessors, dispatch)
            of_charge = {cost: self._delay(cost, ilp, active_warps) for cost in set(block.charges)}
            delays.append([of_charge[cost] for cost in block.charges])
        return delays

    def _delay(self, cost: Charge, ilp: float, active_warps: int) -> float:
        latency = self.latencies[cost.latency]
        parallelism = ilp * active_warps
        if cost.latency in _GLOBAL:
            seconds = global_penalty(_access_bytes(cost), self.bandwidth)
            peak = self._global_peak_warps(cost, seconds)
            return memory_delay(latency, parallelism, peak, seconds * self.clocks.core_hz)
        if cost.latency in _SHARED:
            cycles = shared_penalty(cost.shared_bytes, self.gpu.capability.shared_banks)
            return memory_delay(latency, parallelism, latency / cycles, cycles)
        rate = issue_rate(self.gpu, cost, latency, self.units[cost.resource])
        throughput = at_parallelism(rate.throughput, ilp)
        return compute_delay(latency, parallelism, rate.peak_warps, throughput)

    def _global_peak_warps(self, cost: Charge, penalty_seconds: float) -> float:
        """Warps of an SM that keep its share of the bandwidth busy (Little's law).

        At the default core clock, where latencies were measured: at a clock of its own a higher
        one could cross it and be the slower one.
        """
        default_hz = self.gpu.core_mhz * 1e6
        per_sm_cycles = penalty_seconds * self.gpu.sm_count * default_hz
        return self.full_latencies[cost.latency] / per_sm_cycles

    def _bottleneck_seconds(self, multipliers: Sequence[float], resident_blocks: int) -> float:
        """b_penalty: at every global memory instruction of every wave (section 4.3.3.2)."""
        launch, gpu = self.work.launch, self.gpu
        waves, rest = divmod(launch.blocks, resident_blocks * gpu.sm_count)
        full_warps = resident_blocks * gpu.sm_count * launch.warps_per_block
        rest_warps = rest * launch.warps_per_block
        total = 0.0
        for cost, times in _global_accesses(self.work.code, multipliers).items():
            latency_seconds = self.full_latencies[cost.latency] / (gpu.core_mhz * 1e6)
            degree = parallel_degree(self.bandwidth, WARP_SIZE * cost.global_bytes, latency_seconds)
            total += times * (
                waves * bottleneck(full_warps, degree, latency_seconds)
                + bottleneck(rest_warps, degree, latency_seconds)
            )
        return total


def _access_bytes(cost: Charge) -> int:
    """Bytes of one thread's access; what is not the kernel's own data moves a word."""
    return cost.global_bytes or DEFAULT_ACCESS_BYTES


def _global_accesses(code: KernelCode, multipliers: Sequence[float]) -> dict[Charge, float]:
    """Global accesses of one warp by what they cost, loops multiplied."""
    found: dict[Charge, float] = {}
    for block, times in zip(code.blocks, multipliers, strict=True):
        for cost in block.charges:
            if cost.global_bytes:
                found[cost] = found.get(cost, 0.0) + times
    return found


def _assumed_rates(gpu: GpuProfile) -> tuple[Diagnostic, ...]:
    if gpu.issue_rates:
        return ()
    return (
        Diagnostic(
            "peak_warps_assumed",
            f"no throughputs and peak warps are published for {gpu.id}; its lanes and latencies "
            "stand in, and Tesla K20's warps for divisions and roots",
        ),
    )
