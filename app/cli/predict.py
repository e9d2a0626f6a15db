"""``wattcast predict``: power, time and energy of a kernel launch."""

from __future__ import annotations

import json
import os
import sys
import webbrowser
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import typer

from wattcast.app.cli import exits, inputs, output
from wattcast.app.settings import Settings
from wattcast.predictor.messages.predict import PredictAnswer, PredictAnswers, PredictRequest


def predict(
    on: inputs.OnGpus,
    launch: inputs.KernelOrWork,
    models: inputs.ModelOptions,
    like: inputs.LikeOptions,
    explain: bool = False,
    details: bool = False,
    registry: bool = True,
    open_: Annotated[bool, typer.Option("--open")] = False,
) -> output.Shown[PredictAnswer | PredictAnswers]:
    """Predict the power, time and energy of a kernel launch.

    Args:
        explain: Also print SHAP contributions.
        details: Also print each unit's share of its peak.
        registry: Use the models promoted in the service's database, if any.
        open_: Show the answer in the page of the service running here.
    """
    from wattcast.predictor.predict import predict as run

    body = inputs.body_of(
        launch, on, models, like, details=details, explain="shap" if explain else None
    )
    answer = run(output.predictor(registry=registry), PredictRequest.model_validate(body))
    return output.Shown(answer, then=partial(_open, body) if open_ else None)


def _open(body: Mapping[str, Any]) -> None:

    found = links(body)
    for link in found:
        inputs.progress(f"page: {link}")
    show_in_browser(found[0])


# ``--open``: an answer in the web page of the service that runs on this machine.

LOOK_SECONDS = 2.0
"""How long a service may take to say that it is there."""

ANSWER_SECONDS = 120.0
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}  # noqa: S104 - looked up, not bound


def address(settings: Settings) -> str:
    """Where a service of these settings is reached from this machine."""
    return f"http://{_ANYWHERE.get(settings.host, settings.host)}:{settings.port}"


def running(settings: Settings) -> str | None:
    """The address of a Wattcast that answers there; ``None`` where none does."""
    url = address(settings)
    try:
        with _opener().open(f"{url}/healthz", timeout=LOOK_SECONDS) as answer:
            return url if "version" in json.load(answer) else None
    except (OSError, ValueError, TypeError):
        return None


def links(body: Mapping[str, Any]) -> list[str]:
    """Links to the answers of ``POST /predict`` by the service here, which keeps them.
    Ends the program where no service runs or it refuses."""
    settings = Settings()
    url = running(settings)
    if url is None:
        inputs.fail(
            f"--open: no service runs at {address(settings)}; start one in another terminal with "
            "`wattcast serve` and ask again",
            exits.Exit.NO_ANSWER,
        )
    given = {name: value for name, value in body.items() if value is not None}
    headers = {"Content-Type": "application/json"}
    request = Request(f"{url}/predict", json.dumps(given).encode(), headers)  # noqa: S310
    try:
        with _opener().open(request, timeout=ANSWER_SECONDS) as answered:
            answer = json.load(answered)
    except HTTPError as error:
        inputs.fail(f"--open: the service refused: {_detail(error)}", exits.Exit.NO_ANSWER)
    except OSError as error:
        inputs.fail(f"--open: the service did not answer: {error}", exits.Exit.NO_ANSWER)
    return [f"{url}/?prediction={one['id']}" for one in answer.get("predictions", [answer])]


def show_in_browser(link: str) -> None:
    """Open a link where somebody looks at a screen."""
    if sys.stderr.isatty() and (
        sys.platform == "darwin" or {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"} & os.environ.keys()
    ):
        webbrowser.open(link)


def _opener() -> Any:
    return build_opener(ProxyHandler({}))  # this machine is asked, never a proxy


def _detail(error: HTTPError) -> str:
    try:
        problem = json.loads(error.read())
        return str(problem.get("detail") or problem["title"])
    except (ValueError, KeyError, AttributeError):
        return f"{error.code} {error.reason}"
