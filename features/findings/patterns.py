"""What an expert sees at once: products without register tiles, counters in global memory.

Nothing of it is rewritten: the mended launch lacks what the change takes away at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from wattcast.features.activity.counts import WORD_BYTES, shared_use
from wattcast.features.counts import Atomics
from wattcast.features.dataflow import flow, reads, writes
from wattcast.features.findings.finding import Difference, Evidence, Finding, inside_of, place
from wattcast.features.isa import classify
from wattcast.features.memory import SECTOR_BYTES
from wattcast.features.ptx.ir import Instruction

TILE = 8
"""Results of a thread along each side, as fast products have them (CUTLASS, Efficient GEMM in CUDA:
8 x 8 in a thread): a word from shared memory is used so often."""

MOST_PRIVATE_BYTES = 48 * 1024
"""Static shared memory of a block (CUDA C++ Programming Guide, technical specifications)."""

LEAST_HITS = 4
"""Times that a block hits each of its words, from which counting them apart pays: bringing one in
takes an atomic of each memory, and clearing it a store."""


def register_tiling(evidence: Evidence) -> Iterator[Finding]:
    """Products whose multiply-adds each take both factors from shared memory.

    With a square of results in each thread a word that is read serves ``TILE`` of them, and so does
    what the loop does besides.
    """
    analysis = evidence.analysis
    function = analysis.function
    events = evidence.events[function.name]
    counts = analysis.counts.functions(analysis.counts.factors())[function.name]
    requests, passes = shared_use(function.body, counts)
    for loop in analysis.loops.loops:
        inside = inside_of(analysis, loop.blocks)
        loads = [one for one in inside if _from_shared(one)]
        words = {name for one in loads for name in writes(one)}
        fused = [o for o in inside if o.base == "fma" and len(words.intersection(reads(o))) > 1]
        if loop.children or not fused or len(words) < len(fused):
            continue
        difference, less = Difference(), 1 - 1 / TILE
        for one in inside:  # for each multiply-add, all else is done less often
            at = one.position
            if one.base == "fma":
                continue
            difference.fewer(function.body, one, less * float(events.warp_executions[at]))
            for name, many in (
                ("shared_requests", requests), ("lsu_requests", requests),
                ("shared_transactions", passes), ("l2_sectors", events.l2_sectors),
                ("global_load_sectors", events.global_sectors),
            ):  # fmt: skip
                difference.add(name, -less * float(many[at]))
        yield Finding(
            "register_tiling",
            tuple(place(function, one) for one in fused),
            f"{len(fused)} multiply-adds of a loop take {len(words)} words from shared memory: "
            "each is used once, and reading them takes longer than the arithmetic",
            f"compute a square of results in each thread, up to {TILE} x {TILE}: read a column of "
            "one tile and a row of the other into registers, and use each word for all of them",
            difference.applied(evidence.activity),
        )


def global_atomics(evidence: Evidence) -> Iterator[Finding]:
    """Counters in global memory that each block hits again and again, few enough for its shared
    memory: counted there, each block brings its own once."""
    analysis = evidence.analysis
    atomics = analysis.extras.atomics
    blocks = analysis.launch.blocks
    for use in atomics.uses:
        function = analysis.module.function(use.function)
        unique = analysis.counts.functions(None)[use.function].unique_sectors
        if use.space != "global" or unique is None or use.passes is None or function is None:
            continue
        one = function.body.instructions[use.position]
        returned = set(writes(one))
        words = float(unique[use.position]) / blocks * SECTOR_BYTES / WORD_BYTES
        hits = use.operations / blocks / words if words else 0.0
        if hits < LEAST_HITS or words * WORD_BYTES > MOST_PRIVATE_BYTES:
            continue
        wanted = any(returned.intersection(read) for read in flow(function.body).reads)
        if wanted or {"cas", "exch"}.intersection(one.opcode.split(".")):
            continue
        difference = Difference()
        events = evidence.events[function.name]
        for name, less in (
            ("global_load_sectors", events.global_sectors), ("l2_sectors", events.l2_sectors),
            ("global_store_sectors", events.global_sectors),
        ):  # fmt: skip
            difference.add(name, -float(less[use.position]))
        difference.add("shared_requests", use.requests)
        difference.add("shared_transactions", use.passes)
        there = tuple(replace(e, space="shared") if e is use else e for e in atomics.uses)
        yield Finding(
            "global_atomics",
            (place(function, one),),
            f"{use.operations:.4g} atomics go to global memory; a block hits each of its "
            f"{words:.0f} words {hits:.0f} times",
            "count in an array of shared memory, __syncthreads(), and let each block add its own "
            "counts to global memory once",
            difference.applied(evidence.activity),
            replace(analysis.extras, atomics=Atomics(there, float(blocks), float(blocks))),
        )


def _from_shared(one: Instruction) -> bool:
    facts = classify(one.opcode)
    return facts.category == "load" and facts.space == "shared"
