"""``wattcast judge``: whether a candidate is better than a reference, in one line of JSON."""

from __future__ import annotations

import typer

from wattcast.app.cli import inputs
from wattcast.app.cli.exits import Exit
from wattcast.app.cli.output import predictor, show
from wattcast.predictor.messages.judge import JudgeRequest


class LeastOptions(inputs.Options):
    """What a candidate has to reach."""

    panel = inputs.OWN
    members = inputs.fields(JudgeRequest, "min_speedup", "min_saving")


def judge(
    reference: inputs.Ptx,
    candidate: inputs.Ptx,
    on: inputs.OnGpu,
    launch: inputs.LaunchOptions,
    new: inputs.NewOptions,
    least: LeastOptions,
    models: inputs.PhysicalOptions,
    brief: inputs.Brief = False,
) -> None:
    """Judge a candidate beside its reference; exit with 3 if it is refused."""
    from wattcast.predictor.judge import judge as run

    sides = new.sides(launch, reference, candidate, ("reference", "candidate"))
    answer = run(predictor(), inputs.request(JudgeRequest, sides, on, models, least))
    if brief:
        show(answer, as_json=True, brief=True)
    else:
        print(answer.json_bytes().decode())
    if not answer.accepted:
        raise typer.Exit(Exit.EXCEEDED)
