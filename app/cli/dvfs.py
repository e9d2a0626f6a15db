"""``wattcast dvfs`` and ``counters``: a kernel at many clocks, by its code or its counters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wattcast.app.cli import inputs
from wattcast.app.cli.output import predictor
from wattcast.predictor.messages.counted import CountedAnswer, CountedRequest, MeasuredCounters
from wattcast.predictor.messages.dvfs import DvfsAnswer, DvfsRequest


class PairOptions(inputs.Options):
    """At which clocks."""

    panel = inputs.OWN
    members = inputs.fields(DvfsRequest, "reference")
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
        MeasuredCounters, "kernel", "clocks", "time_seconds", "power_watts", under="counters"
    )


def dvfs(
    on: inputs.OnGpu,
    launch: inputs.KernelOptions,
    pairs: PairOptions,
    constraints: inputs.Constraints,
    models: inputs.ScalingOptions,
    power_limit: list[float] | None = None,
) -> DvfsAnswer:
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
    return run(predictor(), inputs.request(DvfsRequest, launch, on, constraints, models, where))


def counters(
    profile: Path,
    on: inputs.OnGpu,
    counted: CounterOptions,
    pairs: PairOptions,
    constraints: inputs.Constraints,
    known: Path | None = None,
) -> CountedAnswer:
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
    asked = inputs.request(CountedRequest, on, counted, told, pairs, constraints)
    return dvfs_from_counters(predictor(), asked)
