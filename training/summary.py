"""Background statistics of training vectors: what goes with a model instead of the rows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from wattcast.models.background import Background, Bin, FeatureStatistics

Floats = NDArray[np.float64]

POINTS = 100
"""Synthetic points kept with a model."""
SEED = 7
_SIGNIFICANT = 6  # digits kept: enough for an explanation, small in the file


def summarise(vectors: Floats, names: Sequence[str]) -> Background:
    """Statistics of vectors ``[n, k]`` and synthetic points with their rank correlation."""
    statistics = tuple(_statistics(vectors[:, at], name) for at, name in enumerate(names))
    return Background(features=statistics, points=_synthetic(vectors, statistics))


def fingerprint(vectors: Floats, watts: Floats, groups: Sequence[str]) -> str:
    """sha256 of the training table: float64 vectors and watts, and the kernel groups."""
    digest = hashlib.sha256()
    for array in (vectors, watts):
        digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
    digest.update("\n".join(groups).encode())
    return digest.hexdigest()


def _statistics(column: Floats, name: str) -> FeatureStatistics:
    values = column[~np.isnan(column)]
    quantiles = np.quantile(values, np.linspace(0, 1, 21))
    # As LIME's discretiser: searchsorted over the distinct quartiles.
    edges = np.unique(quantiles[[5, 10, 15]])
    index = np.searchsorted(edges, values)
    return FeatureStatistics(
        name=name,
        mean=_short(values.mean()),
        std=_short(values.std()),
        quantiles=tuple(_short(value) for value in quantiles),
        bins=tuple(_bin(values[index == at], int(at)) for at in np.unique(index)),
    )


def _bin(values: Floats, index: int) -> Bin:
    return Bin(
        index=index,
        count=len(values),
        mean=_short(values.mean()),
        std=_short(values.std()),
        minimum=_short(values.min()),
        maximum=_short(values.max()),
    )


def _synthetic(
    vectors: Floats, statistics: Sequence[FeatureStatistics]
) -> tuple[tuple[float, ...], ...]:
    normal = NormalDist()
    filled = np.where(np.isnan(vectors), np.nanmedian(vectors, axis=0), vectors)
    ranks = np.column_stack([_ranks(column) for column in filled.T])
    scores = np.vectorize(normal.inv_cdf)(ranks / (len(filled) + 1))
    scores += 1e-9 * np.random.default_rng(SEED).standard_normal(scores.shape)  # constant columns
    correlation = np.corrcoef(scores, rowvar=False)
    draws = np.random.default_rng(SEED).multivariate_normal(
        np.zeros(vectors.shape[1]), correlation, POINTS, method="eigh"
    )
    levels, cdf = np.linspace(0, 1, 21), np.vectorize(normal.cdf)
    columns = [
        np.interp(cdf(draws[:, at]), levels, feature.quantiles).tolist()
        for at, feature in enumerate(statistics)
    ]
    return tuple(tuple(_short(value) for value in point) for point in zip(*columns, strict=True))


def _ranks(column: Floats) -> Floats:
    """Ranks from 1, ties sharing their mean."""
    _, index, counts = np.unique(column, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[index], dtype=np.float64)


def _short(value: float | np.floating) -> float:
    return float(f"{float(value):.{_SIGNIFICANT}g}")
