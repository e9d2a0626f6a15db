"""``wattcast advise``: what to change about a launch."""

from __future__ import annotations

import typer

from wattcast.app.cli.inputs import ClockOptions, KernelOptions, OnGpu, request
from wattcast.app.cli.output import Shown, predictor
from wattcast.predictor.messages.advise import AdviceAnswer
from wattcast.predictor.messages.predict import PredictRequest


def advise(
    on: OnGpu, launch: KernelOptions, clocks: ClockOptions, patch: bool = False
) -> Shown[AdviceAnswer]:
    """Suggest changes to a launch and estimate what each saves.

    Args:
        patch: Also change the lines of a .cu file where that is safe and saves energy, as diffs.
    """
    from wattcast.predictor.advise import advise as run

    asked = request(PredictRequest, launch, on, clocks)
    if patch and asked.cuda is None:
        raise typer.BadParameter("--patch changes lines of CUDA source: give a .cu file")
    answer = run(predictor(), asked, patch=launch.file.name if patch else None)
    return Shown(answer, file=launch.file)
