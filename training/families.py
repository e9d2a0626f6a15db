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
import onnx

from wattcast.features.checked import read_toml
from wattcast.features.errors import ModelError
from wattcast.models.store import NATIVE_NAMES, ONNX_NAME
from wattcast.training.evaluation.scores import Floats

OPERATOR = "TreeEnsembleRegressor"
_NODE = ("treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids",
         "missing_value_tracks_true", "hitrates")  # fmt: skip
_LEAF = ("treeids", "nodeids", "ids", "weights")

_Branch = tuple[int, Any, Any] | float
"""Index of a node with what follows where its test is true and false; or a leaf's value."""


def compact(path: Path) -> None:
    """Rewrite the single-output tree ensemble in ``path`` with equal branches merged.
    Raises ValueError for a graph that is no such ensemble."""
    model = onnx.load(path)
    ensembles = [node for node in model.graph.node if node.op_type == OPERATOR]
    if len(ensembles) != 1:
        raise ValueError(f"{path.name} holds {len(ensembles)} tree ensembles, not one")
    (ensemble,) = ensembles
    old = {each.name: onnx.helper.get_attribute_value(each) for each in ensemble.attribute}
    if old["n_targets"] != 1:
        raise ValueError(f"{path.name} has {old['n_targets']} targets, not one")
    kept = ("n_targets", "post_transform", "base_values")
    new = {**{name: old[name] for name in kept if name in old}, **_compacted(old)}
    del ensemble.attribute[:]
    for name, value in sorted(new.items()):
        ensemble.attribute.append(onnx.helper.make_attribute(name, value))
    # The runtime gives [n, 1]; the export declares [n], which warns at every run.
    shape = model.graph.output[0].type.tensor_type.shape
    if len(shape.dim) == 1:
        shape.dim.add().dim_value = 1
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString(deterministic=True))


def _compacted(old: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The arrays of nodes and leaves, depth first, without tests that change nothing."""
    places = list(zip(old["nodes_treeids"], old["nodes_nodeids"], strict=True))
    index = {place: at for at, place in enumerate(places)}
    leaf_places = zip(old["target_treeids"], old["target_nodeids"], strict=True)
    weights = dict(zip(leaf_places, old["target_weights"], strict=True))
    missing = old.get("nodes_missing_value_tracks_true") or [0] * len(places)

    def merged(tree: int, number: int) -> _Branch:
        at = index[tree, number]
        if old["nodes_modes"][at] == b"LEAF":
            return float(weights[tree, number])
        true = merged(tree, old["nodes_truenodeids"][at])
        false = merged(tree, old["nodes_falsenodeids"][at])
        return true if isinstance(true, float) and true == false else (at, true, false)

    nodes: list[list[Any]] = []
    leaves: list[tuple[Any, ...]] = []

    def add(tree: int, number: int, branch: _Branch) -> int:
        """Append a branch as node ``number``; the next free number."""
        if isinstance(branch, float):
            nodes.append([tree, number, "LEAF", 0, 0.0, 0, 0, 0, 1.0])
            leaves.append((tree, number, 0, branch))
            return number + 1
        at, true, false = branch
        names = ("modes", "featureids", "values")
        mode, feature, threshold = (old[f"nodes_{name}"][at] for name in names)
        node = [tree, number, mode, feature, threshold, number + 1, 0, missing[at], 1.0]
        nodes.append(node)
        node[_NODE.index("falsenodeids")] = following = add(tree, number + 1, true)
        return add(tree, following, false)

    roots: dict[int, int] = {}
    for tree, number in places:
        roots.setdefault(tree, number)  # the first node of a tree is its root
    for tree, (old_tree, root) in enumerate(roots.items()):
        add(tree, 0, merged(old_tree, root))
    names = [*(f"nodes_{name}" for name in _NODE), *(f"target_{name}" for name in _LEAF)]
    columns = [*zip(*nodes, strict=True), *zip(*leaves, strict=True)]
    return {name: list(column) for name, column in zip(names, columns, strict=True)}


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
        compact(folder / ONNX_NAME)


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
