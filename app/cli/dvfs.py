"""``wattcast dvfs`` and ``counters``: a kernel at many clocks, by its code or its counters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wattcast.app.cli import inputs
from wattcast.app.cli.output import predictor, show


def dvfs(
    launch: inputs.KernelOptions,
    clocks: list[str] | None = None,
    power_limit: list[float] | None = None,
    reference: str | None = None,
    *,
    constraints: inputs.Constraints,
    models: inputs.ScalingOptions,
    as_json: inputs.AsJson = False,
) -> None:
    """Predict many clocks or power limits, and pick the best.

    Prints the scaling, the Pareto set and the best pair or limit under the constraints.

    Args:
        clocks: Clock pair CORE/MEMORY in MHz. Repeatable. Default: all pairs of the GPU, or its
            default pair under power limits.
        power_limit: Power limit in watts. Repeatable.
        reference: Clock pair that ratios refer to. Default: the highest.
    """
    from wattcast.predictor.dvfs import dvfs as run
    from wattcast.predictor.messages.dvfs import DvfsRequest

    body = {
        **launch.body(),
        **_where(clocks, reference, constraints, every=None if power_limit else "grid"),
        "power_limit_watts": power_limit or None,
        **models.request(),
    }
    answer = run(predictor(), DvfsRequest.model_validate(body))
    show(answer, as_json)


def counters(
    profile: Path,
    gpu: inputs.Gpu,
    kernel: str | None = None,
    counted_at: str | None = None,
    time_seconds: float | None = None,
    power_watts: float | None = None,
    known: Path | None = None,
    clocks: list[str] | None = None,
    reference: str | None = None,
    *,
    constraints: inputs.Constraints,
    as_json: inputs.AsJson = False,
) -> None:
    """Predict many clocks from counters measured at one pair.

    Needs no code. Prints the scaling, the Pareto set and the best pair under the constraints.

    Args:
        profile: What ncu --csv, nvprof --csv, dcgmi dmon or dcgm-exporter printed, or a .json file
            of counters by name. - reads standard input.
        kernel: Kernel, by name or part of it, if PROFILE has several.
        counted_at: Clock pair CORE/MEMORY in MHz of the profile. Default: the GPU's.
        time_seconds: Time of the launch there, if PROFILE does not tell it.
        power_watts: Measured power there.
        known: JSON list of measurements at other pairs, as in POST /dvfs.
        clocks: Clock pair CORE/MEMORY in MHz. Repeatable. Default: all pairs.
        reference: Clock pair that ratios refer to. Default: the highest.
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
    show(answer, as_json)


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
        "constraints": constraints.request(),
    }
