"""A function in values: the types that ``build.py`` fills and the walk reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from wattcast.features.cfg import ControlFlowGraph
from wattcast.features.errors import checkpoint
from wattcast.features.integers import BY_SIGN, COMPARISONS, Whole, operations
from wattcast.features.isa import OpcodeFacts
from wattcast.features.loops import LoopForest
from wattcast.features.ptx import ir
from wattcast.features.ptx.ir import (
    Immediate,
    Instruction,
    Operand,
    Pair,
    Register,
    Special,
    place_of,
)
from wattcast.features.values import Graph, Node

UNADDRESSED = (
    "cp.async.bulk", "cp.reduce.async.bulk", "wgmma.mma_async", "tcgen05.mma", "tex.", "tld4.",
    "suld.", "sust.", "sured.",
)  # fmt: skip
"""Instructions that move bytes which only an execution counts: by descriptors, by coordinates."""


@dataclass(slots=True)
class Access:
    """A memory instruction: where its address comes from. ``offset`` bytes are added to it.

    ``stride``: elements between the lines of a matrix tile; ``None``: as many as a line has.
    """

    position: int
    address: Node
    offset: int
    space: str
    width: int
    facts: OpcodeFacts
    stride: Node | None = None


@dataclass(slots=True)
class Ending:
    """How a block ends. ``condition`` true (``negated``: false) takes the first of ``targets``.

    ``kind``: ``fall`` (one target or none), ``branch`` (taken, not taken; -1: leaves the
    function), ``switch`` (any of ``targets``).
    """

    kind: str
    targets: tuple[int, ...]
    condition: Node | None = None
    negated: bool = False
    position: int = -1


@dataclass(slots=True)
class Phi:
    """What a loop header's node is made of: ``start`` before the loop, ``latch`` coming round.

    ``step``: what each iteration adds (nodes that the loop does not change), ``None`` if the
    value does not go in equal steps.
    """

    node: Node
    register: str
    start: Node
    latch: Node | None = None
    step: Node | None = None


@dataclass(eq=False)
class Scheme:
    """A function in nodes. ``accesses``, ``guards`` and ``endings`` are by block."""

    function: ir.Function
    cfg: ControlFlowGraph
    forest: LoopForest
    graph: Graph
    endings: list[Ending]
    accesses: list[list[Access]]
    guards: list[list[tuple[int, Node, bool]]]
    phis: dict[Node, Phi]
    loop_phis: dict[int, list[Phi]]
    parameters: Mapping[str, int]
    exits: dict[int, dict[Node, None]] = field(default_factory=dict)


def reason_of(one: ir.Instruction, facts: OpcodeFacts) -> str:
    """Why the value of an instruction cannot be followed."""
    if facts.accesses_memory:
        return f"loaded from memory ({one.opcode})"
    if one.base == "call":
        return "returned by a function call"
    return f"computed by {one.opcode}"


# Which loops each value belongs to, completed once all values are known.
#
# While values are made, a loop header's ``phi`` knows only what it starts from. What comes round
# at the latch, which way paths took to a merge, and how often a loop went round may depend on
# further loops; that is added here until nothing changes.

MOST_PASSES = 24
"""Passes over the graph. Each loop around another needs a few; nvcc's code settles in two."""


def spread_loops(
    nodes: Sequence[Node],
    phis: Mapping[Node, Phi],
    endings: Sequence[Ending],
    forest: LoopForest,
) -> bool:
    """Complete ``loops`` and ``varies`` of all nodes; false if they do not settle."""
    if not forest.loops or not any(node.op in ("phi", "join", "exit") for node in nodes):
        return True
    around = _around(forest)
    headers = {loop.header: loop.index for loop in forest.loops}
    deciding = _conditions(endings, forest)
    for _ in range(MOST_PASSES):
        checkpoint()
        ways = {loop: _union(found) for loop, found in deciding.items()}
        homes = {loop: _union_loops(found) for loop, found in deciding.items()}
        changed = False
        for node in nodes:
            loops = varies = 0
            for arg in node.args:
                loops |= arg.loops
                varies |= arg.varies
            if node.op == "phi":
                phi = phis[node]
                own = 1 << node.value[0]
                for part in (phi.start, phi.step if phi.step is not None else phi.latch):
                    if part is not None:
                        loops |= part.loops & around[node.value[0]]
                        varies |= part.varies & around[node.value[0]]
                loops, varies = loops | own, varies | own
            elif node.op == "join":
                block = node.value[0]
                here = forest.innermost[block]
                if block in headers:
                    here = forest.loops[here].parent
                if here >= 0:
                    loops |= 1 << here
                    varies |= ways.get(here, 0) & around[here]
            elif node.op == "exit":
                here = forest.loops[node.value].parent
                inside = around[here] if here >= 0 else 0
                loops = (loops | homes.get(node.value, 0)) & inside
                varies = (varies | ways.get(node.value, 0)) & inside
                if here >= 0:
                    loops |= 1 << here
            if loops | node.loops != node.loops or varies | node.varies != node.varies:
                node.loops |= loops
                node.varies |= varies
                changed = True
        if not changed:
            return True
    return False


def _around(forest: LoopForest) -> list[int]:
    """For each loop the bit set of itself and the loops around it."""
    found = [0] * len(forest.loops)
    for loop in sorted(forest.loops, key=lambda one: one.depth):
        outer = found[loop.parent] if loop.parent >= 0 else 0
        found[loop.index] = outer | 1 << loop.index
    return found


def _conditions(endings: Sequence[Ending], forest: LoopForest) -> dict[int, list[Node]]:
    """All conditions decided in each loop, inner loops included: they tell how paths merge in
    it and when it is left."""
    deciding: dict[int, list[Node]] = {}
    for index, ending in enumerate(endings):
        loop = forest.innermost[index]
        while ending.condition is not None and loop >= 0:
            deciding.setdefault(loop, []).append(ending.condition)
            loop = forest.loops[loop].parent
    return deciding


def _union(nodes: Sequence[Node]) -> int:
    found = 0
    for node in nodes:
        found |= node.varies
    return found


def _union_loops(nodes: Sequence[Node]) -> int:
    found = 0
    for node in nodes:
        found |= node.loops
    return found


# What an instruction computes, as a node: integer and predicate arithmetic of PTX.
#
# ``translator(opcode)`` is looked up once per opcode; the answer makes the node of the
# instruction's destination from a ``Source`` of operand values, or is ``None`` where the value
# cannot be followed (loaded data, floating point, unknown opcodes).


class Source(Protocol):
    """Where a translator finds the values of operands."""

    graph: Graph

    def value(self, operand: Operand, bits: int) -> Node:
        """An operand as a value of ``bits`` bits (1: a predicate)."""
        ...

    def parameter(self, name: str, offset: int, bits: int, signed: bool) -> Node | None:
        """A kernel parameter; ``None`` if there is no such parameter."""
        ...

    def define(self, operand: Operand, node: Node) -> None:
        """Give an operand a value (second destinations)."""
        ...


Translator = Callable[[Source, Instruction], "Node | None"]

_BITS = {"8": 8, "16": 16, "32": 32, "64": 64}


def width(type_name: str) -> int:
    """Bits of an integer or predicate type; 0 for every other."""
    if type_name == "pred":
        return 1
    return _BITS.get(type_name[1:], 0) if type_name[:1] in ("s", "u", "b") else 0


def _signed(type_name: str) -> str:
    return "s" if type_name.startswith("s") else "u"


def _shared(parts: list[str]) -> Translator | None:
    """What ``features.integers`` tells of numbers: operands of the type's width, counts of 32 bits,
    which is also the width of what popc and clz give."""
    base, bits = parts[0], width(parts[-1])
    if len(parts) != 2 or bits < (1 if base in ("and", "or", "xor") else 2):
        return None
    _, numbers, counts = operations(Whole(bits, signed=True))[base]
    widths = (bits,) * numbers + (32,) * counts
    name = f"{base}.{_signed(parts[-1])}" if base in BY_SIGN else base
    result = 32 if base in ("popc", "clz") else bits

    def make(source: Source, one: Instruction) -> Node:
        args = tuple(source.value(one.operands[at], each) for at, each in enumerate(widths, 1))
        return source.graph.make(name, result, args)

    return make


def _multiply(parts: list[str]) -> Translator | None:
    """mul and mad: lo, hi, wide; mul24/mad24 are not followed."""
    bits = width(parts[-1])
    sign = _signed(parts[-1])
    if not bits:
        return None
    wide, high = "wide" in parts, "hi" in parts
    result = 2 * bits if wide else bits
    extend = "sext" if sign == "s" else "zext"

    def product(source: Source, one: Instruction) -> Node:
        left, right = (source.value(operand, bits) for operand in one.operands[1:3])
        graph = source.graph
        if high:
            return graph.make(f"mulhi.{sign}", bits, (left, right))
        if wide:
            left = graph.make(extend, result, (left,))
            right = graph.make(extend, result, (right,))
        return graph.make("mul", result, (left, right))

    if parts[0] == "mul":
        return product

    def multiply_add(source: Source, one: Instruction) -> Node:
        addend = source.value(one.operands[3], result)
        return source.graph.make("add", result, (product(source, one), addend))

    return multiply_add


def compare(graph: Graph, how: str, sign: str, left: Node, right: Node) -> Node | None:
    """A comparison as one of eq, ne, lt, le; greater ones with sides exchanged."""
    how = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(how, how)
    if how in ("gt", "ge"):
        left, right, how = right, left, "lt" if how == "gt" else "le"
    op = f"{how}.s" if how in ("eq", "ne") else f"{how}.{sign}"
    return graph.make(op, 1, (left, right)) if op in COMPARISONS else None


def _setp(parts: list[str]) -> Translator | None:
    bits = width(parts[-1])
    sign = "s" if parts[-1].startswith("s") else "u"
    combine = next((p for p in parts[2:-1] if p in ("and", "or", "xor")), None)
    if bits < 8 or len(parts) < 3:
        return None

    def make(source: Source, one: Instruction) -> Node | None:
        graph = source.graph
        left, right = (source.value(operand, bits) for operand in one.operands[1:3])
        result = compare(graph, parts[1], sign, left, right)
        if result is None:
            return None
        second = None
        if isinstance(one.operands[0], Pair):
            second = graph.make("xor", 1, (result, graph.constant(1, 1)))
        if combine:
            other = source.value(one.operands[3], 1)
            result = graph.make(combine, 1, (result, other))
            second = second and graph.make(combine, 1, (second, other))
        if isinstance(one.operands[0], Pair) and second is not None:
            source.define(one.operands[0].first, result)
            source.define(one.operands[0].second, second)
        return result

    return make


def _set(parts: list[str]) -> Translator | None:
    """set: all bits set or none, as an integer."""
    result, bits = width(parts[-2]), width(parts[-1])
    if not bits or not result or len(parts) != 4:
        return None

    def make(source: Source, one: Instruction) -> Node | None:
        graph = source.graph
        left, right = (source.value(operand, bits) for operand in one.operands[1:3])
        found = compare(graph, parts[1], _signed(parts[-1]), left, right)
        if found is None:
            return None
        ones, zero = graph.constant(-1, result), graph.constant(0, result)
        return graph.make("select", result, (found, ones, zero))

    return make


def _selp(parts: list[str]) -> Translator | None:
    bits = width(parts[-1])

    def make(source: Source, one: Instruction) -> Node:
        yes, no = (source.value(operand, bits) for operand in one.operands[1:3])
        chooser = source.value(one.operands[3], 1)
        return source.graph.make("select", bits, (chooser, yes, no))

    return make if bits else None


def _convert(parts: list[str]) -> Translator | None:
    """Integer to integer. A narrow result is held extended, as its register holds it."""
    if len(parts) < 3 or "sat" in parts:
        return None
    to, source_type = parts[-2], parts[-1]
    bits, given = width(to), width(source_type)
    if not bits or not given or len(parts) > 3:
        return None
    extend = "sext" if source_type.startswith("s") else "zext"

    def make(source: Source, one: Instruction) -> Node:
        graph = source.graph
        node = source.value(one.operands[1], given)
        if bits > given:
            return graph.make(extend, bits, (node,))
        node = graph.make("trunc", bits, (node,)) if bits < given else node
        if bits == 8:  # registers have 16 bits at least
            return graph.make("sext" if to == "s8" else "zext", 16, (node,))
        return node

    return make


def _move(parts: list[str]) -> Translator | None:
    bits = width(parts[-1])
    if not bits:
        return None

    def make(source: Source, one: Instruction) -> Node | None:
        if len(one.operands) != 2:
            return None
        return source.value(one.operands[1], bits)

    return make


def _load(parts: list[str]) -> Translator | None:
    """Only parameters can be followed."""
    bits = width(parts[-1])
    if not bits or not parts[1:] or not parts[1].startswith("param") or "v2" in parts:
        return None

    def make(source: Source, one: Instruction) -> Node | None:
        place = place_of(one.operands[1])
        return place and source.parameter(*place, bits, parts[-1].startswith("s"))

    return make


def _not(parts: list[str]) -> Translator | None:
    bits = width(parts[-1])

    def flip(source: Source, one: Instruction) -> Node:
        graph = source.graph
        return graph.make("xor", 1, (source.value(one.operands[1], 1), graph.constant(1, 1)))

    return flip if bits == 1 else _shared(parts)


def _phase(parts: list[str]) -> Translator | None:
    """A wait for a memory barrier ends when its phase is complete; hardware suspends it."""
    if parts[1] not in ("try_wait", "test_wait"):
        return None
    return lambda source, one: source.graph.constant(1, 1)


def _elect(parts: list[str]) -> Translator | None:
    """elect.sync: the lowest lane of the member mask."""

    def make(source: Source, one: Instruction) -> Node | None:
        pair, mask = one.operands[0], one.operands[1]
        if not isinstance(pair, Pair) or not isinstance(mask, Immediate) or not mask.value:
            return None
        members = int(mask.value) & 0xFFFFFFFF
        lowest = source.graph.constant((members & -members).bit_length() - 1, 32)
        lane = source.value(Special("%laneid"), 32)
        source.define(pair.second, source.graph.make("eq.s", 1, (lane, lowest)))
        if isinstance(pair.first, Register):
            source.define(pair.first, lowest)
        return lowest

    return make


_FACTORIES: dict[str, Callable[[list[str]], Translator | None]] = {
    **dict.fromkeys(
        ("add", "sub", "and", "or", "xor", "neg", "abs", "min", "max", "div", "rem", "shl", "shr",
         "popc", "clz", "bfe", "bfi", "brev"), _shared,
    ),
    "not": _not, "mul": _multiply, "mad": _multiply, "setp": _setp, "set": _set, "selp": _selp,
    "cvt": _convert, "mov": _move, "cvta": _move, "ld": _load, "ldu": _load, "mbarrier": _phase,
    "elect": _elect,
}  # fmt: skip


@lru_cache(maxsize=16384)
def translator(opcode: str) -> Translator | None:
    """How the instruction's value is made, or ``None`` where it cannot be followed."""
    parts = opcode.split(".")
    factory = _FACTORIES.get(parts[0])
    return factory(parts) if factory is not None and len(parts) > 1 else None
