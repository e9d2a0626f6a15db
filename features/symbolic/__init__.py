"""Symbolic analysis: what a launch does, worked out without running it.

build.py      values of a function as a shared graph (features/values.py), once per
              function; scheme.py the types, and what instructions compute
plan.py       regions, exits, where paths meet, whether warps stay together
sample.py     which blocks of the launch are looked at
walk.py       who reaches each block; rounds.py loops
evaluate.py   values of the sampled lanes; arith.py their arithmetic, and numbers of many launches
              that are walked as one
accesses.py   sectors and bank conflicts; counting.py warps and lanes
forms.py      addresses as sums of multiples; footprints.py reuse that follows from them
report.py     totals and reasons of what the walk noted; results.py their types
analyse.py    the entrance
"""

from wattcast.features.symbolic.analyse import (
    analyse_symbolically,
    analyse_together,
    knowable,
)
from wattcast.features.symbolic.results import (
    AccessInfo,
    BranchInfo,
    SampledBlocks,
    SymbolicResult,
    TripInfo,
    refused,
)

__all__ = [
    "AccessInfo",
    "BranchInfo",
    "SampledBlocks",
    "SymbolicResult",
    "TripInfo",
    "analyse_symbolically",
    "analyse_together",
    "knowable",
    "refused",
]
