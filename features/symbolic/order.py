"""Do the lanes of a warp stay together as the walk supposes?

Warps run at the smallest program counter. The walk counts one execution of a block for all
lanes of a warp that come to it in one iteration, which is right if code lies in the order it
runs in. Here are the exceptions: blocks out of order, lanes that run ahead while others wait
at a barrier. Counts of warps they may falsify are marked; counts of lanes are right anyway.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.launch import WARP_SIZE
from wattcast.features.ptx.ir import Immediate, Instruction
from wattcast.features.symbolic.each import Layout
from wattcast.features.symbolic.scheme import Scheme

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
    tidy = tidy and all(len(loop.back_edges) == 1 for loop in forest.loops)
    return Order(waits, tidy and _in_one_piece(scheme), frozenset(ends))


def _in_one_piece(scheme: Scheme) -> bool:
    """Walking the text, loops open and close like brackets."""
    forest = scheme.forest
    open_until: list[tuple[int, int]] = []  # loop, its latch
    headers = {loop.header: loop for loop in forest.loops}
    for block in range(len(scheme.cfg.blocks)):
        while open_until and block > open_until[-1][1]:
            open_until.pop()
        loop = headers.get(block)
        if loop is not None:
            open_until.append((loop.index, loop.back_edges[0][0]))
        inside = open_until[-1][0] if open_until else -1
        if forest.innermost[block] != inside and block in scheme.cfg.reachable:
            return False
    return True


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
        self.doubtful_from = len(scheme.cfg.blocks)
        self.waited: list[tuple[int, Mask]] = []
        self.doubtful: set[int] = set()

    def _doubt(self, block: int) -> None:
        loops = self.scheme.forest.loops
        inner = self.scheme.forest.innermost[block]
        while inner >= 0:
            block = min(block, loops[inner].header)
            parent = loops[inner].parent
            inner = parent if parent is not None else -1
        self.doubtful_from = min(self.doubtful_from, block)

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

    def parted(self, taken: Mask, other: Mask) -> None:
        """A branch was taken by some lanes: does it part a warp where order matters?"""
        if self.order.tidy or not self.doubtful_from:
            return
        rows = max(taken.shape[0], other.shape[0])
        sides = [
            np.broadcast_to(part, (rows, part.shape[1])).reshape(rows, -1, WARP_SIZE).any(axis=2)
            for part in (taken, other)
        ]
        if self.layout.any(sides[0] & sides[1], WARP_SIZE):
            self.doubtful_from = 0

    def guessed(self) -> None:
        """A branch went both ways by guess."""
        if not self.order.tidy:
            self.doubtful_from = 0

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
