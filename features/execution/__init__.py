"""Executed analysis: sampled blocks of a launch, run over numpy vectors.

program.py   a kernel and what it calls, compiled once: alu.py, integer.py, floating.py,
             loads.py, atomics.py, warp.py, matrix.py, control.py
machine.py   all threads of the sampled blocks in lockstep: spaces.py, access.py
sampling.py  which blocks, and what they say about the launch; arguments.py what it is given
engine.py    ``execute``, the entrance; summary.py what comes out
"""

from wattcast.features.execution.arguments import assumed_integer, guarding
from wattcast.features.execution.engine import execute
from wattcast.features.execution.sampling import SamplingPlan, plan_blocks
from wattcast.features.execution.summary import ExecutionResult

__all__ = [
    "ExecutionResult", "SamplingPlan", "assumed_integer",
    "execute", "guarding", "plan_blocks",
]  # fmt: skip
