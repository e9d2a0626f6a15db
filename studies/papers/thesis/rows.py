"""The thesis by its published rows: errors by dwarf, regressions, equal launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from studies.fitting.out_of_fold import OutOfFold
from studies.papers.thesis.data import Judged
from studies.papers.thesis.growth import Form, Grown, growth
from studies.papers.thesis.published import NOT_CLASSIFIED, dwarf_of
from wattcast.features.gpus import load_gpu
from wattcast.features.gpus.sections import LatencyPiece, ThroughputCurve
from wattcast.measure.onboard.growth import latency_pieces
from wattcast.training.data.datasets import read_raw
from wattcast.training.evaluation.scores import Floats, mae_watts

# --- Error of predicted power by parallel dwarf on Tesla K20: thesis Table  --------------------


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
    judged: OutOfFold,
    predicted: Floats,
    rows: NDArray[np.bool_],
) -> float:
    measured = judged.rows.watts[rows]
    return float(np.mean([mae_watts(measured, watts[rows]) for watts in predicted]))


# --- The regressions of the thesis' chapters 3 and 4, fitted to its publish --------------------


FORMS: tuple[Form, ...] = ("linear", "logarithmic", "exponential")
"""Columns of Table 4.4."""

CURVES: Mapping[str, tuple[str, Mapping[str, tuple[str, str]]]] = MappingProxyType(
    {
        "tesla-k20": (
            "K20",
            {
                "global": ("glob_inst_sm", "Global_Throughput"),
                "shared": ("shar_inst_sm", "sh_throughput"),
            },
        ),
        "tesla-m60": (
            "M60",
            {
                "global": ("glob_inst_sim", "global_Throughput"),
                "shared": ("shar_inst_sim", "sh_throughput"),
            },
        ),
    }
)
"""GPU -> its file; memory -> columns of instructions and of throughput as the file names them."""

MOST_LINES = 5
"""Table 3.3's four, and the constant beyond them that the rows have."""


class Curve(NamedTuple):
    """A throughput over instructions: the three forms, and the curve that Table 4.5 prints."""

    gpu: str
    memory: str
    points: int
    forms: Mapping[Form, Grown]
    printed: ThroughputCurve


def throughputs(root: Path | None = None) -> Iterator[Curve]:
    """Tables 4.4 and 4.5 for the GPUs whose rows hold throughputs. Raises DataError."""
    for gpu, (file, memories) in CURVES.items():
        frame = _raw(file, root)
        for memory, (instructions, throughput) in memories.items():
            told = getattr(load_gpu(gpu), f"{memory}_memory_throughput")
            assert told is not None
            pairs = np.unique(_positive(frame, instructions, throughput), axis=0)
            x, y = pairs[:, 0].tolist(), pairs[:, 1].tolist()
            yield Curve(gpu, memory, len(x), {form: growth(form, x, y) for form in FORMS}, told)


class Lines(NamedTuple):
    """Table 3.3: rows, those that have its value, and the lines found through the latter."""

    rows: int
    same: int
    found: tuple[LatencyPiece, ...]
    printed: tuple[LatencyPiece, ...]


def latency_lines(root: Path | None = None) -> Lines:
    """Table 3.3 on Tesla K20's rows. Others mix in the latency of stores (docs/schemas.md); the
    lines are fitted to those that have the table's value to four digits."""
    told = load_gpu("tesla-k20").global_memory_latency
    assert told is not None
    pairs = _positive(_raw("K20", root), "Total Threads", "avg_glob_lat")
    bounds = [piece.below_threads or np.inf for piece in told.pieces]
    lines = [told.pieces[at] for at in np.searchsorted(bounds, pairs[:, 0], side="right")]
    values = np.array(
        [one.slope * t + one.constant for one, t in zip(lines, pairs[:, 0], strict=True)]
    )
    same = np.unique(pairs[np.abs(pairs[:, 1] / values - 1) < 1e-4], axis=0)
    count = int((np.abs(pairs[:, 1] / values - 1) < 1e-4).sum())
    found = latency_pieces(same[:, 0].tolist(), same[:, 1].tolist(), MOST_LINES)
    return Lines(len(pairs), count, found, told.pieces)


def _raw(file: str, root: Path | None) -> pd.DataFrame:
    return read_raw(file, root).text


def _positive(frame: pd.DataFrame, x: str, y: str) -> NDArray[np.float64]:
    """Rows of two columns ``[n, 2]`` that hold numbers above 0."""
    both = frame[[x, y]].apply(pd.to_numeric, errors="coerce").to_numpy(float)
    return np.asarray(both[(np.isfinite(both) & (both > 0)).all(axis=1)])
