"""The thesis' published pairs of measured and predicted times, and the spread they give.

``table_4_8.csv`` holds those of model 2 (thesis Table 4.8, microseconds, 44 kernels on four GPUs),
``table_4_2.csv`` those of model 1 (Table 4.2, 45 kernels on Tesla K20). The factors of
``wattcast.models.time.spread`` are ``spread_of`` them.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from math import log
from pathlib import Path
from typing import NamedTuple

from wattcast.features.errors import DataError
from wattcast.models.estimate import Basis
from wattcast.models.intervals import EXTRAPOLATED_WIDENING, IntervalWidth, conformal_factors
from wattcast.models.time.spread import LEVEL

TABLE = Path(__file__).with_name("table_4_8.csv")
DELAY_TABLE = Path(__file__).with_name("table_4_2.csv")
GPUS = ("tesla-k20", "quadro-k4200", "tesla-m60", "gtx-1050")


class Pair(NamedTuple):
    """A measured and a predicted kernel time in microseconds (thesis Tables 4.2 and 4.8)."""

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
    """All pairs of Table 4.8 (model 2). Raises DataError naming file, row and column."""
    return tuple(
        Pair(
            row["benchmark"],
            row["kernel"],
            gpu,
            _microseconds(path, number, row, f"{gpu}_actual_us"),
            _microseconds(path, number, row, f"{gpu}_predicted_us"),
        )
        for number, row in _rows(path)
        for gpu in GPUS
    )


def published_delay_pairs(path: Path = DELAY_TABLE) -> tuple[Pair, ...]:
    """All pairs of Table 4.2 (model 1, Tesla K20). Raises DataError naming file, row and column."""
    return tuple(
        Pair(
            row["benchmark"],
            row["kernel"],
            "tesla-k20",
            _microseconds(path, number, row, "actual_us"),
            _microseconds(path, number, row, "predicted_us"),
        )
        for number, row in _rows(path)
    )


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(enumerate(csv.DictReader(file), start=2))


def _microseconds(path: Path, number: int, row: Mapping[str, str], column: str) -> float:
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
    return value


def spread_of(pairs: Sequence[Pair], gpu_id: str) -> tuple[IntervalWidth, Basis]:
    """Interval factors at 90 % for a GPU from published pairs, and what they rest on.

    A GPU of the table gets its own spread, any other that of all its GPUs, both
    ``EXTRAPOLATED_WIDENING`` times as wide in logarithms with basis ``extrapolated``: the times are
    those of the authors' tool, whose readings of the ambiguous steps are not known to be ours.
    Kernels of one benchmark count as one group, as in ``wattcast.models.intervals``.
    """
    own = [pair for pair in pairs if pair.gpu == gpu_id]
    used = own or list(pairs)
    names = sorted({pair.benchmark for pair in used})
    groups = [names.index(pair.benchmark) for pair in used]
    low, high = conformal_factors([pair.log_ratio for pair in used], groups, LEVEL)
    width = IntervalWidth(low_factor=low, high_factor=high)
    return width.widened(EXTRAPOLATED_WIDENING), "extrapolated"
