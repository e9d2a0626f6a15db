"""``wattcast predict``: power, time and energy of a kernel launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from wattcast.app.cli import inputs
from wattcast.app.cli.output import predictor, show


def predict(
    gpu: inputs.Gpus,
    launch: inputs.LaunchOptions,
    file: inputs.MaybePtx = None,
    work: inputs.Work = None,
    known: inputs.Known = None,
    *,
    models: inputs.ModelOptions,
    explain: Annotated[bool, typer.Option("--explain")] = False,
    details: Annotated[bool, typer.Option("--details")] = False,
    registry: bool = True,
    open_: Annotated[bool, typer.Option("--open")] = False,
    brief: inputs.Brief = False,
    as_json: inputs.AsJson = False,
) -> None:
    """Predict the power, time and energy of a kernel launch.

    Args:
        explain: Also print SHAP contributions.
        details: Also print each unit's share of its peak.
        registry: Use the models promoted in the service's database, if any.
        open_: Show the answer in the page of the service running here.
    """
    from wattcast.predictor.messages.predict import PredictRequest
    from wattcast.predictor.predict import predict as run

    body: dict[str, Any] = {
        **launch.request_or_work(file, work),
        "known": inputs.known_request(known),
        **({"gpu": gpu[0]} if len(gpu) == 1 else {"gpus": gpu}),
        **models.request(),
        "explain": "shap" if explain else None,
        "details": details,
    }
    answer = run(predictor(registry=registry), PredictRequest.model_validate(body))
    show(answer, as_json, brief=brief)
    if open_:
        _open(body)


def _open(body: Mapping[str, Any]) -> None:
    from wattcast.app.cli.page import links, show_in_browser

    found = links(body)
    for link in found:
        inputs.progress(f"page: {link}")
    show_in_browser(found[0])
