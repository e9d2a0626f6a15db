"""Which blocks are looked at, and how many blocks of the launch each stands for."""

from __future__ import annotations

from collections.abc import Callable

from features.execution.sampling import plan_blocks
from features.launch import WARP_SIZE, Launch
from features.symbolic.results import SampledBlocks
from features.symbolic.scheme import Scheme

ALL_LANES = 8192
"""Launches of up to this many lanes are looked at whole: numpy's time per operation is still
near its minimum."""

Constant = Callable[[str, int, int], "int | None"]


def choose_blocks(scheme: Scheme, launch: Launch, constant: Constant) -> SampledBlocks:
    """Every block of a small launch, else some of each kind."""
    lanes = launch.warps_per_block * WARP_SIZE
    if launch.blocks * lanes <= ALL_LANES:
        blocks = tuple(range(launch.blocks))
        return SampledBlocks(blocks, (1.0,) * launch.blocks, launch.blocks, True)
    plan = plan_blocks(launch)
    weights = tuple(float(w) for w in plan.weights())
    return SampledBlocks(plan.blocks, weights, launch.blocks, plan.complete)
