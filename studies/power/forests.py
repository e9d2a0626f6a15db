"""Extra trees kept as an XGBoost model: a native file, exact SHAP and ONNX without any pickle.

scikit-learn fits them (P. Geurts, D. Ernst, L. Wehenkel, "Extremely randomized trees", 2006);
what they have no file format for is written as the trees of a ``Booster``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SETTINGS: Mapping[str, bool | int | float | str] = MappingProxyType(
    {"n_estimators": 60, "min_samples_leaf": 2, "max_features": 0.5, "random_state": 20230101}
)
"""Fixed for every GPU alike. Leaves of 4 make files of half the size and err by 1 % more on
kernels left out, leaves of 8 by 3 %."""


@dataclass(frozen=True)
class Forest:
    """Extra trees grown on logarithms of watts; a leaf answers the watts of its mean logarithm.
    ``share`` of the answer are the trees', the rest is ``centre_watts``."""

    trees: Any
    centre_watts: float
    share: float

    def predict(self, vectors: Floats) -> Floats:
        """Watts ``[m]``: the mean over the trees."""
        inputs = np.asarray(vectors, dtype=np.float32)
        each = [np.exp(tree.predict(inputs)) for tree in self.trees.estimators_]
        return np.asarray(self.centre_watts * (1 - self.share) + self.share * np.mean(each, axis=0))


def grow(
    vectors: Floats,
    log_watts: Floats,
    weights: Floats,
    *,
    centre_watts: float,
    share: float = 1.0,
    settings: Mapping[str, Any] = SETTINGS,
) -> Forest:
    """Grow trees on vectors ``[n, k]``, ln watts and weights ``[n]``."""
    from sklearn.ensemble import ExtraTreesRegressor

    trees = ExtraTreesRegressor(**settings, n_jobs=1)
    trees.fit(np.asarray(vectors, dtype=np.float32), log_watts, sample_weight=weights)
    return Forest(trees, centre_watts, share)


def as_booster(forest: Forest, features: int) -> Any:
    """The same trees as an XGBoost ``Booster`` that answers watts.

    scikit-learn goes left where x <= t (double), XGBoost where x < t (single): the threshold
    written is the least single above t, which parts the same single-precision values.
    """
    import xgboost

    # An empty model tells how this version of the library writes everything but the trees.
    empty = xgboost.train(
        {"base_score": 0.0, "objective": "reg:squarederror", "nthread": 1},
        xgboost.DMatrix(np.zeros((2, features)), np.zeros(2), nthread=1),
        0,
    )
    written = json.loads(empty.save_raw("json"))
    learner = written["learner"]
    learner["feature_names"], learner["feature_types"] = [], []
    count = len(forest.trees.estimators_)
    model = learner["gradient_booster"]["model"]
    # What is not the trees' is a tree of one leaf: base_score is written differently by version.
    trees = [_leaf(forest.centre_watts * (1 - forest.share), features)] if forest.share < 1 else []
    trees += [
        _tree(tree.tree_, features, forest.share / count) for tree in forest.trees.estimators_
    ]
    model["trees"] = [{**tree, "id": at} for at, tree in enumerate(trees)]
    model["tree_info"] = [0] * len(trees)
    model["gbtree_model_param"]["num_trees"] = str(len(trees))
    model["iteration_indptr"] = list(range(len(trees) + 1))
    booster = xgboost.Booster(params={"nthread": 1})
    booster.load_model(bytearray(json.dumps(written).encode()))
    return booster


def _tree(tree: Any, features: int, scale: float) -> dict[str, Any]:
    order, parents, left = _breadth_first(tree.children_left, tree.children_right)
    leaf = left < 0
    single = tree.threshold.astype(np.float32)
    above = np.where(single <= tree.threshold, np.nextafter(single, np.float32(np.inf)), single)
    answers = (scale * np.exp(tree.value[:, 0, 0])).astype(np.float32)
    return _written(
        features,
        left=left,
        right=np.where(leaf, -1, left + 1),
        parents=parents,
        indices=np.where(leaf, 0, tree.feature[order]),
        conditions=np.where(leaf, answers[order], above[order]),
        cover=tree.weighted_n_node_samples[order],
    )


def _breadth_first(left: Any, right: Any) -> tuple[Any, Any, Any]:
    """Nodes in an order in which siblings are neighbours, as XGBoost's predictor takes for given;
    the new number of each one's parent and of its left child (-1: a leaf)."""
    order, parents, children = [0], [2**31 - 1], []
    at = 0
    while at < len(order):
        node = order[at]
        children.append(-1 if left[node] < 0 else len(order))
        if left[node] >= 0:
            order += [left[node], right[node]]
            parents += [at, at]
        at += 1
    return np.array(order), np.array(parents), np.array(children)


def _leaf(value: float, features: int) -> dict[str, Any]:
    one = np.zeros(1)
    return _written(
        features,
        left=one - 1,
        right=one - 1,
        parents=one + 2**31 - 1,
        indices=one,
        conditions=one + value,
        cover=one + 1,
    )


def _written(
    features: int,
    *,
    left: Any,
    right: Any,
    parents: Any,
    indices: Any,
    conditions: Any,
    cover: Any,
) -> dict[str, Any]:
    def whole(values: Any) -> list[int]:
        return [int(value) for value in values]

    count = len(left)
    return {
        "base_weights": [0.0] * count,
        "categories": [],
        "categories_nodes": [],
        "categories_segments": [],
        "categories_sizes": [],
        "default_left": [0] * count,
        "left_children": whole(left),
        "right_children": whole(right),
        "parents": whole(parents),
        "loss_changes": [0.0] * count,
        "split_conditions": [float(value) for value in conditions],
        "split_indices": whole(indices),
        "split_type": [0] * count,
        "sum_hessian": [float(value) for value in cover],
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(features),
            "num_nodes": str(count),
            "size_leaf_vector": "1",
        },
    }
