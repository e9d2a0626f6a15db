"""Symbolic analysis: what a launch does, worked out without running it.

build.py      values of a function as a shared graph (features/values.py); translate.py opcodes
plan.py       regions, exits, where paths meet; both once per function
sample.py     which blocks of the launch are looked at
walk.py       who reaches each block; rounds.py loops; evaluate.py, arith.py values of lanes
accesses.py   sectors and bank conflicts
report.py     totals and reasons; results.py their types; analyse.py the entrance
chains.py     dependent chains and instruction-level parallelism of blocks
"""

from features.symbolic.analyse import analyse_symbolically
from features.symbolic.results import (
    AccessInfo,
    BranchInfo,
    SampledBlocks,
    SymbolicClass,
    SymbolicCounts,
    SymbolicResult,
    TripInfo,
)

__all__ = [
    "AccessInfo",
    "BranchInfo",
    "SampledBlocks",
    "SymbolicClass",
    "SymbolicCounts",
    "SymbolicResult",
    "TripInfo",
    "analyse_symbolically",
]
