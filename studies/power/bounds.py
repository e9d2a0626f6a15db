"""What the power models must hold on the published rows, leaving ``idle_power`` rows out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Bound(NamedTuple):
    """What the boosted models of a GPU must hold, in watts but for R2."""

    random_r2: float
    random_mae_watts: float
    grouped_mae_watts: float
    stretch_mae_watts: float


BOUNDS: Mapping[str, Bound] = {
    "tesla-k20": Bound(0.925, 2.6, 11.8, 10.5),
    "tesla-m60": Bound(0.945, 1.8, 11.4, 9.5),
    "tesla-v100": Bound(0.925, 3.6, 23.5, 20.0),
}
KNOWN_R2: Mapping[str, float] = {"tesla-k20": 0.70, "tesla-m60": 0.78}
"""Least R2 with three measured launches of the kernel."""
INTERVAL_GAIN = 0.10
"""Least share by which the interval score lies under that of a constant width."""
