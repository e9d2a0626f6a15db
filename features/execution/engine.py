"""``execute``: the one entrance to the executed analysis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from wattcast.features.attached import Attached
from wattcast.features.dataflow import closure, definitions
from wattcast.features.errors import CUT_SHORT, DEFAULT_EFFORT, Diagnostic, Effort
from wattcast.features.execution.arguments import bind
from wattcast.features.execution.context import FRAME_STEP, Linked
from wattcast.features.execution.machine import Machine
from wattcast.features.execution.paths import Compare, comparison, keeps_for, sides_of
from wattcast.features.execution.program import Program
from wattcast.features.execution.sampling import SamplingPlan, plan_blocks
from wattcast.features.execution.steady import overrides
from wattcast.features.execution.summary import ExecutionResult, summarise
from wattcast.features.execution.values import CutShortError, Group
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import Launch
from wattcast.features.loops import Loop, calls_in, exits
from wattcast.features.ptx import ir

ASSUMED_DYNAMIC_SHARED = 48 * 1024
"""Bytes of dynamic shared memory where a kernel uses it and the launch names none: the most a
block gets without asking for more (CUDA C++ Programming Guide)."""


_PROGRAMS: Attached[ir.Function, Program] = Attached("programs")


def compiled(function: ir.Function, module: ir.Module) -> Program:
    """The kernel compiled to handlers; kept for as long as the function object lives."""
    return _PROGRAMS.get(function) or _PROGRAMS.set(function, Program(function, module))


def execute(
    function: ir.Function,
    module: ir.Module,
    launch: Launch,
    gpu: GpuProfile | None = None,
    *,
    plan: SamplingPlan | None = None,
    effort: float | None = DEFAULT_EFFORT,
    seed: int = 0,
    step_limit: int = 50_000_000,
    extrapolate: bool = True,
    forced: Mapping[int, float] | None = None,
) -> ExecutionResult:
    """Run sampled blocks of a launch and count what they do.

    ``plan`` replaces ``plan_blocks(launch)``; ``effort`` is the budget of work (``None``: no
    bound; see ``Effort``). Where it ends first, a few of the blocks are run with a budget of their
    own, and where that ends too, counts are extrapolated; a Diagnostic tells.
    ``extrapolate=False`` runs every iteration of every loop; ``forced`` tells the trips of loops of
    the kernel that made-up data would decide (``trips.py``). ``gpu`` only tells the number of
    multiprocessors that ``%smid`` spreads over. Results depend on these arguments alone.
    Raises LaunchError for arguments that do not fit the kernel's parameters, PtxError for a
    body that is not PTX, GivenUpError where the request's clock runs out.
    """
    spent = Effort(effort)
    program = compiled(function, module)
    bound = bind(program, launch, seed)
    chosen = plan or plan_blocks(launch, seed=seed)
    diagnostics = [*program.diagnostics, *bound.diagnostics]
    dynamic = launch.dynamic_shared_bytes
    if program.dynamic and not dynamic:
        dynamic = ASSUMED_DYNAMIC_SHARED
        diagnostics.append(
            Diagnostic(
                "dynamic_shared_assumed",
                f"{program.dynamic[0]} is dynamic shared memory but the launch gives no size; "
                f"{dynamic} bytes are assumed",
                function.line,
            )
        )
    machine = Machine(
        program,
        launch,
        chosen.blocks,
        bound.memory,
        bound.parameters,
        dynamic_shared_bytes=dynamic,
        effort=spent,
        step_limit=step_limit,
        multiprocessors=80 if gpu is None else gpu.sm_count,
        extrapolate=extrapolate,
        overrides=overrides(program, forced or {}),
        traced=chosen.to_trace(),
    )
    cut, told = None, []
    try:
        try:
            machine.run()
        except CutShortError as error:
            cut = str(error)
        fewer = chosen.fewer(launch) if cut == "effort" else None
        if fewer is not None:
            found = execute(
                function, module, launch, gpu, plan=fewer, effort=effort, seed=seed,
                step_limit=step_limit, extrapolate=extrapolate, forced=forced,
            )  # fmt: skip
            detail = (
                f"the budget of {effort:.3g} units ended before {len(chosen.blocks)} sampled "
                f"blocks did: counts are of {len(fewer.blocks)} that had the budget to themselves"
            )
            return replace(
                found,
                sampling=replace(found.sampling, effort=found.sampling.effort + spent.spent),
                diagnostics=(Diagnostic(CUT_SHORT, detail, function.line), *found.diagnostics),
            )
        if cut:
            told = scale_unfinished(machine)
            cap = f"the budget of {effort:.3g} units" if cut == "effort" else f"{step_limit} steps"
            what = (
                f"counts were scaled for {', '.join(told)}; what stands behind is missing"
                if told
                else "the counts are lower bounds"
            )
            diagnostics.append(
                Diagnostic(
                    CUT_SHORT,
                    f"{cap} ended before the sampled blocks did: {what}",
                    function.line,
                )
            )
        result = summarise(program, launch, chosen, machine, diagnostics, spent.spent)
        return replace(result, lower_bounds=cut is not None and not told)
    finally:
        machine.release()


# --- what a cut left undone: loops in progress are scaled to the rounds they had to go ------------
# At the cap some threads are inside loops. Of the outermost loop around them whose end is an
# integer comparison that advances by constant steps, the rounds still to go are worked out, and
# every count inside it is multiplied by (done + to go) / done, block by block. What stands
# behind the loop has not run and is not guessed.

Factors = npt.NDArray[np.float64]
MOST_FACTOR = 1e12
"""A larger factor means the loop hardly moves: it is left as it is."""


def scale_unfinished(machine: Machine) -> list[str]:
    """Scale the counters of loops in progress; says what was done, in words."""
    told = []
    done: set[int] = set()
    for key, group in machine.resting():
        depth = -(key // FRAME_STEP)
        run = machine.program.runs.get(key + depth * FRAME_STEP)
        if run is None:
            continue
        linked = machine.program.functions[run.function]
        for loop in linked.around(run.start - linked.base):
            number = linked.first_loop + loop.index
            factors = None if number in done else _factors(machine, linked, loop, group)
            if factors is None:
                continue
            done.add(number)
            _scale(machine, linked, loop, factors)
            told.append(f"the loop in line {loop.line} by {float(factors.max()):.3g}")
            break
    return told


def _ends(linked: Linked, loop: Loop) -> list[Compare]:
    """Comparisons that decide whether the loop is left."""
    blocks = (linked.cfg.blocks[index] for index in sorted(loop.blocks))
    made = definitions(one for block in blocks for one in linked.cfg.instructions(block))
    names = [one.predicate for one in exits(linked.cfg, loop) if one.predicate is not None]
    alone = (made[name][0] for name in names if len(made.get(name, ())) == 1)
    return [one for one in (comparison(linked, each) for each in alone) if one is not None]


def _factors(machine: Machine, linked: Linked, loop: Loop, group: Group) -> Factors | None:
    """By how much each block's counts in the loop fall short; ``None`` if nobody knows."""
    count = machine.trips.counts[linked.first_loop + loop.index]
    if any(linked.base + one.position in machine.overrides for one in exits(linked.cfg, loop)):
        return None
    if count is None or len(count.frames) < 2:
        return None
    before, latest = count.frames
    left = np.full(machine.count, np.inf)
    for end in _ends(linked, loop):
        sides = sides_of(end, before), sides_of(end, latest)
        left = np.minimum(left, keeps_for(end, *sides, machine.count))
    mask = group.mask & (count.current > 0)
    known = mask & np.isfinite(left)
    if not known.any():
        return None
    so_far = np.where(known, count.current, 0).reshape(machine.slots, -1).sum(axis=1)
    to_go = np.where(known, left, 0.0).reshape(machine.slots, -1).sum(axis=1)
    factors: Factors = 1 + to_go / np.maximum(so_far, 1)
    return factors if bool((factors < MOST_FACTOR).all()) else None


def _inside(program: Program, linked: Linked, loop: Loop) -> set[int]:
    """Global numbers of a loop's instructions, and of all functions that are called from it."""
    blocks = [linked.cfg.blocks[index] for index in loop.blocks]
    own = {position for block in blocks for position in range(block.start, block.end)}
    found = {linked.base + position for position in own}

    def called(name: str) -> Iterator[str]:
        there = program.by_name[name]
        for callee, places in calls_in(there.function).items():
            if callee in program.by_name and (there is not linked or not own.isdisjoint(places)):
                yield callee

    for name in closure((linked.function.name,), called) - {linked.function.name}:
        there = program.by_name[name]
        found.update(range(there.base, there.base + len(there.body.instructions)))
    return found


def _scale(machine: Machine, linked: Linked, loop: Loop, factors: Factors) -> None:
    def grow(counts: npt.NDArray[np.int64]) -> None:
        counts[...] = np.rint(counts * factors)

    inside = _inside(machine.program, linked, loop)
    for run in machine.program.runs.values():
        if run.start in inside:
            before = machine.run_stats[run.index, 0].copy()
            grow(machine.run_stats[run.index])
            machine.skipped[run.index] += machine.run_stats[run.index, 0] - before
    for position, row in machine.program.guarded.items():
        if position in inside:
            grow(machine.guarded[row])
    for site in machine.program.sites:
        if site.position in inside:
            tally = machine.tallies[site.number]
            unique = tally.log.per_slot(machine.slots) + tally.extra
            tally.extra += np.rint(unique * (factors - 1)).astype(np.int64)
            for counter in tally.counters():
                grow(counter)
    for other in linked.loops.loops:
        held = machine.trips.counts[linked.first_loop + other.index]
        if held is None or other.header not in loop.blocks:
            continue
        grow(held.rounds)
        held.extrapolated = True
        if other is loop:
            per_thread = np.repeat(factors, machine.per_block)
            held.current = np.rint(held.current * per_thread).astype(np.int64)
        else:
            grow(held.entries)
