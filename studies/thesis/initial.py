"""The initial study of thesis section 5.2: a decision tree on static features alone.

Correlations among the features of Table 5.1, the ten kept (Table 5.2), and a tree tuned over the
parameters the thesis names, judged by nested cross-validation: what is chosen for a fold is
chosen on its training rows, by the same protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

import pandas as pd
from sklearn.tree import DecisionTreeRegressor

from studies.evaluation import evaluate
from studies.thesis.data import median_filled, rows_of
from studies.thesis.judged import PROTOCOLS, Effort, Judged
from studies.thesis.nested import choose, tuned
from studies.thesis.regressors import scaled
from wattcast.training.evaluation.splits import Fit, Protocol, Rows, plain
from wattcast.training.families import SEED

TABLE_5_1 = (
    "block_size",
    "grid_size",
    "comp_inst_kernel",
    "comp_inst_sm",
    "glob_inst_kernel",
    "glob_inst_sm",
    "inst_issue_cycles",
    "misc_inst_kernel",
    "misc_inst_sm",
    "occupancy",
    "shar_inst_kernel",
    "shar_inst_sm",
    "total_threads",
    "total_inst",
    "waves",
)
"""Features considered; the table's ``_sim`` are the files' ``_sm``."""

TABLE_5_2 = (
    "block_size",
    "comp_inst_kernel",
    "glob_inst_kernel",
    "glob_inst_sm",
    "inst_issue_cycles",
    "misc_inst_kernel",
    "misc_inst_sm",
    "occupancy",
    "shar_inst_kernel",
    "shar_inst_sm",
)
"""Features kept after Pearson's correlation."""

INNER_FOLDS = 3
GRID: Mapping[str, Mapping[str, Any]] = {
    f"depth {depth}, split {split}, features {share}, pruning {alpha}": {
        "max_depth": depth,
        "min_samples_split": split,
        "max_features": share,
        "ccp_alpha": alpha,
    }
    for depth, split, share, alpha in product((6, 10, 14), (2, 10), (0.5, 1.0), (0.0, 0.1))
}
"""Trees tried: the thesis names depth, samples to split, features for a split, and pruning, and
prints no values."""


class InitialStudy(NamedTuple):
    """One GPU: strongest correlations, the tree's predictions, and its importances."""

    correlations: Mapping[tuple[str, str], float]
    judged: Judged
    importances: Mapping[str, float]


def initial_study(frame: pd.DataFrame, effort: Effort) -> InitialStudy:
    """The study on the rows of one GPU."""
    rows = rows_of(frame, TABLE_5_2)
    found = {
        protocol: evaluate(rows, _tuned(protocol), protocol, effort.seeds, jobs=effort.jobs)
        for protocol in PROTOCOLS
    }
    return InitialStudy(
        strong_correlations(frame, TABLE_5_1),
        Judged("decision-tree", found["random"], found["grouped"]),
        _importances(rows),
    )


def strong_correlations(
    frame: pd.DataFrame, features: tuple[str, ...], at_least: float = 0.85
) -> dict[tuple[str, str], float]:
    """Pairs whose Pearson coefficient is at least so large, either sign, the largest first."""
    given = [name for name in features if frame[name].notna().any()]
    table = frame[given].corr().to_numpy(float)
    pairs = {
        (one, given[other]): float(table[at, other])
        for at, one in enumerate(given)
        for other in range(at + 1, len(given))
        if abs(table[at, other]) >= at_least
    }
    return dict(sorted(pairs.items(), key=lambda pair: -abs(pair[1])))


def _tuned(protocol: Protocol) -> Fit:
    candidates = {name: _tree(parameters) for name, parameters in GRID.items()}
    return tuned(candidates, protocol, folds=INNER_FOLDS)


def _tree(parameters: Mapping[str, Any]) -> Fit:
    return plain(scaled(lambda: DecisionTreeRegressor(random_state=SEED, **parameters)))


def _importances(rows: Rows) -> dict[str, float]:
    candidates = {name: _tree(parameters) for name, parameters in GRID.items()}
    losses = choose(rows, candidates, "random", folds=INNER_FOLDS)
    best = min(losses, key=lambda name: losses[name])
    tree = DecisionTreeRegressor(random_state=SEED, **GRID[best])
    tree.fit(median_filled(rows.vectors), rows.watts)
    shares = zip(TABLE_5_2, tree.feature_importances_, strict=True)
    return dict(sorted(((name, float(share)) for name, share in shares), key=lambda one: -one[1]))
