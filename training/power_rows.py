"""The published power rows as protocols take them: one file, or several pooled.

python -m training.power_rows       prints what knowing next to nothing scores, by protocol
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from features.errors import WattcastError
from training.baselines import nearest_watts
from training.cleaning import MODEL_INPUTS, clean
from training.markdown import table
from training.protocols import ASSIGNMENTS, OutOfFold, evaluate
from training.rows import Rows
from training.splits import WITH_SHOTS, AnyProtocol

SOURCES = ("K20", "M60", "V100", "K80", "PQ_V100", "PQ_Ampere84", "PQ_Ada24")
"""Ids of the power files that are trained on (``sources.toml``)."""

_PROTOCOLS: tuple[AnyProtocol, ...] = ("random", "grouped", "family", "known")
_SHOTS = 3


def rows_of(frame: pd.DataFrame, columns: Sequence[str] = MODEL_INPUTS) -> Rows:
    """Rows of a cleaned table (``training.cleaning``), with every label there is.

    ``gpus`` are the ids of the sources: two sources of one GPU were measured differently.
    """
    return Rows.of(
        frame[list(columns)],
        frame["power_w"],
        frame["kernel_group"],
        kernels=frame["kernel_id"],
        families=frame["family"],
        gpus=frame["gpu"],
    )


def power_rows(
    source_ids: Sequence[str] = SOURCES,
    root: Path | None = None,
    columns: Sequence[str] = MODEL_INPUTS,
) -> Rows:
    """Training rows of one or several power files, kernels numbered alike over all.

    Rows flagged ``idle_power`` are left out; a column a file does not have is NaN. Raises
    DataError for missing or defective data.
    """
    frames = [clean(source_id, root).training_rows for source_id in source_ids]
    # Column by column: pandas warns when it joins frames with a column that is missing throughout.
    wanted = [*dict.fromkeys(columns), "power_w", "kernel_group", "kernel_id", "family", "gpu"]
    return rows_of(
        pd.DataFrame({name: np.concatenate([frame[name] for frame in frames]) for name in wanted}),
        columns,
    )


def score_lines(label: Sequence[str], result: OutOfFold, model: str) -> Iterator[list[str]]:
    """Lines of a table: the model's scores, then those of every baseline."""
    each = {model: result.scores(), "median_watts": result.baseline_scores()}
    for name, scores in {**each, **result.other_scores()}.items():
        yield [
            *label,
            name,
            *(f"{one.mean:.2f} ± {one.std:.2f}" for one in scores.values()),
        ]


TITLES = ("R2", "RMSE W", "MAE W", "MAPE %", "median APE %", "kernel-macro MAPE %")
"""Titles of the scores in ``score_lines``."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m training.power_rows", description=__doc__)
    parser.add_argument("--assignments", type=int, default=ASSIGNMENTS)
    options = parser.parse_args(arguments)
    seeds = range(options.assignments)
    lines: list[list[str]] = []
    try:
        for source_id in SOURCES:
            rows = power_rows([source_id])
            for protocol in _PROTOCOLS:
                shots = _SHOTS if protocol in WITH_SHOTS else 0
                found = evaluate(rows, nearest_watts, protocol, seeds, shots=shots)
                lines += _baseline_lines(source_id, protocol, found)
        pooled = power_rows()
        found = evaluate(pooled, nearest_watts, "gpu", [0])
        for source_id in SOURCES:
            own = np.flatnonzero(pooled.gpus == source_id)
            lines += _baseline_lines(source_id, "gpu", found.take(own))
    except WattcastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(table(["source", "protocol", "predictor", *TITLES], lines), end="")
    return 0


def _baseline_lines(source_id: str, protocol: str, result: OutOfFold) -> list[list[str]]:
    # The model is the nearest neighbour itself, so that it would stand there twice; and these rows
    # have one clock, which makes the clock's median the median.
    lines = score_lines([source_id, protocol], result, "")
    return [line for line in lines if line[2] not in ("", "clock_median_watts")]


if __name__ == "__main__":
    sys.exit(main())
