"""From the counters of machines to an ``ExecutionResult``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from wattcast.features.diagnostics import Diagnostic
from wattcast.features.execution.access import Tally
from wattcast.features.execution.arguments import Bound
from wattcast.features.execution.collisions import atomic_facts
from wattcast.features.execution.context import Linked
from wattcast.features.execution.footprints import Ran, memory_facts
from wattcast.features.execution.machine import Machine
from wattcast.features.execution.program import Program
from wattcast.features.execution.results import (
    ClassCounts,
    ExecutionResult,
    InstructionCounts,
    LoopTrips,
    SamplingInfo,
)
from wattcast.features.execution.sampling import SamplingPlan
from wattcast.features.execution.spaces import DenseRegion
from wattcast.features.isa import classify
from wattcast.features.launch import Launch
from wattcast.features.memory import per_slot

Counts = npt.NDArray[np.int64]


def _stacked(batches: list[Ran], blocks: int, pick: Callable[[Machine], Counts]) -> Counts:
    """``int64[blocks, ...]`` from the slots of every machine; blocks not run stay zero."""
    parts = [pick(b.machine) for b in batches]
    out = np.zeros((blocks, *parts[0].shape[1:]), dtype=np.int64)
    for batch, part in zip(batches, parts, strict=True):
        out[batch.first : batch.first + part.shape[0]] = part
    return out


def _site_counts(
    program: Program, batches: list[Ran], blocks: int, pick: Callable[[Tally], Counts]
) -> Counts:
    """``int64[blocks, sites]`` of one counter."""
    if not program.sites:
        return np.zeros((blocks, 0), dtype=np.int64)
    return _stacked(batches, blocks, lambda m: np.stack([pick(t) for t in m.tallies], axis=1))


def summarise(
    program: Program, launch: Launch, plan: SamplingPlan, batches: list[Ran], bound: Bound,
    diagnostics: list[Diagnostic], effort: int, exact: bool,
) -> ExecutionResult:  # fmt: skip
    """Put together what the sampled blocks did and what it means for the launch."""
    blocks = len(plan.blocks)
    runs = _stacked(batches, blocks, lambda m: m.run_stats.transpose(2, 0, 1))
    guarded = _stacked(batches, blocks, lambda m: m.guarded.T)
    picks: dict[str, Callable[[Tally], Counts]] = {
        "requests": lambda t: t.requests,
        "sectors": lambda t: t.sectors,
        "local_sectors": lambda t: t.local_sectors,
        "shared_requests": lambda t: t.shared_requests,
        "shared_transactions": lambda t: t.transactions,
        "constant_transactions": lambda t: t.constants,
        "unique_sectors": lambda t: per_slot(t.log.keys, t.requests.size) + t.unlisted,
    }
    sites = {name: _site_counts(program, batches, blocks, pick) for name, pick in picks.items()}
    extra = _site_counts(program, batches, blocks, lambda t: t.unlisted)
    functions = {
        linked.function.name: _function(program, linked, runs, guarded, sites, plan)
        for linked in program.functions
    }
    found = dict.fromkeys(d for b in batches for d in b.machine.diagnostics.values())
    contents = {}
    if exact:
        for region in bound.memory.regions:
            if isinstance(region, DenseRegion):
                contents[region.base] = region.contents()
    machines = [b.machine for b in batches]
    executed = runs[:, :, 0] @ np.array(_run_lengths(program))
    estimate = plan.total(executed)
    error = plan.standard_error(executed) / estimate if estimate else 0.0
    return ExecutionResult(
        functions=functions,
        classes=_classes(program, functions, plan),
        loops=_loops(program, batches, plan),
        memory=memory_facts(program, launch, plan, batches, sites, extra),
        atomics=atomic_facts(program, plan, batches),
        sampling=SamplingInfo(
            plan,
            launch.blocks,
            error,
            all(m.finished for m in machines),
            sum(m.steps for m in machines),
            effort,
        ),
        diagnostics=(*diagnostics, *found),
        shared_bytes=machines[0].shared_bytes,
        carried_out=_carried_out(program, machines),
        contents=contents,
    )


def _carried_out(program: Program, machines: list[Machine]) -> dict[str, npt.NDArray[np.float64]]:
    found = {
        linked.function.name: np.zeros(len(linked.body.instructions))
        for linked in program.functions
    }
    for machine in machines:
        real = machine.run_stats[:, 0].sum(axis=1) - machine.skipped.sum(axis=1)
        for run in program.runs.values():
            linked = program.functions[run.function]
            where = slice(run.start - linked.base, run.end - linked.base)
            found[linked.function.name][where] += real[run.index]
    return found


def _run_lengths(program: Program) -> list[int]:
    lengths = [0] * len(program.runs)
    for run in program.runs.values():
        lengths[run.index] = run.end - run.start
    return lengths


def _function(
    program: Program, linked: Linked, runs: Counts, guarded: Counts, sites: dict[str, Counts],
    plan: SamplingPlan,
) -> InstructionCounts:  # fmt: skip
    blocks = runs.shape[0]
    count = len(linked.body.instructions)
    raw = {
        name: np.zeros((blocks, count), dtype=np.int64)
        for name in ("warp_executions", "active_lanes", *sites)
    }
    for run in program.runs.values():
        if run.function == linked.index and run.end > run.start:
            where = slice(run.start - linked.base, run.end - linked.base)
            raw["warp_executions"][:, where] = runs[:, run.index, 0, None]
            raw["active_lanes"][:, where] = runs[:, run.index, 1, None]
    for position, row in program.guarded.items():
        if linked.base <= position < linked.base + count:
            raw["active_lanes"][:, position - linked.base] = guarded[:, row]
    for site in program.sites:
        if linked.base <= site.position < linked.base + count:
            for name, table in sites.items():
                raw[name][:, site.position - linked.base] += table[:, site.number]
    scaled = {name: plan.estimate(table) for name, table in raw.items()}
    return InstructionCounts(
        function=linked.function.name,
        warp_executions=scaled["warp_executions"],
        active_lanes=scaled["active_lanes"],
        requests=scaled["requests"],
        sectors=scaled["sectors"],
        local_sectors=scaled["local_sectors"],
        shared_requests=scaled["shared_requests"],
        shared_transactions=scaled["shared_transactions"],
        constant_transactions=scaled["constant_transactions"],
        unique_sectors=scaled["unique_sectors"],
        raw_warp_executions=raw["warp_executions"],
        raw_active_lanes=raw["active_lanes"],
        raw_requests=raw["requests"],
        raw_sectors=raw["sectors"],
        raw_local_sectors=raw["local_sectors"],
        raw_shared_requests=raw["shared_requests"],
        raw_shared_transactions=raw["shared_transactions"],
        raw_constant_transactions=raw["constant_transactions"],
        raw_unique_sectors=raw["unique_sectors"],
    )


def _classes(
    program: Program, functions: dict[str, InstructionCounts], plan: SamplingPlan
) -> dict[str, ClassCounts]:
    raw: dict[str, list[Counts]] = {}
    totals: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
    for linked in program.functions:
        counts = functions[linked.function.name]
        members: dict[str, list[int]] = {}
        for one in linked.body.instructions:
            members.setdefault(classify(one.opcode).opcode_class, []).append(one.position)
        for name, positions in members.items():
            raw.setdefault(name, []).append(counts.raw_warp_executions[:, positions].sum(axis=1))
            totals[name] = totals.get(name, np.zeros(5)) + np.array(
                [
                    counts.warp_executions[positions].sum(),
                    counts.active_lanes[positions].sum(),
                    counts.requests[positions].sum(),
                    counts.sectors[positions].sum(),
                    counts.shared_transactions[positions].sum(),
                ]
            )
    return {
        name: ClassCounts(
            warp_executions=float(totals[name][0]),
            active_lanes=float(totals[name][1]),
            requests=float(totals[name][2]),
            sectors=float(totals[name][3]),
            shared_transactions=float(totals[name][4]),
            standard_error=plan.standard_error(np.sum(raw[name], axis=0)),
        )
        for name in sorted(totals)
    }


def _loops(program: Program, batches: list[Ran], plan: SamplingPlan) -> tuple[LoopTrips, ...]:
    found = []
    blocks = len(plan.blocks)
    for number, (function, index) in enumerate(program.loops):
        linked = program.functions[function]
        loop = linked.loops.loops[index]
        entries = np.zeros(blocks, dtype=np.int64)
        rounds = np.zeros(blocks, dtype=np.int64)
        lowest, highest = np.iinfo(np.int64).max, 0
        extrapolated = False
        for batch in batches:
            count = batch.machine.trips.counts[number]
            if count is None:
                continue
            count.settle(None)
            entries[batch.first : batch.first + count.entries.size] = count.entries
            rounds[batch.first : batch.first + count.rounds.size] = count.rounds
            lowest, highest = min(lowest, count.lowest), max(highest, count.highest)
            extrapolated |= count.extrapolated or not batch.machine.finished
        entered = plan.total(entries)
        if not entered:
            continue
        found.append(
            LoopTrips(
                linked.function.name, loop.index, loop.label, loop.line,
                plan.total(rounds) / entered, int(lowest), int(highest), entered, extrapolated,
            )
        )  # fmt: skip
    return tuple(found)
