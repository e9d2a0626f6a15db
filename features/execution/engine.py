"""``execute``: the one entrance to the executed analysis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from wattcast.features.attached import Attached
from wattcast.features.diagnostics import CUT_SHORT, Diagnostic
from wattcast.features.execution.arguments import Bound, bind
from wattcast.features.execution.footprints import Ran
from wattcast.features.execution.groups import CutShortError
from wattcast.features.execution.machine import Machine
from wattcast.features.execution.program import Program
from wattcast.features.execution.results import ExecutionResult
from wattcast.features.execution.sampling import SamplingPlan, plan_blocks, whole
from wattcast.features.execution.summary import summarise
from wattcast.features.execution.unfinished import scale_unfinished
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import Launch
from wattcast.features.ptx import ir

EXACT_THREADS = 32_768
"""Threads run together in exact mode (memory of registers against numpy's cost per call)."""
RUNNING_SHARE = 0.85
"""Share of the time cap for running; the rest is for adding up."""
ASSUMED_DYNAMIC_SHARED = 48 * 1024
"""Bytes of dynamic shared memory where a kernel uses it and the launch names none: the most a
block gets without asking for more (CUDA C++ Programming Guide)."""


@dataclass(frozen=True)
class ExactMemory:
    """Contents of device memory for exact mode: bytes (or an array) by base address.

    ``symbols`` gives module variables (``__constant__``, ``__device__``) by name.
    Pointer arguments of the launch are then plain integers: the addresses. ``textures`` are
    float32 images ``(height, width)`` by texture object (point sampling, clamped, coordinates not
    normalised); ``parameters`` are the bytes of parameters passed by value, by position or name.
    """

    buffers: Mapping[int, bytes | npt.NDArray[Any]]
    symbols: Mapping[str, bytes | npt.NDArray[Any]] = field(default_factory=dict)
    textures: Mapping[int, npt.NDArray[Any]] = field(default_factory=dict)
    parameters: Mapping[str, bytes] = field(default_factory=dict)


_PROGRAMS: Attached[ir.Function, dict[bool, Program]] = Attached("programs")


def compiled(function: ir.Function, module: ir.Module, *, precise: bool) -> Program:
    """The kernel compiled to handlers; kept for as long as the function object lives."""
    kept = _PROGRAMS.set(function, {})
    program = kept.get(precise)
    if program is None:
        program = kept[precise] = Program(function, module, precise=precise)
    return program


def is_compiled(function: ir.Function) -> bool:
    """Whether handlers of the function are kept."""
    return bool(_PROGRAMS.get(function))


def execute(
    function: ir.Function,
    module: ir.Module,
    launch: Launch,
    gpu: GpuProfile | None = None,
    *,
    plan: SamplingPlan | None = None,
    exact: ExactMemory | None = None,
    time_cap_seconds: float | None = 1.0,
    seed: int = 0,
    step_limit: int = 50_000_000,
    extrapolate: bool = True,
) -> ExecutionResult:
    """Run sampled blocks of a launch (all of them with ``exact``) and count what they do.

    ``plan`` replaces ``plan_blocks(launch)``; ``time_cap_seconds`` bounds the whole call
    (``None``: no bound); ``extrapolate=False`` runs every iteration of every loop. ``gpu`` only
    tells the number of multiprocessors that ``%smid`` spreads over. Results are deterministic
    for a ``seed`` unless the time cap cuts them short, which a Diagnostic says.
    Raises LaunchError for arguments that do not fit the kernel's parameters, PtxError for a
    body that is not PTX.
    """
    began = perf_counter()
    deadline = began + (RUNNING_SHARE * time_cap_seconds if time_cap_seconds is not None else 1e9)
    program = compiled(function, module, precise=exact is not None)
    buffers = None
    if exact is not None:
        buffers = {base: _bytes(data) for base, data in exact.buffers.items()}
    bound = bind(program, launch, buffers, seed, exact.parameters if exact else {})
    if exact is not None:
        _place_symbols(bound, exact)
    chosen = whole(launch) if exact is not None else plan or plan_blocks(launch, seed=seed)
    diagnostics = [*program.diagnostics, *bound.diagnostics]
    dynamic = launch.dynamic_shared_bytes
    if program.dynamic and not dynamic and exact is None:
        dynamic = ASSUMED_DYNAMIC_SHARED
        diagnostics.append(
            Diagnostic(
                "dynamic_shared_assumed",
                f"{program.dynamic[0]} is dynamic shared memory but the launch gives no size; "
                f"{dynamic} bytes are assumed",
                function.line,
            )
        )
    batches: list[Ran] = []
    cut, told = None, []
    for first, last in _ranges(chosen, launch, exact is not None):
        machine = Machine(
            program,
            launch,
            chosen.blocks[first:last],
            bound.memory,
            bound.parameters,
            dynamic_shared_bytes=dynamic,
            deadline=deadline,
            step_limit=step_limit,
            multiprocessors=80 if gpu is None else gpu.sm_count,
            extrapolate=extrapolate and exact is None,
            traced=() if exact is not None else chosen.to_trace(),
        )
        if exact is not None:
            machine.textures = exact.textures
        try:
            machine.run()
        except CutShortError as error:
            cut = str(error)
        batches.append(Ran(machine, first))
        if cut:
            break
    if cut:
        told = scale_unfinished(batches[-1].machine) if exact is None else []
        cap = f"the cap of {time_cap_seconds:g} s" if cut == "time" else f"{step_limit} steps"
        what = (
            f"counts were scaled for {', '.join(told)}; what stands behind is missing"
            if told
            else "the counts are lower bounds"
        )
        diagnostics.append(
            Diagnostic(
                CUT_SHORT,
                f"{cap} was reached before the sampled blocks ended: {what}",
                function.line,
            )
        )
    try:
        result = summarise(
            program, launch, chosen, batches, bound, diagnostics, began, exact is not None
        )
        return replace(result, lower_bounds=cut is not None and not told)
    finally:
        for batch in batches:
            batch.machine.release()


def _bytes(data: bytes | npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    if isinstance(data, bytes | bytearray | memoryview):
        return np.frombuffer(bytes(data), dtype=np.uint8)
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)


def _place_symbols(bound: Bound, exact: ExactMemory) -> None:
    for name, region in bound.symbols:
        if name in exact.symbols:
            data = _bytes(exact.symbols[name])[: region.size]
            region.contents()[: data.size] = data


def _ranges(plan: SamplingPlan, launch: Launch, exact: bool) -> list[tuple[int, int]]:
    count = len(plan.blocks)
    if not exact:
        return [(0, count)]
    each = max(1, EXACT_THREADS // (launch.warps_per_block * 32))
    return [(start, min(count, start + each)) for start in range(0, count, each)]
