"""What the walk over a function needs to know of its shape; launch-independent, made once."""

from __future__ import annotations

from dataclasses import dataclass

from wattcast.features.attached import attached
from wattcast.features.cfg import dominators, post_dominators
from wattcast.features.deciding import calls_in
from wattcast.features.symbolic.elected import elected
from wattcast.features.symbolic.order import Order, order_of
from wattcast.features.symbolic.scheme import Scheme
from wattcast.features.values import Node

LONGEST_SEARCH = 64
"""Steps up a (post-)dominator tree in search of where paths meet again; beyond, what reaches a
block is the union of its edges, which is the same when every branch on the way is known."""

DEEPEST = 24
"""Deepest loop nest followed; the trips of loops further in are unknown."""


@dataclass(frozen=True, slots=True)
class Exit:
    """An edge out of a loop. ``target`` -1: out of the function."""

    source: int
    target: int


@dataclass(eq=False)
class Shape:
    """``units``: blocks and inner loops' headers of each region (-1: outside all loops), in an
    order that follows all forward edges. ``exits``: edges out of each loop; ``closed``: each
    of them is passed in every iteration. ``varies``: loops with whose counter a decision
    inside each loop changes. ``meets``: the block all of whose lanes come to each block, or -1.
    ``conditions`` are those of each loop's own exits. ``bent``: loops (a bit set) in which an
    address is no linear function of the counter. ``plain``: nodes made of constants and of
    counters that start at a constant and go in constant steps. ``knowable``: no decision and no
    address rests on what is read from memory, no block is elected, and nothing is called.
    """

    units: dict[int, list[int]]
    exits: dict[int, list[Exit]]
    closed: dict[int, bool]
    varies: dict[int, int]
    meets: list[int]
    headers: dict[int, int]
    order: Order
    conditions: dict[int, list[Node]]
    bent: int
    plain: frozenset[Node]
    knowable: bool


def _parent(scheme: Scheme, loop: int) -> int:
    parent = scheme.forest.loops[loop].parent
    return parent if parent is not None else -1


@attached
def shape_of(scheme: Scheme) -> Shape:
    """The shape of a scheme's function; worked out once."""
    cfg, forest = scheme.cfg, scheme.forest
    innermost = forest.innermost
    headers = {loop.header: loop.index for loop in forest.loops}
    units: dict[int, list[int]] = {}
    for block in cfg.reverse_post_order:
        units.setdefault(innermost[block], []).append(block)
        if block in headers:
            units.setdefault(_parent(scheme, headers[block]), []).append(block)
    exits: dict[int, list[Exit]] = {loop.index: [] for loop in forest.loops}
    for block in cfg.reverse_post_order:
        ending = scheme.endings[block]
        targets = ending.targets or (-1,)
        for target in dict.fromkeys(targets):
            loop = innermost[block]
            while loop >= 0 and not forest.holds(loop, target):
                exits[loop].append(Exit(block, target))
                loop = _parent(scheme, loop)
    above = dominators(cfg)
    closed = {loop.index: _closed(scheme, loop.index, exits[loop.index], above)
              for loop in forest.loops}  # fmt: skip
    varies, conditions = _varies(scheme, exits)
    return Shape(
        units, exits, closed, varies, _meets(scheme, above, headers), headers,
        order_of(scheme), conditions, _bent(scheme), _plain(scheme),
        not calls_in(scheme.function) and not elected(scheme.cfg.body) and not _open(scheme),
    )  # fmt: skip


def _closed(scheme: Scheme, loop: int, exits: list[Exit], above: tuple[int, ...]) -> bool:
    """One latch, and every exit lies on each way from the header to it, in this very loop."""
    this = scheme.forest.loops[loop]
    if len(this.back_edges) != 1 or not exits or this.depth > DEEPEST:
        return False
    sources = {one.source for one in exits}
    if any(scheme.forest.innermost[source] != loop for source in sources):
        return False
    if any(scheme.endings[source].kind != "branch" for source in sources):
        return False
    block = this.back_edges[0][0]
    for _ in range(len(this.blocks)):
        sources.discard(block)
        if block == this.header or not sources:
            break
        block = above[block]
    return not sources


_LINEAR = frozenset({"add", "sub", "neg", "sext", "zext", "trunc", "exit", "phi"})


def _bent(scheme: Scheme) -> int:
    """Loops in whose counter some address is not linear."""
    found: dict[Node, int] = {}
    for node in scheme.graph.nodes:  # operands first
        bent = 0
        for arg in node.args:
            bent |= found.get(arg, 0)
        if node.op == "mul":
            bent |= node.args[0].varies & node.args[1].varies
        elif node.op == "shl":
            bent |= node.args[1].varies
        elif node.args and node.op not in _LINEAR:
            bent |= node.varies
        found[node] = bent
    total = 0
    for accesses in scheme.accesses:
        for access in accesses:
            total |= found[access.address]
    return total


def _plain(scheme: Scheme) -> frozenset[Node]:
    found: set[Node] = set()
    for node in scheme.graph.nodes:  # operands first
        if node.op == "phi":
            phi = scheme.phis[node]
            if phi.start.op == "const" and phi.step is not None and phi.step.op == "const":
                found.add(node)
        elif node.op == "const" or (
            node.args and node.op not in ("join", "exit") and all(a in found for a in node.args)
        ):
            found.add(node)
    return frozenset(found)


def _open(scheme: Scheme) -> bool:
    """Whether a decision or an address is made of something that is known only at run time."""
    found: set[Node] = set()
    for node in scheme.graph.nodes:  # operands first
        phi = scheme.phis.get(node)
        parts = node.args if phi is None else (phi.start, *((phi.step,) if phi.step else ()))
        if node.op == "unknown" or any(part in found for part in parts):
            found.add(node)
    decisive = [ending.condition for ending in scheme.endings]
    decisive += [guard for guards in scheme.guards for _, guard, _ in guards]
    decisive += [access.address for accesses in scheme.accesses for access in accesses]
    return any(node in found for node in decisive)


def _varies(
    scheme: Scheme, exits: dict[int, list[Exit]]
) -> tuple[dict[int, int], dict[int, list[Node]]]:
    loops = scheme.forest.loops
    own: dict[int, int] = {loop.index: 0 for loop in loops}
    conditions: dict[int, list[Node]] = {loop.index: [] for loop in loops}
    outward: dict[int, int] = {loop.index: 0 for loop in loops}
    leaving = {loop: {one.source for one in found} for loop, found in exits.items()}
    for block, ending in enumerate(scheme.endings):
        loop = scheme.forest.innermost[block]
        if loop < 0:
            continue
        for _, guard, _ in scheme.guards[block]:
            own[loop] |= guard.varies
        if ending.condition is None:
            continue
        if block in leaving[loop]:
            conditions[loop].append(ending.condition)
            outward[loop] |= ending.condition.varies
        else:
            own[loop] |= ending.condition.varies
    for inner in sorted(loops, key=lambda one: -one.depth):
        if inner.parent is not None:
            own[inner.parent] |= own[inner.index] | outward[inner.index]
    return own, conditions


def _meets(scheme: Scheme, above: tuple[int, ...], headers: dict[int, int]) -> list[int]:
    cfg, forest = scheme.cfg, scheme.forest
    below = post_dominators(cfg)
    found = [-1] * len(cfg.blocks)
    for block in cfg.reverse_post_order:
        if len(cfg.blocks[block].predecessors) < 2 or block == cfg.entry:
            continue
        region = forest.innermost[block]
        if block in headers:
            region = _parent(scheme, headers[block])
        split = above[block]
        for _ in range(LONGEST_SEARCH):
            inside = forest.innermost[split]
            if inside == region:
                break
            if split in headers and _parent(scheme, headers[split]) == region:
                break
            if split == cfg.entry:
                split = -1
                break
            split = above[split]
        else:
            split = -1
        if split < 0 or split == block:
            continue
        meeting = split
        for _ in range(LONGEST_SEARCH):
            meeting = below[meeting]
            if meeting == block or meeting < 0 or meeting >= len(cfg.blocks):
                break
        if meeting == block:
            found[block] = split
    return found
