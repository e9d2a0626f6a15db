"""Rows as they are split and scored: which train, which are tested.

``random`` leaves a fifth of the rows out: a new launch of a kernel that was measured; ``grouped`` a
fifth of the kernel groups: a new kernel. Everything is the same for the same rows and seed.
``studies.evaluation`` splits by more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Names = NDArray[np.str_]


LABELS = ("kernels", "families", "gpus", "clocks")


@dataclass(frozen=True)
class Rows:
    """What a model is fitted on and scored by: vectors ``[n, k]``, watts and groups ``[n]``.

    ``groups`` numbers the kernel groups (near-twin kernels are one). The others, each ``[n]``,
    are there where a protocol needs them: ``kernels`` (numbers; the groups where nothing tells
    kernels of a group apart), ``families`` (numbers), ``gpus`` (names), ``clocks`` (numbers of
    the clock settings).
    """

    vectors: Floats
    watts: Floats
    groups: Indices
    kernels: Indices | None = None
    families: Indices | None = None
    gpus: Names | None = None
    clocks: Indices | None = None

    @classmethod
    def of(
        cls,
        vectors: ArrayLike,
        watts: ArrayLike,
        group_names: ArrayLike,
        *,
        kernels: ArrayLike | None = None,
        families: ArrayLike | None = None,
        gpus: ArrayLike | None = None,
        clocks: ArrayLike | None = None,
    ) -> Rows:
        """Rows with groups, kernels and families numbered in the order of their sorted names.
        ``clocks`` are numbers ``[n]`` or ``[n, 2]`` (core and memory), in any unit."""
        return cls(
            np.asarray(vectors, dtype=np.float64),
            np.asarray(watts, dtype=np.float64),
            _numbered(group_names),
            kernels=None if kernels is None else _numbered(kernels),
            families=None if families is None else _numbered(families),
            gpus=None if gpus is None else np.asarray(gpus, dtype=str),
            clocks=None if clocks is None else _distinct(np.asarray(clocks, dtype=np.float64)),
        )

    def __len__(self) -> int:
        return len(self.watts)

    def take(self, rows: Indices) -> Rows:
        """The chosen rows; group numbers stay as they are."""
        labels = {name: getattr(self, name) for name in LABELS}
        chosen = {name: None if one is None else one[rows] for name, one in labels.items()}
        return Rows(self.vectors[rows], self.watts[rows], self.groups[rows], **chosen)

    def hidden(self) -> Rows:
        """The same rows without their power (NaN): all that a model may know of test rows."""
        return replace(self, watts=np.full(len(self), np.nan))


Predict = Callable[[Rows, Rows], Floats]
"""(known rows, test rows without power) -> test watts ``[m]``. The known rows are measured
launches of the test kernel, or of the new GPU; most protocols know none."""


def _numbered(names: ArrayLike) -> Indices:
    return np.unique(np.asarray(names, dtype=str), return_inverse=True)[1].astype(np.int64)


def _distinct(values: Floats) -> Indices:
    return np.unique(values, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


Protocol = Literal["random", "grouped"]
"""The protocols every model card has scores of."""

FOLDS = 5


def fold_assignment(rows: Rows, protocol: Protocol, seed: int, folds: int = FOLDS) -> Indices:
    """Fold of every row, ``[n]`` in 0..folds-1, the same for the same seed.

    ``grouped`` deals the shuffled groups out, each to the fold with the fewest rows so far, so
    that folds have like sizes although groups do not. Raises ValueError for fewer groups than
    folds.
    """
    generator = np.random.default_rng(seed)
    if protocol == "random":
        assignment = np.empty(len(rows), dtype=np.int64)
        assignment[generator.permutation(len(rows))] = np.arange(len(rows)) % folds
        return assignment
    return dealt(rows.groups, "kernel groups", folds, generator)


def dealt(labels: Indices, what: str, folds: int, generator: np.random.Generator) -> Indices:
    """Fold of every row ``[n]``: the shuffled labels, each dealt to the fold with fewest rows."""
    sizes = np.bincount(labels)
    present = np.flatnonzero(sizes)
    if len(present) < folds:
        raise ValueError(f"{len(present)} {what} cannot fill {folds} folds")
    fold_of = np.full(len(sizes), -1, dtype=np.int64)
    filled = np.zeros(folds, dtype=np.int64)
    for label in generator.permutation(present):
        fold = int(np.argmin(filled))
        fold_of[label] = fold
        filled[fold] += sizes[label]
    return np.asarray(fold_of[labels])


def outside_range(train: Floats, test: Floats) -> NDArray[np.bool_]:
    """Test rows with a value beyond the range of the training rows', ``[m]``."""
    # fmin and fmax: a feature that no training row has bounds nothing, and is no reason to warn.
    low, high = np.fmin.reduce(train, axis=0), np.fmax.reduce(train, axis=0)
    return np.asarray(((test < low) | (test > high)).any(axis=1))
