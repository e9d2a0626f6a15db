"""Time of a launch by the thesis' first model: delays divided by parallelism, blocks in rounds.

    t_kernel = ts_kernel + l_overhead + b_penalty                       (4.2)
    ts_kernel = n_serial x n_ic x d_k / core clock                      (Algorithms 4 and 5)

Nothing is fitted to measured times. Choices and how far the
result lies from measured times in docs/time.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wattcast.features.errors import Diagnostic
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import WARP_SIZE
from wattcast.models.clocks import ClockPair, bandwidth_bytes_per_second
from wattcast.models.papers.thesis import work as penalties
from wattcast.models.papers.thesis.code import (
    DEFAULT_ACCESS_BYTES,
    GLOBAL_LOAD,
    GLOBAL_STORE,
    Charge,
    KernelCode,
    wave_plan,
)
from wattcast.models.papers.thesis.work import CodeTimeModel, KernelWork, Timed
from wattcast.models.time.base import summed

# --- Algorithms 4 and 5 of the thesis on plain numbers: delays of instructions, rounds of blocks
#     instruction_level_parallelism   section 4.3.2.2: dispatch units filled one by one
#     compute_delay, memory_delay     equations 4.3 and 4.4
#     global_penalty, shared_penalty  equation 4.5 and the one after it
#     kernel_delay                    Algorithm 4 (and 4.6, 4.7): blocks summed, loops multiplied
#     issue_rounds, serial_blocks     Algorithm 5: n_ic, and the rounds of blocks
#     parallel_degree, bottleneck     section 4.3.3.2: MPD and the time it costs
#
# Source: G. Alavani, Prediction of Performance and Power Consumption of GPGPU Applications
# (PhD thesis, BITS Pilani, 2023), section 4.3. Delays are core clock cycles a warp of one SM.
# Where the print is ambiguous or cannot be meant, the choice and its reason stand at the place;
# docs/time.md lists them together.


TRANSACTION_BYTES = 128
"""Sz_gl, bytes of a global memory transaction: a cache line (CUDA C++ Programming Guide, Global
Memory; the thesis names the quantity and prints no number, its appendix counts 128 too)."""

BANK_BYTES = 4
"""Bytes a shared memory bank serves a core cycle (CUDA C++ Programming Guide, Shared Memory)."""


# --- parallelism ------------------------------------------------------------------------


def issue_cycles(predecessors: Sequence[Sequence[int]], dispatch_units: int) -> int:
    """n_cycles of a basic block: its instructions given to the dispatch units in text order.

    ``predecessors[i]`` are the instructions i depends on. A cycle ends when its
    ``dispatch_units`` are taken or the next instruction depends on one of the same cycle.
    """
    cycles = 0
    this_cycle: list[int] = []
    for index, before in enumerate(predecessors):
        if (
            not cycles
            or len(this_cycle) == dispatch_units
            or any(source in this_cycle for source in before)
        ):
            cycles += 1
            this_cycle = []
        this_cycle.append(index)
    return cycles


def instruction_level_parallelism(
    predecessors: Sequence[Sequence[int]], dispatch_units: int
) -> float:
    """ILP = n_inst / n_cycles of a block, between 1 and ``dispatch_units``; 1 if it is empty."""
    if not predecessors:
        return 1.0
    return len(predecessors) / issue_cycles(predecessors, dispatch_units)


def at_parallelism(values: Sequence[float], ilp: float) -> float:
    """A row of Table 3.1 (``values[i]`` at ILP ``i + 1``) at any ILP >= 1.

    Linear between its columns, the last one beyond: the table has whole numbers, a block's ILP
    is a fraction.
    """
    below = min(int(ilp), len(values)) - 1
    if below == len(values) - 1:
        return values[below]
    return values[below] + (ilp - below - 1) * (values[below + 1] - values[below])


# --- delay of one instruction -------------------------------------------------------------


def compute_delay(
    latency: float, parallelism: float, peak_warps: float, throughput: float
) -> float:
    """Equation 4.3, as printed; ``parallelism`` is ILP x TLP, ``throughput`` threads a cycle.

    Above ``peak_warps`` the latency is divided by them too, so next to nothing of it is left
    and 32 / throughput decides.
    """
    if parallelism <= peak_warps:
        return latency / parallelism
    return latency / (parallelism * peak_warps) + WARP_SIZE / throughput


def memory_delay(
    latency: float, parallelism: float, peak_warps: float, penalty_cycles: float
) -> float:
    """Equation 4.4: the latency shared by all, and above ``peak_warps`` the penalty p^m."""
    if parallelism <= peak_warps:
        return latency / parallelism
    return latency / parallelism + penalty_cycles


def global_penalty(access_bytes: float, bandwidth: float) -> float:
    """Equation 4.5: Sz_gl c / BW_g, in the time unit of ``bandwidth`` (bytes of the whole GPU).

    c, which the text says cannot be known from PTX, is that of a coalesced request: as many
    transactions as 32 accesses of ``access_bytes`` fill, at least one. What stride costs is in
    the latency, a regression against it (section 3.3.3).
    """
    transactions = max(1.0, WARP_SIZE * access_bytes / TRANSACTION_BYTES)
    return TRANSACTION_BYTES * transactions / bandwidth


def shared_penalty(access_bytes: float, banks: int) -> float:
    """Sz_w Sz_sm / (n_sb BW_s) + n_bc size / BW_s, in core cycles; BW_s is one bank's.

    With the bandwidth of all banks the first term would divide by their number twice. Conflicts
    are "future work" in the text: n_bc is 0.
    """
    return WARP_SIZE * access_bytes / banks / BANK_BYTES


# --- Algorithm 4 ----------------------------------------------------------------------------


def kernel_delay(block_delays: Sequence[Sequence[float]], multipliers: Sequence[float]) -> float:
    """Algorithm 4: d_k, the delays of every instruction of every block, loops multiplied.

    Every block counts, also those of branches that exclude each other: the text assumes each
    branch taken by a thread of every warp.
    """
    return sum(sum(delays) * times for delays, times in zip(block_delays, multipliers, strict=True))


# --- Algorithm 5 ----------------------------------------------------------------------------


def issue_rounds(warps_per_block: int, cores_per_sm: int) -> int:
    """n_ic = nT_b / n_cSM, in whole issue cycles: a block's warps over those issued at once."""
    at_once = max(1, cores_per_sm // WARP_SIZE)
    return -(-warps_per_block // at_once)


def serial_blocks(blocks: int, sm_count: int, resident_blocks: int) -> int:
    """n_serial: blocks one after the other, max(SMcounters) of each wave, summed over the waves.

    A wave hands ``resident_blocks`` (nB^M) to every SM in turn. Each costs t_thread, so the sum
    is ceil(blocks / SMs) whatever a wave holds.

    The printed loops cannot be meant: lines 6 to 17 hand out a whole wave for *each* block,
    ``<= nB^M`` counts the blocks of all SMs against the limit of one, and one too many;
    ``maximum(num_blocksRound)`` is the maximum of a single number.
    """
    waves, rest = divmod(blocks, resident_blocks * sm_count)
    return waves * resident_blocks + -(-rest // sm_count)


def parallel_degree(
    bandwidth_bytes_per_second: float, request_bytes: float, latency_seconds: float
) -> float:
    """MPD: warps whose requests device memory serves at the same time (section 4.3.3.2).

    Bandwidth over the bandwidth of one warp, ``request_bytes / latency_seconds``.
    """
    return bandwidth_bytes_per_second * latency_seconds / request_bytes


def bottleneck(warps: float, degree: float, latency_seconds: float) -> float:
    """Seconds that ``warps`` wait at one memory instruction because only ``degree`` are served.

    The first ``degree`` warps have their latency in d_i; the others follow in turns of that size,
    each a latency: (warps / MPD - 1) latencies, which is bytes over bandwidth less one latency.
    d_i holds that latency divided by ILP x TLP, so a kernel that does nothing but stream is
    predicted faster than the bandwidth allows (docs/time.md).
    """
    return max(0.0, warps / degree - 1.0) * latency_seconds


# --- time of a launch by the thesis' first model: delays divided by parallelism, blocks in roun


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


class _Machine:
    """A GPU at its clocks, with the latencies of one launch."""

    def __init__(self, work: KernelWork, gpu: GpuProfile, clocks: ClockPair) -> None:
        self.work, self.gpu, self.clocks = work, gpu, clocks
        threads = work.launch.threads
        known = penalties.latencies(gpu, threads)
        self.latencies = known.cycles
        # What the hardware needs to be full does not change with the launch.
        self.full_latencies = penalties.latencies(gpu, gpu.max_threads_per_sm * gpu.sm_count).cycles
        self.units = penalties.resource_units(gpu)
        self.bandwidth = bandwidth_bytes_per_second(gpu, clocks.memory_mhz)
        self.overhead_seconds, for_overhead = penalties.launch_overhead_seconds(gpu, threads)
        self.diagnostics = (*known.diagnostics, *_assumed_rates(gpu), *for_overhead)

    def timed(self, trips: Sequence[float], registers: int) -> Timed:
        terms = self.terms(trips, registers)
        parts = {
            "schedule": terms.schedule_seconds,
            "memory_bottleneck": terms.bottleneck_seconds,
            "launch_overhead": terms.overhead_seconds,
        }
        return Timed(terms.seconds, parts)

    def terms(self, trips: Sequence[float], registers: int) -> DelayTerms:
        work, gpu = self.work, self.gpu
        launch = work.launch
        multipliers = work.code.multipliers(trips)
        plan = wave_plan(gpu, launch, registers, work.shared_bytes_per_block)
        resident = -(-plan.threads_per_wave // launch.threads_per_block)
        active = min(gpu.max_warps_per_sm, resident * launch.warps_per_block)
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


class DelayTimeModel(CodeTimeModel):
    """The time model of the thesis' section 4.3.

    ``parts`` are summands: ``schedule``, ``memory_bottleneck``, ``launch_overhead``. More blocks,
    more trips or a lower clock of either kind never shorten a prediction.
    """

    family = "delay"
    machine = _Machine
    combined = staticmethod(summed)


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
    said = (
        f"no throughputs and peak warps are published for {gpu.id}; they were "
        "derived from its lanes and latencies, for divisions and roots from Tesla K20"
    )
    return (Diagnostic("peak_warps_assumed", said),)
