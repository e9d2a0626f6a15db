"""``wattcast sweep``: a kernel at many launch shapes."""

from __future__ import annotations

import re

from wattcast.app.cli import inputs
from wattcast.app.cli.output import predictor
from wattcast.predictor.messages.sweep import SweepAnswer, SweepRequest


class ShapeOptions(inputs.Options):
    """What is tried."""

    panel = inputs.OWN
    members = inputs.fields(
        SweepRequest, "blocks", "grids", "grid_stride", "registers", "include_unproven"
    )


def sweep(
    on: inputs.OnGpus,
    launch: inputs.KernelOptions,
    shapes: ShapeOptions,
    constraints: inputs.Constraints,
    models: inputs.PhysicalOptions,
    define: list[str] | None = None,
) -> SweepAnswer:
    """Predict launch shapes, GPUs or source variants, and pick the best.

    Tries blocks, grids, register counts and macros. Best by energy, by time and by energy-delay
    product. Shapes that are not shown to compute the same are left out.

    Args:
        define: Macro of a .cu with values to try: TILE=8,16,32. Repeatable: all combinations.
            --grid and --block may then be formulas: --block TILE,TILE --grid 'ceil(n/TILE),1'.
    """
    from wattcast.predictor.sweep import sweep as run

    formulas = {}
    if define:
        shape = {"grid_formula": _formulas(launch.grid), "block_formula": _formulas(launch.block)}
        formulas = {"defines": _macros(define), **shape}
        launch = launch.replaced(grid="1", block="1")
    asked = inputs.request(SweepRequest, launch, formulas, on, shapes, constraints, models)
    return run(predictor(), asked)


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
