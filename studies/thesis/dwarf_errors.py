"""Error of predicted power by parallel dwarf on Tesla K20: thesis Table 5.12."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from studies.evaluation import BesideBaselines
from studies.pages.dwarfs import NOT_CLASSIFIED, dwarf_of
from studies.thesis.judged import Judged
from wattcast.training.evaluation.scores import mae_watts
from wattcast.training.evaluation.splits import Floats


class DwarfRows(NamedTuple):
    """Rows of one dwarf and its benchmarks."""

    rows: NDArray[np.bool_]
    benchmarks: tuple[str, ...]


def rows_by_dwarf(frame: pd.DataFrame) -> dict[str, DwarfRows]:
    """Dwarf -> its rows ``[n]``; programs of no known dwarf come last."""
    names = np.array([dwarf_of(str(family)).name for family in frame["family"]])
    order = sorted(set(names.tolist()), key=lambda name: (name == NOT_CLASSIFIED, name))
    return {
        name: DwarfRows(names == name, tuple(sorted(set(frame["family"][names == name]))))
        for name in order
    }


def error_by_dwarf(
    judged: Mapping[str, Judged], frame: pd.DataFrame
) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Dwarf -> model -> mean absolute error in watts: rows left out, kernels left out, and the
    training rows' median power for kernels left out; each the mean over fold assignments."""
    return {
        dwarf: {
            model: (
                _mean_error(each.random, each.random.predicted_watts, found.rows),
                _mean_error(each.grouped, each.grouped.predicted_watts, found.rows),
                _mean_error(each.grouped, each.grouped.baseline_watts, found.rows),
            )
            for model, each in judged.items()
        }
        for dwarf, found in rows_by_dwarf(frame).items()
    }


def _mean_error(
    judged: BesideBaselines,
    predicted: Floats,
    rows: NDArray[np.bool_],
) -> float:
    measured = judged.rows.watts[rows]
    return float(np.mean([mae_watts(measured, watts[rows]) for watts in predicted]))
