"""``wattcast predict``: power, time and energy of a kernel launch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import typer

from wattcast.app.cli import inputs
from wattcast.app.cli.output import Shown, predictor
from wattcast.predictor.messages.predict import PredictAnswer, PredictAnswers, PredictRequest


def predict(
    on: inputs.OnGpus,
    launch: inputs.KernelOrWork,
    models: inputs.ModelOptions,
    explain: bool = False,
    details: bool = False,
    registry: bool = True,
    open_: Annotated[bool, typer.Option("--open")] = False,
) -> Shown[PredictAnswer | PredictAnswers]:
    """Predict the power, time and energy of a kernel launch.

    Args:
        explain: Also print SHAP contributions.
        details: Also print each unit's share of its peak.
        registry: Use the models promoted in the service's database, if any.
        open_: Show the answer in the page of the service running here.
    """
    from wattcast.predictor.predict import predict as run

    body = inputs.body_of(launch, on, models, details=details, explain="shap" if explain else None)
    answer = run(predictor(registry=registry), PredictRequest.model_validate(body))
    return Shown(answer, then=partial(_open, body) if open_ else None)


def _open(body: Mapping[str, Any]) -> None:
    from wattcast.app.cli.page import links, show_in_browser

    found = links(body)
    for link in found:
        inputs.progress(f"page: {link}")
    show_in_browser(found[0])
