"""Loops of the source that the compiler made several of: unrolled ones, and what is left of them.

    for (k = 0; k < n; ++k)   ->   four steps at a time, then one at a time

They stand in the same loop and line, are decided by the same things, and count by steps that are
multiples of each other. A trip count of the source is shared out among them.
"""

from __future__ import annotations

from collections.abc import Mapping

from wattcast.features.cfg import ControlFlowGraph
from wattcast.features.dataflow import reads, writes
from wattcast.features.loops import Loop, LoopForest
from wattcast.features.ptx.ir import Immediate, Instruction

Steps = tuple[tuple[int, int], ...]
"""Loops of one source loop with their steps in source trips, the widest first."""


def unrolled(cfg: ControlFlowGraph, forest: LoopForest) -> Mapping[int, Steps]:
    """For each loop that is part of an unrolled one: all parts of that."""
    alike: dict[object, list[tuple[int, int]]] = {}
    for loop in forest.loops:
        if loop.location is not None and (step := _step(cfg, loop)):
            alike.setdefault((loop.parent, loop.location.line), []).append((step, loop.index))
    found: dict[int, Steps] = {}
    for group in alike.values():
        least = min(step for step, _ in group)
        steps = [step // least for step, _ in group]
        if len(set(steps)) < len(steps) or len(steps) < 2 or any(s % least for s, _ in group):
            continue  # as many loops of the source, in one line
        parts = tuple(sorted(((loop, step // least) for step, loop in group), key=lambda p: -p[1]))
        found.update((loop, parts) for loop, _ in parts)
    return found


def shared(parts: Steps, trips: float) -> dict[int, float]:
    """Trips of each part, for trips of the source."""
    found = {}
    for number, (loop, step) in enumerate(parts):
        whole = trips // step if number + 1 < len(parts) else trips / step
        found[loop] = float(whole)
        trips -= whole * step
    return found


def _step(cfg: ControlFlowGraph, loop: Loop) -> int | None:
    """By how much the counter moves that the loop's exit compares, if it is a number."""
    made: dict[str, list[Instruction]] = {}
    wanted: list[str] = []
    for index in sorted(loop.blocks):
        block = cfg.blocks[index]
        for one in cfg.instructions(block):
            for name in writes(one):
                made.setdefault(name, []).append(one)
        last = cfg.body.instructions[block.end - 1] if block.end > block.start else None
        leaves = any(after not in loop.blocks for after in block.successors)
        if last is not None and last.base == "bra" and last.predicate is not None and leaves:
            wanted.append(last.predicate)
    for name in wanted:  # grows: what the tests are computed from, nearest first
        for one in made.get(name, ()):
            number, sources = one.operands[-1], reads(one)
            if one.base in ("add", "sub") and isinstance(number, Immediate):
                again = {other for s in sources for o in made.get(s, ()) for other in reads(o)}
                if name in sources or name in again:
                    return abs(int(number.value)) or None
            if one.base in ("setp", "add", "sub", "mov", "and", "or", "cvt"):
                wanted += [other for other in sources if other not in wanted]
    return None
