"""Dependent chains: how much of a basic block could run at the same time.

Instructions of a block form a graph of reads after writes; text order is a topological order
of it, so longest paths are found in one pass (linear in instructions and edges).
"""

from __future__ import annotations

from typing import NamedTuple

from wattcast.features.cfg import ControlFlowGraph
from wattcast.features.dataflow import block_edges
from wattcast.features.ptx.ir import Body


class BlockChain(NamedTuple):
    """One basic block's dependences, by registers; memory is not followed.

    ``longest_chain``: instructions on the longest path. ``ilp``: instructions over that, 1 for
    a single chain.
    """

    block: int
    instructions: int
    longest_chain: int
    ilp: float


def dependent_chains(body: Body, cfg: ControlFlowGraph) -> tuple[BlockChain, ...]:
    """The longest dependent chain of every block, in block order; 0 of an empty one."""
    found = []
    for block in cfg.blocks:
        count = block.end - block.start
        depth = [1] * count
        # Edges come sorted by reader, so a writer's path is complete when it is read.
        for writer, reader in block_edges(body, block):
            source, target = writer - block.start, reader - block.start
            depth[target] = max(depth[target], depth[source] + 1)
        longest = max(depth, default=0)
        ilp = count / longest if longest else 0.0
        found.append(BlockChain(block.index, count, longest, ilp))
    return tuple(found)
