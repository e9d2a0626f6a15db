"""The published power rows: as protocols take them, and as the power models are trained on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from wattcast.features.schemas.tables import read_definition
from wattcast.models.cards import Source
from wattcast.training.data.cleaning import MODEL_INPUTS, CleanTable, clean
from wattcast.training.data.datasets import data_root, sources
from wattcast.training.data.recompute import recompute
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


SCHEMA = "alavani2023"
THESIS_FILES: Mapping[str, str] = {"tesla-k20": "K20", "tesla-m60": "M60", "tesla-v100": "V100"}
"""GPU id -> the thesis' data file of it."""


def served_rows(gpu: str) -> tuple[CleanTable, Rows]:
    """The thesis' table of one GPU, and its training rows as the serving rules compute them: what
    the packaged boosted models are trained on. Raises DataError for missing or defective data."""
    cleaned = clean(THESIS_FILES[gpu], data_root())
    definition = read_definition(SCHEMA)
    names = tuple(one.name for one in definition.fields if one.model_input)
    return cleaned, rows_of(recompute(cleaned.training_rows, definition, gpu), names)


def source_of(cleaned: CleanTable) -> Source:
    """The card entry of a published file."""
    return Source(
        repository=sources().repository,
        path=cleaned.source.path,
        sha256=cleaned.source.sha256,
        used_sha256=cleaned.sha256,
        licence=sources().licence,
    )
