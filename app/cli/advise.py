"""``wattcast advise``: what to change about a launch."""

from __future__ import annotations

from wattcast.app.cli import inputs
from wattcast.app.cli.output import predictor, show


def advise(
    launch: inputs.KernelOptions,
    core_mhz: inputs.CoreMhz = None,
    memory_mhz: inputs.MemoryMhz = None,
    as_json: inputs.AsJson = False,
) -> None:
    """Suggest changes to a launch and estimate what each saves."""
    from wattcast.predictor.advise import advise as run
    from wattcast.predictor.messages.predict import PredictRequest

    body = {**launch.body(), "clocks": inputs.clock_request(core_mhz, memory_mhz)}
    answer = run(predictor(), PredictRequest.model_validate(body))
    show(answer, as_json)
