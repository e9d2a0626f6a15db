"""Findings about arithmetic, control flow and memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from wattcast.features.activity.counts import WORD_BYTES
from wattcast.features.activity.instructions import InstructionEvents
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.cfg import BasicBlock, post_dominators
from wattcast.features.dataflow import closure, reads, writes
from wattcast.features.errors import AnalysisError
from wattcast.features.findings.finding import Difference, Evidence, Finding, Place, place
from wattcast.features.isa import classify, kind_of
from wattcast.features.launch import WARP_SIZE
from wattcast.features.loops import Loop
from wattcast.features.memory import SECTOR_BYTES
from wattcast.features.ptx.ir import Function, Immediate, Instruction, Register

EXPENSIVE = frozenset({"div", "rem", "sqrt", "rcp", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh"})
"""Opcodes that are sequences or special functions."""

INTEGER_RECIPROCAL = ("mul.hi.u32", "shr.u32", "mad.lo.s32")
"""What divides by a number known beforehand: a high product and a shift (T. Granlund and P.
Montgomery, Division by Invariant Integers using Multiplication, PLDI 1994), and for a remainder
a multiply-add."""


def fp64_between_fp32(evidence: Evidence) -> Iterator[Finding]:
    """Double-precision arithmetic whose inputs were floats and whose results become floats.

    A group of such instructions that feed one another; as a rule a literal without ``f`` (2.0
    for 2.0f) made it. Mended, they are single precision and the conversions go.
    """
    for function, events in evidence.functions():
        instructions = function.body.instructions
        for group in _promoted(function, instructions):
            if not any(events.warp_executions[at] for at in group):
                continue
            difference = Difference()
            arithmetic = [at for at in group if not _converts(instructions[at])]
            for at in group:
                one, times = instructions[at], float(events.warp_executions[at])
                difference.fewer(function.body, one, times)
                if at in arithmetic:
                    difference.more(one.opcode.replace("f64", "f32"), times)
            yield Finding(
                "fp64_between_fp32",
                tuple(place(function, instructions[at]) for at in arithmetic),
                f"{len(arithmetic)} double-precision instructions work on converted floats, and "
                f"their results become floats again",
                "write float literals (2.0f, not 2.0) and float functions (sqrtf, not sqrt)",
                difference.applied(evidence.activity),
            )


def _converts(one: Instruction) -> bool:
    return one.base == "cvt"


def _touches_f64(one: Instruction) -> bool:
    return any(kind_of(name) == "f64" for name in classify(one.opcode).types)


def _promoted(function: Function, instructions: Sequence[Instruction]) -> Iterator[list[int]]:
    """Groups of positions: arithmetic on f64 and the conversions around it, nothing else."""
    uses: dict[str, list[int]] = {}
    for one in instructions:
        if _touches_f64(one):
            for name in (*reads(one), *writes(one)):
                uses.setdefault(name, []).append(one.position)
    others = {
        name
        for one in instructions
        if not _touches_f64(one)
        for name in (*reads(one), *writes(one))
    }
    seen: set[int] = set()
    for one in instructions:
        if one.position in seen or not _is_fp64_arithmetic(one):
            continue
        group, sound, waiting = [], True, [one.position]
        seen.add(one.position)
        while waiting:
            at = waiting.pop()
            member = instructions[at]
            group.append(at)
            sound = sound and _stays_inside(member)
            for name in _doubles(member):
                sound = sound and name not in others
                for other in uses.get(name, ()):
                    if other not in seen:
                        seen.add(other)
                        waiting.append(other)
        entered = any(_from_float(instructions[at]) for at in group)
        if sound and entered:
            yield sorted(group)


def _is_fp64_arithmetic(one: Instruction) -> bool:
    facts = classify(one.opcode)
    return facts.category == "compute" and kind_of(facts.type) == "f64" and bool(writes(one))


def _from_float(one: Instruction) -> bool:
    return _converts(one) and classify(one.opcode).types == ("f64", "f32")


def _stays_inside(one: Instruction) -> bool:
    """Arithmetic, comparisons, moves, and conversions to and from floats; no memory."""
    facts = classify(one.opcode)
    if _converts(one):
        return facts.types in (("f64", "f32"), ("f32", "f64"))
    return facts.category in ("compute", "move") and not facts.accesses_memory


def _doubles(one: Instruction) -> tuple[str, ...]:
    """Registers of the instruction that hold doubles: not a guard, a flag, a converted float."""
    if _from_float(one):
        return writes(one)
    if _converts(one):
        return tuple(name for name in reads(one) if name != one.predicate)
    written = () if one.base == "setp" else writes(one)
    guards = {one.predicate}
    if one.base == "selp":
        last = one.operands[-1]
        guards |= {last.name} if isinstance(last, Register) else set()
    return tuple(name for name in (*reads(one), *written) if name not in guards)


# --- loops ---------------------------------------------------------------------------------


def expensive_in_loops(evidence: Evidence) -> Iterator[Finding]:
    """Divisions by what a loop does not change, and whole sequences of nothing else."""
    analysis = evidence.analysis
    function = analysis.function
    events = evidence.events[function.name]
    for loop in analysis.loops.loops:
        inside = [
            one
            for block in sorted(loop.own_blocks)
            for one in analysis.cfg.instructions(analysis.cfg.blocks[block])
        ]
        changed = {
            name
            for block in loop.blocks
            for one in analysis.cfg.instructions(analysis.cfg.blocks[block])
            for name in writes(one)
        }
        for one in inside:
            executed = float(events.warp_executions[one.position])
            if classify(one.opcode).entry in EXPENSIVE and executed:
                yield from _in_loop(evidence, function, loop, one, changed, executed)


def _in_loop(
    evidence: Evidence,
    function: Function,
    loop: Loop,
    one: Instruction,
    changed: set[str],
    executed: float,
) -> Iterator[Finding]:
    trips = _trips(evidence.analysis, loop)
    header = loop.label or f"line {loop.line}"
    if not changed & set(reads(one)):
        if trips <= 1:
            return
        difference = Difference()
        difference.fewer(function.body, one, executed * (1 - 1 / trips))
        yield Finding(
            "invariant_in_loop",
            (place(function, one),),
            f"{one.opcode} computes the same value in each of {trips:g} iterations of the loop at "
            f"{header}",
            "move it before the loop",
            difference.applied(evidence.activity),
        )
        return
    replacement = _multiplication(one, changed)
    if replacement is None:
        return
    difference = Difference()
    difference.fewer(function.body, one, executed)
    for opcode in replacement:
        difference.more(opcode, executed)
    kind = "its reciprocal" if kind_of(classify(one.opcode).type) != "int" else "a magic number"
    yield Finding(
        "division_in_loop",
        (place(function, one),),
        f"{one.opcode} divides {executed:.4g} times (warps) in the loop at {header} by a value "
        "that the loop does not change",
        f"compute {kind} before the loop and multiply by it (the last bit may differ for floats)",
        difference.applied(evidence.activity),
    )


def _multiplication(one: Instruction, changed: set[str]) -> tuple[str, ...] | None:
    """Opcodes that stand in for a division by a value known before the loop."""
    facts = classify(one.opcode)
    if facts.entry not in ("div", "rem") or len(one.operands) < 3:
        return None
    divisor = one.operands[2]
    known = isinstance(divisor, Immediate) or (
        isinstance(divisor, Register) and divisor.name not in changed
    )
    if not known:
        return None
    if kind_of(facts.type) == "int":
        return INTEGER_RECIPROCAL if facts.entry == "rem" else INTEGER_RECIPROCAL[:2]
    return (f"mul.{facts.type}",)


def _trips(analysis: KernelAnalysis, loop: Loop) -> float:
    return next((trip.count for trip in analysis.trip_counts if trip.loop == loop.index), 1.0)


# --- findings about control flow: branches that split warps -----------------------------------


LEAST_SHARE = 0.05
"""Share of its lanes that a warp must lack on average in what a branch guards, to be told."""


def divergent_branches(evidence: Evidence) -> Iterator[Finding]:
    """Conditional branches after which warps run with part of their lanes.

    What a branch guards lies between it and where its sides meet again (its immediate post
    dominator), and inside no narrower branch. Mended, the threads of a warp agree: the same lanes
    fill fewer warps.
    """
    analysis = evidence.analysis
    function, cfg = analysis.function, analysis.cfg
    events = evidence.events[function.name]
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
        for index in sorted(own):
            for one in cfg.instructions(cfg.blocks[index]):
                executed = float(events.warp_executions[one.position])
                # Lanes that were missing already when the branch was reached stay missing.
                full = float(events.active_lanes[one.position]) / (WARP_SIZE * before)
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


def uncoalesced(evidence: Evidence) -> Iterator[Finding]:
    """Global accesses that touch more sectors than their lanes' bytes fill.

    Mended, the lanes' data lie side by side. Device memory then moves no more than passes L2, and
    no more than before: what caches made of a stride is not counted twice.
    """
    groups: dict[str, _Alike] = {}
    for function, events in evidence.functions():
        for one in function.body.instructions:
            facts, at = classify(one.opcode), one.position
            sectors = float(events.global_sectors[at])
            executed = float(events.warp_executions[at])
            if not sectors or facts.category not in ("load", "store") or not facts.bytes_per_lane:
                continue
            lanes = float(events.active_lanes[at]) / executed
            least = max(1.0, ceil(lanes * facts.bytes_per_lane / SECTOR_BYTES)) * executed
            if sectors < WORTH_TELLING * least:
                continue
            told = (
                f"{one.opcode} touches {sectors / executed:.1f} sectors of {SECTOR_BYTES} bytes a "
                f"warp; its lanes' data fill {least / executed:.0f}"
            )
            alike = groups.setdefault(told, _Alike())
            alike.places.append(place(function, one))
            kind, way = ("load", "read") if facts.category == "load" else ("store", "write")
            add = alike.difference.add
            add(f"global_{kind}_sectors", least - sectors)
            add("l2_sectors", min(0.0, least - float(events.l2_sectors[at])))
            add(f"dram_{way}_sectors", min(0.0, least - float(events.dram_sectors[at])))
    for told, alike in groups.items():
        yield Finding(
            "uncoalesced_access",
            tuple(alike.places),
            told,
            "let neighbouring threads access neighbouring elements: change the layout or which "
            "index is threadIdx.x, or go through shared memory",
            alike.difference.applied(evidence.activity),
        )


def bank_conflicts(evidence: Evidence) -> Iterator[Finding]:
    """Shared accesses that take more passes than their width needs."""
    counted = evidence.analysis.counts.functions(evidence.analysis.counts.factors())
    groups: dict[str, _Alike] = {}
    for function, _ in evidence.functions():
        counts = counted[function.name]
        for one in function.body.instructions:
            facts, at = classify(one.opcode), one.position
            requests = float(counts.shared_requests[at])
            passes = float(counts.shared_transactions[at])
            if not requests or facts.category == "atomic":
                continue
            least = requests * max(1, facts.bytes_per_lane // WORD_BYTES)
            if passes < WORTH_TELLING * least:
                continue
            told = (
                f"{one.opcode} takes {passes / requests:.1f} passes of shared memory a warp; "
                f"without conflicts {least / requests:.0f}"
            )
            alike = groups.setdefault(told, _Alike())
            alike.places.append(place(function, one))
            alike.difference.add("shared_transactions", least - passes)
    for told, alike in groups.items():
        rows = "16 bytes" if told.startswith(("ldmatrix", "stmatrix")) else "a word"
        columns = "its columns" if rows == "a word" else "its pieces of 16 bytes: a swizzle"
        yield Finding(
            "bank_conflicts",
            tuple(alike.places),
            told,
            f"pad the rows of the array by {rows}, or permute {columns} (XOR with the row)",
            alike.difference.applied(evidence.activity),
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
