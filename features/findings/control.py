"""Findings about control flow: branches that split warps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wattcast.features.activity.instructions import InstructionEvents
from wattcast.features.cfg import BasicBlock, post_dominators
from wattcast.features.errors import AnalysisError
from wattcast.features.findings.finding import Difference, Evidence, Finding, place
from wattcast.features.launch import WARP_SIZE

LEAST_SHARE = 0.05
"""Share of its lanes that a warp must lack on average in what a branch guards, to be told."""


def divergent_branches(evidence: Evidence) -> Iterator[Finding]:
    """Conditional branches after which warps run with part of their lanes.

    What a branch guards lies between it and where its sides meet again (its immediate post
    dominator), and inside no narrower branch. Mended, the threads of a warp agree: the same lanes
    fill fewer warps.
    """
    analysis = evidence.analysis
    function, cfg = analysis.function, analysis.cfg
    events = evidence.events[function.name]
    meets = post_dominators(cfg)
    block_of = cfg.block_of
    guarded = {
        branch: _between(cfg.blocks, block_of[branch], meets[block_of[branch]])
        for branch in _divergent(evidence)
    }
    taken: set[int] = set()
    for branch in sorted(guarded, key=lambda at: len(guarded[at])):
        own = guarded[branch] - taken
        taken |= own
        before = _lane_share(events, branch)
        difference = Difference()
        lost = total = 0.0
        for index in sorted(own):
            for one in cfg.instructions(cfg.blocks[index]):
                executed = float(events.warp_executions[one.position])
                # Lanes that were missing already when the branch was reached stay missing.
                full = float(events.active_lanes[one.position]) / (WARP_SIZE * before)
                spare = executed - min(executed, full)
                total += executed
                lost += spare
                if spare:
                    difference.instructions(one.opcode, -spare)
        if not total or lost < LEAST_SHARE * total:
            continue
        yield Finding(
            "divergent_branch",
            (place(function, function.body.instructions[branch]),),
            f"warps split here: what it guards runs with {1 - lost / total:.0%} of the lanes that "
            f"reach the branch, {lost:.4g} warp instructions more than if each warp agreed",
            "let whole warps take one side: branch on blockIdx or on threadIdx / 32, sort the "
            "work, or compute both sides without a branch",
            difference.applied(evidence.activity),
        )


def _divergent(evidence: Evidence) -> list[int]:
    """Positions of conditional branches that are reached, in text order."""
    analysis = evidence.analysis
    try:
        split = {
            branch.position
            for branch in analysis.symbolic.branches
            if branch.known and branch.taken_warps + branch.other_warps <= 1.0
        }
    except AnalysisError:
        split = set()
    events = evidence.events[analysis.function.name]
    return [
        one.position
        for one in analysis.function.body.instructions
        if one.base == "bra"
        and one.predicate is not None
        and one.position not in split
        and events.warp_executions[one.position]
    ]


def _lane_share(events: InstructionEvents, at: int) -> float:
    """Share of a warp's lanes that reach an instruction, its own guard aside.

    A guarded branch counts the lanes that take it; those that reach it are the instruction's
    before it, in the same block.
    """
    reached = events.active_lanes[max(0, at - 1)] / max(events.warp_executions[max(0, at - 1)], 1.0)
    own = events.active_lanes[at] / events.warp_executions[at]
    return float(min(1.0, max(reached, own) / WARP_SIZE)) or 1.0


def _between(blocks: Sequence[BasicBlock], start: int, end: int) -> set[int]:
    """Blocks after ``start`` that are passed before ``end``."""
    found: set[int] = set()
    seen = {start, end}
    waiting = list(blocks[start].successors)
    while waiting:
        index = waiting.pop()
        if index in seen:
            continue
        seen.add(index)
        found.add(index)
        waiting.extend(blocks[index].successors)
    return found
