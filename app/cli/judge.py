"""``wattcast judge``: whether a candidate is better than a reference, in one line of JSON."""

from __future__ import annotations

from typing import Any

import typer

from wattcast.app.cli import inputs
from wattcast.app.cli.exits import Exit
from wattcast.app.cli.output import predictor, show


def judge(
    reference: inputs.Ptx,
    candidate: inputs.Ptx,
    gpu: inputs.Gpu,
    launch: inputs.LaunchOptions,
    new: inputs.NewOptions,
    min_speedup: float | None = None,
    min_saving: float | None = None,
    *,
    models: inputs.PhysicalOptions,
    brief: inputs.Brief = False,
) -> None:
    """Judge a candidate beside its reference; exit with 3 if it is refused.

    Args:
        min_speedup: Refuse a candidate that is less than so many times as fast: 1.05.
        min_saving: Refuse a candidate that saves less than so many percent of the energy.
    """
    from wattcast.predictor.judge import judge as run
    from wattcast.predictor.messages.judge import JudgeRequest

    options = models.request()
    time_model = options.pop("time_model")
    sides = new.sides(launch, reference, candidate, time_model)
    body: dict[str, Any] = {
        **dict(zip(("reference", "candidate"), sides, strict=True)),
        **options,
        "gpu": gpu,
        "min_speedup": min_speedup,
        "min_saving": min_saving,
    }
    answer = run(predictor(), JudgeRequest.model_validate(body))
    if brief:
        show(answer, as_json=True, brief=True)
    else:
        print(answer.json_bytes().decode())
    if not answer.accepted:
        raise typer.Exit(Exit.EXCEEDED)
