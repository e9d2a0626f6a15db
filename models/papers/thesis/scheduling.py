"""Time of a launch by the thesis' resource allocation model: Algorithms 6 to 8 and equation 4.8.

    d_total = d_kernel + l_overhead + gm_penalty + sm_penalty + cm_penalty      (4.8)
    t       = d_total / core clock                                              (4.9)

Nothing is fitted to measured times. Source: see ``algorithms.py``; choices and how far the result
lies from measured times: docs/time.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wattcast.features.errors import Diagnostic
from wattcast.features.gpus import GpuProfile
from wattcast.models.clocks import ClockPair
from wattcast.models.papers.thesis import code as algorithms
from wattcast.models.papers.thesis import work as penalties
from wattcast.models.papers.thesis.code import KernelCode
from wattcast.models.papers.thesis.work import (
    CodeTimeModel,
    KernelWork,
    Timed,
    memory_counts,
)
from wattcast.models.time.base import summed

KEPT_DELAYS = 64
"""Block delays kept per kernel, one entry for each latency table and thread count seen."""


class Costs(NamedTuple):
    """What one case costs, apart from the clock: cycles that scale with it, seconds that do not.

    ``wave_cycles`` is the delay of one wave, ``counts`` the memory accesses of one thread.
    """

    schedule_cycles: float
    shared_cycles: float
    cache_cycles: float
    global_seconds: float
    overhead_seconds: float
    plan: algorithms.WavePlan
    wave_cycles: float
    counts: penalties.MemoryCounts

    def cycles(self, core_mhz: float) -> dict[str, float]:
        """The terms of equation 4.8 in core clock cycles at a clock."""
        return {
            "schedule": self.schedule_cycles,
            "global_penalty": self.global_seconds * core_mhz * 1e6,
            "shared_penalty": self.shared_cycles,
            "cache_penalty": self.cache_cycles,
            "launch_overhead": self.overhead_seconds * core_mhz * 1e6,
        }

    def seconds(self, core_mhz: float) -> float:
        """Equation 4.9."""
        cycles = self.schedule_cycles + self.shared_cycles + self.cache_cycles
        return cycles / (core_mhz * 1e6) + (self.global_seconds + self.overhead_seconds)


class _Prepared:
    """A kernel's code with the numbers of a GPU and a launch filled in."""

    def __init__(self, work: KernelWork, gpu: GpuProfile, clocks: ClockPair) -> None:
        self.work, self.gpu, self.clocks = work, gpu, clocks
        self.threads = work.launch.threads
        self.latencies = penalties.latencies(gpu, self.threads)
        self.units = penalties.resource_units(gpu)
        self.diagnostics: tuple[Diagnostic, ...] = ()
        self._numbers = (*self.latencies.cycles.values(), *self.units.values())
        self._costs: dict[tuple[tuple[float, ...], algorithms.WavePlan], Costs] = {}

    def timed(self, trips: Sequence[float], registers: int) -> Timed:
        costs, core_mhz = self.costs(trips, registers), self.clocks.core_mhz
        cycles = costs.cycles(core_mhz)
        parts = {name: each / self.clocks.core_hz for name, each in cycles.items()}
        return Timed(costs.seconds(core_mhz), parts)

    def costs(self, trips: Sequence[float], registers: int) -> Costs:
        work, gpu, code = self.work, self.gpu, self.work.code
        multipliers = code.multipliers(trips)
        plan = algorithms.wave_plan(gpu, work.launch, registers, work.shared_bytes_per_block)
        # Registers count through the plan alone: most other cases are one already worked out.
        known = self._costs.get((tuple(trips), plan))
        if known is not None:
            return known
        delays = self._block_delays(plan.threads_per_wave)
        wave = algorithms.schedule_cfg(code.successors, multipliers, code.order, delays.__getitem__)
        counts = memory_counts(code, multipliers)
        global_seconds, for_global = penalties.global_penalty_seconds(gpu, self.threads, counts)
        shared_seconds, for_shared = penalties.shared_penalty_seconds(gpu, self.threads, counts)
        overhead_seconds, for_overhead = penalties.launch_overhead_seconds(gpu, self.threads)
        self.diagnostics = (
            *self.latencies.diagnostics,
            *for_global,
            *for_shared,
            *for_overhead,
            *_unused_clock(self.clocks, gpu),
        )
        found = Costs(
            schedule_cycles=wave * plan.waves,  # each charged as a full one, the last too
            shared_cycles=shared_seconds * gpu.core_mhz * 1e6,
            cache_cycles=penalties.cache_penalty_cycles(
                gpu, self.threads, counts, self.latencies.cycles["global_load"]
            ),
            global_seconds=global_seconds,
            overhead_seconds=overhead_seconds,
            plan=plan,
            wave_cycles=wave,
            counts=counts,
        )
        self._costs[tuple(trips), plan] = found
        return found

    def _block_delays(self, threads: int) -> tuple[float, ...]:
        """Delay of every block with ``threads`` on an SM; kept, as launches differ in little."""
        code = self.work.code
        key = (threads, *self._numbers)
        known = code.delays.get(key)
        if known is None:
            orders = _orders(code, self.gpu, self.units)
            known = tuple(
                algorithms.schedule_in_order(operations, order, threads, self.units)
                for operations, order in zip(_operations(code, self.latencies), orders, strict=True)
            )
            if len(code.delays) >= KEPT_DELAYS:
                code.delays.clear()
            code.delays[key] = known
        return known


class SchedulingTimeModel(CodeTimeModel):
    """The time model of the thesis' section 4.4.

    ``parts`` are summands, the terms of equation 4.8: ``schedule``, ``global_penalty``,
    ``shared_penalty``, ``cache_penalty``, ``launch_overhead``. More blocks, more trips or a lower
    core clock never shorten a prediction. The memory clock has no place in the equations; another
    than the default leaves a warning.
    """

    family = "scheduling"
    machine = _Prepared
    combined = staticmethod(summed)


def _operations(
    code: KernelCode, known: penalties.Latencies
) -> tuple[tuple[algorithms.Operation, ...], ...]:
    """Operations of every block; kept for the latest latencies, which most launches share."""
    key = tuple(known.cycles.values())
    latest = code.operations.get(key)
    if latest is None:
        cycles = known.cycles
        latest = tuple(
            tuple(
                algorithms.Operation(cycles[cost.latency], cost.resource, before)
                for cost, before in zip(block.charges, block.predecessors, strict=True)
            )
            for block in code.blocks
        )
        code.operations.clear()
        code.operations[key] = latest
    return latest


def _orders(
    code: KernelCode, gpu: GpuProfile, units: dict[str, int]
) -> tuple[tuple[int, ...], ...]:
    """The order in which each block's operations take their resources, whatever the launch.

    It is that of Algorithm 6 with every SM full of threads. One order for all launches is what
    keeps a larger launch from being the faster one (``schedule_in_order``).
    """
    full = penalties.latencies(gpu, gpu.max_threads_per_sm * gpu.sm_count)
    key = (
        gpu.max_threads_per_sm,
        tuple(sorted(full.cycles.items())),
        tuple(sorted(units.items())),
    )
    known = code.orders.get(key)
    if known is None:
        known = code.orders[key] = tuple(
            algorithms.start_order(
                algorithms.schedule_block(operations, gpu.max_threads_per_sm, units)
            )
            for operations in _operations(code, full)
        )
    return known


def _unused_clock(clocks: ClockPair, gpu: GpuProfile) -> tuple[Diagnostic, ...]:
    if clocks.memory_mhz == gpu.memory_mhz:
        return ()
    return (
        Diagnostic(
            "memory_clock_unused",
            f"the scheduling model has memory timings for {gpu.memory_mhz:g} MHz only; they were "
            f"used for {clocks.memory_mhz:g} MHz too. Use time_model auto for other memory clocks",
        ),
    )
