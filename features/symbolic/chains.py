"""Dependent chains: how much of a basic block could run at the same time.

Instructions of a block form a graph of reads after writes; text order is a topological order
of it, so longest paths are found in one pass (linear in instructions and edges).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from wattcast.features.cfg import ControlFlowGraph
from wattcast.features.dataflow import block_edges
from wattcast.features.ptx.ir import Body

Latency = Callable[[str], float]
"""Cycles from an opcode's issue until its result can be used."""


class BlockChain(NamedTuple):
    """One basic block's dependences, by registers; memory is not followed.

    ``longest_chain``: instructions on the longest path. ``ilp``: instructions over that, 1 for
    a single chain. ``cycles``: the path of greatest latency, ``None`` without a latency table.
    """

    block: int
    instructions: int
    longest_chain: int
    ilp: float
    cycles: float | None


def dependent_chains(
    body: Body, cfg: ControlFlowGraph, latency: Latency | None = None
) -> tuple[BlockChain, ...]:
    """The longest dependent chain of every block, in block order.

    ``latency`` gives cycles by opcode (no predicate); an empty block has chain 0 and ILP 0.
    """
    found = []
    for block in cfg.blocks:
        count = block.end - block.start
        depth = [1] * count
        cycles = [0.0] * count
        if latency is not None:
            cycles = [latency(one.opcode) for one in body.instructions[block.start : block.end]]
        own = cycles.copy()
        # Edges come sorted by reader, so a writer's path is complete when it is read.
        for writer, reader in block_edges(body, block):
            source, target = writer - block.start, reader - block.start
            if depth[source] >= depth[target]:
                depth[target] = depth[source] + 1
            if cycles[source] + own[target] > cycles[target]:
                cycles[target] = cycles[source] + own[target]
        longest = max(depth, default=0)
        found.append(
            BlockChain(
                block.index,
                count,
                longest,
                count / longest if longest else 0.0,
                max(cycles, default=0.0) if latency is not None else None,
            )
        )
    return tuple(found)
