"""``wattcast analyze``: what a launch does."""

from __future__ import annotations

from wattcast.app.cli.inputs import KernelOptions, OnGpu, request
from wattcast.app.cli.output import predictor
from wattcast.predictor.messages.analyze import AnalyzeAnswer, AnalyzeRequest


def analyze(on: OnGpu, launch: KernelOptions) -> AnalyzeAnswer:
    """Show what a launch does: loops, memory, occupancy, hot lines."""
    from wattcast.predictor.analyze import analyze as run

    return run(predictor(), request(AnalyzeRequest, launch, on))
