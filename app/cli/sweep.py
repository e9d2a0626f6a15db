"""``wattcast sweep``: a kernel at many launch shapes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from wattcast.app.cli import inputs, output
from wattcast.predictor.messages import dvfs as messages
from wattcast.predictor.messages import language_model, operators
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
    formulas = {}
    if define:
        shape = {"grid_formula": _formulas(launch.grid), "block_formula": _formulas(launch.block)}
        formulas = {"defines": _macros(define), **shape}
        launch = launch.replaced(grid="1", block="1")
    return inputs.ask(SweepRequest, launch, formulas, on, shapes, constraints, models)


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


class CountedOptions(inputs.Options):
    """Of the launch that was profiled."""

    panel = "Counters"
    members = inputs.fields(
        messages.MeasuredCounters, "clocks", "time_seconds", "power_watts", under="counters"
    )


class CounterOptions(CountedOptions):
    """The same, and which of several kernels it is."""

    panel = inputs.OWN
    members = CountedOptions.members | inputs.fields(
        messages.MeasuredCounters, "kernel", under="counters"
    )


class WorkOptions(inputs.Options):
    """What a language model is asked to do."""

    panel = "Language model"
    members = inputs.scalars(language_model.LanguageModelWork, under="language_model")


def dvfs(
    on: inputs.OnGpu,
    launch: inputs.KernelOrOther,
    pairs: PairOptions,
    constraints: inputs.Constraints,
    models: inputs.ScalingOptions,
    counted: CountedOptions,
    work: WorkOptions,
    power_limit: list[float] | None = None,
    known: Path | None = None,
    code: list[Path] | None = None,
) -> messages.DvfsAnswers:
    """Predict many clocks or power limits, and pick the best.

    Of a kernel's code or its counters, of a library operator, a language model or a whole trace.
    Prints the scaling, the Pareto set and the best pair or limit under the constraints.

    Args:
        power_limit: Power limit in watts. Repeatable.
        known: With counters: JSON list of measurements at other pairs, as in POST /dvfs.
        code: With a trace: folder or file with PTX of its kernels. Repeatable.
    """
    limits = {"power_limit_watts": power_limit} if power_limit else {}
    told, file = launch.holds(), launch.file
    if told == "kernel":
        where = {**pairs.body(None if power_limit else "grid"), **limits}
        return inputs.ask(messages.DvfsRequest, launch, on, constraints, models, where)
    if told == "counters":
        name = CounterOptions.model_construct(**counted.given, kernel=launch.given.get("kernel"))
        return counters(file, on, name, pairs, constraints, known)
    if told == "operator":
        chosen = {"operator": inputs.read_json(file), **limits}
        return inputs.ask(operators.OperatorDvfsRequest, on, constraints, chosen)
    if told == "language_model":
        config = inputs.read_json(file / "config.json" if file.is_dir() else file)
        told_of = {"language_model": {"config": config}, **limits}
        return inputs.ask(language_model.LanguageModelDvfsRequest, on, constraints, work, told_of)
    from wattcast.predictor.application import dvfs_of_trace
    from wattcast.predictor.messages.application import TraceClocks
    from wattcast.predictor.traces import read_trace
    from wattcast.predictor.traces.code import library

    at = pairs.body(None).get("clocks") or [None]
    ran = {"clocks": at[0]} if at[0] else {}
    of_trace = inputs.request(TraceClocks, on, constraints, ran, limits)
    return dvfs_of_trace(output.predictor(), read_trace(file), of_trace, library(code or []))


def counters(
    profile: Path,
    on: inputs.OnGpu,
    counted: CounterOptions,
    pairs: PairOptions,
    constraints: inputs.Constraints,
    known: Path | None = None,
) -> messages.CountedAnswer:
    """Predict many clocks from counters measured at one pair.

    Needs no code. Another name of wattcast dvfs PROFILE. Prints the scaling, the Pareto set and
    the best pair under the constraints.

    Args:
        profile: What ncu --csv, nvprof --csv, dcgmi dmon or dcgm-exporter printed, or a .json file
            of counters by name. - reads standard input.
        known: JSON list of measurements at other pairs, as in POST /dvfs.
    """
    as_values = profile.suffix == ".json"
    read = {
        "values": inputs.read_json(profile) if as_values else None,
        "profile": None if as_values else inputs.read_text(profile),
    }
    told = {"counters": read, "known": inputs.known(known)}
    return inputs.ask(messages.CountedRequest, on, counted, told, pairs, constraints)
