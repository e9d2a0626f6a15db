"""The published power rows: as protocols take them, and as the power models are trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from wattcast.training.data.cleaning import MODEL_INPUTS, clean
from wattcast.training.evaluation.scores import Rows

POWER_FILES = ("K20", "M60", "V100", "K80", "PQ_V100", "PQ_Ampere84", "PQ_Ada24")
"""Ids of the power files that are trained on (``sources.toml``)."""


def rows_of(frame: pd.DataFrame, columns: Sequence[str] = MODEL_INPUTS) -> Rows:
    """Rows of a cleaned table (``wattcast.training.data.cleaning``), with every label there is.
    ``gpus`` are the ids of the sources: two sources of one GPU were measured differently."""
    return Rows.of(
        frame[list(columns)],
        frame["power_w"],
        frame["kernel_group"],
        kernels=frame["kernel_id"],
        families=frame["family"],
        gpus=frame["gpu"],
    )


def power_rows(
    source_ids: Sequence[str] = POWER_FILES,
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
