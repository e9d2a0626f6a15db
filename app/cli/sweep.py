"""``wattcast sweep``: a kernel at many launch shapes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from wattcast.app.cli import inputs
from wattcast.app.cli.output import predictor
from wattcast.predictor.messages import dvfs as messages
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


# ``wattcast dvfs`` and ``counters``: a kernel at many clocks, by its code or its counters.


class PairOptions(inputs.Options):
    """At which clocks."""

    panel = inputs.OWN
    members = inputs.fields(messages.DvfsRequest, "reference")
    clocks: list[str] | None = None
    """Clock pair CORE/MEMORY in MHz. Repeatable. Default: all pairs of the GPU, or its default pair
    under power limits."""

    def body(self, every: str | None = "grid") -> dict[str, Any]:
        """Them; ``every`` stands for none."""
        pairs = [inputs.PAIR.of("--clocks", text) for text in self.clocks or ()]
        return {**super().body(), "clocks": pairs or every}


class CounterOptions(inputs.Options):
    """Of the launch that was profiled."""

    panel = inputs.OWN
    members = inputs.fields(
        messages.MeasuredCounters,
        "kernel",
        "clocks",
        "time_seconds",
        "power_watts",
        under="counters",
    )


def dvfs(
    on: inputs.OnGpu,
    launch: inputs.KernelOptions,
    pairs: PairOptions,
    constraints: inputs.Constraints,
    models: inputs.ScalingOptions,
    power_limit: list[float] | None = None,
) -> messages.DvfsAnswer:
    """Predict many clocks or power limits, and pick the best.

    Prints the scaling, the Pareto set and the best pair or limit under the constraints.

    Args:
        power_limit: Power limit in watts. Repeatable.
    """
    from wattcast.predictor.dvfs import dvfs as run

    where = {
        **pairs.body(None if power_limit else "grid"),
        "power_limit_watts": power_limit or None,
    }
    return run(
        predictor(), inputs.request(messages.DvfsRequest, launch, on, constraints, models, where)
    )


def counters(
    profile: Path,
    on: inputs.OnGpu,
    counted: CounterOptions,
    pairs: PairOptions,
    constraints: inputs.Constraints,
    known: Path | None = None,
) -> messages.CountedAnswer:
    """Predict many clocks from counters measured at one pair.

    Needs no code. Prints the scaling, the Pareto set and the best pair under the constraints.

    Args:
        profile: What ncu --csv, nvprof --csv, dcgmi dmon or dcgm-exporter printed, or a .json file
            of counters by name. - reads standard input.
        known: JSON list of measurements at other pairs, as in POST /dvfs.
    """
    from wattcast.predictor.counted import dvfs_from_counters

    as_values = profile.suffix == ".json"
    read = {
        "values": inputs.read_json(profile) if as_values else None,
        "profile": None if as_values else inputs.read_text(profile),
    }
    told = {"counters": read, "known": inputs.known(known)}
    asked = inputs.request(messages.CountedRequest, on, counted, told, pairs, constraints)
    return dvfs_from_counters(predictor(), asked)
