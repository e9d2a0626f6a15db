"""What a workload does, by the executed analysis of its PTX."""

from __future__ import annotations

from functools import lru_cache

from features.analysis import KernelAnalysis, analyse
from features.gpus import GpuProfile
from features.ptx import read_module
from features.ptx.ir import Module
from training.measure.workload import Pattern, Workload


def executed(workload: Workload, gpu: GpuProfile, pattern: Pattern = "uniform") -> KernelAnalysis:
    """Analysis of one launch. Raises PtxError, KernelError, LaunchError."""
    return analyse(
        _module(workload.ptx), workload.kernel, workload.launch(pattern), gpu, analysis="executed"
    )


@lru_cache(maxsize=256)
def _module(ptx: str) -> Module:
    return read_module(ptx)
