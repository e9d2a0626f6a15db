"""The published power rows as protocols take them: one file, or several pooled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd

from wattcast.training.data.activity_tables import read_activity_table
from wattcast.training.data.cleaning import MODEL_INPUTS, clean
from wattcast.training.data.frequency_names import kernel_group
from wattcast.training.evaluation.rows import Rows

SOURCES = ("K20", "M60", "V100", "K80", "PQ_V100", "PQ_Ampere84", "PQ_Ada24")
"""Ids of the power files that are trained on (``sources.toml``)."""


def rows_of(frame: pd.DataFrame, columns: Sequence[str] = MODEL_INPUTS) -> Rows:
    """Rows of a cleaned table (``wattcast.training.data.cleaning``), with every label there is.

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


def activity_rows(gpu: str, root: Path | None = None) -> Rows:
    """The applications of an activity table at all their clocks.

    Vectors are the logarithms of 1 + each quantity and of the measured seconds, then both clocks.

    Groups are programs, variants of one counting as one. Raises DataError for a missing or
    defective table.
    """
    measured = [row for row in read_activity_table(gpu, root) if row.kind == "real"]
    counts = np.array([[*asdict(row.activity).values()] for row in measured])
    seconds = np.array([row.time_seconds for row in measured])
    clocks = np.array([[row.clocks.core_mhz, row.clocks.memory_mhz] for row in measured])
    return Rows.of(
        np.column_stack([np.log1p(counts), np.log(seconds), clocks]),
        [row.power_watts for row in measured],
        [kernel_group(row.program) for row in measured],
        kernels=[" ".join(row.label) for row in measured],
        clocks=clocks,
        gpus=[gpu] * len(measured),
    )
