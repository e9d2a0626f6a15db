"""K20 without some of its kernels: who is trained on the others, and how the rest is met."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from studies.fitting.trees import boosted as fitting
from studies.fitting.trees.tables import TrainingTable, training_table
from wattcast.models.power.boosted import BoostedPowerModel
from wattcast.training import boosted
from wattcast.training.evaluation.scores import Indices, Rows
from wattcast.training.families import FAMILIES, Catboost
from wattcast.training.provenance import training_facts

GPU = "tesla-k20"


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
