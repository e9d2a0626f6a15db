"""Findings about control flow and memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil

from wattcast.features.activity.counts import WORD_BYTES, shared_use
from wattcast.features.activity.instructions import InstructionEvents
from wattcast.features.activity.waiting import Waiting
from wattcast.features.cfg import BasicBlock, post_dominators
from wattcast.features.counts import Atomics
from wattcast.features.dataflow import closure, computed_from, definitions, flow, reads, writes
from wattcast.features.errors import AnalysisError
from wattcast.features.findings.finding import (  # fmt: skip
    Code,
    Difference,
    Evidence,
    Finding,
    Place,
    inside_of,
    place,
)
from wattcast.features.isa import classify
from wattcast.features.launch import WARP_SIZE
from wattcast.features.loops import deciding
from wattcast.features.memory import SECTOR_BYTES, SECTORS_PER_LINE
from wattcast.features.ptx.ir import Address, Function, Instruction, Register
from wattcast.features.wide_loads import joined_loads

# --- findings about control flow: branches that split warps -----------------------------------


LEAST_SHARE = 0.05
"""Share of its lanes that a warp must lack on average in what a branch guards, to be told."""


def divergent_branches(evidence: Evidence) -> Iterator[Finding]:
    """Conditional branches after which warps run with part of their lanes.

    What a branch guards lies between it and where its sides meet again (its immediate post
    dominator), and inside no narrower branch. Mended, the threads of a warp agree: the same lanes
    fill fewer warps. Where a branch is decided by no data, those are warps of the same block.
    """
    analysis = evidence.analysis
    function, cfg = analysis.function, analysis.cfg
    events, warps = evidence.events[function.name], analysis.launch.warps_per_block
    meets = post_dominators(cfg)
    block_of = cfg.block_of
    guarded = {
        branch: _between(cfg.blocks, block_of[branch], meets[block_of[branch]])
        for branch in _divergent(evidence)
    }
    taken: set[int] = set()
    for branch in sorted(guarded, key=lambda at: len(guarded[at])):
        own = guarded[branch] - taken
        taken |= own
        before = _lane_share(events, branch)
        difference = Difference()
        lost = total = 0.0
        guard = function.body.instructions[branch].predicate or ""
        sorted_ = deciding(function).of(guard).loaded
        for index in sorted(own):
            for one in cfg.instructions(cfg.blocks[index]):
                executed = float(events.warp_executions[one.position])
                # Lanes that were missing already when the branch was reached stay missing.
                full = float(events.active_lanes[one.position]) / (WARP_SIZE * before)
                if executed and not sorted_:
                    full = ceil(warps * min(1.0, full / executed) - 1e-9) / warps * executed
                spare = executed - min(executed, full)
                total += executed
                lost += spare
                if spare:
                    difference.fewer(function.body, one, spare)
        if not total or lost < LEAST_SHARE * total:
            continue
        yield Finding(
            "divergent_branch",
            (place(function, function.body.instructions[branch]),),
            f"warps diverge here: the guarded code runs with {1 - lost / total:.0%} of the lanes "
            f"that reach the branch, {lost:.4g} warp instructions more than if each warp agreed",
            "let whole warps take one side: branch on blockIdx or on threadIdx / 32, sort the "
            "work, or compute both sides without a branch",
            difference.applied(evidence.activity),
        )


def _divergent(evidence: Evidence) -> list[int]:
    """Positions of conditional branches that are reached, in text order."""
    analysis = evidence.analysis
    try:
        split = {
            branch.position
            for branch in analysis.symbolic.branches
            if branch.known and branch.taken_warps + branch.other_warps <= 1.0
        }
    except AnalysisError:
        split = set()
    events = evidence.events[analysis.function.name]
    return [
        one.position
        for one in analysis.function.body.instructions
        if one.base == "bra"
        and one.predicate is not None
        and one.position not in split
        and events.warp_executions[one.position]
    ]


def _lane_share(events: InstructionEvents, at: int) -> float:
    """Share of a warp's lanes that reach an instruction, its own guard aside.

    A guarded branch counts the lanes that take it; those that reach it are the instruction's
    before it, in the same block.
    """
    reached = events.active_lanes[max(0, at - 1)] / max(events.warp_executions[max(0, at - 1)], 1.0)
    own = events.active_lanes[at] / events.warp_executions[at]
    return float(min(1.0, max(reached, own) / WARP_SIZE)) or 1.0


def _between(blocks: Sequence[BasicBlock], start: int, end: int) -> set[int]:
    """Blocks after ``start`` that are passed before ``end``."""

    def following(block: int) -> Iterator[int]:
        return (after for after in blocks[block].successors if after not in (start, end))

    return closure(following(start), following)


# --- findings about memory: accesses that do not coalesce, bank conflicts, local memory -------


WORTH_TELLING = 1.25
"""Sectors or passes over the least possible from which an access is told: below, alignment and
ragged edges explain it."""


class _Alike:
    """Instructions of which the same is to be told, and what mending all of them changes."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.difference = Difference()
        self.l1_cycles = 0.0


MOST_TOLD = 3
"""Kinds of accesses that one finding describes."""


def _several(told: list[str]) -> str:
    more = len(told) - MOST_TOLD
    return ". ".join(told[:MOST_TOLD]) + (f". {more} more like these" if more > 0 else "")


_CURES: Mapping[Code, str] = {
    "uncoalesced_access": "let neighbouring threads access neighbouring elements: change the "
    "layout or which index is threadIdx.x, or go through shared memory",
    "thread_per_row": "let a warp walk each row together, its lanes side by side, and add up with "
    "__shfl_down_sync",
}


def uncoalesced(evidence: Evidence) -> Iterator[Finding]:
    """Global accesses that touch more sectors than their lanes' bytes fill.

    They are one finding: as a rule one index decides them all. Mended, the lanes' data lie side by
    side, in whole sectors and long pieces. Device memory then moves no more than passes L2, and
    no more than before: what caches made of a stride is not counted twice. Where loaded numbers
    say which element (a gather), no layout puts neighbours side by side.
    """
    found: dict[Code | None, tuple[list[str], _Alike]] = {c: ([], _Alike()) for c in _CURES}
    gathers, extras = _Alike(), evidence.analysis.extras
    counted = evidence.analysis.counts.functions(evidence.analysis.counts.factors())
    for function, events in evidence.functions():
        for one in function.body.instructions:
            facts, at = classify(one.opcode), one.position
            sectors = float(events.global_sectors[at])
            executed = float(events.warp_executions[at])
            if not sectors or facts.category not in ("load", "store") or not facts.bytes_per_lane:
                continue
            lanes = float(events.active_lanes[at]) / executed
            width = max(facts.bytes_per_lane, WORD_BYTES)  # of a word a byte may be used
            least = max(1.0, ceil(lanes * width / SECTOR_BYTES)) * executed
            code = _cure(evidence, function, one)
            if sectors <= WORTH_TELLING * least:
                continue
            told, alike = found.get(code, ([], gathers))
            told.append(
                f"{one.opcode} touches {sectors / executed:.1f} sectors of {SECTOR_BYTES} bytes a "
                f"warp; its lanes' data fill {least / executed:.0f}"
            )
            alike.places.append(place(function, one))
            kind, way = ("load", "read") if facts.category == "load" else ("store", "write")
            if kind == "load":
                cycles = float(counted[function.name].l1_millicycles[at]) / 1000
                alike.l1_cycles += cycles - ceil(least / executed / SECTORS_PER_LINE) * executed
            add = alike.difference.add
            add(f"global_{kind}_sectors", least - sectors)
            add("l2_sectors", min(0.0, least - float(events.l2_sectors[at])))
            add(f"dram_{way}_sectors", min(0.0, least - float(events.dram_sectors[at])))
    for code, (told, alike) in found.items():
        if told and code is not None:
            if code == "thread_per_row":  # a row may also gather from near places
                alike.l1_cycles += gathers.l1_cycles
                for name, amount in gathers.difference.fields.items():
                    alike.difference.add(name, amount)
            mended = alike.difference.applied(evidence.activity)
            detail = _several(list(dict.fromkeys(told)))
            each = extras.l1_cycles_per_sector
            if each is not None:
                taken = each * evidence.activity.global_load_sectors - alike.l1_cycles
                each = max(0.0, taken) / max(mended.global_load_sectors, 1.0)
            then = replace(
                extras,
                pieces=0.0,
                store_headers=0.0,
                l1_cycles_per_sector=each,
                waiting=_loaded_at_once(evidence),
            )
            yield Finding(code, tuple(alike.places), detail, _CURES[code], mended, then)


def _loaded_at_once(evidence: Evidence) -> Waiting | None:
    """What a warp waits for through shared memory: where no loop is, all loads at once, as none
    comes after a store that may be to the same place."""
    waiting, asked = evidence.analysis.extras.waiting, evidence.activity.load_requests_per_warp
    if waiting is None or evidence.analysis.loops.loops:
        return waiting
    return waiting._replace(loads=min(waiting.loads, 1.0 / max(asked, 1.0)))


def _cure(evidence: Evidence, function: Function, one: Instruction) -> Code | None:
    """What puts the data of neighbours side by side: nothing for a gather; where loaded numbers say
    between which elements a loop walks, that a warp walks together."""
    analysis = evidence.analysis
    if function is not analysis.function:
        return "uncoalesced_access"
    known = deciding(function)
    bases = (each.base for each in one.operands if isinstance(each, Address))
    names = [base.name for base in bases if isinstance(base, Register)]
    if not known.of(*names).loaded:
        return "uncoalesced_access"
    at = analysis.loops.innermost[analysis.cfg.block_of[one.position]]
    if at < 0 or not known.loops[at].data:
        return None
    made = definitions(inside_of(analysis, analysis.loops.loops[at].blocks))
    behind = computed_from(names, made)
    gathers = any(
        classify(each.opcode).category == "load" for name in behind for each in made.get(name, ())
    )
    return None if gathers else "thread_per_row"


def bank_conflicts(evidence: Evidence) -> Iterator[Finding]:
    """Shared accesses that take more passes than their width needs: that of the wide load where
    ptxas joins several of one thread. Lanes that read the same word are served at once."""
    counted = evidence.analysis.counts.functions(evidence.analysis.counts.factors())
    groups: dict[bool, tuple[list[str], _Alike]] = {}
    extras, activity = evidence.analysis.extras, evidence.activity
    for function, _ in evidence.functions():
        joined = joined_loads(function.body).loads
        each, taken = shared_use(function.body, counted[function.name])
        for one in function.body.instructions:
            facts, at = classify(one.opcode), one.position
            requests, passes = float(each[at] * joined[at]), float(taken[at] * joined[at])
            if not requests or facts.category == "atomic":
                continue
            least = requests * max(1, facts.bytes_per_lane * joined[at] // WORD_BYTES)
            if passes < WORTH_TELLING * least:
                continue
            told = (
                f"{one.opcode} takes {passes / requests:.1f} passes of shared memory a warp; "
                f"without conflicts {least / requests:.0f}"
            )
            pieces = one.base in ("ldmatrix", "stmatrix")
            details, alike = groups.setdefault(pieces, ([], _Alike()))
            details.append(told)
            alike.places.append(place(function, one))
            alike.difference.add("shared_transactions", float((least - passes) / joined[at]))
    for pieces, (details, alike) in groups.items():
        rows = "16 bytes" if pieces else "a word"
        columns = "its pieces of 16 bytes: a swizzle" if pieces else "its columns"
        mended, waiting = alike.difference.applied(activity), extras.waiting
        if waiting is not None:  # nor does a warp wait for passes that are gone
            before, left = (each.shared_transactions - each.shared_requests
                            for each in (activity, mended))  # fmt: skip
            share = max(0.0, left) / max(before, 1.0)
            waiting = waiting._replace(passes=waiting.passes * min(1.0, share))
        yield Finding(
            "bank_conflicts",
            tuple(alike.places),
            _several(list(dict.fromkeys(details))),
            f"pad the rows of the array by {rows}, or permute {columns} (XOR with the row)",
            mended,
            replace(extras, waiting=waiting),
        )


def local_memory(evidence: Evidence) -> Iterator[Finding]:
    """Loads and stores of local memory in the PTX: arrays with computed indices, and spills."""
    difference = Difference()
    places, requests = [], 0.0
    for function, events in evidence.functions():
        for one in function.body.instructions:
            facts, at = classify(one.opcode), one.position
            passes = float(events.load_store_passes[at])
            if facts.space != "local" or not passes:
                continue
            executed = float(events.warp_executions[at])
            difference.fewer(function.body, one, executed)
            difference.add("lsu_requests", -passes)
            words = max(1, facts.bytes_per_lane // WORD_BYTES)
            sectors = passes * words * (WARP_SIZE * WORD_BYTES // SECTOR_BYTES)
            difference.add("local_sectors", -sectors)
            if facts.category == "load":
                difference.loads -= passes
            places.append(place(function, one))
            requests += passes
    if places:
        yield Finding(
            "local_memory",
            tuple(places),
            f"{len(places)} instructions access local memory, {requests:.4g} requests of warps: "
            "spilled registers, or an array with an index unknown at compile time",
            "unroll the loop around a small array, split it into scalars, or allow more registers",
            difference.applied(evidence.activity),
        )


def register_spills(evidence: Evidence) -> Iterator[Finding]:
    """Registers that ptxas spills to local memory. Mended, nothing is stored and loaded again, at
    the same registers and occupancy."""
    analysis = evidence.analysis
    report = analysis.spilled
    if report is None:
        return
    function = analysis.function
    widest = max(
        function.body.instructions,
        key=lambda one: float(evidence.events[function.name].warp_executions[one.position]),
    )
    yield Finding(
        "register_spills",
        (place(function, widest),),
        f"ptxas gives {report.registers_per_thread} registers a thread and spills: "
        f"{report.spill_store_bytes} bytes stored, {report.spill_load_bytes} bytes loaded by each "
        "thread where values do not fit",
        "keep fewer values alive (smaller tiles of a thread, less unrolling), or allow more "
        "registers: relax __launch_bounds__ or -maxrregcount",
        replace(analysis, spilled=None).activity,
    )


# What an expert sees at once: products without register tiles, counters in global memory.
#
# Nothing of it is rewritten: the mended launch lacks what the change takes away at most.

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
    what the loop does besides. The next multiply-add takes one of its factors again, and sums that
    do not wait for each other leave nothing to wait for.
    """
    analysis = evidence.analysis
    function, extras = analysis.function, analysis.extras
    waiting = None if extras.waiting is None else Waiting(0.0, 0.0, 0.0, 0.0)
    for loop in analysis.loops.loops:
        inside = inside_of(analysis, loop.blocks)
        loads = [one for one in inside if _from_shared(one)]
        words = {name for one in loads for name in writes(one)}
        fused = [o for o in inside if o.base == "fma" and len(words.intersection(reads(o))) > 1]
        if loop.children or not fused or len(words) < len(fused):
            continue
        difference = oftener_used(evidence, inside, TILE)
        done = sum(float(evidence.events[function.name].warp_executions[o.position]) for o in fused)
        operands = max(0.0, extras.register_reads - (1 - 1 / TILE) * done)
        yield Finding(
            "register_tiling",
            tuple(place(function, one) for one in fused),
            f"{len(fused)} multiply-adds of a loop take {len(words)} words from shared memory: "
            "each is used once, and reading them takes longer than the arithmetic",
            f"compute a square of results in each thread, up to {TILE} x {TILE}: read a column of "
            "one tile and a row of the other into registers, and use each word for all of them",
            difference.applied(evidence.activity),
            replace(extras, waiting=waiting, register_reads=operands),
        )


def oftener_used(evidence: Evidence, inside: Sequence[Instruction], side: int) -> Difference:
    """A loop in which for each multiply-add all else is done less often, and device memory brings
    less of it again."""
    function, every = evidence.analysis.function, evidence.analysis.counts
    counts = every.functions(every.factors())[function.name]
    shared, passes = shared_use(function.body, counts)
    events = evidence.events[function.name]
    difference, less = Difference(), 1 - 1 / side
    footprint, read = evidence.activity.footprint_bytes, evidence.activity.dram_read_sectors
    again = max(0.0, 1 - footprint / SECTOR_BYTES / max(read, 1.0))
    for one in inside:
        if one.base == "fma":
            continue
        at = one.position
        executed = float(events.warp_executions[at])
        asked = executed if events.global_sectors[at] else 0.0
        difference.fewer(function.body, one, less * executed)
        difference.loads -= less * asked
        for name, many in (
            ("shared_requests", float(shared[at])), ("shared_transactions", float(passes[at])),
            ("lsu_requests", float(shared[at]) + asked), ("global_load_requests", asked),
            ("global_load_sectors", float(events.global_sectors[at])),
            ("l2_sectors", float(events.l2_sectors[at])),
            ("dram_read_sectors", again * float(events.dram_sectors[at])),
        ):  # fmt: skip
            difference.add(name, -less * many)
    return difference


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
        for name in ("shared_requests", "shared_transactions"):  # its lanes that meet: ``Atomics``
            difference.add(name, use.requests)
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
