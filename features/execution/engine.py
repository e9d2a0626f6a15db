"""``execute``: the one entrance to the executed analysis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from wattcast.features.attached import Attached
from wattcast.features.errors import CUT_SHORT, DEFAULT_EFFORT, Diagnostic, Effort
from wattcast.features.execution.arguments import bind
from wattcast.features.execution.machine import Machine
from wattcast.features.execution.program import Program
from wattcast.features.execution.sampling import SamplingPlan, plan_blocks
from wattcast.features.execution.summary import ExecutionResult, summarise
from wattcast.features.execution.trips import overrides
from wattcast.features.execution.values import CutShortError
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import Launch
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
    own, and where that ends too, counts are lower bounds; a Diagnostic tells.
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
    cut = None
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
            cap = f"the budget of {effort:.3g} units" if cut == "effort" else f"{step_limit} steps"
            detail = f"{cap} ended before the sampled blocks did: the counts are lower bounds"
            diagnostics.append(Diagnostic(CUT_SHORT, detail, function.line))
        return summarise(program, launch, chosen, machine, diagnostics, spent.spent)
    finally:
        machine.release()
