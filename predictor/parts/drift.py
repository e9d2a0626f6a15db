"""Drift: how unlike the training rows what is asked about has become.

For every GPU and feature schema the latest vectors that a boosted model was asked about are kept
in memory, and compared with the statistics that came with the model when somebody asks for the
metrics. A prediction pays for an append.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wattcast.features.errors import ModelError

if TYPE_CHECKING:
    from wattcast.models.explain import FeatureStatistics
    from wattcast.models.power.boosted import BoostedPowerModel
    from wattcast.predictor.parts.watts import Watts

WINDOW = 1000
"""Latest predictions of a GPU and schema that count: 1000 vectors of 32 floats are 128 kB."""

FEWEST = 100
"""Vectors below which no stability index is told. By chance alone it has the mean
``(bins - 1) / vectors`` (Yurdakul and Naranjo, "Statistical properties of the population stability
index", J. Risk Model Validation, 2020): 0.03 for four bins, well below ``0.1``, where the rule of
thumb begins to see a change."""

_LEAST_SHARE = 1e-4
"""Share that an empty bin is taken to have: the index holds the logarithm of a ratio of shares."""

_BINS = 4
"""Between three quartiles."""

_ROUNDING = 5e-6
"""Stored quartiles have six digits (``training``): a count that was one may lie above."""

_FLAGS = frozenset({"outside_training_range", "unlike_training", "power_not_predicted"})
"""Warnings of predictions whose kernel the model was not trained for."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Of the latest ``predictions`` of a GPU by models of a schema: the share that was flagged as
    unlike the training rows, and by feature the population stability index, where enough is known.
    """

    gpu: str
    schema_id: str
    predictions: int
    outside_share: float
    stability_index: Mapping[str, float]


@dataclass
class _Window:
    flags: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW))
    vectors: deque[NDArray[np.float32]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    model: BoostedPowerModel | None = None


class DriftWatch:
    """The latest predictions by GPU and schema: as many windows as there are pairs with a model.
    Safe from any thread."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, str], _Window] = {}
        self._lock = threading.Lock()

    def saw(self, gpu: str, found: Watts) -> None:
        """Remember a prediction; one without a vector or a model is none."""
        if found.card is None or found.vector is None:
            return
        flagged = any(each.code in _FLAGS for each in found.diagnostics)
        with self._lock:
            window = self._windows.setdefault((gpu, found.vector.schema_id), _Window())
            window.flags.append(flagged)
            if found.boosted is None:
                return
            known = window.model
            if known is not None and known.feature_names != found.boosted.feature_names:
                window.vectors.clear()  # another selection of the schema's fields
            window.model = found.boosted
            window.vectors.append(found.vector.model_inputs())

    def all(self) -> Iterator[Drift]:
        """What every window says now."""
        with self._lock:
            windows = [
                (key, list(window.flags), list(window.vectors), window.model)
                for key, window in sorted(self._windows.items())
            ]
        for (gpu, schema_id), flags, vectors, model in windows:
            indices: dict[str, float] = {}
            if model is not None and len(vectors) >= FEWEST:
                indices = _indices(model, np.stack(vectors))
            yield Drift(gpu, schema_id, len(flags), sum(flags) / len(flags), indices)


def _indices(model: BoostedPowerModel, vectors: NDArray[np.float32]) -> dict[str, float]:
    try:
        background = model.background
    except ModelError:  # its file is gone from the disk; the model in memory still answers
        return {}
    return {
        feature.name: index
        for at, feature in enumerate(background.features)
        if (index := stability_index(feature, vectors[:, at])) is not None
    }


def stability_index(feature: FeatureStatistics, values: NDArray[np.float32]) -> float | None:
    """Population stability index of ``values`` ``[n]`` against training, over the quartile bins.

    The sum over bins of ``(share - expected) * ln(share / expected)``; 0 where both are the same.
    Rules of thumb: below 0.1 no change, above 0.25 a marked one (Siddiqi, Credit Risk Scorecards,
    2006). Missing values are left out, as in training; ``None`` where all are missing.
    """
    present = values[~np.isnan(values)]
    if not len(present):
        return None
    # The bins of wattcast.training.summary: between the distinct quartiles, upper edge included.
    quartiles = np.unique(feature.quartiles)
    edges = quartiles + _ROUNDING * np.abs(quartiles)
    expected = np.zeros(_BINS)
    for part in feature.bins:
        expected[part.index] = part.count
    observed = np.bincount(np.searchsorted(edges, present), minlength=_BINS).astype(np.float64)
    shares = [np.maximum(each / each.sum(), _LEAST_SHARE) for each in (observed, expected)]
    return float(np.sum((shares[0] - shares[1]) * np.log(shares[0] / shares[1])))
