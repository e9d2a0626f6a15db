"""Smaller ONNX files of shipped tree models: the package and its repository hold many of them.

CatBoost's trees ask one question on each level, so that most of a tree stands many times; equal
branches are merged. No prediction changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from wattcast.models.store import ONNX_NAME
from wattcast.training.families import Family

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


def save_compact(family: Family, model: Any, folder: Path, features: int) -> None:
    """As ``family.save``, its ONNX file compacted if it is CatBoost's."""
    family.save(model, folder, features)
    if family.library == "catboost":
        compact(folder / ONNX_NAME)
