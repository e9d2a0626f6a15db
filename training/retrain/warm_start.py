"""Fitting one boosted model on rows, from nothing or from a model that is there already.

A task holds everything it needs, so that it can be sent to another machine: no files, no pickled
models; the model to continue from travels as the bytes of its native file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from wattcast.features.errors import ModelError
from wattcast.training.families import SEED, Floats, get_family

MORE_TREES: Mapping[str, int] = MappingProxyType({"xgboost": 100, "catboost": 60})
"""Trees added to a model that is continued: a fifth of what its family starts with (thesis
Table 5.7), enough for residuals of a model that fits already; a convention of ours."""


@dataclass(frozen=True)
class FitTask:
    """One fit: rows (``vectors`` ``[n, k]``, ``watts`` ``[n]``), and ``test`` vectors ``[m, k]``.

    ``start`` holds the bytes of the native model to continue from, if any.
    """

    family: str
    vectors: Floats
    watts: Floats
    test: Floats
    start: bytes | None = None

    @property
    def key(self) -> str:
        """sha256 of everything that the result follows from."""
        digest = hashlib.sha256(f"{self.family}\n{SEED}\n".encode())
        for array in (self.vectors, self.watts, self.test):
            digest.update(f"{array.shape}".encode())
            digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
        digest.update(self.start or b"")
        return digest.hexdigest()


def fit(task: FitTask) -> Any:
    """The fitted model. Raises ModelError for an unknown family."""
    if task.start is None:
        return get_family(task.family).fit(task.vectors, task.watts)
    continued = {"xgboost": _continue_xgboost, "catboost": _continue_catboost}
    if task.family not in continued:
        raise ModelError(f"{task.family!r} models cannot be continued", known=sorted(continued))
    return continued[task.family](task)


def fit_predict(task: FitTask) -> Floats:
    """Watts of the test vectors, ``[m]``, by a model fitted on the task's rows."""
    return get_family(task.family).predict(fit(task), task.test)


def _continue_xgboost(task: FitTask) -> Any:
    import xgboost

    parameters = dict(get_family("xgboost").hyperparameters)
    del parameters["n_estimators"]
    assert task.start is not None
    before = xgboost.Booster(params={"nthread": 1})
    before.load_model(bytearray(task.start))
    matrix = xgboost.DMatrix(task.vectors, task.watts, nthread=1)
    return xgboost.train(
        {**parameters, "nthread": 1}, matrix, MORE_TREES["xgboost"], xgb_model=before
    )


def _continue_catboost(task: FitTask) -> Any:
    import catboost

    parameters = dict(get_family("catboost").hyperparameters)
    parameters["iterations"] = MORE_TREES["catboost"]
    assert task.start is not None
    before = catboost.CatBoostRegressor()
    before.load_model(blob=task.start)
    model = catboost.CatBoostRegressor(
        **parameters, logging_level="Silent", thread_count=1, allow_writing_files=False
    )
    model.fit(np.asarray(task.vectors, dtype=np.float32), task.watts, init_model=before)
    return model
