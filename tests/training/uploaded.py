"""Measured launches as a retraining takes them, near the champion's own training points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from studies.fitting.trees import boosted as fitting
from studies.fitting.trees.tables import TrainingTable, training_table
from wattcast.models.cards import Marks, Source
from wattcast.models.power.boosted import BoostedPowerModel
from wattcast.models.store import ArtifactStore
from wattcast.training import boosted
from wattcast.training.evaluation.scores import Indices, Rows
from wattcast.training.families import FAMILIES, Catboost
from wattcast.training.provenance import training_facts
from wattcast.training.uploads import Champion, Order, Uploads

GPU = "tesla-k20"

SOURCES = (
    Source(
        repository="uploads",
        path="measurements/1",
        sha256="0" * 64,
        used_sha256="0" * 64,
        licence="the operator's own",
    ),
)


def packaged(family: str = "average") -> Champion:
    return Champion(ArtifactStore().find(GPU, "power", family, "alavani2023"))


def measured(
    champion: Champion,
    *,
    kernels: int = 12,
    launches: int = 12,
    shift: float = 1.15,
    seed: int = 0,
    spread: float = 0.1,
) -> Rows:
    """What the champion predicts near its background points, shifted, with noise."""
    generator = np.random.default_rng(seed)
    points = np.array(champion.model.background.points)[:kernels]
    numbers = np.repeat(np.arange(kernels), launches)
    around = generator.uniform(1 - spread, 1 + spread, (len(numbers), points.shape[1]))
    vectors = points[numbers] * around
    watts = champion.model.predict_watts(vectors) * shift
    return Rows.of(vectors, watts * np.exp(generator.normal(0, 0.01, len(numbers))), numbers)


def uploads(rows: Rows, new: bool = True, marks: Sequence[Marks] = ()) -> Uploads:
    return Uploads(rows, np.full(len(rows), new), ("1",), SOURCES, tuple(marks))


def order(champion: Champion, **fields: object) -> Order:
    given = {
        "gpu": GPU,
        "board": "lab-7",
        "schema": champion.card.feature_schema,
        "version": 7,
        "features": champion.card.feature_names,
        "families": ("catboost",),
        "continued": True,
    }
    return Order(**{**given, **fields})  # type: ignore[arg-type]


# --- K20 without some of its kernels: who is trained on the others, and how the rest is met


@contextmanager
def fewer_trees() -> Iterator[None]:
    """Fits of a second or two."""
    few = {**FAMILIES["catboost"].hyperparameters, "iterations": 80, "depth": 6}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boosted, "MORE_TREES", dict.fromkeys(boosted.MORE_TREES, 20))
        patch.setattr(Catboost, "hyperparameters", few)
        yield


def parted() -> tuple[TrainingTable, Rows]:
    """The table without every seventh kernel group, and the rows of those groups."""
    table = training_table(GPU)
    rows = table.rows[table.served]
    left_out = rows.groups % 7 == 0
    return _part(table, np.flatnonzero(~left_out)), rows.take(np.flatnonzero(left_out))


def _part(table: TrainingTable, at: Indices) -> TrainingTable:
    rows = {name: each.take(at) for name, each in table.rows.items()}
    frames = {name: each.iloc[at].reset_index(drop=True) for name, each in table.frames.items()}
    fitted, names = rows[table.served], frames[table.served]["kernel_group"].tolist()
    facts = training_facts(fitted.vectors, fitted.watts, names)
    return replace(table, rows=rows, frames=frames, facts=facts)


def train_without(known: TrainingTable, root: Path, version: int = 1) -> None:
    """A CatBoost model of the table, below ``root``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "training_table", lambda *given: known)
        plan = fitting.Plan(assignments=2, nested_seeds=(0,), version=version)
        fitting.train((GPU,), ("catboost",), root, lambda line: None, plan=plan)


def coverage_by_group(model: BoostedPowerModel, others: Rows, shift: float) -> list[float]:
    """Share of each group's rows, ``shift`` times as many watts, that lie in their intervals."""
    held = []
    for vector, watts in zip(others.vectors, others.watts * shift, strict=True):
        answer = model.estimate(vector)
        held.append(answer.low <= watts <= answer.high)
    return [
        float(np.mean(np.array(held)[others.groups == one])) for one in np.unique(others.groups)
    ]
