"""The published power rows: as protocols take them, and as the power models are trained on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from wattcast.features.errors import DataError
from wattcast.features.schemas.tables import Definition, read_definition
from wattcast.models.cards import FeatureFacts, Source, Table, TrainingFacts
from wattcast.models.learned import Marks, code_marks, group_mark
from wattcast.training.data.cleaning import MODEL_INPUTS, NUMERIC_COLUMNS, CleanTable, clean
from wattcast.training.data.datasets import data_root, sources
from wattcast.training.data.recompute import recompute, reproduced_shares
from wattcast.training.evaluation.splits import Rows
from wattcast.training.provenance import training_facts

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
SOURCE = "thesis"
THESIS_FILES: Mapping[str, str] = {"tesla-k20": "K20", "tesla-m60": "M60", "tesla-v100": "V100"}
"""GPU id -> the thesis' data file of it."""
POWERQUANT_SCHEMA = "powerquant2026r"
POWERQUANT_SOURCE = "powerquant"
POWERQUANT_FILES: Mapping[str, str] = {
    "tesla-k80": "K80",
    "tesla-v100": "PQ_V100",
    "ampere-84sm": "PQ_Ampere84",
    "ada-24sm": "PQ_Ada24",
}
"""GPU id -> the PowerQuant data file of it."""
SOURCES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    SOURCE: (SCHEMA, THESIS_FILES),
    POWERQUANT_SOURCE: (POWERQUANT_SCHEMA, POWERQUANT_FILES),
}
"""Source -> its feature schema and files."""


@dataclass(frozen=True)
class TrainingTable:
    """Rows of one GPU in one table or both, the tables themselves, and what the card tells."""

    gpu: str
    source: str
    clean: CleanTable
    rows: Mapping[Table, Rows]
    frames: Mapping[Table, pd.DataFrame]
    facts: TrainingFacts
    features: tuple[FeatureFacts, ...]
    floor_watts: float

    @property
    def schema(self) -> str:
        """Id of the feature schema."""
        return SOURCES[self.source][0]

    @property
    def marks(self) -> Marks:
        """By what its kernels are known again (``wattcast.models.learned``), as published too."""
        fields = [name for name in next(iter(self.frames.values())) if name in NUMERIC_COLUMNS]
        code = {
            mark
            for frame in self.frames.values()
            for mark in code_marks(self.schema, fields, frame[fields].to_numpy(np.float64))
            if mark is not None
        }
        named = self.frames[self.served][["kernel_group", "kernel_id"]].to_numpy().ravel()
        return frozenset(code) | {group_mark(name) for name in set(named)}

    @property
    def served(self) -> Table:
        """The table that a model is fitted on: what serving computes."""
        return "as_recomputed" if "as_recomputed" in self.rows else "as_published"


def training_table(gpu: str, root: Path | None = None, source: str = SOURCE) -> TrainingTable:
    """Clean (and recompute) the rows of one GPU. Raises DataError where the source has none."""
    schema, files = SOURCES[source]
    if gpu not in files:
        known = ", ".join(files)
        raise DataError(f"no {source} rows for {gpu!r}; there are some for {known}")
    cleaned = clean(files[gpu], root or data_root())
    published = cleaned.training_rows
    definition = read_definition(schema)
    frames: dict[Table, pd.DataFrame] = {"as_published": published}
    changed: dict[str, int] = {}
    if source == SOURCE:
        served = recompute(published, definition, gpu)
        frames["as_recomputed"], changed = served.frame, served.changed
    names = tuple(one.name for one in definition.fields if one.model_input)
    rows = {name: rows_of(frame, names) for name, frame in frames.items()}
    last = frames[list(frames)[-1]]
    fitted = rows[list(frames)[-1]]
    facts = training_facts(
        fitted.vectors,
        fitted.watts,
        last["kernel_group"].tolist(),
        kernels=int(published["kernel_id"].nunique()),
        dropped={**cleaned.dropped, "5 idle_power": len(cleaned.frame) - len(published)},
        recomputed=changed,
    )
    return TrainingTable(
        gpu=gpu,
        source=source,
        clean=cleaned,
        rows=rows,
        frames=frames,
        facts=facts,
        features=_features(frames, definition, gpu, names),
        # Idle rows are no training rows, but they do tell how little the GPU draws.
        floor_watts=float(cleaned.frame["power_w"].min()),
    )


def _features(
    frames: Mapping[Table, pd.DataFrame], definition: Definition, gpu: str, names: Sequence[str]
) -> tuple[FeatureFacts, ...]:
    if "as_recomputed" not in frames:
        note = "column of the authors' newer tool, whose rules the schema follows"
        return tuple(column_facts(frames["as_published"], name, note) for name in names)
    if tuple(names) != MODEL_INPUTS:
        raise DataError(f"schema {definition.id} has other model inputs than Table 5.4")
    before = reproduced_shares(frames["as_published"], definition, gpu)
    after = reproduced_shares(frames["as_recomputed"], definition, gpu)
    return tuple(
        column_facts(
            frames["as_recomputed"],
            name,
            after[name].note,
            share=after[name].share,
            published=before[name].share,
        )
        for name in names
    )


def column_facts(
    frame: pd.DataFrame,
    name: str,
    note: str,
    *,
    share: float | None = None,
    published: float | None = None,
) -> FeatureFacts:
    """Of a column: its range, and shares of rows that the rule in ``note`` reproduces."""
    return FeatureFacts(
        name=name,
        minimum=float(frame[name].min()),
        maximum=float(frame[name].max()),
        missing_share=float(frame[name].isna().mean()),
        reproduced_share=share,
        reproduced_share_published=published,
        reproduced_note=note,
    )


def source_of(cleaned: CleanTable) -> Source:
    """The card entry of a published file."""
    return Source(
        repository=sources().repository,
        path=cleaned.source.path,
        sha256=cleaned.source.sha256,
        used_sha256=cleaned.sha256,
        licence=sources().licence,
    )
