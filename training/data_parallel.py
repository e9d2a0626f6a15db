"""One XGBoost model fitted on rows that are spread over the workers of a Dask cluster.

For tables that one machine cannot hold or fit in reasonable time. Each worker keeps its rows and
builds histograms of them; only histograms travel (T. Chen, C. Guestrin, "XGBoost: a scalable tree
boosting system", 2016). The trees are not bit by bit those of a fit on one machine: cut points are
sketched from the parts, and sums are added in another order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wattcast.features.errors import ModelError
from wattcast.training.engine import Engine, OnDask
from wattcast.training.families import Family, Floats, Xgboost, get_family

if TYPE_CHECKING:
    import distributed

ATTEMPTS = 3
"""Fits that are tried: one whose worker dies in the middle fails as a whole and begins anew on the
workers that are left."""


def fit_data_parallel(
    client: distributed.Client,
    parts: Sequence[tuple[Floats, Floats]],
    parameters: Mapping[str, Any] | None = None,
) -> Any:
    """Booster of parts of (vectors ``[n, k]``, watts ``[n]``), each held by one worker.

    ``parameters`` go before the family's hyperparameters. Raises ModelError where no attempt ends.
    """
    import dask.array as da
    import xgboost
    from xgboost import dask as dxgb

    chosen = {**get_family("xgboost").hyperparameters, **(parameters or {})}
    trees = int(chosen.pop("n_estimators"))
    join: Any = da.concatenate
    chunk: Any = da.from_array
    vectors = join([chunk(part[0], chunks=part[0].shape) for part in parts])
    watts = join([chunk(part[1], chunks=part[1].shape) for part in parts])
    error: Exception | None = None
    for _ in range(ATTEMPTS):
        try:
            with client.as_current():
                matrix = dxgb.DaskQuantileDMatrix(client, vectors, watts)
                found = dxgb.train(client, {**chosen, "nthread": 1}, matrix, num_boost_round=trees)
        except (xgboost.core.XGBoostError, OSError, RuntimeError) as failed:
            error = failed
            continue
        return found["booster"]
    raise ModelError(f"no fit ended in {ATTEMPTS} attempts: {error}") from error


class SpreadXgboost(Xgboost):
    """XGBoost whose fits on many rows (``OnDask.spread_rows``) take all workers of a cluster."""

    def __init__(self, engine: OnDask) -> None:
        self._engine = engine

    def fit(self, vectors: Floats, watts: Floats, start: bytes | None = None, more: int = 0) -> Any:
        """As ``Family.fit``. Raises ModelError where no attempt ends."""
        if start is not None or len(watts) < self._engine.spread_rows:
            return super().fit(vectors, watts, start, more)
        client = self._engine.client
        workers = max(1, len(client.scheduler_info()["workers"]))
        parts = np.array_split(np.arange(len(watts)), workers)
        return fit_data_parallel(
            client, [(vectors[part], watts[part]) for part in parts], self.hyperparameters
        )


def is_spread(engine: Engine, family: str, rows: int) -> bool:
    """Whether a fit of a family on so many rows is spread over the engine's workers."""
    return isinstance(engine, OnDask) and family == Xgboost.name and rows >= engine.spread_rows


def family_on(engine: Engine, name: str) -> Family:
    """A family by name; where the engine is a cluster, its fits on many rows are spread over it.
    Raises ModelError for an unknown family."""
    if isinstance(engine, OnDask) and name == Xgboost.name:
        return SpreadXgboost(engine)
    return get_family(name)
