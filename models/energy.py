"""Energy of a launch: watts x seconds, with an interval of its own.

What power and time miss is not missed together: on the activity tables the logarithms of measured
over predicted power and time correlate by -0.07 to -0.40 (a time too short makes rates, and so the
power, too high), so the product of the ends held every energy there. Here half widths in
logarithms, one for each side, join as those of independent errors, and where both answers are the
uncorrected models' own their joint error is calibrated: ``JOINT`` is the share of the joined half
width that held 90 %, by programs left out (hierarchical conformal, ``models/intervals.py``).
"""

from __future__ import annotations

from math import exp, hypot, log

from wattcast.features.gpus import GpuProfile
from wattcast.models.intervals import Estimate, weaker
from wattcast.models.time.base import DEFAULT, TimePrediction
from wattcast.models.time.calibration import interval_of

JOINT = 1.08
"""Quantile by program of |ln(measured / predicted energy)| over the joined half width, 613 launches
of 14 programs on four boards, power of programs left out, times by the widths of their regimes:
``python -m studies intervals`` finds 1.074. Two programs decide it, cfd (measured in another build
than its code) and histogram."""


LEAST_SHARE = 1e-9
"""A low end of zero watts counts as this share: only models of nothing but few rows have one."""


def energy(power_watts: Estimate, duration: TimePrediction, gpu: GpuProfile) -> Estimate:
    """Joules = watts x seconds of the same answer (docs/design.md, predictors).

    What uncertain trip counts or registers add to the time's interval is not calibrated and not
    narrowed. The interval lies within the product of the ends, and claims no more than either part.
    """
    seconds = duration.estimate
    width = duration.width or interval_of(gpu)[0]
    bases = power_watts.basis, seconds.basis
    own = duration.family == DEFAULT and duration.card is None and "seen_kernel" not in bases
    share = JOINT if own else 1.0

    def half(watts: float, time: float, calibrated: float) -> float:
        return hypot(watts, time) - (1.0 - share) * hypot(watts, min(time, calibrated))

    below = half(
        log(power_watts.value / max(power_watts.low, LEAST_SHARE * power_watts.value)),
        log(seconds.value / seconds.low),
        -log(width.low_factor),
    )
    above = half(
        log(power_watts.high / power_watts.value),
        log(seconds.high / seconds.value),
        log(width.high_factor),
    )
    value = power_watts.value * seconds.value
    return Estimate(
        value=value,
        low=min(value, max(value * exp(-below), power_watts.low * seconds.low)),
        high=max(value, min(value * exp(above), power_watts.high * seconds.high)),
        level=min(power_watts.level, seconds.level),
        basis=weaker(*bases),
    )
