"""``wattcast analyze``: what a launch does."""

from __future__ import annotations

from wattcast.app.cli.inputs import AsJson, KernelOptions
from wattcast.app.cli.output import predictor, show


def analyze(launch: KernelOptions, as_json: AsJson = False) -> None:
    """Show what a launch does: loops, memory, occupancy, hot lines."""
    from wattcast.predictor.analyze import analyze as run
    from wattcast.predictor.messages.analyze import AnalyzeRequest

    answer = run(predictor(), AnalyzeRequest.model_validate(launch.body()))
    show(answer, as_json)
