"""``wattcast dvfs`` and ``counters``: a kernel at many clocks, by its code or its counters."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

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
    model: inputs.ScalingModel = "physical",
    board: inputs.Board = None,
    as_json: inputs.AsJson = False,
) -> None:
    """Predict many clocks or power limits, and pick the best.

    Prints the scaling, the Pareto set and the best pair or limit under the constraints.
    """
    from wattcast.predictor.dvfs import dvfs as run
    from wattcast.predictor.messages.dvfs import DvfsRequest

    body = {
        **launch.body(),
        **_where(clocks, reference, constraints, every=None if power_limit else "grid"),
        "power_limit_watts": power_limit or None,
        "time_model": time_model,
        "model": model,
        "board": board,
    }
    answer = run(predictor(), DvfsRequest.model_validate(body))
    show(answer, as_json, _report)


@inputs.with_options
def counters(
    profile: Annotated[
        Path,
        typer.Argument(
            help="What ncu --csv, nvprof --csv, dcgmi dmon or dcgm-exporter printed, or a .json "
            "file of counters by name. - reads standard input."
        ),
    ],
    gpu: inputs.Gpu,
    kernel: Annotated[
        str | None, typer.Option(help="Kernel, by name or part of it, if PROFILE has several.")
    ] = None,
    counted_at: Annotated[
        str | None,
        typer.Option(help="Clock pair CORE/MEMORY in MHz of the profile. Default: the GPU's."),
    ] = None,
    time_seconds: Annotated[
        float | None, typer.Option(help="Time of the launch there, if PROFILE does not tell it.")
    ] = None,
    power_watts: Annotated[float | None, typer.Option(help="Measured power there.")] = None,
    known: Annotated[
        Path | None,
        typer.Option(help="JSON list of measurements at other pairs, as in POST /dvfs."),
    ] = None,
    clocks: Annotated[
        list[str] | None,
        typer.Option(help="Clock pair CORE/MEMORY in MHz. Repeatable. Default: all pairs."),
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="Clock pair that ratios refer to. Default: the highest.")
    ] = None,
    *,
    constraints: inputs.Constraints,
    as_json: inputs.AsJson = False,
) -> None:
    """Predict many clocks from counters measured at one pair.

    Needs no code. Prints the scaling, the Pareto set and the best pair under the constraints.
    """
    from wattcast.predictor.counted import dvfs_from_counters
    from wattcast.predictor.messages.counted import CountedRequest

    as_values = profile.suffix == ".json"
    counted = {
        "values": inputs.read_json(profile) if as_values else None,
        "profile": None if as_values else inputs.read_text(profile),
        "kernel": kernel,
        "clocks": inputs.pair_request("--counted-at", counted_at) if counted_at else {},
        "time_seconds": time_seconds,
        "power_watts": power_watts,
    }
    body = {
        "gpu": gpu,
        "counters": counted,
        "known": inputs.known_request(known),
        **_where(clocks, reference, constraints, every="grid"),
    }
    answer = dvfs_from_counters(predictor(), CountedRequest.model_validate(body))
    show(answer, as_json, _counted_report)


def _where(
    clocks: list[str] | None,
    reference: str | None,
    constraints: inputs.Constraints,
    every: str | None,
) -> dict[str, Any]:
    """The part of a request that names clocks and constraints."""
    return {
        "clocks": [inputs.pair_request("--clocks", text) for text in clocks or ()] or every,
        "reference": inputs.pair_request("--reference", reference) if reference else None,
        "constraints": asdict(constraints),
    }


def _counted_report(out: Console, answer: Answer) -> None:
    """The same from counters: scales with their intervals, then the best pairs."""
    model = answer["model"]
    head = Text.assemble((answer["kernel"] or "kernel", "bold"), " on ", (answer["gpu"], "bold"))
    out.print(head)
    uses = ", ".join(f"{unit} {share:.0%}" for unit, share in answer["uses"].items())
    line(out, f"{model['counters']} counters at {megahertz(answer['counted_at'])}, busy {uses}")
    line(out, f"scales against {megahertz(answer['reference'])}, by {model['campaign']}")
    headings = ("core/memory MHz", "x time", "interval", "x power", "interval", "x energy")
    table = plain_table(*headings, justify="right")
    table.add_column("")
    for point in answer["points"]:
        scale = point["scale"]
        cells = [megahertz(point, unit=False)]
        for name in ("time", "power"):
            told = scale[name] is not None
            ends = f"{scale[name + '_low']:.2f} .. {scale[name + '_high']:.2f}" if told else ""
            cells += [f"{scale[name]:.3f}" if told else "-", ends]
        energy = "-" if scale["energy"] is None else f"{scale['energy']:.3f}"
        table.add_row(*cells, energy, _marks(point))
    out.print(table)
    for name, best in answer["best"].items():
        line(
            out,
            f"{name.replace('_', ' ')}: {megahertz(best)}, {best['time_penalty_percent']:+.1f} % "
            f"time, {-best['energy_saved_percent']:+.1f} % energy",
        )
    warnings(out, answer["warnings"])


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
