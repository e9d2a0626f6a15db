"""``wattcast sweep``: a kernel at many launch shapes."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from wattcast.app.cli import inputs
from wattcast.app.cli.output import predictor, show


def sweep(
    file: inputs.Ptx,
    gpu: inputs.Gpus,
    launch: inputs.LaunchOptions,
    blocks: str | None = None,
    grids: str | None = None,
    grid_stride: Annotated[bool, typer.Option("--grid-stride")] = False,
    try_registers: str | None = None,
    all_shapes: Annotated[bool, typer.Option("--all-shapes")] = False,
    define: list[str] | None = None,
    *,
    constraints: inputs.Constraints,
    models: inputs.PhysicalOptions,
    brief: inputs.Brief = False,
    as_json: inputs.AsJson = False,
) -> None:
    """Predict launch shapes, GPUs or source variants, and pick the best.

    Tries blocks, grids, register counts and macros. Best by energy, by time and by energy-delay
    product. Shapes that are not shown to compute the same are left out.

    Args:
        blocks: Blocks to try: 64,128 or 16x16,32x8. Default: common sizes.
        grids: Grids to try: 80,160. Default: as many blocks as cover the threads.
        grid_stride: The kernel has a grid-stride loop, so any grid is correct.
        try_registers: Register counts per thread to try: 24,32,40.
        all_shapes: Also shapes that are not shown to compute the same: check before you use one.
        define: Macro of a .cu with values to try: TILE=8,16,32. Repeatable: all combinations.
            --grid and --block may then be formulas: --block TILE,TILE --grid 'ceil(n/TILE),1'.
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
        launch = launch.replaced(grid="1", block="1")
    body: dict[str, Any] = {
        **launch.request(file),
        **formulas,
        **({"gpu": gpu[0]} if len(gpu) == 1 else {"gpus": gpu}),
        "blocks": _shapes("--blocks", blocks),
        "grids": _shapes("--grids", grids),
        "grid_stride": grid_stride,
        "registers": _numbers("--try-registers", try_registers),
        "include_unproven": all_shapes,
        "constraints": constraints.request(),
        **models.request(),
    }
    answer = run(predictor(), SweepRequest.model_validate(body))
    show(answer, as_json, brief=brief)


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
