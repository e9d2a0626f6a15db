"""Training tables of the boosted models: rows of one GPU with all that a card tells of them.

``wattcast.training.power_rows`` has the rows themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from studies.data.recompute import (
    Bools,
    Floats,
    close,
    derived,
    latencies,
    launched,
    loop_free,
    misc_possible,
    numbers,
    occupancies,
    recompute,
    whole,
)
from wattcast.features.errors import DataError
from wattcast.features.schemas import formulas
from wattcast.features.schemas.tables import Definition, read_definition
from wattcast.models.cards import FeatureFacts, Marks, Table, TrainingFacts, code_marks, group_mark
from wattcast.training.data.cleaning import MODEL_INPUTS, NUMERIC_COLUMNS, CleanTable, clean
from wattcast.training.data.datasets import data_root
from wattcast.training.evaluation.scores import Rows
from wattcast.training.power_rows import rows_of
from wattcast.training.provenance import training_facts

SCHEMA = "alavani2023"
THESIS_FILES: Mapping[str, str] = {"tesla-k20": "K20", "tesla-m60": "M60", "tesla-v100": "V100"}
"""GPU id -> the thesis' data file of it."""
SOURCE = "thesis"
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
        """By what its kernels are known again (``wattcast.models.cards``), as published too."""
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
        frames["as_recomputed"], changed = served, changed_rows(published, served)
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


# --- Shares of rows that the serving rules reproduce

OCCUPANCY_TOLERANCE = 0.005
"""Published occupancies are rounded to two decimals."""


class Share(NamedTuple):
    """Share of rows the serving rule reproduces (``None``: not decidable) and by which rule."""

    share: float | None
    note: str


def changed_rows(published: pd.DataFrame, served: pd.DataFrame) -> dict[str, int]:
    """How many rows the serving rules change in each model input, but for those they leave."""
    changed = {
        name: int(np.sum(~close(served[name].to_numpy(float), published[name].to_numpy(float))))
        for name in MODEL_INPUTS
    }
    return {name: count for name, count in changed.items() if count}


def reproduced_shares(rows: pd.DataFrame, definition: Definition, gpu: str) -> dict[str, Share]:
    """Per model input, the share of ``rows`` whose value is what the serving rule gives."""
    table = definition.gpus[gpu]
    columns = numbers(rows)
    w = launched(columns, definition, table)["simulated_waves"]
    mixed = latencies(columns, table, definition.rules.no_shared_latency)
    served = derived(columns, definition, table)
    loads_and_stores = np.isclose(
        columns["glob_load_sm"] + columns["glob_store_sm"], columns["glob_inst_sm"]
    )

    free = loop_free(columns, w)

    def share(reproduced: Bools, note: str) -> Share:
        return Share(float(np.mean(reproduced)), note)

    def same(name: str, value: Floats, note: str) -> Share:
        return share(close(columns[name], value), note)

    return {
        "avg_comp_lat": same(
            "avg_comp_lat",
            formulas.average_latency(columns["comp_lat_sm"], columns["comp_inst_sm"]),
            "comp_lat_sm / comp_inst_sm of the row",
        ),
        "avg_glob_lat": same(
            "avg_glob_lat", mixed["avg_glob_lat"], "load and store latency of the GPU's table"
        ),
        "avg_shar_lat": same("avg_shar_lat", mixed["avg_shar_lat"], "36 with shared loads"),
        "branch": share(whole(columns["branch"], w), "a whole multiple of the simulated waves"),
        "comp_inst_kernel": share(
            _static(columns["comp_inst_kernel"], columns["comp_inst_sm"], w),
            "comp_inst_sm per wave is whole and no less",
        ),
        "glob_inst_kernel": share(
            _static(columns["glob_inst_kernel"], columns["glob_inst_sm"], w)
            & (close(columns["glob_inst_sm"], columns["glob_inst_kernel"] * w) | ~free),
            "glob_inst_sm per wave is whole and no less, and equal without loop trips",
        ),
        "glob_load_sm": share(
            whole(columns["glob_load_sm"], w) & loads_and_stores,
            "a whole multiple of the waves, and loads + stores = glob_inst_sm",
        ),
        "glob_store_sm": share(
            whole(columns["glob_store_sm"], w) & loads_and_stores,
            "a whole multiple of the waves, and loads + stores = glob_inst_sm",
        ),
        "misc_inst_kernel": share(
            misc_possible(columns, w),
            "what the weights of the other lines leave of misc_inst_sm; recomputed with one "
            "label per branch",
        ),
        "inst_issue_cycles": same(
            "inst_issue_cycles", served["inst_issue_cycles"], "formula on the row's total_inst"
        ),
        "cache_penalty": same("cache_penalty", served["cache_penalty"], "formula on the row"),
        "occupancy": share(
            np.abs(occupancies(rows, gpu) - columns["occupancy"]) <= OCCUPANCY_TOLERANCE,
            "occupancy calculator on the row, to two decimals",
        ),
        "reg_thread": Share(None, "measured by the compiler, not computed"),
        "shmem_block": Share(None, "measured by the compiler, not computed"),
        "block_size": Share(None, "given by the launch"),
    }


def _static(static: Floats, dynamic: Floats, waves: Floats) -> Bools:
    """Whether a static count and its dynamic one can be those of one kernel."""
    possible = (dynamic / waves >= static) & ((static > 0) == (dynamic > 0))
    return np.asarray(whole(dynamic, waves) & possible)
