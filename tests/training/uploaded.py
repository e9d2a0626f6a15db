"""Measured launches as a retraining takes them, near the champion's own training points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wattcast.models.cards import Marks, Source
from wattcast.models.store import ArtifactStore
from wattcast.training.evaluation.scores import Rows
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
