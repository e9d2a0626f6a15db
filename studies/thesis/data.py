"""The rows of the study: the thesis' three files, cleaned, with the features it selected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from studies.thesis.printed import Size
from wattcast.training.data.cleaning import MODEL_INPUTS, clean
from wattcast.training.evaluation.splits import Floats, Rows
from wattcast.training.power_rows import THESIS_FILES

SMALLER_LAST_SERIAL = 1000
"""Last row number (``Sr No.``) of Tesla K20's smaller data. The larger file begins with them, and
rows of the smaller one are the same rows, so no second reader is needed."""


def study_tables(
    gpus: Sequence[str] = tuple(THESIS_FILES), root: Path | None = None
) -> dict[str, pd.DataFrame]:
    """GPU id -> its cleaned rows as published, without those that drew idle power.

    Raises DataError for missing or defective data.
    """
    return {gpu: clean(THESIS_FILES[gpu], root).training_rows for gpu in gpus}


def rows_of(frame: pd.DataFrame, features: Sequence[str] = MODEL_INPUTS) -> Rows:
    """Rows of chosen columns, grouped by kernel group."""
    return Rows.of(
        frame[list(features)].to_numpy(float),
        frame["power_w"].to_numpy(float),
        frame["kernel_group"].to_numpy(),
    )


def by_size(k20: pd.DataFrame) -> Mapping[Size, pd.DataFrame]:
    """The thesis' smaller and larger data of Tesla K20."""
    smaller = k20[k20["serial"] <= SMALLER_LAST_SERIAL].reset_index(drop=True)
    return {"smaller": smaller, "larger": k20}


def median_filled(vectors: Floats) -> Floats:
    """Vectors ``[n, k]`` with the column's median where a value is missing."""
    return np.where(np.isnan(vectors), np.nanmedian(vectors, axis=0), vectors)
