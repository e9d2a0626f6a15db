"""A launch's time from its prediction and from measured launches of the same kernel.

Whatever a time model misses of a kernel (its cache hits, its atomics) it misses at every launch
of it in nearly the same proportion, as long as the launches are alike. So the logarithms of
measured over predicted of the known launches, weighted by likeness and shrunken towards none,
correct the prediction of another. Any time model's predictions will do.

The constants were chosen on launches of the RTX 3080 data that share a kernel, with predictions
of models that had seen neither the program nor its ports;
``python -m studies work`` prints the
error with and without the correction, and what the intervals hold (docs/work.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, hypot, isfinite, log

from wattcast.features.errors import LaunchError
from wattcast.models.intervals import Estimate

DISTANCE_SCALE = 0.7
"""Distance at which a known launch's weight has fallen to 1/e: launch sizes a factor 2 apart.
Up to about there the errors of two launches agree, and hardly beyond."""

SHRINKAGE = 0.02
"""Weight of "no correction" beside the known launches': a repeated launch alone corrects 98 %."""

REPEAT_FACTOR = 1.03
"""Interval factor, either way, for a repetition of a measured launch, at 90 %: the conformal
quantile by program of how much further than e to the distance a corrected time lay off, 326
programs of the RTX 3080 data (``python -m studies intervals``)."""


@dataclass(frozen=True, slots=True)
class KnownLaunch:
    """A measured launch: seconds predicted and measured, and ln of its threads, by which launches
    are alike. Raises LaunchError for a time that is not above 0 and finite.
    """

    predicted_seconds: float
    measured_seconds: float
    log_threads: float

    def __post_init__(self) -> None:
        for name in ("predicted_seconds", "measured_seconds"):
            value = getattr(self, name)
            if not (value > 0 and isfinite(value)):
                raise LaunchError(f"{name} is {value}; it must be above 0 and finite", field=name)

    @property
    def log_ratio(self) -> float:
        """ln(measured / predicted)."""
        return log(self.measured_seconds / self.predicted_seconds)


def distance(predicted_seconds: float, log_threads: float, known: KnownLaunch) -> float:
    """How unlike a known launch is: Euclidean over ln of threads and ln of predicted seconds."""
    away = log(predicted_seconds / known.predicted_seconds)
    return hypot(away, log_threads - known.log_threads)


def corrected(estimate: Estimate, log_threads: float, known: Sequence[KnownLaunch]) -> Estimate:
    """The estimate of a launch, corrected by ``known`` launches of the same kernel.

    ``estimate`` in seconds; without known launches it is returned as it is, else with basis
    ``seen_kernel``. Weights fall as exp(-(distance / DISTANCE_SCALE)^2); the correction is the
    weighted mean log ratio, shrunken by SHRINKAGE. The interval is REPEAT_FACTOR times e to the
    distance of the most alike launch, either way, but never wider than the estimate's own: at
    worst, a time does not follow its prediction from one launch to the other at all. Raises
    LaunchError for an estimate that is not above 0.
    """
    if not known:
        return estimate
    if not (estimate.low > 0 and isfinite(estimate.high)):
        raise LaunchError("only an estimate above 0 can be corrected", field="estimate")
    distances = [distance(estimate.value, log_threads, one) for one in known]
    steps = [each / DISTANCE_SCALE for each in distances]
    weights = [exp(-step * step) for step in steps]
    total = sum(weight * one.log_ratio for weight, one in zip(weights, known, strict=True))
    seconds = estimate.value * exp(total / (sum(weights) + SHRINKAGE))
    widest = max(estimate.value / estimate.low, estimate.high / estimate.value)
    factor = REPEAT_FACTOR * exp(min(min(distances), log(widest)))
    return Estimate(
        value=seconds,
        low=seconds / min(factor, estimate.value / estimate.low),
        high=seconds * min(factor, estimate.high / estimate.value),
        level=estimate.level,
        basis="seen_kernel",
    )
