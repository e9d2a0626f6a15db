"""What the walk over a function needs to know of its shape; launch-independent, made once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.attached import attached
from wattcast.features.cfg import dominators, post_dominators
from wattcast.features.launch import WARP_SIZE
from wattcast.features.loops import calls_in
from wattcast.features.ptx.ir import Immediate, Instruction
from wattcast.features.symbolic.arith import Layout
from wattcast.features.symbolic.scheme import Scheme
from wattcast.features.values import Node

# Do the lanes of a warp stay together as the walk supposes?
#
# Warps run at the smallest program counter. The walk counts one execution of a block for all
# lanes of a warp that come to it in one iteration, which is right if code lies in the order it
# runs in. Here are the exceptions: blocks out of order, lanes that run ahead while others wait
# at a barrier. Counts of warps they may falsify are marked; counts of lanes are right anyway.

Mask = npt.NDArray[np.bool_]

ALL_LANES = 0xFFFFFFFF

COLLECTIVE = ("shfl.sync", "vote.sync", "match", "redux", "elect", "ldmatrix", "stmatrix", "mma",
              "wmma", "bar.warp")  # fmt: skip
"""Opcodes at which lanes of a warp wait for each other (PTX ISA 9.0, 9.7.9.8, 9.7.13)."""


class Order(NamedTuple):
    """``waits``: for blocks with barriers or collectives, the lanes of a warp that must come
    (-1: which ones is in a register; any may).
    ``tidy``: every forward edge goes forward in the text and every loop is one piece of it.
    ``ends``: blocks that only leave the function.
    """

    waits: dict[int, int]
    tidy: bool
    ends: frozenset[int]


def order_of(scheme: Scheme) -> Order:
    """The order of a function's text."""
    cfg, forest = scheme.cfg, scheme.forest
    waits: dict[int, int] = {}
    ends = set()
    for block in cfg.blocks:
        found = cfg.instructions(block)
        for one in found:
            needed = _waits_for(one)
            if needed:  # -1 stays -1
                waits[block.index] = waits.get(block.index, 0) | needed
        if len(found) == 1 and found[0].base in ("ret", "exit") and found[0].predicate is None:
            ends.add(block.index)
    back = {edge for loop in forest.loops for edge in loop.back_edges}
    tidy = all(
        following > block.index or (block.index, following) in back
        for block in cfg.blocks
        for following in block.successors
    )
    # Walking the text, loops open and close like brackets.
    tidy = tidy and all(
        len(loop.back_edges) == 1
        and loop.blocks == cfg.reachable.intersection(range(loop.header, loop.back_edges[0][0] + 1))
        for loop in forest.loops
    )
    return Order(waits, tidy, frozenset(ends))


def _waits_for(one: Instruction) -> int:
    """Lanes that must have come before this goes on; 0 if it waits for none, -1 if any may."""
    parts = one.opcode.split(".")
    if parts[0] in ("bar", "barrier") and "warp" not in parts:
        return 0 if {"arrive", "cluster"} & set(parts) else ALL_LANES
    if not one.opcode.startswith(COLLECTIVE):
        return 0
    if parts[0] in ("shfl", "vote", "match", "redux", "elect", "bar") and one.operands:
        mask = one.operands[-1]
        if isinstance(mask, Immediate) and isinstance(mask.value, int):
            return mask.value & ALL_LANES
        return -1
    return ALL_LANES


class Watch:
    """Follows one walk and remembers from which block on warp counts are in doubt."""

    def __init__(self, scheme: Scheme, order: Order, living: Mask, layout: Layout) -> None:
        self.order, self.layout = order, layout
        self.scheme = scheme
        self.living = living
        self.retired: Mask = np.zeros_like(living)
        self.doubtful_from = len(scheme.cfg.blocks) if order.tidy else 0
        self.waited: list[tuple[int, Mask]] = []
        self.doubtful: set[int] = set()

    def _doubt(self, block: int) -> None:
        forest = self.scheme.forest
        headers = (forest.loops[loop].header for loop in forest.around(block))
        self.doubtful_from = min(self.doubtful_from, block, *headers)

    def at(self, block: int, mask: Mask) -> None:
        """A block is reached: do all lanes come that it waits for?"""
        needed = self.order.waits.get(block)
        if needed is None or block >= self.doubtful_from:
            return
        self.waited.append((block, np.logical_or.reduce(mask, axis=0)))
        named = _named(needed)
        table = mask.reshape(mask.shape[0], -1, WARP_SIZE)
        absent = (self.living & ~self.retired & ~mask).reshape(table.shape) & named
        if self.layout.any(table.any(axis=2) & absent.any(axis=2), WARP_SIZE):
            self._doubt(block)

    def along(self, target: int, mask: Mask) -> None:
        """Lanes go to a block that ends them: nobody waits for them any more."""
        if target in self.order.ends and mask.shape[0] == 1:
            self.retired = self.retired | mask

    def groups(self, end: int, arriving: list[tuple[int, Mask]]) -> npt.NDArray[np.int64]:
        """Executions by each warp of a block ``end`` that ends its lanes.

        Lanes that came before their warp waited elsewhere have left by the time others come.
        ``arriving`` are edges' sources and masks (1, lanes).
        """
        total: npt.NDArray[np.int64] = np.zeros(self.living.size // WARP_SIZE, dtype=np.int64)
        held = np.zeros((total.size, WARP_SIZE), dtype=np.bool_)
        before = -1
        for source, mask in sorted(arriving, key=lambda one: one[0]):
            for block, waiting in self.waited:
                if before < block <= source:
                    needed = self.order.waits[block]
                    left = (held & _named(needed)).any(axis=1)
                    left &= waiting.reshape(-1, WARP_SIZE).any(axis=1)
                    if needed < 0 and self.layout.any(left, WARP_SIZE):
                        self.doubtful.add(end)
                    total += left
                    held[left] = False
            held |= mask.reshape(-1, WARP_SIZE)
            before = source
        return total + held.any(axis=1)


def _named(needed: int) -> Mask:
    """Lanes of a member mask."""
    lanes = np.arange(WARP_SIZE, dtype=np.int64)
    found: Mask = (needed >> lanes & 1).astype(np.bool_)
    return found


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
    address rests on what is read from memory, and nothing is called.
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
            units.setdefault(forest.loops[headers[block]].parent, []).append(block)
    exits: dict[int, list[Exit]] = {loop.index: [] for loop in forest.loops}
    for block in cfg.reverse_post_order:
        ending = scheme.endings[block]
        targets = ending.targets or (-1,)
        for target in dict.fromkeys(targets):
            loop = innermost[block]
            while loop >= 0 and not forest.holds(loop, target):
                exits[loop].append(Exit(block, target))
                loop = forest.loops[loop].parent
    above = dominators(cfg)
    closed = {loop.index: _closed(scheme, loop.index, exits[loop.index], above)
              for loop in forest.loops}  # fmt: skip
    varies, conditions = _varies(scheme, exits)
    return Shape(
        units, exits, closed, varies, _meets(scheme, above, headers), headers,
        order_of(scheme), conditions, _bent(scheme), _plain(scheme),
        not calls_in(scheme.function) and not _open(scheme),
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
        if inner.parent >= 0:
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
            region = forest.loops[headers[block]].parent
        split = above[block]
        for _ in range(LONGEST_SEARCH):
            inside = forest.innermost[split]
            if inside == region:
                break
            if split in headers and forest.loops[headers[split]].parent == region:
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
