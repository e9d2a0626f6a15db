"""The three forms of growth that the thesis tries on throughputs (Table 4.4).

The exponential one is what onboarding fits (``wattcast.measure.onboard.growth``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from wattcast.measure.onboard.growth import line, saturation
from wattcast.training.evaluation.scores import r2

Form = Literal["linear", "logarithmic", "exponential"]


@dataclass(frozen=True)
class Grown:
    """A fitted form of growth: its numbers, and how well it fits.

    linear ``a n + b``; logarithmic ``a ln(n) + b``; exponential ``a (b - exp(-c n))``.
    """

    numbers: tuple[float, ...]
    r_squared: float


def growth(form: Form, n: Sequence[float], values: Sequence[float]) -> Grown:
    """Least squares of one form over ``n`` (above 0). Raises ValueError for fewer than four points
    of the exponential one."""
    if form == "exponential":
        *numbers, fit = saturation(n, values)
        return Grown(tuple(numbers), fit)
    x, y = np.asarray(n, float), np.asarray(values, float)
    x = np.log(x) if form == "logarithmic" else x
    slope, constant = line(x, y)
    return Grown((slope, constant), r2(y, slope * x + constant))
