"""``wattcast advise``: what to change about a launch."""

from __future__ import annotations

from typing import Annotated

import typer

from wattcast.app.cli import inputs
from wattcast.app.cli.output import predictor, show


def advise(
    launch: inputs.KernelOptions,
    core_mhz: inputs.CoreMhz = None,
    memory_mhz: inputs.MemoryMhz = None,
    patch: Annotated[bool, typer.Option("--patch")] = False,
    brief: inputs.Brief = False,
    sarif: inputs.Sarif = False,
    as_json: inputs.AsJson = False,
) -> None:
    """Suggest changes to a launch and estimate what each saves.

    Args:
        patch: Also change the lines of a .cu file where that is safe and saves energy, as diffs.
    """
    from wattcast.predictor.advise import advise as run
    from wattcast.predictor.messages.predict import PredictRequest

    body = {**launch.body(), "clocks": inputs.clock_request(core_mhz, memory_mhz)}
    if patch and "cuda" not in body:
        raise typer.BadParameter("--patch changes lines of CUDA source: give a .cu file")
    file = launch.file.name if patch else None
    answer = run(predictor(), PredictRequest.model_validate(body), patch=file)
    show(answer, as_json, brief=brief, sarif=launch.file if sarif else None)
