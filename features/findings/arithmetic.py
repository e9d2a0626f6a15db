"""Findings about arithmetic: double precision between floats, divisions and invariants in loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wattcast.features.analysis import KernelAnalysis
from wattcast.features.dataflow import reads, writes
from wattcast.features.findings.finding import Difference, Evidence, Finding, place
from wattcast.features.isa import classify, kind_of
from wattcast.features.loops import Loop
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
                difference.instructions(one.opcode, -times)
                if at in arithmetic:
                    difference.instructions(one.opcode.replace("f64", "f32"), times)
            yield Finding(
                "fp64_between_fp32",
                tuple(place(function, instructions[at]) for at in arithmetic),
                f"{len(arithmetic)} double-precision instructions work on converted floats and "
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
        difference.instructions(one.opcode, -executed * (1 - 1 / trips))
        yield Finding(
            "invariant_in_loop",
            (place(function, one),),
            f"{one.opcode} works out the same in each of {trips:g} rounds of the loop at {header}",
            "move it before the loop",
            difference.applied(evidence.activity),
        )
        return
    replacement = _multiplication(one, changed)
    if replacement is None:
        return
    difference = Difference()
    difference.instructions(one.opcode, -executed)
    for opcode in replacement:
        difference.instructions(opcode, executed)
    kind = "its reciprocal" if kind_of(classify(one.opcode).type) != "int" else "a magic number"
    yield Finding(
        "division_in_loop",
        (place(function, one),),
        f"{one.opcode} divides {executed:.4g} times (warps) in the loop at {header} by what the "
        "loop does not change",
        f"work out {kind} before the loop and multiply by it (the last bit may differ for floats)",
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
