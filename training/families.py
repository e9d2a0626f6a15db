"""The boosted families with the thesis' hyperparameters, and their native and ONNX files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from wattcast.features.checked import read_toml
from wattcast.features.errors import ModelError
from wattcast.models.store import NATIVE_NAMES, ONNX_NAME
from wattcast.training.evaluation.scores import Floats

Hyperparameters = Mapping[str, bool | int | float | str]

SEED = 20230101
"""Seed of every fit; any other would do as well. Pinned, so that a fit is the same everywhere."""

_TABLE_5_7 = read_toml(Path(__file__).with_name("hyperparameters.toml"))


class Family(Protocol):
    """A library's regressor: fits one model, predicts watts, saves native and ONNX files."""

    name: str
    hyperparameters: Hyperparameters
    library: str

    def fit(self, vectors: Floats, watts: Floats, start: bytes | None = None, more: int = 0) -> Any:
        """Model of vectors ``[n, k]`` and watts ``[n]``; with the bytes ``start`` of a native file
        that model with ``more`` trees."""

    def predict(self, model: Any, vectors: Floats) -> Floats:
        """Watts ``[m]``."""

    def save(self, model: Any, folder: Path, features: int) -> None:
        """Write the native and the ONNX file into ``folder``. Raises OSError: a full disk, say."""


class Xgboost:
    """XGBoost as in thesis Table 5.7."""

    name = "xgboost"
    library = "xgboost"
    hyperparameters: Hyperparameters = MappingProxyType(_TABLE_5_7[name] | {"seed": SEED})

    def fit(self, vectors: Floats, watts: Floats, start: bytes | None = None, more: int = 0) -> Any:
        import xgboost

        # One thread: sums in histograms then have one order, and equal fits give equal bytes.
        parameters = {**self.hyperparameters, "nthread": 1}
        trees, before = int(parameters.pop("n_estimators")), None
        if start is not None:
            trees, before = more, xgboost.Booster(params={"nthread": 1})
            before.load_model(bytearray(start))
        matrix = xgboost.DMatrix(vectors, watts, nthread=1)
        return xgboost.train(parameters, matrix, trees, xgb_model=before)

    def predict(self, model: Any, vectors: Floats) -> Floats:
        import xgboost

        return np.asarray(model.predict(xgboost.DMatrix(vectors, nthread=1)), dtype=np.float64)

    def save(self, model: Any, folder: Path, features: int) -> None:
        import onnxmltools
        from onnxmltools.convert.common.data_types import FloatTensorType

        # The bytes of save_model, which does not tell why it could not write them.
        (folder / NATIVE_NAMES[self.name]).write_bytes(model.save_raw("ubj"))
        inputs = [("features", FloatTensorType([None, features]))]
        # Named, or the graph gets a random name and no two files are alike.
        converted = onnxmltools.convert_xgboost(model, name=self.name, initial_types=inputs)
        (folder / ONNX_NAME).write_bytes(converted.SerializeToString())


class Catboost:
    """CatBoost as in thesis Table 5.7."""

    name = "catboost"
    library = "catboost"
    hyperparameters: Hyperparameters = MappingProxyType(_TABLE_5_7[name] | {"random_seed": SEED})

    def fit(self, vectors: Floats, watts: Floats, start: bytes | None = None, more: int = 0) -> Any:
        import catboost

        parameters, before = dict(self.hyperparameters), None
        if start is not None:
            parameters["iterations"], before = more, catboost.CatBoostRegressor()
            before.load_model(blob=start)
        model = catboost.CatBoostRegressor(
            **parameters, logging_level="Silent", thread_count=1, allow_writing_files=False
        )
        # float32, as served: borders then lie between the values that are really compared.
        model.fit(np.asarray(vectors, dtype=np.float32), watts, init_model=before)
        return model

    def predict(self, model: Any, vectors: Floats) -> Floats:
        return np.asarray(model.predict(np.asarray(vectors, dtype=np.float32), thread_count=1))

    def save(self, model: Any, folder: Path, features: int) -> None:
        # Time and a random id of the fit: without them equal fits give equal files.
        metadata = model.get_metadata()
        for key in ("train_finish_time", "model_guid"):
            metadata[key] = ""
        _save_catboost(model, folder / NATIVE_NAMES[self.name], "cbm")
        _save_catboost(model, folder / ONNX_NAME, "onnx")


def _save_catboost(model: Any, path: Path, kind: str) -> None:
    import catboost

    try:
        model.save_model(str(path), format=kind)
    except catboost.CatBoostError as error:
        # It tells the system's error in words: "(Error 28: No space left on device) ...".
        found = re.match(r"\(Error (\d+):", str(error))
        if found is None:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number), path.name) from error


FAMILIES: Mapping[str, Family] = MappingProxyType({"xgboost": Xgboost(), "catboost": Catboost()})


def get_family(name: str) -> Family:
    """Family by name. Raises ModelError for an unknown one."""
    if name not in FAMILIES:
        raise ModelError(f"unknown family {name!r}; known: {', '.join(FAMILIES)}")
    return FAMILIES[name]


MODULES = {"scikit-learn": "sklearn"}
"""Libraries whose module has another name than their package."""


def library_versions(names: tuple[str, ...]) -> dict[str, str]:
    """Versions of the libraries that fitted and converted, by package name.
    The modules' own, since a distribution may go by another name (``xgboost-cpu``)."""
    converter = ("onnxmltools",) if "xgboost" in names else ()
    return {
        name: str(import_module(MODULES.get(name, name)).__version__)
        for name in (*names, *converter)
    }
