"""Natural loops and their nesting; irreducible regions are reported, not guessed at.

A back edge goes to a block that dominates its start; the loop of a header is every block
from which a back edge's start is reached without passing the header (Aho, Lam, Sethi and
Ullman, "Compilers", 9.6.6). Inner loops are collapsed as they are found (Havlak, TOPLAS
1997), so the work is near-linear in the edges however deep the nest.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

from wattcast.features.attached import attached
from wattcast.features.cfg import ControlFlowGraph, build_cfg, dominators
from wattcast.features.dataflow import (
    NO_DESTINATION,
    arguments_of,
    closure,
    flow,
    loaded_argument,
    written,
)
from wattcast.features.errors import Diagnostic, bounded, checkpoint
from wattcast.features.ptx.ir import (
    Address,
    Function,
    Instruction,
    Location,
    Module,
    Special,
    Symbol,
)

UNROLL = 4
"""How often ptxas unrolls a counted loop of one block (compared with ptxas in docs/gpus.md)."""


@dataclass(eq=False)
class Loop:
    """One natural loop. ``index`` is its place in ``LoopForest.loops``.

    ``header`` is the block that is entered; ``back_edges`` are (latch, header) pairs;
    ``parent`` is the index of the loop around it, -1 if none is; ``depth`` is 1 for an
    outermost one. ``own_blocks`` lie in no inner loop. ``label`` is the header's; ``line``
    the PTX line of its first instruction; ``location`` the source line, if ``.loc`` tells.
    """

    index: int
    header: int
    back_edges: tuple[tuple[int, int], ...]
    parent: int
    depth: int
    label: str | None
    line: int
    location: Location | None
    own_blocks: tuple[int, ...]
    children: tuple[Loop, ...] = field(repr=False)

    @cached_property
    def blocks(self) -> frozenset[int]:
        """All blocks, inner loops included; gathered when first asked for."""
        found: list[int] = []
        waiting = [self]
        while waiting:
            loop = waiting.pop()
            found.extend(loop.own_blocks)
            waiting.extend(loop.children)
        return frozenset(found)

    @property
    def single_block(self) -> bool:
        """The loop is one block that jumps to itself."""
        return self.own_blocks == (self.header,) and not self.children


@dataclass(frozen=True)
class LoopForest:
    """The loops in the order of their headers (so an outer one stands before its inner ones).

    ``innermost`` is the index of the innermost loop of every block, -1 outside all loops.
    ``irreducible`` are the edges that close a cycle without a single entry; each also gives
    a Diagnostic (``irreducible_loop``), and the blocks they jump to have no loop of their own.
    So does a function that no way leads out of (``endless_loop``). ``waiting`` are the loops that
    only look at memory until others write there.
    """

    loops: tuple[Loop, ...]
    innermost: tuple[int, ...]
    irreducible: tuple[tuple[int, int], ...]
    diagnostics: tuple[Diagnostic, ...]
    waiting: frozenset[int] = frozenset()

    def depth(self, block: int) -> int:
        """Number of loops around a block."""
        loop = self.innermost[block]
        return self.loops[loop].depth if loop >= 0 else 0

    def holds(self, loop: int, block: int) -> bool:
        """Whether a block (-1: none) lies in a loop."""
        return block >= 0 and loop in self.around(block)

    def around(self, block: int) -> tuple[int, ...]:
        """The loops around a block, the outermost first."""
        found: tuple[int, ...] = ()
        inner = self.innermost[block]
        while inner >= 0:
            found, inner = (inner, *found), self.loops[inner].parent
        return found


@attached
def natural_loops(cfg: ControlFlowGraph) -> LoopForest:
    """All natural loops of the reachable blocks, found once per graph.

    Raises TooComplexError where more of them lie inside each other than the body's limits let.
    """
    blocks = cfg.blocks
    order = cfg.reverse_post_order
    rank = {block: place for place, block in enumerate(order)}
    dominates = _Dominance(cfg)
    latches: dict[int, list[int]] = {}
    irreducible: list[tuple[int, int]] = []
    for source in order:
        for target in blocks[source].successors:
            if rank[target] <= rank[source]:
                if dominates(target, source):
                    latches.setdefault(target, []).append(source)
                else:
                    irreducible.append((source, target))

    # From the last header in reverse post-order to the first: inner loops come first and
    # are then stood for by their header (a union-find over blocks).
    stands_for = list(range(len(blocks)))

    def find(block: int) -> int:
        while stands_for[block] != block:
            stands_for[block] = stands_for[stands_for[block]]
            block = stands_for[block]
        return block

    inside = [-1] * len(blocks)  # header of the innermost loop; for a header: around its own
    members: dict[int, list[int]] = {}
    for header in sorted(latches, key=lambda block: -rank[block]):
        checkpoint()
        found = members.setdefault(header, [])
        waiting = [find(latch) for latch in latches[header]]
        while waiting:
            block = find(waiting.pop())
            if block == header or inside[block] == header:
                continue
            inside[block] = header
            stands_for[block] = header
            found.append(block)
            waiting.extend(p for p in blocks[block].predecessors if p in rank)
    return _forest(cfg, latches, inside, members, irreducible)


def _forest(
    cfg: ControlFlowGraph,
    latches: dict[int, list[int]],
    inside: list[int],
    members: dict[int, list[int]],
    irreducible: list[tuple[int, int]],
) -> LoopForest:
    headers = sorted(latches)
    index = {header: number for number, header in enumerate(headers)}
    rank = {block: place for place, block in enumerate(cfg.reverse_post_order)}
    depth: dict[int, int] = {}
    for header in sorted(headers, key=lambda block: rank[block]):
        depth[header] = depth[inside[header]] + 1 if inside[header] >= 0 else 1
        line = cfg.body.instructions[cfg.blocks[header].start].line
        cfg.body.limits.hold("max_loop_nesting", depth[header], "loops inside each other", line)
    built: dict[int, Loop] = {}
    for header in sorted(headers, key=lambda block: -depth[block]):
        block = cfg.blocks[header]
        # An empty block can only be the last one, which has no successor and heads no loop.
        first = cfg.body.instructions[block.start]
        inner = sorted(member for member in members[header] if member in latches)
        own = [member for member in members[header] if member not in latches]
        built[header] = Loop(
            index=index[header],
            header=header,
            back_edges=tuple((latch, header) for latch in sorted(latches[header])),
            parent=index[inside[header]] if inside[header] >= 0 else -1,
            depth=depth[header],
            label=block.label,
            line=first.line,
            location=first.location,
            own_blocks=tuple(sorted([header, *own])),
            children=tuple(built[member] for member in inner),
        )
    innermost = tuple(
        index[block] if block in latches else index[inside[block]] if inside[block] >= 0 else -1
        for block in range(len(cfg.blocks))
    )
    diagnostics = []
    for source, target in irreducible:
        last = cfg.body.instructions[cfg.blocks[source].end - 1]
        name = cfg.blocks[target].label or f"block {target}"
        detail = f"the cycle through {name} has several entries, so it is not treated as a loop"
        diagnostics.append(Diagnostic("irreducible_loop", detail, last.line, last.column))
    loops = tuple(built[header] for header in headers)
    waiting = [loop for loop in loops if _waits(cfg, loop)]
    for loop in waiting:
        detail = "the loop waits for other threads: it goes round once, and the wait takes no time"
        diagnostics.append(Diagnostic("wait_not_timed", detail, loop.line))
    diagnostics += _endless(cfg, loops)
    return LoopForest(
        loops,
        innermost,
        tuple(irreducible),
        bounded(diagnostics),
        frozenset(loop.index for loop in waiting),
    )


def _waits(cfg: ControlFlowGraph, loop: Loop) -> bool:
    """Whether a loop polls memory: loads, or tries to take a lock, and carries nothing that it
    computes into its next round, so that others alone can end it."""
    if loop.children:
        return False
    told, polls, made = flow(cfg.body), False, set[str]()
    inside = [one for block in loop.own_blocks for one in cfg.instructions(cfg.blocks[block])]
    own = {name for one in inside for name in told.writes[one.position]}
    for one in inside:
        if any(name in own and name not in made for name in told.reads[one.position]):
            return False
        made.update(told.writes[one.position])
        if one.base in NO_DESTINATION and one.base not in ("bra", "nanosleep", "membar", "fence"):
            return False
        tries = one.base == "atom" and (".cas" in one.opcode or ".exch" in one.opcode)
        if one.base == "atom" and not tries:
            return False
        polls |= tries or (one.base == "ld" and ".param" not in one.opcode)
    return polls


def _endless(cfg: ControlFlowGraph, loops: Sequence[Loop]) -> list[Diagnostic]:
    """Where no way leads out of the function: the first loop that none leads out of, or the first
    block of a cycle that is no loop. Compilers put endless loops where nothing comes to."""
    ends = [block.index for block in cfg.blocks if block.exits or not block.successors]
    ending = closure(ends, lambda block: cfg.blocks[block].predecessors)
    if cfg.entry in ending or not cfg.blocks:
        return []
    closed = (
        loop.header
        for loop in loops
        if all(loop.blocks.issuperset(cfg.blocks[block].successors) for block in loop.blocks)
    )
    line = cfg.instructions(cfg.blocks[min(closed, default=cfg.entry)])[0].line
    return [Diagnostic("endless_loop", f"the loop at line {line} of the PTX never ends", line)]


def exits(cfg: ControlFlowGraph, loop: Loop) -> tuple[Instruction, ...]:
    """Conditional branches that leave a loop, in text order."""
    found = []
    for index in sorted(loop.blocks):
        block = cfg.blocks[index]
        last = cfg.body.instructions[block.end - 1]
        leaves = any(after not in loop.blocks for after in block.successors)
        if last.base == "bra" and last.predicate is not None and leaves:
            found.append(last)
    return tuple(found)


class _Dominance:
    """Answers "does a dominate b" at once, from the dominator tree's pre- and post-order."""

    def __init__(self, cfg: ControlFlowGraph) -> None:
        parents = dominators(cfg)
        children: list[list[int]] = [[] for _ in parents]
        for block, parent in enumerate(parents):
            if parent >= 0 and block != cfg.entry:
                children[parent].append(block)
        self._first = [-1] * len(parents)
        self._last = [-1] * len(parents)
        clock = 0
        stack = [(cfg.entry, False)]
        while stack:
            block, done = stack.pop()
            if done:
                self._last[block] = clock
                continue
            self._first[block] = clock
            clock += 1
            stack.append((block, True))
            stack.extend((child, False) for child in children[block])

    def __call__(self, above: int, below: int) -> bool:
        return self._first[above] <= self._first[below] < self._last[above]


# What loops, guards and addresses of a kernel are decided by: arguments, and data in memory.
#
# A register stands for what its block computed it from last, else for everything that it is ever
# computed from in the function. Nothing here depends on a launch.

_position = attrgetter("position")
MOST_FOLLOWED = 4096
"""Registers followed for one origin; beyond, everything may decide."""


@dataclass(frozen=True, slots=True)
class Origin:
    """``arguments``: parameters whose value counts; ``data``: parameters whose memory does, and
    ``variables`` of the module whose contents do.

    ``loaded``: it rests on data, of those parameters or of memory that nobody names.
    ``special``: registers of the launch (``%tid.x``) that it is computed from.
    """

    arguments: frozenset[str] = frozenset()
    data: frozenset[str] = frozenset()
    loaded: bool = False
    variables: frozenset[str] = frozenset()
    special: frozenset[str] = frozenset()


class Guard(NamedTuple):
    """A conditional branch in front of a loop: ``enters`` tells whether the loop lies where it
    jumps to (else behind it)."""

    position: int
    enters: bool


class Deciding:
    """Origins of one function's registers, loops, guards and addresses."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.cfg: ControlFlowGraph = build_cfg(function.body)
        self.forest: LoopForest = natural_loops(self.cfg)
        self._arguments = arguments_of(function)
        self._origins: dict[tuple[str, ...], Origin] = {}
        self._made = written(function.body)
        self._reads = flow(function.body).reads
        self._starts = [block.start for block in self.cfg.blocks]

    def of(self, *names: str) -> Origin:
        """What some registers are computed from."""
        known = self._origins.get(names)
        if known is None:
            known = self._origins[names] = self._origin(names)
        return known

    def _origin(self, names: tuple[str, ...]) -> Origin:
        arguments: set[str] = set()
        data: set[str] = set()
        variables: set[str] = set()
        special: set[str] = set()
        loaded = False
        seen: set[tuple[str, bool, int | None]] = {(name, False, None) for name in names}
        waiting = list(seen)
        while waiting:
            name, behind, at = waiting.pop()
            made = self._made.get(name, ())
            for one in made if at is None else (self.function.body.instructions[at],):
                argument = loaded_argument(one, name)
                if argument in self._arguments:
                    if behind and self._arguments[argument].bytes == 8:
                        data.add(argument)
                    elif not behind:
                        arguments.add(argument)
                    continue
                read = one.base in ("ld", "ldu", "atom", "tex", "tld4", "suld")
                loaded |= read
                if behind or read:
                    variables.update(_symbols(one))
                else:
                    special.update(each.name for each in one.operands if type(each) is Special)
                start = self._starts[bisect_right(self._starts, one.position) - 1]
                for other in self._reads[one.position]:
                    # The last of its block to write it, else any of its writers: compilers start a
                    # counter as a copy of a register that a loop fills with data.
                    writers = self._made.get(other, ())
                    last = bisect_left(writers, one.position, key=_position) - 1
                    sure = last >= 0 and writers[last].position >= start
                    sure = sure and writers[last].predicate is None
                    state = (other, behind or read, writers[last].position if sure else None)
                    if state not in seen and len(seen) < MOST_FOLLOWED:
                        seen.add(state)
                        waiting.append(state)
        found = map(frozenset, (variables, special))
        return Origin(frozenset(arguments - data), frozenset(data), loaded, *found)

    def exits(self, loop: Loop) -> tuple[Instruction, ...]:
        """Conditional branches that leave a loop."""
        return exits(self.cfg, loop)

    @cached_property
    def loops(self) -> tuple[Origin, ...]:
        """What decides how often each loop goes round: its exits."""
        return tuple(
            self.of(*(one.predicate for one in self.exits(loop) if one.predicate is not None))
            for loop in self.forest.loops
        )

    @cached_property
    def guards(self) -> tuple[tuple[Guard, ...], ...]:
        """For each loop, the branches on data that may lead past it, within the loop around it."""
        return tuple(tuple(self._guards(loop)) for loop in self.forest.loops)

    def _guards(self, loop: Loop) -> list[Guard]:
        around = None if loop.parent < 0 else self.forest.loops[loop.parent].blocks
        found = []
        for block in self.cfg.blocks:
            if block.index in loop.blocks or len(block.successors) != 2:
                continue
            if around is not None and block.index not in around:
                continue
            last = self.function.body.instructions[block.end - 1]
            if last.base != "bra" or last.predicate is None or not self.of(last.predicate).loaded:
                continue
            target = self.cfg.block_of[self._target(last)]
            ways = [self._reaches(after, loop.header, block.index) for after in block.successors]
            if ways[0] != ways[1]:
                into = block.successors[ways.index(True)]
                found.append(Guard(last.position, into == target))
        return found

    def _target(self, one: Instruction) -> int:
        label = one.operands[0]
        for each in self.function.body.labels:
            if isinstance(label, Symbol) and each.name == label.name:
                return min(each.target, len(self.function.body.instructions) - 1)
        return 0

    def _reaches(self, start: int, goal: int, avoiding: int) -> bool:
        seen = {start, avoiding}
        waiting = [start]
        while waiting:
            block = waiting.pop()
            if block == goal:
                return True
            for after in self.cfg.blocks[block].successors:
                if after not in seen:
                    seen.add(after)
                    waiting.append(after)
        return False


def tested_first(cfg: ControlFlowGraph, loop: Loop) -> bool:
    """Whether the loop is left from its header, before its body: one header run more than trips.
    What ends in a trap is an assertion in the body, no way out."""
    latches = {latch for latch, _ in loop.back_edges}
    ways = (cfg.blocks[after] for after in cfg.blocks[loop.header].successors)
    outside = (way for way in ways if way.index not in loop.blocks)
    leaves = any(all(one.base != "trap" for one in cfg.instructions(way)) for way in outside)
    return leaves and loop.header not in latches


@attached
def calls_in(function: Function) -> dict[str, list[int]]:
    """What a function calls, and where: the first symbol of each call ("": in a register)."""
    found: dict[str, list[int]] = {}
    for one in function.body.instructions:
        if one.base == "call":
            named = (each.name for each in one.operands if isinstance(each, Symbol))
            found.setdefault(next(named, ""), []).append(one.position)
    return found


_NAME = re.compile(r"[A-Za-z_$%][\w$]*")


def reachable(module: Module, kernel: Function) -> dict[str, Function]:
    """Functions that a kernel can call, itself included: those that calls name, and those whose
    address it or a variable of the module holds."""
    defined = {each.name: each for each in module.functions if not each.declaration}
    defined[kernel.name] = kernel
    tables = [variable.initializer for variable in module.variables if variable.initializer]
    listed = (name for text in tables for name in _NAME.findall(text) if name in defined)

    def called(name: str) -> Iterator[str]:
        for one in defined[name].body.instructions:
            if one.base in ("call", "mov"):
                symbols = (each.name for each in one.operands if isinstance(each, Symbol))
                yield from (symbol for symbol in symbols if symbol in defined)

    return {name: defined[name] for name in closure((kernel.name, *listed), called)}


def _symbols(one: Instruction) -> set[str]:
    """Variables that an instruction names."""
    named = (each.base if isinstance(each, Address) else each for each in one.operands)
    return {each.name for each in named if isinstance(each, Symbol)}


@attached
def deciding(function: Function) -> Deciding:
    """``Deciding`` of a function, made once."""
    return Deciding(function)
