"""What one or two further clock pairs, measured, bring to scales from counters.

Known are the lowest core clock beside the highest memory clock, then the lowest memory clock; both
are left out of every score, so that all columns score the same pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from studies.clocks.dvfs_judged import JUDGED
from studies.clocks.scaling_rows import Floats, ScalingRows
from studies.clocks.scaling_studies import Scored
from wattcast.models.clocks import ClockPair
from wattcast.models.scaling.known import TRUST_IN_THE_MODEL, exponent
from wattcast.models.scaling.physical import time_bounds
from wattcast.training.card_tables import table

TRUSTS = (0.0, 0.02, 0.05, TRUST_IN_THE_MODEL, 0.3, 1.0)


def known_table(scored: Sequence[Scored]) -> str:
    """Mean absolute errors in percent over campaigns, by points known and weight of the model."""
    rows = []
    for quantity in ("time", "power"):
        for points in (0, 1, 2):
            means = [
                np.mean([_error(one, quantity, points, trust) for one in _with(scored, quantity)])
                for trust in TRUSTS
            ]
            rows.append([quantity, str(points), *(f"{mean:.2f}" for mean in means)])
    return table(["quantity", "points", *(f"w {trust:g}" for trust in TRUSTS)], rows)


def _with(scored: Sequence[Scored], quantity: str) -> list[Scored]:
    return [one for one in scored if _both(one, quantity) is not None]


def _both(one: Scored, quantity: str) -> tuple[Floats, Floats] | None:
    """Predicted and measured scales, ``None`` where a campaign lacks either."""
    rows, predictions = one.predictions.rows, one.predictions
    told = (predictions.time if quantity == "time" else predictions.power).get(JUDGED)
    measured = rows.time_scale if quantity == "time" else rows.power_scale
    if told is None or not np.isfinite(told).all() or not np.isfinite(measured).any():
        return None
    return told, measured


def _error(one: Scored, quantity: str, points: int, trust: float) -> float:
    rows, both = one.predictions.rows, _both(one, quantity)
    assert both is not None
    told, measured = both
    errors = []
    for kernel in np.unique(rows.kernel):
        mine = np.flatnonzero((rows.kernel == kernel) & ~rows.is_reference)
        core, memory = rows.core_mhz[mine], rows.memory_mhz[mine]
        known = [mine[np.lexsort((core, -memory))[0]], mine[np.lexsort((-core, memory))[0]]]
        logs = [
            (float(np.log(told[at])), float(np.log(measured[at])))
            for at in known[:points]
            if np.isfinite(measured[at])
        ]
        rest = np.setdiff1d(mine, known)
        found = told[rest] ** exponent(logs, trust)
        if quantity == "time":
            found = np.clip(found, *_bounds(rows, rest))
        errors.append(np.abs(found / measured[rest] - 1))
    return float(100 * np.nanmean(np.concatenate(errors)))


def _bounds(rows: ScalingRows, at: np.ndarray) -> Floats:
    pairs = zip(rows.core_mhz[at], rows.memory_mhz[at], strict=True)
    return np.array([time_bounds(ClockPair(*pair), rows.reference) for pair in pairs]).T
