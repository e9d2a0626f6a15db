"""What it costs to serve a model from PTX that was fitted on counted activities.

GTX Titan X and GTX 980 have no activities from PTX. On three GPUs there are both: there the same
fit on counted rows alone predicts left-out programs once from counted activities and once from
those it is served, at predicted times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattcast.models.intervals import conformal_factors
from wattcast.training.physical.fit import Averaged, Fits, error_percent, predict, scored_programs
from wattcast.training.physical.rows import COUNTED_CAMPAIGNS, Floats

LEVEL = 0.9


@dataclass(frozen=True)
class ServedCost:
    """Errors in percent on left-out programs, and log half-widths of their 90 % intervals."""

    gpu_id: str
    counted_percent: float
    served_percent: float
    counted_width: float
    served_width: float


def served_costs(fits: Fits, settings: Averaged) -> list[ServedCost]:
    """The cost on each GPU with both kinds of activities."""
    return [
        _cost(fits, gpu_id, settings)
        for gpu_id in COUNTED_CAMPAIGNS
        if gpu_id in fits.tables and fits.tables[gpu_id].counted.any()
    ]


def served_widening(fits: Fits, settings: Averaged) -> float:
    """Ratio of interval widths, served over counted, in logarithms: the GPUs' mean, at least 1."""
    ratios = [cost.served_width / cost.counted_width for cost in served_costs(fits, settings)]
    return max(1.0, round(float(np.mean(ratios)), 3))


def _cost(fits: Fits, gpu_id: str, settings: Averaged) -> ServedCost:
    table = fits.tables[gpu_id]
    served = table.take(table.scored)
    counted = table.take(table.counted & np.isin(table.programs, served.programs))
    alone = Fits({**fits.tables, gpu_id: table.take(table.counted)})
    watts = {kind: np.full(len(rows.watts), np.nan) for kind, rows in enumerate((served, counted))}
    for program in scored_programs(served):
        weights, voltage = alone.fit(gpu_id, settings, frozenset({program}))
        for kind, rows in enumerate((served, counted)):
            mine = rows.programs == program
            watts[kind][mine] = predict(rows, weights, voltage)[mine]

    def width(predicted: Floats, measured: Floats, programs: np.ndarray) -> float:
        factors = conformal_factors(np.log(measured / predicted), programs, LEVEL, symmetric=True)
        return float(np.log(factors[1]))

    return ServedCost(
        gpu_id,
        counted_percent=error_percent(counted, watts[1]),
        served_percent=error_percent(served, watts[0]),
        counted_width=width(watts[1], counted.watts, counted.programs),
        served_width=width(watts[0], served.watts, served.programs),
    )
