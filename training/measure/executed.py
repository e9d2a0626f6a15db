"""What a workload does, by the executed analysis of its PTX."""

from __future__ import annotations

from functools import lru_cache

from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.errors import AnalysisError
from wattcast.features.gpus import GpuProfile
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Module
from wattcast.training.measure.workload import Pattern, Workload

TIME_CAP_SECONDS = 600.0
"""Far more than a workload of ours takes: a fit must not depend on how busy the machine is."""


def executed(workload: Workload, gpu: GpuProfile, pattern: Pattern = "uniform") -> KernelAnalysis:
    """Analysis of one launch. Raises PtxError, KernelError, LaunchError, and AnalysisError where
    the kernel could not be run to its end."""
    analysis = analyse(
        _module(workload.ptx),
        workload.kernel,
        workload.launch(pattern),
        gpu,
        analysis="executed",
        time_cap_seconds=TIME_CAP_SECONDS,
    )
    for one in analysis.activity_diagnostics:
        if one.code == "execution_cut_short":
            raise AnalysisError(one.detail, analysis="executed")
    return analysis


@lru_cache(maxsize=256)
def _module(ptx: str) -> Module:
    return read_module(ptx)
