"""``wattcast sweep``: a kernel at many launch shapes."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from wattcast.app.cli import inputs
from wattcast.app.cli.output import Answer, costs, line, plain_table, predictor, show, warnings

MOST_LINES = 40
"""Points shown to people; --json prints all."""

MOST_REASONS = 8
"""Shapes left out that are listed with the reason; --json prints all."""


@inputs.with_options
def sweep(
    file: inputs.Ptx,
    gpu: inputs.Gpus,
    launch: inputs.LaunchOptions,
    blocks: Annotated[
        str | None,
        typer.Option(help="Blocks to try: 64,128 or 16x16,32x8. Default: common sizes."),
    ] = None,
    grids: Annotated[
        str | None,
        typer.Option(help="Grids to try: 80,160. Default: as many blocks as cover the threads."),
    ] = None,
    grid_stride: Annotated[
        bool,
        typer.Option(
            "--grid-stride", help="The kernel has a grid-stride loop, so any grid is correct."
        ),
    ] = False,
    try_registers: Annotated[
        str | None, typer.Option(help="Register counts per thread to try: 24,32,40.")
    ] = None,
    all_shapes: Annotated[
        bool,
        typer.Option(
            "--all-shapes",
            help="Also shapes that are not shown to compute the same: check before you use one.",
        ),
    ] = False,
    define: Annotated[
        list[str] | None,
        typer.Option(
            help="Macro of a .cu with values to try: TILE=8,16,32. Repeatable: all combinations. "
            "--grid and --block may then be formulas: --block TILE,TILE --grid 'ceil(n/TILE),1'."
        ),
    ] = None,
    *,
    constraints: inputs.Constraints,
    models: inputs.PhysicalOptions,
    as_json: inputs.AsJson = False,
) -> None:
    """Predict launch shapes, GPUs or source variants, and pick the best.

    Tries blocks, grids, register counts and macros. Best by energy, by time and by energy-delay
    product. Shapes that are not shown to compute the same are left out.
    """
    from wattcast.predictor.messages.sweep import SweepRequest
    from wattcast.predictor.sweep import sweep as run

    formulas: dict[str, Any] = {}
    if define:
        formulas = {
            "defines": _macros(define),
            "grid_formula": _formulas(launch.grid),
            "block_formula": _formulas(launch.block),
        }
        launch = replace(launch, grid="1", block="1")
    body: dict[str, Any] = {
        **launch.request(file),
        **formulas,
        **({"gpu": gpu[0]} if len(gpu) == 1 else {"gpus": gpu}),
        "blocks": _shapes("--blocks", blocks),
        "grids": _shapes("--grids", grids),
        "grid_stride": grid_stride,
        "registers": _numbers("--try-registers", try_registers),
        "include_unproven": all_shapes,
        "constraints": asdict(constraints),
        **models.request(),
    }
    answer = run(predictor(), SweepRequest.model_validate(body))
    show(answer, as_json, report)


def _shapes(option: str, text: str | None) -> list[list[int]] | None:
    if text is None:
        return None
    with inputs.expected(option, text, "shapes separated by commas, as in 64,128 or 16x16"):
        return [[int(size) for size in shape.split("x")] for shape in text.split(",")]


def _numbers(option: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    with inputs.expected(option, text, "whole numbers separated by commas, as in 24,32"):
        return [int(number) for number in text.split(",")]


def _macros(given: list[str]) -> dict[str, list[int | str]]:
    """``TILE=8,16,32``: a macro and its values, numbers where they are."""
    found: dict[str, list[int | str]] = {}
    for text in given:
        name, equals, values = text.partition("=")
        with inputs.expected("--define", text, "NAME=VALUE,VALUE, as in TILE=8,16,32"):
            if not (equals and name.isidentifier() and all(values.split(","))):
                raise ValueError
            found[name] = [
                int(value) if value.lstrip("-").isdecimal() else value
                for value in values.split(",")
            ]
    return found


def _formulas(text: str) -> list[str]:
    """``TILE,2*TILE`` or ``16x16``, taken apart at commas that stand in no parentheses."""
    if re.fullmatch(r"[0-9x]+", text):
        return text.split("x")
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def report(out: Console, answer: Answer) -> None:
    """What may be another program, the cheapest points beside the reference, the best by each
    objective, the Pareto set, what is left out and what is refused."""
    out.print(Text(answer["kernel"]["demangled"], "bold"))
    first = ("block_size_in_code", "variants_not_compared")
    doubts = [each for each in answer["warnings"] if each["code"] in first]
    warnings(out, doubts)
    base = answer["reference"]
    line(out, f"reference {_named(base)}: {', '.join(costs(base))}")
    table = plain_table("shape")
    for heading in ("occupancy", "waves", "time", "power", "energy", "saved"):
        table.add_column(heading, justify="right")
    table.add_column("")
    points = sorted(answer["points"], key=lambda point: point["energy"]["joules"])
    for point in points[:MOST_LINES]:
        table.add_row(
            _named(point),
            f"{point['occupancy']:.0%}",
            f"{point['waves']:g}",
            *costs(point),
            f"{point['energy_saved_percent']:+.1f} %",
            _marks(point),
        )
    out.print(table)
    if len(points) > MOST_LINES:
        line(out, f"and {len(points) - MOST_LINES} more (--json shows all)")
    for name, best in answer["best"].items():
        change = (
            f"no difference (the model tells {answer['resolution_percent']:g} % apart)"
            if best["no_difference"]
            else f"{_named(best)}, {-best['time_saved_percent']:+.1f} % time, "
            f"{-best['energy_saved_percent']:+.1f} % energy"
        )
        line(out, f"{name.replace('_', ' ')}: {change}")
    line(out, "Pareto set of time and energy: " + ", then ".join(map(_named, answer["pareto"])))
    for shape in answer["infeasible"]:
        line(out, f"not {_named(shape)}: {shape['reason']}")
    for shape in answer["left_out"][:MOST_REASONS]:
        line(out, f"left out {_named(shape)}: {shape['reason']}")
    if answer["left_out"]:
        more = len(answer["left_out"]) - MOST_REASONS
        rest = f"and {more} more are left out. " if more > 0 else ""
        line(out, f"{rest}--all-shapes predicts shapes that are not shown to compute the same")
    warnings(out, [each for each in answer["warnings"] if each not in doubts])


def _named(shape: Answer) -> str:
    registers = shape["registers_per_thread"]
    capped = "" if registers is None else f", {registers} registers"
    macros = ", ".join(f"{name}={value}" for name, value in (shape["defines"] or {}).items())
    launch = f"{_dims(shape['grid'])} blocks of {_dims(shape['block'])}" if shape["grid"] else ""
    return " ".join(filter(None, (shape["gpu"], macros and f"{macros}:", launch))) + capped


def _dims(sizes: list[int]) -> str:
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes = sizes[:-1]
    return "x".join(str(size) for size in sizes)


def _marks(point: Answer) -> str:
    marks = (
        ("pareto", point["pareto"]),
        ("spills", point["spills"]),
        ("not shown the same", point["unproven"] is not None),
    )
    told = [name for name, holds in marks if holds]
    return ", ".join(told if point["feasible"] else [*told, "breaks a constraint"])
