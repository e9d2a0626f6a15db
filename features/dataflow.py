"""Which registers an instruction reads and writes, and who feeds whom inside a block.

PTX writes its destination first; the exceptions are the instructions that have none
(PTX ISA 9.0, chapter 9.7). Register names are those of the IR, unique in a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

from wattcast.features.attached import attached
from wattcast.features.cfg import BasicBlock, ControlFlowGraph
from wattcast.features.errors import checkpoint
from wattcast.features.ptx import ir

T = TypeVar("T")

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


_NO_REGISTER = frozenset({ir.Immediate, ir.Symbol, ir.Special})

_READS_CARRY = frozenset({"addc", "subc", "madc"})
_CARRY = "CC.CF"
"""The carry flag, which extended-precision arithmetic passes on (PTX ISA 9.0, 9.7.2)."""


def reads(instruction: ir.Instruction) -> tuple[str, ...]:
    """Registers whose value the instruction uses, the guard included; each once, in order.

    The old value that a guarded write may leave in place is not among them.
    """
    found: list[str] = []
    if instruction.predicate is not None:
        found.append(instruction.predicate)
    operands = instruction.operands
    written = _written_operands(instruction)
    if written:
        if type(operands[0]) is not ir.Register and _listed(operands[0]) is None:
            _address_registers(operands[0], found)
        if instruction.opcode.startswith(_ACCUMULATES):
            _value_registers(operands[0], found)
        operands = operands[1:]
    for operand in operands:
        # Nearly every operand is a register, a literal or a plain address.
        if type(operand) is ir.Register:
            found.append(operand.name)
        elif type(operand) not in _NO_REGISTER:
            names = _listed(operand)
            if names is not None:
                found += names
                continue
            _value_registers(operand, found)
            _address_registers(operand, found)
    return tuple(dict.fromkeys(found))


def writes(instruction: ir.Instruction) -> tuple[str, ...]:
    """Registers the instruction gives a value; each once, in order."""
    if not _written_operands(instruction):
        return ()
    first = instruction.operands[0]
    if type(first) is ir.Register:
        return (first.name,)
    found = _listed(first)
    if found is None:
        found = []
        _value_registers(first, found)
    return tuple(dict.fromkeys(found))


def loaded_argument(one: ir.Instruction, register: str) -> str | None:
    """The argument that an instruction loads into one of its registers, as ``arguments_of`` names
    it; ``None`` where it loads none."""
    if not one.opcode.startswith("ld.param") or len(one.operands) < 2:
        return None
    place = ir.place_of(one.operands[1])
    if place is None:
        return None
    name, offset = place
    bits = one.opcode.rpartition(".")[2][1:]
    if isinstance(one.operands[0], ir.Vector) and bits.isdecimal():
        at = (k for k, each in enumerate(one.operands[0].elements) if each == ir.Register(register))
        offset += next(at, 0) * int(bits) // 8
    return argument_name(name, offset)


def argument_name(name: str, offset: int) -> str:
    """How a launch names what lies so many bytes into a parameter: ``p``, ``p+4``."""
    return f"{name}+{offset}" if offset else name


@attached
def arguments_of(kernel: ir.Function) -> dict[str, ir.Parameter]:
    """What a launch may tell of a kernel: its parameters by their names and, in the place of a
    structure by value, the numbers in it that the code reads, as ``p`` and ``p+4`` (the bytes from
    its start). A structure that none is read of stays as it is."""
    structures = {each.name: each.bytes for each in kernel.parameters if each.elements > 1}
    read: dict[str, dict[int, ir.Parameter]] = {}
    for one in kernel.body.instructions if structures else ():
        kind = one.opcode.rpartition(".")[2]
        if not one.opcode.startswith("ld.param") or not kind[1:].isdecimal():
            continue
        size = int(kind[1:]) // 8
        for register in writes(one):
            name = loaded_argument(one, register) or ""
            head, _, inside = name.partition("+")
            at = int(inside or 0)
            if 0 <= at <= structures.get(head, 0) - size:
                numbers = read.setdefault(head, {})
                numbers.setdefault(at, ir.Parameter(name, kind, 1, size, size))
    found: dict[str, ir.Parameter] = {}
    for each in kernel.parameters:
        numbers = read.get(each.name, {0: each})
        found |= {one.name: one for _, one in sorted(numbers.items())}
    return found


def _listed(operand: ir.Operand) -> list[str] | None:
    """Registers of a vector that holds nothing but registers and literals, else ``None``."""
    if type(operand) is not ir.Vector:
        return None
    found = []
    for element in operand.elements:
        if type(element) is ir.Register:
            found.append(element.name)
        elif type(element) not in _NO_REGISTER:
            return None
    return found


class Flow(NamedTuple):
    """What ``reads`` and ``writes`` tell of each instruction of a body, by position."""

    reads: tuple[tuple[str, ...], ...]
    writes: tuple[tuple[str, ...], ...]


@attached
def flow(body: ir.Body) -> Flow:
    """``Flow`` of a body, made once."""
    return Flow(tuple(map(reads, body.instructions)), tuple(map(writes, body.instructions)))


@attached
def writers_of(body: ir.Body) -> dict[str, list[int]]:
    """Positions that write each register."""
    found: dict[str, list[int]] = {}
    for position, names in enumerate(flow(body).writes):
        for name in names:
            found.setdefault(name, []).append(position)
    return found


def _written_operands(instruction: ir.Instruction) -> bool:
    """Whether the first operand is written; no other ever is."""
    operands = instruction.operands
    if not operands:
        return False
    known = _writes_first(instruction.opcode)
    if known is not None:
        return known
    # ``call (ret), f, (args)``: a first group is the result, but ``call f, (args)``.
    return len(operands) > 1 and isinstance(operands[0], ir.Group)


@lru_cache(maxsize=4096)
def _writes_first(opcode: str) -> bool | None:
    """Whether an opcode has a destination; ``None``: its operands decide (a call)."""
    base = opcode.partition(".")[0]
    if base == "call":
        return None
    return base not in NO_DESTINATION or opcode.startswith(_VALUED)


def _value_registers(operand: ir.Operand, found: list[str]) -> None:
    """Registers that are the operand itself (nesting is bounded by the reader)."""
    found += [part.name for part in ir.parts(operand) if isinstance(part, ir.Register)]


def _address_registers(operand: ir.Operand, found: list[str]) -> None:
    """Registers that an address is made of."""
    if isinstance(operand, ir.Address):
        if isinstance(operand.base, ir.Register):
            found.append(operand.base.name)
        for coordinate in operand.coordinates:
            _value_registers(coordinate, found)
            _address_registers(coordinate, found)
    elif isinstance(operand, (ir.Vector, ir.Group)):
        for element in operand.elements:
            _address_registers(element, found)


def definitions(instructions: Iterable[ir.Instruction]) -> dict[str, list[ir.Instruction]]:
    """Who writes each register, in the order given."""
    found: dict[str, list[ir.Instruction]] = {}
    for one in instructions:
        for name in writes(one):
            found.setdefault(name, []).append(one)
    return found


@attached
def written(body: ir.Body) -> dict[str, list[ir.Instruction]]:
    """``definitions`` of a whole body, found once."""
    places = writers_of(body).items()
    return {name: [body.instructions[at] for at in positions] for name, positions in places}


def closure(seeds: Iterable[T], following: Callable[[T], Iterable[T]]) -> set[T]:
    """The seeds and all that follows from them, step by step."""
    found = set(seeds)
    waiting = list(found)
    while waiting:
        for other in following(waiting.pop()):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


def computed_from(names: Iterable[str], made: Mapping[str, Sequence[ir.Instruction]]) -> set[str]:
    """Registers and all that they are computed from; ``made`` are their ``definitions``."""
    return closure(names, lambda name: (read for one in made.get(name, ()) for read in reads(one)))


def block_sources(body: ir.Body, block: BasicBlock) -> Iterator[tuple[ir.Instruction, set[int]]]:
    """The instructions of a block, each with the positions in the block of those it depends on.

    Read after write by register, guards and the carry flag included; a guarded write depends
    on the write before it, whose value it may leave. Text order is a topological order.
    """
    checkpoint()
    writer: dict[str, int] = {}
    known = flow(body)
    for instruction in body.instructions[block.start : block.end]:
        position = instruction.position
        opcode = instruction.opcode
        written = known.writes[position]
        used = known.reads[position]
        if instruction.predicate is not None:
            used += written  # a guarded write may leave the old value
        if opcode[:4] in _READS_CARRY:
            used += (_CARRY,)
        yield instruction, {writer[name] for name in used if name in writer}
        for name in written:
            writer[name] = position
        if ".cc" in opcode:
            writer[_CARRY] = position


def block_edges(body: ir.Body, block: BasicBlock) -> tuple[tuple[int, int], ...]:
    """Def-use edges inside a block: (writer, reader) instruction positions, each once, sorted by
    reader, then writer."""
    return tuple(
        (source, one.position)
        for one, sources in block_sources(body, block)
        for source in sorted(sources)
    )


# --- dependent chains: how much of a basic block could run at the same time -----------------------
# Instructions of a block form a graph of reads after writes; text order is a topological order
# of it, so longest paths are found in one pass (linear in instructions and edges).


class BlockChain(NamedTuple):
    """One basic block's dependences, by registers; memory is not followed.

    ``longest_chain``: instructions on the longest path. ``ilp``: instructions over that, 1 for
    a single chain.
    """

    block: int
    instructions: int
    longest_chain: int
    ilp: float


def dependent_chains(body: ir.Body, cfg: ControlFlowGraph) -> tuple[BlockChain, ...]:
    """The longest dependent chain of every block, in block order; 0 of an empty one."""
    found = []
    for block in cfg.blocks:
        count = block.end - block.start
        depth = [1] * count
        # Edges come sorted by reader, so a writer's path is complete when it is read.
        for writer, reader in block_edges(body, block):
            source, target = writer - block.start, reader - block.start
            depth[target] = max(depth[target], depth[source] + 1)
        longest = max(depth, default=0)
        ilp = count / longest if longest else 0.0
        found.append(BlockChain(block.index, count, longest, ilp))
    return tuple(found)
