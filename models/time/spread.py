"""How far the thesis' predicted times lie from its measured ones, as an interval.

``table_4_8.csv`` holds the published pairs (thesis Table 4.8, microseconds, 44 kernels on four
GPUs). The spread of ln(measured / predicted) is the only published error of this model; it
is that of the authors' tool, whose readings of the ambiguous steps are not known to be ours.
"""

from __future__ import annotations

import csv
from functools import lru_cache
from math import log
from pathlib import Path
from typing import NamedTuple

from features.errors import DataError
from models.estimate import Basis, Estimate
from models.intervals import EXTRAPOLATED_WIDENING, IntervalWidth, conformal_factors, widen

TABLE = Path(__file__).with_name("table_4_8.csv")
GPUS = ("tesla-k20", "quadro-k4200", "tesla-m60", "gtx-1050")
LEVEL = 0.9


class Pair(NamedTuple):
    """A measured and a predicted kernel time in microseconds (thesis Table 4.8)."""

    benchmark: str
    kernel: str
    gpu: str
    actual_us: float
    predicted_us: float

    @property
    def log_ratio(self) -> float:
        """ln(measured / predicted)."""
        return log(self.actual_us / self.predicted_us)


def published_pairs(path: Path = TABLE) -> tuple[Pair, ...]:
    """All pairs of Table 4.8. Raises DataError naming file, row and column."""
    pairs = []
    with path.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            for gpu in GPUS:
                cells = []
                for column in (f"{gpu}_actual_us", f"{gpu}_predicted_us"):
                    try:
                        value = float(row[column])
                    except (KeyError, TypeError, ValueError):
                        value = 0.0
                    if not value > 0:
                        raise DataError(
                            f"{path.name}, row {number}: {column} is no time above 0",
                            file=path.name,
                            row=number,
                            column=column,
                        )
                    cells.append(value)
                pairs.append(Pair(row["benchmark"], row["kernel"], gpu, *cells))
    return tuple(pairs)


@lru_cache(maxsize=16)
def spread(gpu_id: str) -> tuple[IntervalWidth, Basis]:
    """Interval factors at 90 % for a GPU, and what they rest on.

    A GPU of Table 4.8 gets its own spread (``unseen_kernel``: nothing in the model was fitted
    to those times). Any other gets that of all four, ``EXTRAPOLATED_WIDENING`` times as wide
    in logarithms, with basis ``extrapolated``: its latencies are measured, its times are not.
    Kernels of one benchmark count as one group, as in ``models.intervals``.
    """
    pairs = published_pairs()
    own = [pair for pair in pairs if pair.gpu == gpu_id]
    used = own or list(pairs)
    names = sorted({pair.benchmark for pair in used})
    groups = [names.index(pair.benchmark) for pair in used]
    low, high = conformal_factors([pair.log_ratio for pair in used], groups, LEVEL)
    width = IntervalWidth(low_factor=low, high_factor=high)
    return (
        (width, "unseen_kernel") if own else (widen(width, EXTRAPOLATED_WIDENING), "extrapolated")
    )


def time_estimate(seconds: float, low_seconds: float, high_seconds: float, gpu_id: str) -> Estimate:
    """A time with its interval; ``low_seconds`` and ``high_seconds`` are the predictions for the
    ends of what is uncertain about the kernel (trip counts, registers)."""
    width, basis = spread(gpu_id)
    return Estimate(
        seconds,
        min(seconds, low_seconds) * width.low_factor,
        max(seconds, high_seconds) * width.high_factor,
        LEVEL,
        basis,
    )
