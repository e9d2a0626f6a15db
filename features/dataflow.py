"""Which registers an instruction reads and writes, and who feeds whom inside a block.

PTX writes its destination first; the exceptions are the instructions that have none
(PTX ISA 9.0, chapter 9.7). Register names are those of the IR, unique in a function.
"""

from __future__ import annotations

from typing import NamedTuple

from features.cfg import BasicBlock, ControlFlowGraph
from features.ptx.ir import (
    Address,
    Body,
    Group,
    Instruction,
    Negated,
    Operand,
    Pair,
    Register,
    Vector,
)

NO_DESTINATION = frozenset(
    {
        # memory: stores, reductions, prefetches, cache control, copies from memory to memory
        "st", "red", "sust", "sured", "prefetch", "prefetchu", "discard", "applypriority", "cp",
        "stmatrix", "tcgen05", "tensormap", "stackrestore",
        # control flow
        "bra", "brx", "ret", "exit", "trap", "brkpt", "call",
        # synchronisation
        "bar", "barrier", "membar", "fence", "nanosleep", "griddepcontrol", "setmaxnreg", "pmevent",
    }
)  # fmt: skip
"""First parts of the opcodes whose operands are all sources.

Others whose first operand is an address (``mbarrier.init [a], n``) need not be listed: an
address is never written by itself.
"""

_VALUED = ("bar.red.", "barrier.red.", "barrier.cta.red.", "tcgen05.ld.")
"""Opcodes that have a destination although their first part is in ``NO_DESTINATION``."""

_ACCUMULATES = ("wgmma.mma_async.",)
"""The destination is also a source: ``d = a*b + d`` (PTX ISA 9.0, 9.7.15.5)."""


_READS_CARRY = frozenset({"addc", "subc", "madc"})
_CARRY = "CC.CF"
"""The carry flag, which extended-precision arithmetic passes on (PTX ISA 9.0, 9.7.2)."""


def reads(instruction: Instruction) -> tuple[str, ...]:
    """Registers whose value the instruction uses, the guard included; each once, in order.

    The old value that a guarded write may leave in place is not among them: see ``keeps``.
    """
    found: list[str] = []
    if instruction.predicate is not None:
        found.append(instruction.predicate)
    destinations = _destinations(instruction)
    for place, operand in enumerate(instruction.operands):
        if place in destinations:
            _address_registers(operand, found)
            if instruction.opcode.startswith(_ACCUMULATES):
                _value_registers(operand, found)
        else:
            _value_registers(operand, found)
            _address_registers(operand, found)
    return tuple(dict.fromkeys(found))


def writes(instruction: Instruction) -> tuple[str, ...]:
    """Registers the instruction gives a value; each once, in order."""
    found: list[str] = []
    for place in _destinations(instruction):
        _value_registers(instruction.operands[place], found)
    return tuple(dict.fromkeys(found))


def keeps(instruction: Instruction) -> tuple[str, ...]:
    """Registers whose old value lives on where the guard is false: the guarded writes."""
    return writes(instruction) if instruction.predicate is not None else ()


def _destinations(instruction: Instruction) -> tuple[int, ...]:
    """Places of the operands that are written."""
    operands, opcode = instruction.operands, instruction.opcode
    if not operands:
        return ()
    base = opcode.partition(".")[0]
    if base == "call":
        # ``call (ret), f, (args)``: a first group is the result, but ``call f, (args)``.
        return (0,) if len(operands) > 1 and isinstance(operands[0], Group) else ()
    if base in NO_DESTINATION:
        return (0,) if opcode.startswith(_VALUED) else ()
    return (0,)


def _value_registers(operand: Operand, found: list[str]) -> None:
    """Registers that are the operand itself (nesting is bounded by the reader)."""
    if isinstance(operand, Register):
        found.append(operand.name)
    elif isinstance(operand, (Vector, Group)):
        for element in operand.elements:
            _value_registers(element, found)
    elif isinstance(operand, Pair):
        _value_registers(operand.first, found)
        _value_registers(operand.second, found)
    elif isinstance(operand, Negated):
        _value_registers(operand.operand, found)


def _address_registers(operand: Operand, found: list[str]) -> None:
    """Registers that an address is made of."""
    if isinstance(operand, Address):
        if isinstance(operand.base, Register):
            found.append(operand.base.name)
        for coordinate in operand.coordinates:
            _value_registers(coordinate, found)
            _address_registers(coordinate, found)
    elif isinstance(operand, (Vector, Group)):
        for element in operand.elements:
            _address_registers(element, found)


def block_edges(body: Body, block: BasicBlock) -> tuple[tuple[int, int], ...]:
    """Def-use edges inside a block: (writer, reader) instruction positions, each once.

    Read after write by register, guards and the carry flag included; a guarded write depends
    on the write before it, whose value it may leave. Text order is a topological order.
    Edges are sorted by reader, then writer.
    """
    writer: dict[str, int] = {}
    edges: list[tuple[int, int]] = []
    for instruction in body.instructions[block.start : block.end]:
        position = instruction.position
        opcode = instruction.opcode
        used = [*reads(instruction), *keeps(instruction)]
        if instruction.base in _READS_CARRY:
            used.append(_CARRY)
        sources = sorted({writer[name] for name in used if name in writer})
        edges.extend((source, position) for source in sources)
        for name in writes(instruction):
            writer[name] = position
        if ".cc" in opcode:
            writer[_CARRY] = position
    return tuple(edges)


class BlockUse(NamedTuple):
    """What a block does to the live registers: ``live_in = use | (live_out - define)``.

    ``use`` is read before it is surely written here; ``define`` is surely written, ``touched``
    is written at all. A guarded write neither ends nor extends the old value's life.
    """

    use: frozenset[str]
    define: frozenset[str]
    touched: frozenset[str]


def block_use(body: Body, block: BasicBlock) -> BlockUse:
    """Use and define sets of one block."""
    use: set[str] = set()
    define: set[str] = set()
    touched: set[str] = set()
    for instruction in body.instructions[block.start : block.end]:
        for name in reads(instruction):
            if name not in define:
                use.add(name)
        written = writes(instruction)
        touched.update(written)
        if instruction.predicate is None:
            define.update(written)
    return BlockUse(frozenset(use), frozenset(define), frozenset(touched))


def block_uses(cfg: ControlFlowGraph) -> tuple[BlockUse, ...]:
    """``block_use`` of every block of a graph, by block index."""
    return tuple(block_use(cfg.body, block) for block in cfg.blocks)
