"""``wattcast dvfs``: a kernel at many clocks and power limits."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from wattcast.app.cli import inputs
from wattcast.app.cli.output import Answer, costs, line, plain_table, predictor, show, warnings
from wattcast.app.cli.predict import megahertz
from wattcast.models.estimate import quantity


@inputs.with_options
def dvfs(
    launch: inputs.KernelOptions,
    clocks: Annotated[
        list[str] | None,
        typer.Option(
            help="Clock pair CORE/MEMORY in MHz. Repeatable. Default: all pairs of the GPU, or "
            "its default pair under power limits."
        ),
    ] = None,
    power_limit: Annotated[
        list[float] | None, typer.Option(help="Power limit in watts. Repeatable.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="Clock pair that ratios refer to. Default: the highest.")
    ] = None,
    *,
    constraints: inputs.Constraints,
    time_model: inputs.TimeModel = "auto",
    model: inputs.PowerModel = "physical",
    as_json: inputs.AsJson = False,
) -> None:
    """Predict many clocks or power limits, and pick the best.

    Prints the scaling, the Pareto set and the best pair or limit under the constraints.
    """
    from wattcast.predictor.dvfs import dvfs as run
    from wattcast.predictor.messages.dvfs import DvfsRequest

    every = None if power_limit else "grid"
    body = {
        **launch.body(),
        "clocks": [inputs.pair_request("--clocks", text) for text in clocks or ()] or every,
        "power_limit_watts": power_limit or None,
        "reference": inputs.pair_request("--reference", reference) if reference else None,
        "constraints": asdict(constraints),
        "time_model": time_model,
        "model": model,
    }
    answer = run(predictor(), DvfsRequest.model_validate(body))
    show(answer, as_json, _report)


def _report(out: Console, answer: Answer) -> None:
    """A kernel at many clocks: every pair beside the reference, then the best ones."""
    out.print(
        Text.assemble((answer["kernel"]["demangled"], "bold"), " on ", (answer["gpu"], "bold"))
    )
    base = answer["reference"]
    line(out, f"reference {megahertz(base)}: {', '.join(costs(base))}")
    quantities = ("time", "power", "energy")
    headings = ("core/memory MHz", "limit", "runs at", *quantities)
    table = plain_table(*headings, *(f"x {name}" for name in quantities), justify="right")
    table.add_column("")
    for point in answer["points"]:
        scale = point["scale"]
        table.add_row(
            megahertz(point, unit=False),
            quantity(point["power_limit_watts"], "W"),
            f"{point['runs_at_core_mhz']:g}",
            *costs(point),
            *(f"{scale[name]:.3f}" for name in quantities),
            _marks(point),
        )
    out.print(table)
    for name, best in answer["best"].items():
        line(
            out,
            f"{name.replace('_', ' ')}: {megahertz(best)} under {best['power_limit_watts']:g} W, "
            f"{best['time_penalty_percent']:+.1f} % time, "
            f"{-best['energy_saved_percent']:+.1f} % energy",
        )
    warnings(out, answer["warnings"])


def _marks(point: Answer) -> str:
    marks = ("pareto", point["pareto"]), ("extrapolated", point["extrapolated"])
    told = [name for name, holds in marks if holds]
    return ", ".join(told if point["feasible"] else [*told, "infeasible"])
