"""``python -m studies extra-trees``: fits the shipped extra trees on the rows of several GPUs.

They are the power model for kernels nobody measured.

A GPU with 25 measured kernels tells little of a 26th; the same kernels and others ran on further
GPUs. Their rows join the training, their power carried over on a logarithmic scale from the
least power measured there to the board's limit. What is left out of the GPU's own rows for a
test is left out of all of them, so that no score knows the kernel from another board. Kernels
with many launches are weighted down: a new kernel resembles a kernel, not a row.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.card_tables import score_table, summary_table
from studies.fitting.out_of_fold import ASSIGNMENTS, Fit, kept
from studies.fitting.trees.boosted import Plan, boosted_fit, evaluate, power_card
from studies.fitting.trees.tables import (
    SOURCE,
    SOURCES,
    TrainingTable,
    column_facts,
    training_table,
)
from wattcast.features.gpus import load_gpu
from wattcast.models.cards import FeatureFacts, ModelCard, Table
from wattcast.models.power.boosted import LAUNCH_FEATURES, launch_features
from wattcast.models.store import NATIVE_NAMES, ONNX_NAME, PACKAGED_ARTIFACTS
from wattcast.training.engine import Checkpoints
from wattcast.training.evaluation.scores import Floats, Predict, Rows
from wattcast.training.families import get_family, library_versions
from wattcast.training.power_rows import rows_of
from wattcast.training.provenance import fingerprint, write_artifact, write_background

# --- Extra trees kept as an XGBoost model: a native file, exact SHAP and ON --------------------


SETTINGS: Mapping[str, bool | int | float | str] = MappingProxyType(
    {"n_estimators": 60, "min_samples_leaf": 2, "max_features": 0.5, "random_state": 20230101}
)
"""Fixed for every GPU alike. Leaves of 4 make files of half the size and err by 1 % more on
kernels left out, leaves of 8 by 3 %."""


@dataclass(frozen=True)
class Forest:
    """Extra trees grown on logarithms of watts; a leaf answers the watts of its mean logarithm."""

    trees: Any

    def predict(self, vectors: Floats) -> Floats:
        """Watts ``[m]``: the mean over the trees."""
        inputs = np.asarray(vectors, dtype=np.float32)
        each = [np.exp(tree.predict(inputs)) for tree in self.trees.estimators_]
        return np.asarray(np.mean(each, axis=0))


def grow(
    vectors: Floats,
    log_watts: Floats,
    weights: Floats,
    settings: Mapping[str, Any] = SETTINGS,
) -> Forest:
    """Grow trees on vectors ``[n, k]``, ln watts and weights ``[n]``."""
    from sklearn.ensemble import ExtraTreesRegressor

    trees = ExtraTreesRegressor(**settings, n_jobs=1)
    trees.fit(np.asarray(vectors, dtype=np.float32), log_watts, sample_weight=weights)
    return Forest(trees)


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
    trees = [_tree(tree.tree_, features, 1 / count) for tree in forest.trees.estimators_]
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


# ------------------------------------------------------------------------------------------


FAMILY = "extratrees"
LIBRARIES = ("scikit-learn", "xgboost")

ROWS_PER_KERNEL_POWER = 0.75
"""A row's weight is its kernel group's number of rows to minus this: 0 counts rows, 1 counts
kernels, which makes everything of the one row that some kernels have."""

PEER_WEIGHT = 0.5
"""Weight of another GPU's row beside an own one."""

Names = NDArray[np.str_]


@dataclass(frozen=True)
class Part:
    """Rows of one GPU: vectors ``[n, k]``, watts and names of kernel groups ``[n]``."""

    gpu: str
    vectors: Floats
    watts: Floats
    groups: Names

    @property
    def limit_watts(self) -> float:
        """The board's power limit."""
        return load_gpu(self.gpu).tdp_watts


def pooled_fit(
    own: Part,
    peers: Sequence[Part] = (),
    settings: Mapping[str, Any] = SETTINGS,
) -> Fit:
    """Fits on training rows of ``own`` and those of ``peers`` whose kernels are not left out.

    Training rows are rows of ``own`` with groups numbered as in ``Rows.of``: a group without
    one is left out of the peers, too. Known rows of a test are not used: anchoring is for them.
    """
    names = np.unique(own.groups)

    def fit(train: Rows) -> Predict:
        groups = names[train.groups]
        part = Part(own.gpu, train.vectors, train.watts, groups)
        without = left_out(names, groups)
        fitted = fit_pooled(part, peers, without, settings)

        def predict(known: Rows, test: Rows) -> Floats:
            return fitted.predict(filled(test.vectors, train.vectors))

        return predict

    return fit


def left_out(names: Names, groups: Names) -> frozenset[str]:
    """The names that no group has."""
    return frozenset(names.tolist()) - frozenset(groups.tolist())


def fit_pooled(
    own: Part,
    peers: Sequence[Part],
    without: frozenset[str] = frozenset(),
    settings: Mapping[str, Any] = SETTINGS,
) -> Forest:
    """Trees on all rows of ``own`` and the rows of ``peers`` of no kernel group in ``without``."""
    floor, limit = float(own.watts.min()), own.limit_watts
    vectors, targets, weights = [own.vectors], [np.log(own.watts)], [_weights(own.groups)]
    for peer in peers:
        kept = ~np.isin(peer.groups, list(without))
        low = float(peer.watts.min())
        place = np.log(peer.watts[kept] / low) / np.log(peer.limit_watts / low)
        vectors.append(peer.vectors[kept])
        targets.append(np.log(floor) + place * np.log(limit / floor))
        weights.append(PEER_WEIGHT * _weights(peer.groups[kept]))
    everything = np.concatenate(vectors)
    return grow(
        filled(everything, everything),
        np.concatenate(targets),
        np.concatenate(weights),
        settings,
    )


def save(forest: Forest, folder: Path, features: int) -> None:
    """Write the native and the ONNX file into ``folder``."""
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    booster = as_booster(forest, features)
    booster.save_model(folder / NATIVE_NAMES[FAMILY])
    inputs = [("features", FloatTensorType([None, features]))]
    converted = onnxmltools.convert_xgboost(booster, name=FAMILY, initial_types=inputs)
    (folder / ONNX_NAME).write_bytes(converted.SerializeToString())


def hyperparameters(peers: Sequence[Part]) -> dict[str, Any]:
    """What a card says of the fit."""
    return {
        **SETTINGS,
        "rows_per_kernel_power": ROWS_PER_KERNEL_POWER,
        "peers": ", ".join(peer.gpu for peer in peers),
        "peer_weight": PEER_WEIGHT,
    }


def _weights(groups: Names) -> Floats:
    _, index, counts = np.unique(groups, return_inverse=True, return_counts=True)
    weights = counts[index] ** -ROWS_PER_KERNEL_POWER
    return np.asarray(weights / weights.mean()) if len(weights) else np.zeros(0)


def filled(vectors: Floats, like: Floats) -> Floats:
    """Missing values as the median of ``like``'s; a feature that ``like`` never has is 0."""
    if not np.isnan(vectors).any():
        return vectors
    present = ~np.isnan(like).all(axis=0)
    medians = np.zeros(like.shape[1])
    medians[present] = np.nanmedian(like[:, present], axis=0)
    return np.where(np.isnan(vectors), medians, vectors)


# --- tables, fits and artifacts -----------------------------------------------------------------


class LaunchedTable(TrainingTable):
    """A training table with ``LAUNCH_FEATURES`` after the schema's inputs."""

    @cached_property
    def _frames(self) -> dict[Table, Any]:
        gpu = load_gpu(self.gpu)
        return {
            name: frame.assign(
                **launch_features(frame["grid_size"], frame["block_size"], frame["occupancy"], gpu)
            )
            for name, frame in self.frames.items()
        }

    @cached_property
    def launched(self) -> Mapping[Table, Rows]:
        """The rows of each table."""
        names = [one.name for one in self.launched_features]
        return {name: rows_of(frame, names) for name, frame in self._frames.items()}

    @cached_property
    def launched_features(self) -> tuple[FeatureFacts, ...]:
        """Facts of all columns, as served."""
        last, note = self._frames[self.served], "computed from grid, block and occupancy"
        more = (column_facts(last, name, note, share=1.0) for name in LAUNCH_FEATURES)
        return (*self.features, *more)

    @property
    def group_names(self) -> dict[Table, Names]:
        """Names of the rows' kernel groups ``[n]``."""
        return {
            name: frame["kernel_group"].to_numpy(dtype=str) for name, frame in self.frames.items()
        }

    def part(self, name: Table) -> Part:
        """One table's rows as the trees take them."""
        rows = self.launched[name]
        return Part(self.gpu, rows.vectors, rows.watts, self.group_names[name])


def launched_table(gpu: str, root: Path | None = None, source: str = SOURCE) -> LaunchedTable:
    """The rows of one GPU. Raises DataError as ``training_table`` does."""
    return LaunchedTable(**vars(training_table(gpu, root, source)))


def peer_tables(gpu: str, root: Path | None = None) -> list[LaunchedTable]:
    """The thesis' tables of the other GPUs, whose rows join the training on one.

    None of PowerQuant: its files hold the same dozen kernels, and a kernel that is left out is
    left out of all of them. Raises DataError for missing or defective data.
    """
    return [launched_table(other, root) for other in SOURCES[SOURCE][1] if other != gpu]


def pooled_fits(
    table: LaunchedTable, peers: Sequence[LaunchedTable], checkpoints: Checkpoints | None = None
) -> dict[Table, Fit]:
    """How the extra trees are fitted on training rows of each table of one GPU."""
    fits: dict[Table, Fit] = {}
    for name in table.rows:
        parts = [peer.part(name) for peer in peers]
        settings = {
            **hyperparameters(parts),
            **library_versions(LIBRARIES[:1]),
            "gpu": table.gpu,
            "rows": ", ".join(
                fingerprint(part.vectors, part.watts, part.groups.tolist())
                for part in (table.part(name), *parts)
            ),
        }
        fit = pooled_fit(table.part(name), parts)
        fits[name] = kept(fit, checkpoints or Checkpoints(), FAMILY, settings)
    return fits


def shipped_fit(
    gpu: str, source: str, checkpoints: Checkpoints | None = None
) -> tuple[LaunchedTable, Fit]:
    """The rows of a board as served, and how the model that ships for it is fitted on some of
    them: the extra trees on the thesis' boards, CatBoost on PowerQuant's. Raises DataError."""
    table = launched_table(gpu, source=source)
    if source == SOURCE:
        return table, pooled_fits(table, peer_tables(gpu), checkpoints)[table.served]
    fit = boosted_fit(get_family("catboost"), checkpoints or Checkpoints())
    count = len(table.features)

    def narrow(rows: Rows) -> Rows:
        return replace(rows, vectors=rows.vectors[:, :count])

    def narrowed(train: Rows) -> Predict:
        predict = fit(narrow(train))
        return lambda known, test: predict(narrow(known), narrow(test))

    return table, narrowed


def train_pooled(
    table: LaunchedTable,
    peers: Sequence[LaunchedTable],
    out_dir: Path,
    plan: Plan,
    progress: Callable[[str], None],
) -> ModelCard:
    """Evaluate the trees of one GPU, fit them, and write their artifact below ``out_dir``."""
    label = f"{table.gpu} {FAMILY}"
    fits = pooled_fits(table, peers, plan.checkpoints)
    evaluation = evaluate(table.launched, fits, plan, progress, label)
    others = [peer.part(table.served) for peer in peers]
    card = power_card(
        table,
        FAMILY,
        evaluation,
        plan,
        hyperparameters=hyperparameters(others),
        libraries=LIBRARIES,
        features=table.launched_features,
        beside=peers,
    )
    progress(f"{label}: final fit")
    own = table.part(table.served)
    forest = fit_pooled(own, others)
    vectors = table.launched[table.served].vectors

    def write(folder: Path) -> None:
        save(forest, folder, vectors.shape[1])
        write_background(vectors, [one.name for one in table.launched_features], folder)

    return write_artifact(card, out_dir, write)


def main(arguments: Sequence[str]) -> int:
    """Fit and print scores; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m studies extra-trees")
    parser.add_argument("--gpu", action="append", choices=list(SOURCES[SOURCE][1]))
    parser.add_argument("--out", type=Path, default=PACKAGED_ARTIFACTS, help="artifact root")
    parser.add_argument("--assignments", type=int, default=ASSIGNMENTS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--resume", type=Path, help="folder for finished fits")
    options = parser.parse_args(arguments)
    plan = Plan(options.assignments, jobs=options.jobs, checkpoints=Checkpoints(options.resume))
    cards = []
    for gpu in options.gpu or SOURCES[SOURCE][1]:
        table = launched_table(gpu)
        cards.append(train_pooled(table, peer_tables(gpu), options.out, plan, _say))
    print(summary_table(cards))
    print(score_table(cards))
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
