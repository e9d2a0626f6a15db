"""A function in values: the types that ``build.py`` fills and the walk reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wattcast.features.cfg import ControlFlowGraph
from wattcast.features.dataflow import NO_DESTINATION
from wattcast.features.errors import checkpoint
from wattcast.features.isa import OpcodeFacts
from wattcast.features.loops import LoopForest
from wattcast.features.ptx import ir
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
    pointers: set[str] = field(default_factory=set)
    exits: dict[int, dict[Node, None]] = field(default_factory=dict)


LONGEST_SUM = 64
"""Terms of an address looked at in search of its pointer (compiled addresses have some 10)."""


def counted_from(accesses: list[list[Access]], phis: Mapping[Node, Phi]) -> set[str]:
    """Parameters that an address is counted from, where no ``cvta`` gives them away."""
    found: set[str] = set()
    for access in (a for some in accesses for a in some if a.address.bits == 64):
        if access.space not in ("global", "generic"):
            continue
        candidates: set[frozenset[str]] = set()
        waiting = [access.address]
        seen: set[Node] = set()
        while waiting and len(seen) < LONGEST_SUM:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            if node.op == "param":
                candidates.add(frozenset({node.value[0]}))
            elif node.op == "select" and all(arg.op == "param" for arg in node.args[1:]):
                candidates.add(frozenset(arg.value[0] for arg in node.args[1:]))
            elif node.op in ("add", "join", "exit"):
                waiting.extend(node.args)
            elif node.op in ("sub", "select"):
                waiting.extend(node.args[:1] if node.op == "sub" else node.args[1:])
            elif node.op == "phi":
                waiting.append(phis[node].start)
        if len(candidates) == 1:
            found |= candidates.pop()
    return found


def reason_of(one: ir.Instruction, facts: OpcodeFacts) -> str:
    """Why the value of an instruction cannot be followed."""
    if facts.accesses_memory:
        return f"loaded from memory ({one.opcode})"
    if one.base == "call":
        return "returned by a function call"
    return f"computed by {one.opcode}"


def register_bits(declarations: tuple[ir.RegisterDeclaration, ...]) -> dict[str, int]:
    """Width of the registers of each declared name (without its number)."""
    found = {}
    for one in declarations:
        digits = "".join(c for c in one.type if c.isdigit())
        width = 1 if one.type == "pred" else int(digits) if digits else 32
        found[one.name.rstrip("0123456789")] = width
    return found


def destinations(one: ir.Instruction) -> tuple[str, ...]:
    """Registers an instruction writes (``features.dataflow.writes``, its common cases first)."""
    operands = one.operands
    if not operands:
        return ()
    first = operands[0]
    if type(first) is ir.Register:
        base = one.opcode.partition(".")[0]
        if base in NO_DESTINATION and not (base.startswith("bar") and ".red." in one.opcode):
            return ()
        return (first.name,)
    if isinstance(first, ir.Pair):
        parts = (first.first, first.second)
        return tuple(part.name for part in parts if isinstance(part, ir.Register))
    if isinstance(first, ir.Vector | ir.Group):
        base = one.opcode.partition(".")[0]
        if base in NO_DESTINATION and base != "call":
            return ()
        if base == "call" and len(operands) < 2:
            return ()
        return tuple(part.name for part in first.elements if isinstance(part, ir.Register))
    return ()


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
                    here = _parent(forest, here)
                if here >= 0:
                    loops |= 1 << here
                    varies |= ways.get(here, 0) & around[here]
            elif node.op == "exit":
                here = _parent(forest, node.value)
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


def _parent(forest: LoopForest, loop: int) -> int:
    parent = forest.loops[loop].parent
    return parent if parent is not None else -1


def _around(forest: LoopForest) -> list[int]:
    """For each loop the bit set of itself and the loops around it."""
    found = [0] * len(forest.loops)
    for loop in sorted(forest.loops, key=lambda one: one.depth):
        outer = found[loop.parent] if loop.parent is not None else 0
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
            loop = _parent(forest, loop)
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
