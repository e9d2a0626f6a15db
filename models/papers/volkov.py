"""V. Volkov's throughput model: what hides latency is warps, and what is hidden meets a limit.

A warp of a kernel with alpha arithmetic instructions per memory instruction repeats one memory
access and alpha dependent arithmetic ones. With n warps on an SM, memory instructions complete at

    min( n / (mem_latency + alpha alu_latency),
         mem_limit, alu_limit / alpha, issue_limit / (1 + alpha) )

a core cycle. Source: V. Volkov, "Understanding Latency Hiding on GPUs" (PhD thesis, UC Berkeley,
EECS-2016-143), and "A Microbenchmark to Study GPU Performance Models" (PPoPP 2018), the model that
the thesis compares itself with (Table 4.10 and its appendix). docs/time.md says which latencies
and limits are used and what of Table 4.10 can be recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

from wattcast.features.errors import Diagnostic
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import WARP_SIZE
from wattcast.models.clocks import ClockPair, bandwidth_bytes_per_second
from wattcast.models.intervals import Estimate
from wattcast.models.papers.thesis.code import GLOBAL_LOAD, GLOBAL_STORE, wave_plan
from wattcast.models.papers.thesis.delay import issue_rate
from wattcast.models.papers.thesis.work import (
    CodeTimeModel,
    KernelWork,
    Timed,
    latencies,
    resource_units,
)
from wattcast.models.time.base import Regime, largest
from wattcast.models.time.calibration import uncalibrated_estimate

_REGIMES: dict[str, Regime] = {"latency": "latency", "memory": "memory"}


class SmRates(NamedTuple):
    """Limits of one SM in warp instructions a core cycle."""

    memory: float
    arithmetic: float
    issue: float


def memory_throughput(
    warps: float, alpha: float, memory_latency: float, alu_latency: float, limits: SmRates
) -> float:
    """Memory instructions of warps that an SM completes a core cycle; latencies in cycles.

    Arithmetic instructions complete ``alpha`` times as fast, all ``1 + alpha`` times (IPC).
    """
    return min(
        warps / (memory_latency + alpha * alu_latency),
        limits.memory,
        limits.arithmetic / alpha if alpha else float("inf"),
        limits.issue / (1 + alpha),
    )


def arithmetic_throughput(warps: float, alu_latency: float, limits: SmRates) -> float:
    """The same for a kernel without memory instructions (alpha infinite): arithmetic ones."""
    return min(warps / alu_latency, limits.arithmetic, limits.issue)


class WarpMix(NamedTuple):
    """What one warp executes: instructions, mean latencies in cycles, SM rates for this mix."""

    arithmetic: float
    memory: float
    alu_latency: float
    memory_latency: float
    limits: SmRates

    @property
    def alpha(self) -> float:
        """Arithmetic instructions per memory instruction; infinite without any."""
        return self.arithmetic / self.memory if self.memory else float("inf")


class Throughput(NamedTuple):
    """Per SM and core cycle: memory and arithmetic warp instructions, and ``warps`` the
    ones resident. ``parts`` are the seconds of the launch by each limit alone.
    """

    warps: int
    memory: float
    arithmetic: float
    seconds: float
    parts: dict[str, float]


def sm_throughput(warps: float, mix: WarpMix) -> tuple[float, float]:
    """Memory and arithmetic instructions an SM completes a core cycle with ``warps`` resident."""
    if isfinite(mix.alpha):
        memory = memory_throughput(
            warps, mix.alpha, mix.memory_latency, mix.alu_latency, mix.limits
        )
        return memory, memory * mix.alpha
    if mix.arithmetic:
        return 0.0, arithmetic_throughput(warps, mix.alu_latency, mix.limits)
    return 0.0, 0.0


class _Machine:
    def __init__(self, work: KernelWork, gpu: GpuProfile, clocks: ClockPair) -> None:
        self.asked = work, gpu, clocks
        self.diagnostics = (*latencies(gpu, work.launch.threads).diagnostics, *_assumed(gpu))

    def timed(self, trips: Sequence[float], registers: int) -> Timed:
        found = throughput(*self.asked, trips, registers)
        bound = max(found.parts, key=lambda name: found.parts[name])
        return Timed(found.seconds, found.parts, _REGIMES.get(bound, "compute"))


class VolkovTimeModel(CodeTimeModel):
    """Volkov's throughput model as a time model.

    ``parts`` are bounds, the largest counts: ``latency``, ``memory``, ``arithmetic``, ``issue``.
    No published pairs exist, so the interval is the uncalibrated one, a factor 4 either way. Launch
    overhead has no place in the model. More blocks, more trips or a lower clock of either kind
    never shorten a prediction.
    """

    family = "volkov"
    machine = _Machine
    combined = staticmethod(largest)

    def estimate(self, seconds: float, low: float, high: float, gpu: GpuProfile) -> Estimate:
        """The uncalibrated interval."""
        return uncalibrated_estimate(seconds, low, high)


def throughput(
    work: KernelWork,
    gpu: GpuProfile,
    clocks: ClockPair,
    trips: Sequence[float],
    registers_per_thread: int,
) -> Throughput:
    """Throughput of an SM and seconds of a launch: the warps of the busiest SM at its rate."""
    launch = work.launch
    mix = warp_mix(work, gpu, clocks, trips)
    plan = wave_plan(gpu, launch, registers_per_thread, work.shared_bytes_per_block)
    resident = -(-plan.threads_per_wave // launch.threads_per_block)
    warps = min(gpu.max_warps_per_sm, resident * launch.warps_per_block)
    of_sm = -(-launch.blocks // gpu.sm_count) * launch.warps_per_block
    memory, arithmetic = sm_throughput(warps, mix)
    latency = mix.memory * mix.memory_latency + mix.arithmetic * mix.alu_latency
    cycles = {
        "latency": latency / warps,
        "memory": mix.memory / mix.limits.memory,
        "arithmetic": mix.arithmetic / mix.limits.arithmetic,
        "issue": (mix.memory + mix.arithmetic) / mix.limits.issue,
    }
    total = (mix.memory + mix.arithmetic) / (memory + arithmetic) if memory + arithmetic else 0.0
    return Throughput(
        warps=warps,
        memory=memory,
        arithmetic=arithmetic,
        seconds=of_sm * total / clocks.core_hz,
        parts={name: of_sm * each / clocks.core_hz for name, each in cycles.items()},
    )


def warp_mix(
    work: KernelWork, gpu: GpuProfile, clocks: ClockPair, trips: Sequence[float]
) -> WarpMix:
    """Instructions of a warp, every block counted and loops multiplied, with a GPU's numbers.

    Memory instructions are those on global memory, shared ones count as arithmetic. The
    arithmetic limit is that of the unit the mix keeps busy longest; the memory limit the peak
    bandwidth's share of an SM over the bytes of a mean access.
    """
    known = latencies(gpu, work.launch.threads).cycles
    units = resource_units(gpu)
    instructions = {True: 0.0, False: 0.0}
    waited = {True: 0.0, False: 0.0}
    busy = dict.fromkeys(units, 0.0)
    moved = 0.0
    for block, times in zip(work.code.blocks, work.code.multipliers(trips), strict=True):
        for cost in block.charges:
            latency = known[cost.latency]
            on_memory = cost.latency in (GLOBAL_LOAD, GLOBAL_STORE)
            instructions[on_memory] += times
            waited[on_memory] += times * latency
            moved += times * WARP_SIZE * cost.global_bytes
            if not on_memory:
                rate = issue_rate(gpu, cost, latency, units[cost.resource])
                busy[cost.resource] += times * WARP_SIZE / rate.throughput[0]
    arithmetic, memory = instructions[False], instructions[True]
    of_sm = bandwidth_bytes_per_second(gpu, clocks.memory_mhz) / gpu.sm_count / clocks.core_hz
    longest = max(busy.values())
    return WarpMix(
        arithmetic=arithmetic,
        memory=memory,
        alu_latency=waited[False] / arithmetic if arithmetic else 0.0,
        memory_latency=waited[True] / memory if memory else 0.0,
        limits=SmRates(
            memory=of_sm * memory / moved if moved else float("inf"),
            arithmetic=arithmetic / longest if longest else float("inf"),
            issue=float(gpu.warp_schedulers),
        ),
    )


def _assumed(gpu: GpuProfile) -> tuple[Diagnostic, ...]:
    if gpu.issue_rates:
        return ()
    said = f"no instruction throughputs are published for {gpu.id}; its lane counts were used"
    return (Diagnostic("throughput_assumed", said),)
