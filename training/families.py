"""The boosted families with the thesis' hyperparameters, and their native and ONNX files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray

from wattcast.features.errors import ModelError
from wattcast.models.trees import NATIVE_NAMES, ONNX_NAME

OPERATOR = "TreeEnsembleRegressor"


class _Node(NamedTuple):
    mode: str
    feature: int
    threshold: float
    missing_tracks_true: int
    true: _Node | float
    false: _Node | float


def compact(path: Path) -> None:
    """Rewrite the single-output tree ensemble in ``path`` with equal branches merged.
    Raises ValueError for a graph that is no such ensemble."""
    model = onnx.load(path)
    nodes = [node for node in model.graph.node if node.op_type == OPERATOR]
    if len(nodes) != 1:
        raise ValueError(f"{path.name} holds {len(nodes)} tree ensembles, not one")
    node = nodes[0]
    attributes = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    if attributes["n_targets"] != 1:
        raise ValueError(f"{path.name} has {attributes['n_targets']} targets, not one")
    arrays = _flatten([_merge(tree) for tree in _read(attributes)])
    kept = {name: attributes[name] for name in ("n_targets", "post_transform", "base_values")
            if name in attributes}  # fmt: skip
    del node.attribute[:]
    for name, value in sorted({**kept, **arrays}.items()):
        node.attribute.append(onnx.helper.make_attribute(name, value))
    # The runtime gives [n, 1]; the export declares [n], which warns at every run.
    shape = model.graph.output[0].type.tensor_type.shape
    if len(shape.dim) == 1:
        shape.dim.add().dim_value = 1
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString(deterministic=True))


def _read(attributes: dict[str, Any]) -> list[_Node | float]:
    trees, ids = attributes["nodes_treeids"], attributes["nodes_nodeids"]
    at = {key: index for index, key in enumerate(zip(trees, ids, strict=True))}
    leaf = dict(
        zip(
            zip(attributes["target_treeids"], attributes["target_nodeids"], strict=True),
            attributes["target_weights"],
            strict=True,
        )
    )
    missing = attributes.get("nodes_missing_value_tracks_true") or [0] * len(ids)

    def build(tree: int, number: int) -> _Node | float:
        index = at[tree, number]
        mode = attributes["nodes_modes"][index].decode()
        if mode == "LEAF":
            return float(leaf[tree, number])
        return _Node(
            mode,
            attributes["nodes_featureids"][index],
            attributes["nodes_values"][index],
            missing[index],
            build(tree, attributes["nodes_truenodeids"][index]),
            build(tree, attributes["nodes_falsenodeids"][index]),
        )

    roots: dict[int, int] = {}
    for tree, number in zip(trees, ids, strict=True):
        roots.setdefault(tree, number)  # the first node of a tree is its root
    return [build(tree, number) for tree, number in roots.items()]


def _merge(tree: _Node | float) -> _Node | float:
    if not isinstance(tree, _Node):
        return tree
    true, false = _merge(tree.true), _merge(tree.false)
    if not isinstance(true, _Node) and true == false:
        return true
    return tree._replace(true=true, false=false)


def _flatten(trees: list[_Node | float]) -> dict[str, list[Any]]:
    columns = ("treeids", "nodeids", "modes", "featureids", "values", "truenodeids",
               "falsenodeids", "missing_value_tracks_true", "hitrates")  # fmt: skip
    nodes: dict[str, list[Any]] = {name: [] for name in columns}
    target: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}

    def add(tree: int, number: int, part: _Node | float) -> int:
        """Append a branch as node ``number``; the next free number."""
        at = len(nodes["nodeids"])
        leaf = not isinstance(part, _Node)
        values = (tree, number, "LEAF", 0, 0.0, 0, 0, 0, 1.0)
        if isinstance(part, _Node):
            missing = part.missing_tracks_true
            values = (tree, number, part.mode, part.feature, part.threshold, 0, 0, missing, 1.0)
        for name, value in zip(columns, values, strict=True):
            nodes[name].append(value)
        if leaf:
            for name, value in zip(target, (tree, number, 0, part), strict=True):
                target[name].append(value)
            return number + 1
        assert isinstance(part, _Node)
        nodes["truenodeids"][at] = number + 1
        following = add(tree, number + 1, part.true)
        nodes["falsenodeids"][at] = following
        return add(tree, following, part.false)

    for tree, part in enumerate(trees):
        add(tree, 0, part)
    return {f"nodes_{name}": values for name, values in nodes.items()} | {
        f"target_{name}": values for name, values in target.items()
    }


Floats = NDArray[np.float64]
Hyperparameters = Mapping[str, bool | int | float | str]

SEED = 20230101
"""Seed of every fit; any other would do as well."""


class Family(Protocol):
    """A library's regressor: fits one model, predicts watts, saves native and ONNX files."""

    name: str
    hyperparameters: Hyperparameters
    library: str

    def fit(self, vectors: Floats, watts: Floats) -> Any:
        """Model of vectors ``[n, k]`` and watts ``[n]``."""

    def predict(self, model: Any, vectors: Floats) -> Floats:
        """Watts ``[m]``."""

    def save(self, model: Any, folder: Path, features: int) -> None:
        """Write the native and the ONNX file into ``folder``. Raises OSError: a full disk, say."""


class Xgboost:
    """XGBoost as in thesis Table 5.7."""

    name = "xgboost"
    library = "xgboost"
    hyperparameters: Hyperparameters = MappingProxyType(
        {
            "n_estimators": 500,
            "max_depth": 6,
            "learning_rate": 0.05,
            "min_child_weight": 1,
            "colsample_bytree": 0.7,
            "subsample": 0.7,
            # Not in the table: pinned so that a fit is the same everywhere.
            "tree_method": "hist",
            "objective": "reg:squarederror",
            "seed": SEED,
        }
    )

    def fit(self, vectors: Floats, watts: Floats) -> Any:
        import xgboost

        parameters = dict(self.hyperparameters)
        trees = int(parameters.pop("n_estimators"))
        # One thread: sums in histograms then have one order, and equal fits give equal bytes.
        matrix = xgboost.DMatrix(vectors, watts, nthread=1)
        return xgboost.train({**parameters, "nthread": 1}, matrix, trees)

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
    hyperparameters: Hyperparameters = MappingProxyType(
        {
            "depth": 8,
            "iterations": 270,
            "loss_function": "RMSE",
            # Not in the table: pinned so that a fit is the same everywhere.
            "random_seed": SEED,
        }
    )

    def fit(self, vectors: Floats, watts: Floats) -> Any:
        import catboost

        model = catboost.CatBoostRegressor(
            **self.hyperparameters,
            logging_level="Silent",
            thread_count=1,
            allow_writing_files=False,
        )
        # float32, as served: borders then lie between the values that are really compared.
        model.fit(np.asarray(vectors, dtype=np.float32), watts)
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
