"""What loops, guards and addresses of a kernel are decided by: arguments, and data in memory.

Flow-insensitive over one function: a register stands for everything it is ever computed from.
Nothing here depends on a launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from wattcast.features.attached import attached
from wattcast.features.cfg import ControlFlowGraph, build_cfg
from wattcast.features.dataflow import definitions, flow
from wattcast.features.loops import Loop, LoopForest, exits, natural_loops
from wattcast.features.ptx.ir import Address, Function, Instruction, Symbol, place_of

MOST_FOLLOWED = 4096
"""Registers followed for one origin; beyond, everything may decide."""


@dataclass(frozen=True, slots=True)
class Origin:
    """``arguments``: parameters whose value counts; ``data``: parameters whose memory does, and
    ``variables`` of the module whose contents do.

    ``loaded``: it rests on data, of those parameters or of memory that nobody names.
    """

    arguments: frozenset[str] = frozenset()
    data: frozenset[str] = frozenset()
    loaded: bool = False
    variables: frozenset[str] = frozenset()


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
        self._pointers = {p.name for p in function.parameters if p.bytes == 8}
        self._parameters = {p.name for p in function.parameters}
        self._origins: dict[tuple[str, ...], Origin] = {}
        self._made = definitions(function.body.instructions)
        self._reads = flow(function.body).reads

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
        loaded = False
        seen = {(name, False) for name in names}
        waiting = list(seen)
        while waiting:
            name, behind = waiting.pop()
            for one in self._made.get(name, ()):
                place = _parameter(one)
                if place in self._parameters:
                    if behind and place in self._pointers:
                        data.add(place)
                    elif not behind:
                        arguments.add(place)
                    continue
                read = one.base in ("ld", "ldu", "atom", "tex", "tld4", "suld")
                loaded |= read
                if behind or read:
                    variables.update(_symbols(one))
                for other in self._reads[one.position]:
                    state = (other, behind or read)
                    if state not in seen and len(seen) < MOST_FOLLOWED:
                        seen.add(state)
                        waiting.append(state)
        return Origin(frozenset(arguments - data), frozenset(data), loaded, frozenset(variables))

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
        around = None if loop.parent is None else self.forest.loops[loop.parent].blocks
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


@attached
def calls_in(function: Function) -> dict[str, list[int]]:
    """What a function calls, and where: the first symbol of each call ("": in a register)."""
    found: dict[str, list[int]] = {}
    for one in function.body.instructions:
        if one.base == "call":
            named = (each.name for each in one.operands if isinstance(each, Symbol))
            found.setdefault(next(named, ""), []).append(one.position)
    return found


def _symbols(one: Instruction) -> set[str]:
    """Variables that an instruction names."""
    named = (each.base if isinstance(each, Address) else each for each in one.operands)
    return {each.name for each in named if isinstance(each, Symbol)}


def _parameter(one: Instruction) -> str | None:
    """The parameter that an instruction reads."""
    if not one.opcode.startswith("ld.param") or len(one.operands) < 2:
        return None
    place = place_of(one.operands[1])
    return place[0] if place else None


@attached
def deciding(function: Function) -> Deciding:
    """``Deciding`` of a function, made once."""
    return Deciding(function)
