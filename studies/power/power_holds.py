"""Targets of the power report measured by its own runs: launches known, widths, routes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from studies.pages.targets import Target
from studies.power.anchored import SHOTS
from studies.power.bounds import BOUNDS, INTERVAL_GAIN, KNOWN_R2
from studies.power.holds import interval_judged, known_judged, seen_judged
from studies.power.physical_tables import measured_errors
from studies.power.power_models import Held
from wattcast.training.checkpoints import Checkpoints
from wattcast.training.power.table import SOURCE, THESIS_FILES


def measured_targets(assignments: int) -> list[Held]:
    """Every such target. Raises DataError for missing or defective data."""
    seeds = range(assignments)
    return [
        *_seen(seeds),
        *_known(seeds),
        *_interval_gains(seeds),
        *_routes(),
    ]


def _seen(seeds: Sequence[int]) -> Iterator[Held]:
    for gpu in THESIS_FILES:
        found, bound = seen_judged(gpu, seeds, Checkpoints()), BOUNDS[gpu]
        scores, nothing = found.scores(), found.baseline_scores()
        name = f"{gpu}, blend (not shipped), rows left out"
        r2 = Target(f"{name}, R²", scores["r2"].mean, bound.random_r2, "at least", unit="")
        mae = Target(f"{name}, MAE", scores["mae_watts"].mean, bound.random_mae_watts, unit="W")
        yield Held(r2, nothing["r2"].mean)
        yield Held(mae, nothing["mae_watts"].mean)


def _known(seeds: Sequence[int]) -> Iterator[Held]:
    for gpu, bound in KNOWN_R2.items():
        found = known_judged(gpu, SOURCE, seeds, Checkpoints())
        name = f"{gpu}, {SHOTS} launches of the kernel known, R²"
        target = Target(name, found.anchored["r2"].mean, bound, "at least", unit="")
        yield Held(target, found.own_median["r2"].mean)


def _interval_gains(seeds: Sequence[int]) -> Iterator[Held]:
    for gpu in THESIS_FILES:
        found = interval_judged(gpu, SOURCE, seeds, Checkpoints())
        name = f"{gpu}, kernels left out, interval score under a constant width's"
        yield Held(Target(name, found.gain * 100, INTERVAL_GAIN * 100, "at least"), 0.0)


def _routes() -> Iterator[Held]:
    for error in measured_errors(fast=False):
        if isinstance(error.asked, float):
            name = f"{error.gpu_id}, physical, {error.route}, mean error"
            yield Held(Target(name, error.model_percent, error.asked), error.median_percent)
