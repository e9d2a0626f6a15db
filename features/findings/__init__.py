"""What a launch does that it need not do: findings, each with the activity of a mended launch.

patterns    what an expert sees at once: products without register tiles, counters in global memory
tiles       data that the threads of a block read again and again
rules       accesses that do not coalesce, bank conflicts, local memory, spills, split warps
arithmetic  double precision between floats, divisions, what loops repeat
reductions  trees in shared memory, atomics of a warp on one word: steps that shuffles do
vectors     words that a thread could move four at once, or as halves
rewriting   the PTX with a change made
tensor      products by lanes, pipelines too shallow, tiles too small, sums wider than needed
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from wattcast.features.activity.instructions import InstructionEvents, measure_instructions
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.errors import NONSENSE
from wattcast.features.findings.arithmetic import (
    constant_division,
    expensive_in_loops,
    fp64_between_fp32,
    invariant_loads,
)
from wattcast.features.findings.finding import Code, Evidence, Finding, Place
from wattcast.features.findings.reductions import reductions, warp_aggregation
from wattcast.features.findings.rules import (
    bank_conflicts,
    divergent_branches,
    global_atomics,
    local_memory,
    register_spills,
    register_tiling,
    uncoalesced,
)
from wattcast.features.findings.tensor import (
    shallow_pipeline,
    small_tile,
    tensor_cores,
    wide_sums,
)
from wattcast.features.findings.tiles import reread_tiles
from wattcast.features.findings.vectors import (
    half_storage,
    narrow_accesses,
    persistent_blocks,
)

__all__ = ["Code", "Evidence", "Finding", "InstructionEvents", "Place", "find"]

_DETECTORS = (
    register_tiling, tensor_cores, global_atomics, reread_tiles, uncoalesced, bank_conflicts,
    local_memory, register_spills, fp64_between_fp32,
    constant_division, expensive_in_loops, invariant_loads, reductions, warp_aggregation,
    divergent_branches, narrow_accesses, persistent_blocks, shallow_pipeline, small_tile, wide_sums,
)  # fmt: skip


def _told(detect: Callable[[Evidence], Iterable[Finding]], evidence: Evidence) -> list[Finding]:
    """What a rule finds; nothing in text that makes no sense to it."""
    try:
        return list(detect(evidence))
    except NONSENSE:
        return []


def find(analysis: KernelAnalysis) -> tuple[Finding, ...]:
    """All findings of a launch, in no order of weight.

    Raises AnalysisError where the kernel cannot be analysed dynamically.
    """
    functions = analysis.counts.functions(analysis.counts.factors())
    events = measure_instructions(analysis.module, functions, analysis.activity)
    evidence = Evidence(analysis, events)
    found = [finding for detect in _DETECTORS for finding in _told(detect, evidence)]
    if not found:  # less exact than all else
        found += _told(half_storage, evidence)
    # What is told of a reduction mends the branches in it too, and the only word of each warp needs
    # no counters in shared memory.
    trees = {
        at
        for each in found
        if "reduction" in (each.form, *each.code.split("_"))
        for at in each.places
    }
    whole = {at for each in found if each.code == "warp_aggregation" for at in each.places}
    return tuple(
        each
        for each in found
        if each.form
        or not {"divergent_branch": trees, "global_atomics": whole}.get(
            each.code, set()
        ).intersection(each.places)
    )
