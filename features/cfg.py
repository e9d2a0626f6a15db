"""Control-flow graph of a body: basic blocks, orders, dominators.

Everything here is iterative and near-linear: hostile PTX has thousands of blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from wattcast.features.attached import attached
from wattcast.features.errors import Diagnostic, bounded, checkpoint
from wattcast.features.ptx.ir import Body, Instruction, Symbol

RETURNS = frozenset({"ret", "exit", "trap"})
"""Opcodes that end a thread's stay in the function (PTX ISA 9.0, 9.7.13 and 9.7.19)."""

BRANCHES = frozenset({"bra", "brx"})


@dataclass(frozen=True, slots=True)
class BasicBlock:
    """Instructions ``[start, end)`` that are entered at the first and left at the last.

    ``label`` is the one jumped to, if any, else the first one standing here, else ``None``;
    ``labels`` are all. ``successors`` of a conditional branch are its target, then the
    block after it. ``exits`` tells that a thread may leave the function from its end.
    """

    index: int
    start: int
    end: int
    label: str | None
    successors: tuple[int, ...]
    predecessors: tuple[int, ...]
    labels: tuple[str, ...] = ()
    exits: bool = False


@dataclass(frozen=True)
class ControlFlowGraph:
    """The blocks in text order. ``entry`` is the first block's index (always 0).

    A body without instructions has one empty block.
    """

    body: Body
    blocks: tuple[BasicBlock, ...]
    entry: int
    diagnostics: tuple[Diagnostic, ...]

    @cached_property
    def block_of(self) -> tuple[int, ...]:
        """Block index of every instruction."""
        found = [0] * len(self.body.instructions)
        for block in self.blocks:
            found[block.start : block.end] = [block.index] * (block.end - block.start)
        return tuple(found)

    @cached_property
    def reverse_post_order(self) -> tuple[int, ...]:
        """The reachable blocks, each before its successors but for back edges."""
        successors = [block.successors for block in self.blocks]
        return tuple(reversed(_depth_first(successors, self.entry).finished))

    @cached_property
    def reachable(self) -> frozenset[int]:
        """Blocks that can be reached from the entry."""
        return frozenset(self.reverse_post_order)

    def instructions(self, block: BasicBlock) -> tuple[Instruction, ...]:
        """The instructions of a block."""
        return self.body.instructions[block.start : block.end]


@attached
def build_cfg(body: Body) -> ControlFlowGraph:
    """Basic blocks and their edges, made once per body.

    A block begins at the first instruction, at every label, and after ``bra``, ``brx``,
    ``ret``, ``exit`` and ``trap``; a ``call`` does not end one. A guarded one of these falls
    through as well. A jump to a label that is not there gives a Diagnostic
    (``unknown_label``), and so does one whose targets cannot be known (``indirect_branch``).
    Raises TooComplexError beyond the body's limits of blocks and edges.
    """
    instructions, count = body.instructions, len(body.instructions)
    diagnostics: list[Diagnostic] = []
    place = {label.name: label.target for label in reversed(body.labels)}
    jumps: dict[int, tuple[str, ...]] = {}
    leaders = {0}
    edges = 0
    for one in instructions:
        base = one.base
        if base in BRANCHES:
            checkpoint()
            targets = jumps[one.position] = _targets(one, body, place, diagnostics)
            edges += len(targets)
            body.limits.hold("max_kernel_edges", edges, "targets of branches", one.line)
        elif base not in RETURNS:
            continue
        if one.position + 1 < count:
            leaders.add(one.position + 1)
    used = {name for names in jumps.values() for name in names}
    # A label behind the last instruction needs an empty block, if anything jumps there.
    leaders.update(
        label.target for label in body.labels if label.target < count or label.name in used
    )
    starts = sorted(leaders)
    if len(starts) > (most := body.limits.max_kernel_blocks):
        line = instructions[min(starts[most], count - 1)].line
        body.limits.hold("max_kernel_blocks", len(starts), "basic blocks in one function", line)
    index = {start: number for number, start in enumerate(starts)}
    standing: dict[int, list[str]] = {}
    for label in body.labels:
        standing.setdefault(label.target, []).append(label.name)

    successors: list[tuple[int, ...]] = []
    exits: list[bool] = []
    ends = [*starts[1:], count]
    for number, end in enumerate(ends):
        last = instructions[end - 1] if end > starts[number] else None
        base = last.base if last is not None else ""
        following: list[int] = []
        if last is not None and base in BRANCHES:
            following = [index[place[name]] for name in jumps[last.position]]
        falls = base not in BRANCHES and base not in RETURNS
        falls = falls or (last is not None and last.predicate is not None)
        if falls and number + 1 < len(starts):
            following.append(number + 1)
        successors.append(tuple(dict.fromkeys(following)))
        exits.append(base in RETURNS or (falls and number + 1 == len(starts)))

    predecessors: list[list[int]] = [[] for _ in starts]
    for number, following_blocks in enumerate(successors):
        for successor in following_blocks:
            predecessors[successor].append(number)
    blocks = []
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        labels = tuple(standing.get(start, ()))
        jumped_to = next((name for name in labels if name in used), None)
        blocks.append(
            BasicBlock(
                index=number,
                start=start,
                end=end,
                label=jumped_to or (labels[0] if labels else None),
                successors=successors[number],
                predecessors=tuple(predecessors[number]),
                labels=labels,
                exits=exits[number],
            )
        )
    return ControlFlowGraph(body, tuple(blocks), 0, bounded(diagnostics))


def _targets(
    branch: Instruction, body: Body, place: dict[str, int], diagnostics: list[Diagnostic]
) -> tuple[str, ...]:
    """Known labels a branch may go to."""
    last = branch.operands[-1] if branch.operands else None
    if not isinstance(last, Symbol):
        detail = f"the targets of this {branch.opcode} are computed at run time; none is followed"
        diagnostics.append(Diagnostic("indirect_branch", detail, branch.line, branch.column))
        return ()
    names = body.branch_tables.get(last.name, ()) if branch.base == "brx" else (last.name,)
    if not names:
        detail = f"{branch.opcode}: {last.name!r} is not a .branchtargets list; the jump is ignored"
        diagnostics.append(Diagnostic("unknown_label", detail, branch.line, branch.column))
    known = []
    for name in names:
        if name in place:
            known.append(name)
        else:
            detail = f"jump to {name!r}, which is not a label of this body; the jump is ignored"
            diagnostics.append(Diagnostic("unknown_label", detail, branch.line, branch.column))
    return tuple(known)


@attached
def dominators(cfg: ControlFlowGraph) -> tuple[int, ...]:
    """Immediate dominator of every block; the entry's is itself, an unreachable block's -1."""
    return _immediate_dominators([block.successors for block in cfg.blocks], cfg.entry)


def post_dominators(cfg: ControlFlowGraph) -> tuple[int, ...]:
    """Immediate post-dominator of every block: where its diverging threads meet again.

    ``len(cfg.blocks)`` stands for the function's end (they never meet in a block);
    -1 for a block from which the end cannot be reached (an endless loop).
    """
    leave = len(cfg.blocks)
    backward: list[tuple[int, ...]] = [block.predecessors for block in cfg.blocks]
    backward.append(tuple(block.index for block in cfg.blocks if block.exits))
    return _immediate_dominators(backward, leave)[:leave]


class _DepthFirst(NamedTuple):
    preorder: list[int]  # nodes in the order first seen
    parent: list[int]  # in the tree; -1 for the root and for what is unreachable
    finished: list[int]  # nodes in the order left


def _depth_first(successors: list[tuple[int, ...]], root: int) -> _DepthFirst:
    parent = [-1] * len(successors)
    seen = [False] * len(successors)
    seen[root] = True
    preorder, finished = [root], []
    stack = [(root, iter(successors[root]))]
    while stack:
        checkpoint()
        node, following = stack[-1]
        for successor in following:
            if not seen[successor]:
                seen[successor] = True
                parent[successor] = node
                preorder.append(successor)
                stack.append((successor, iter(successors[successor])))
                break
        else:
            finished.append(node)
            stack.pop()
    return _DepthFirst(preorder, parent, finished)


def _immediate_dominators(successors: list[tuple[int, ...]], root: int) -> tuple[int, ...]:
    """Lengauer and Tarjan (TOPLAS 1979), the simple variant: O(edges x log nodes).

    The usual iterative scheme is shorter, but quadratic on graphs that hostile PTX can have.
    Inside, nodes are numbered in depth-first preorder.
    """
    order, parents, _ = _depth_first(successors, root)
    number = [-1] * len(successors)
    for place, node in enumerate(order):
        number[node] = place
    count = len(order)
    parent = [number[parents[node]] if place else -1 for place, node in enumerate(order)]
    predecessors: list[list[int]] = [[] for _ in order]
    for place, node in enumerate(order):
        for successor in successors[node]:
            predecessors[number[successor]].append(place)
    semi = list(range(count))
    best = list(range(count))  # on the compressed path, the node with the least semi
    ancestor = [-1] * count
    bucket: list[list[int]] = [[] for _ in order]
    idom = [0] * count

    def evaluate(node: int) -> int:
        """The node of least semi-dominator between ``node`` and its forest root."""
        path = []
        while ancestor[node] >= 0 and ancestor[ancestor[node]] >= 0:
            path.append(node)
            node = ancestor[node]
        for below in reversed(path):
            above = ancestor[below]
            if semi[best[above]] < semi[best[below]]:
                best[below] = best[above]
            ancestor[below] = ancestor[above]
        return best[path[0]] if path else best[node]

    for place in range(count - 1, 0, -1):
        checkpoint()
        for predecessor in predecessors[place]:
            reach = semi[evaluate(predecessor)]
            if reach < semi[place]:
                semi[place] = reach
        bucket[semi[place]].append(place)
        above = parent[place]
        ancestor[place] = above
        for node in bucket[above]:
            lowest = evaluate(node)
            idom[node] = lowest if semi[lowest] < above else above
        bucket[above].clear()
    for place in range(1, count):
        if idom[place] != semi[place]:
            idom[place] = idom[idom[place]]
    result = [-1] * len(successors)
    for place, node in enumerate(order):
        result[node] = order[idom[place]]
    return tuple(result)
