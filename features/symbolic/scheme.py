"""A function in values: the types that ``build.py`` fills and the walk reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wattcast.features.cfg import ControlFlowGraph
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
