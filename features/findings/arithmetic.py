"""Findings about arithmetic: double precision between floats, divisions, what loops repeat."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from wattcast.features.analysis import KernelAnalysis
from wattcast.features.dataflow import reads, writes, written
from wattcast.features.findings.finding import (
    Difference,
    Evidence,
    Finding,
    NotRewritableError,
    Rewriting,
    inside_of,
    operands_of,
    place,
)
from wattcast.features.isa import classify, kind_of
from wattcast.features.loops import Loop
from wattcast.features.ptx.ir import (
    Address,
    Function,
    Immediate,
    Instruction,
    Register,
    Special,
    Symbol,
)  # fmt: skip

EXPENSIVE = frozenset({"div", "rem", "sqrt", "rcp", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh"})
"""Opcodes that are sequences or special functions."""

INTEGER_RECIPROCAL = ("mul.hi.u32", "shr.u32", "mad.lo.s32")
"""What divides by a number known beforehand: a high product and a shift (T. Granlund and P.
Montgomery, Division by Invariant Integers using Multiplication, PLDI 1994), and for a remainder
a multiply-add."""


def fp64_between_fp32(evidence: Evidence) -> Iterator[Finding]:
    """Double-precision arithmetic whose inputs were floats and whose results become floats.

    Groups of such instructions that feed one another; as a rule a literal without ``f`` (2.0
    for 2.0f) made them. Rewritten, all are single precision and the conversions go.
    """
    for function, events in evidence.functions():
        instructions = function.body.instructions
        found = sorted(
            at
            for group in _promoted(function, instructions)
            if any(events.warp_executions[at] for at in group)
            for at in group
        )
        if not found:
            continue
        members = [instructions[at] for at in found]
        arithmetic = [one for one in members if not _converts(one)]
        try:
            ptx = _single(Rewriting(evidence.analysis.module, function), members)
        except NotRewritableError:
            continue
        yield Finding(
            "fp64_between_fp32",
            tuple(place(function, one) for one in arithmetic),
            f"{len(arithmetic)} double-precision instructions work on converted floats, and "
            "their results become floats again",
            "write float literals (2.0f, not 2.0) and float functions (sqrtf, not sqrt)",
            ptx=ptx,
        )


def _single(change: Rewriting, members: Sequence[Instruction]) -> str:
    """The text with arithmetic in double precision, and conversions around it, in single."""
    names: dict[str, str] = {}

    def single(written: str) -> str:
        if not written.startswith("0d"):
            return names.get(written, written)
        try:
            (value,) = struct.unpack(">d", bytes.fromhex(written[2:]))
            return "0f" + struct.pack(">f", value).hex()
        except (ValueError, OverflowError, struct.error) as error:
            raise NotRewritableError(f"{written} is no float") from error

    for one in members:
        for name in _doubles(one):
            names.setdefault(name, change.new("f32"))
    for one in members:
        text = change.text_of(one)
        opcode = one.opcode.replace("f64", "f32")
        parts = ", ".join(map(single, operands_of(text)))
        change.replace(one, [f"{'mov.f32' if _converts(one) else opcode} {parts};"])
    return change.text()


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


# --- divisions of integers ------------------------------------------------------------------------


MOST_COPIES, MOST_WRITERS = 8, 3
"""Steps back from a divisor to what it comes from, and instructions that write one of them: a loop
counter has two, and hostile text no end of them."""


class Divisor(NamedTuple):
    """What integers are divided by: its ``value`` where the launch tells it, and whether it is
    always a power of two."""

    value: int | None
    power: bool


def constant_division(evidence: Evidence) -> Iterator[Finding]:
    """Integer divisions and remainders whose divisor a compiler could do without.

    By a power of two they are a shift or a mask. By a number that is the same in the whole launch
    they are a high product and a shift (``INTEGER_RECIPROCAL``). All of one divisor are one
    finding.
    """
    analysis = evidence.analysis
    for function, events in evidence.functions():
        made = written(function.body)
        groups: dict[str, list[Instruction]] = {}
        for one in function.body.instructions:
            facts = classify(one.opcode)
            if facts.entry in ("div", "rem") and kind_of(facts.type) == "int":
                divisor = one.operands[2]
                if isinstance(divisor, Register) and events.warp_executions[one.position]:
                    groups.setdefault(divisor.name, []).append(one)
        for name, members in groups.items():
            by = divisor_of(analysis, name, made)
            if not by.power and (by.value is None or by.value < 2):
                continue
            change = Rewriting(analysis.module, function)
            try:
                _without_division(change, members, made.get(name, ()), by)
            except NotRewritableError:
                continue
            times = sum(float(events.warp_executions[one.position]) for one in members)
            told = "" if by.value is None else f", {by.value}"
            kinds = " and ".join(sorted({one.opcode for one in members}))
            yield Finding(
                "constant_division",
                tuple(place(function, one) for one in members),
                f"{kinds} run {times:.4g} times (warps), some twenty machine instructions each; "
                + (
                    f"the divisor is always a power of two{told}"
                    if by.power
                    else f"the divisor is the same in the whole launch{told}"
                ),
                "take the remainder with a mask, x & (n - 1), and the quotient with a shift, "
                "on unsigned numbers"
                if by.power
                else "make the divisor a constant of the compiler (constexpr, template parameter "
                "or #define): it then multiplies instead",
                ptx=change.text(),
                form="power" if by.power else "constant",
            )


def divisor_of(
    analysis: KernelAnalysis,
    name: str,
    made: Mapping[str, Sequence[Instruction]],
    seen: frozenset[str] = frozenset(),
) -> Divisor:
    """What a register may hold, from all that write it."""
    if name in seen:  # comes round: as the others say
        return Divisor(None, True)
    writers = made.get(name, ())
    if len(seen) > MOST_COPIES or len(writers) > MOST_WRITERS:
        return Divisor(None, False)
    found = [_written(analysis, one, made, seen | {name}) for one in writers]
    if len(found) == 1:
        return found[0]
    return Divisor(None, bool(found) and all(each.power for each in found))


def _written(
    analysis: KernelAnalysis,
    one: Instruction,
    made: Mapping[str, Sequence[Instruction]],
    seen: frozenset[str],
) -> Divisor:
    """What one instruction writes."""

    def known(value: int) -> Divisor:
        return Divisor(value, value > 0 and not value & (value - 1))

    facts, sources = classify(one.opcode), one.operands[1:]
    first = sources[0] if sources else None
    if one.predicate is not None:
        return Divisor(None, False)
    if facts.entry in ("mov", "cvt", "cvta"):
        if isinstance(first, Immediate) and isinstance(first.value, int):
            return known(first.value)
        if isinstance(first, Special):
            head, _, axis = first.name.lstrip("%").partition(".")
            shape = {"ntid": analysis.launch.block, "nctaid": analysis.launch.grid}.get(head)
            if shape is not None and axis in ("x", "y", "z"):
                return known(shape["xyz".index(axis)])
        if isinstance(first, Register):
            return divisor_of(analysis, first.name, made, seen)
    if facts.category == "load" and facts.space == "param" and isinstance(first, Address):
        value = _argument(analysis, first)
        return Divisor(None, False) if value is None else known(value)
    if facts.entry in ("shl", "shr") and isinstance(first, Register):
        return Divisor(None, divisor_of(analysis, first.name, made, seen).power)
    twice = facts.entry == "add" and len(sources) == 2 and sources[0] == sources[1]
    if twice and isinstance(first, Register):
        return Divisor(None, divisor_of(analysis, first.name, made, seen).power)
    return Divisor(None, False)


def _argument(analysis: KernelAnalysis, address: Address) -> int | None:
    """The integer that the launch gives for a parameter."""
    if not isinstance(address.base, Symbol) or address.offset or address.base.offset:
        return None
    given = analysis.launch.arguments
    for index, parameter in enumerate(analysis.function.parameters):
        if parameter.name == address.base.name:
            value = given.get(parameter.name, given.get(str(index)))
            return value if isinstance(value, int) else None
    return None


def _without_division(
    change: Rewriting, members: Sequence[Instruction], made: Sequence[Instruction], by: Divisor
) -> None:
    """Write a mask and a shift, or a high product, in the place of divisions. What depends on the
    divisor alone goes where that is written. Dividends are taken not to be negative."""
    prepared: dict[str, str] = {}

    def prepared_by(opcode: str, kind: str, more: str = "") -> str:
        if opcode not in prepared:
            register = prepared[opcode] = change.new(kind)
            divisor = operands_of(change.text_of(members[0]))[2]
            if not made:
                raise NotRewritableError(f"{divisor} is written nowhere")
            for writer in made:
                change.after(writer, [f"{opcode} {register}, {divisor}{more};"])
        return prepared[opcode]

    for one in members:
        facts = classify(one.opcode)
        bits = facts.bits
        result, dividend, _ = operands_of(change.text_of(one))
        if by.power and facts.entry == "rem":
            mask = prepared_by(f"add.s{bits}", f"b{bits}", ", -1")
            change.replace(one, [f"and.b{bits} {result}, {dividend}, {mask};"])
        elif by.power:
            shift = prepared_by(f"bfind.u{bits}", "b32")
            change.replace(one, [f"shr.u{bits} {result}, {dividend}, {shift};"])
        elif by.value is not None:
            length = (by.value - 1).bit_length()
            factor = (1 << (bits - 1 + length)) // by.value + 1
            high, quotient = change.new(f"b{bits}"), change.new(f"b{bits}")
            lines = [
                f"mul.hi.u{bits} {high}, {dividend}, {factor};",
                f"shr.u{bits} {quotient}, {high}, {length - 1};",
            ]
            if facts.entry == "div":
                lines[1] = lines[1].replace(quotient, result)
            else:
                lines.append(f"mad.lo.s{bits} {result}, {quotient}, {-by.value}, {dividend};")
            change.replace(one, lines)


# --- loops ---------------------------------------------------------------------------------


def expensive_in_loops(evidence: Evidence) -> Iterator[Finding]:
    """Divisions by what a loop does not change, and whole sequences of nothing else.

    Divisions by the same value in one loop are one finding: a compiler unrolls loops.
    """
    analysis = evidence.analysis
    function = analysis.function
    events = evidence.events[function.name]
    made = written(function.body)
    for loop in analysis.loops.loops:
        changed = _changed(analysis, loop)
        repeated: dict[str, list[Instruction]] = {}
        for one in inside_of(analysis, loop.own_blocks):
            facts = classify(one.opcode)
            if facts.entry not in EXPENSIVE or not events.warp_executions[one.position]:
                continue
            if not changed & set(reads(one)):
                yield from _invariant(evidence, loop, one)
            elif _multiplication(one, changed) is not None:
                divisor = one.operands[2]
                name = divisor.name if isinstance(divisor, Register) else str(divisor)
                by = divisor_of(analysis, name, made)
                integer = kind_of(facts.type) == "int"
                if not integer or not (by.power or by.value):  # else ``constant_division``
                    repeated.setdefault(f"{integer} {name}", []).append(one)
        for members in repeated.values():
            yield _repeated(evidence, loop, members, changed)


def _changed(analysis: KernelAnalysis, loop: Loop) -> set[str]:
    """Registers that a loop writes, inner loops included."""
    blocks = [analysis.cfg.blocks[block] for block in loop.blocks]
    return {
        name for block in blocks for one in analysis.cfg.instructions(block) for name in writes(one)
    }


def _invariant(evidence: Evidence, loop: Loop, one: Instruction) -> Iterator[Finding]:
    function, trips = evidence.analysis.function, _trips(evidence.analysis, loop)
    if trips <= 1:
        return
    executed = float(evidence.events[function.name].warp_executions[one.position])
    difference = Difference()
    difference.fewer(function.body, one, executed * (1 - 1 / trips))
    yield Finding(
        "invariant_in_loop",
        (place(function, one),),
        f"{one.opcode} computes the same value in each of {trips:g} iterations of the loop at "
        f"{loop.label or loop.line}",
        "move it before the loop",
        difference.applied(evidence.activity),
    )


def _repeated(
    evidence: Evidence, loop: Loop, members: Sequence[Instruction], changed: set[str]
) -> Finding:
    function = evidence.analysis.function
    events = evidence.events[function.name]
    difference, times = Difference(), 0.0
    for one in members:
        executed = float(events.warp_executions[one.position])
        times += executed
        difference.fewer(function.body, one, executed)
        for opcode in _multiplication(one, changed) or ():
            difference.more(opcode, executed)
    one = members[0]
    integer = kind_of(classify(one.opcode).type) == "int"
    return Finding(
        "division_in_loop",
        tuple(place(function, one) for one in members),
        f"{one.opcode} divides {times:.4g} times (warps) in the loop at "
        f"{loop.label or loop.line} by a value that the loop does not change",
        f"compute {'a magic number' if integer else 'its reciprocal'} before the loop and multiply "
        "by it (the last bit may differ for floats)",
        difference.applied(evidence.activity),
        form="integer" if integer else "",
    )


_SHARED_VALUE = frozenset({"volatile", "relaxed", "acquire", "mmio"})
"""Loads that mean to see what others store."""


def invariant_loads(evidence: Evidence) -> Iterator[Finding]:
    """Loads of global memory from an address that the loop around them does not change.

    A compiler leaves them there where a store may be to the same place. Rewritten, they stand
    before the loop.
    """
    analysis = evidence.analysis
    function, cfg = analysis.function, analysis.cfg
    events = evidence.events[function.name]
    for loop in analysis.loops.loops:
        changed, trips = _changed(analysis, loop), _trips(analysis, loop)
        found = [
            one
            for one in inside_of(analysis, loop.own_blocks)
            if classify(one.opcode).category == "load"
            and classify(one.opcode).space == "global"
            and _SHARED_VALUE.isdisjoint(one.modifiers)
            and one.predicate is None
            and not changed & set(reads(one))
            and events.warp_executions[one.position]
        ]
        lines = [
            label.line
            for label in function.body.labels
            if label.name in cfg.blocks[loop.header].labels
        ]
        meets = any(
            classify(one.opcode).category in ("barrier", "atomic")
            for block in loop.blocks
            for one in cfg.instructions(cfg.blocks[block])
        )
        if not found or meets or trips <= 1 or not lines or loop.header - 1 in loop.blocks:
            continue
        change = Rewriting(analysis.module, function)
        try:
            change.before_line(min(lines), [change.text_of(one) for one in found])
            for one in found:
                change.replace(one, [])
        except NotRewritableError:
            continue
        yield Finding(
            "invariant_in_loop",
            tuple(place(function, one) for one in found),
            f"{found[0].opcode} loads the same address in each of {trips:g} iterations of the loop "
            f"at {loop.label or loop.line}: a store in it may be to the same place, for all the "
            "compiler knows",
            "load it into a variable before the loop, or declare the pointers __restrict__",
            ptx=change.text(),
            form="load",
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
