"""The scores of predicted power and time: one function and one definition each.

Arrays are ``[n]``: watts measured, predicted, and the lower and upper end of an interval. Errors
in percent are of the measured value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wattcast.models.cards import ProtocolScores, ScoreName, Spread
from wattcast.models.time.calibration import TimeScoreName

# Rows as they are split and scored: which train, which are tested.
#
# ``random`` leaves a fifth of the rows out: a new launch of a kernel that was measured; ``grouped``
# a fifth of the kernel groups: a new kernel. Everything is the same for the same rows and seed.
# ``studies.evaluation`` splits by more.

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
        gpus: ArrayLike | None = None,
        clocks: ArrayLike | None = None,
        **numbered: ArrayLike,
    ) -> Rows:
        """Rows with groups, kernels and families numbered in the order of their sorted names.
        ``clocks`` are numbers ``[n]`` or ``[n, 2]`` (core and memory), in any unit."""
        return cls(
            np.asarray(vectors, dtype=np.float64),
            np.asarray(watts, dtype=np.float64),
            _numbered(group_names),
            **{name: _numbered(labels) for name, labels in numbered.items()},
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


Name = TypeVar("Name", bound=str)

_DIGITS = 6
"""Digits kept of a mean and its spread: far more than the spread supports, and steady against
the order of summation."""


def r2(measured: Floats, predicted: Floats) -> float:
    """Share of the variance explained, 1 - SS_res / SS_tot about the mean of ``measured``.
    0 is what that mean would score, below 0 is worse. NaN where all measured values are equal."""
    total = float(np.sum((measured - measured.mean()) ** 2))
    return 1 - float(np.sum((predicted - measured) ** 2)) / total if total > 0 else float("nan")


def rmse_watts(measured: Floats, predicted: Floats) -> float:
    """Root of the mean squared error."""
    return float(np.sqrt(np.mean((predicted - measured) ** 2)))


def mae_watts(measured: Floats, predicted: Floats) -> float:
    """Mean absolute error."""
    return float(np.mean(np.abs(predicted - measured)))


def ape_percent(measured: Floats, predicted: Floats) -> Floats:
    """Absolute error of every row in percent of its measured value, ``[n]``."""
    return np.asarray(np.abs(predicted - measured) / measured * 100)


def mape_percent(measured: Floats, predicted: Floats) -> float:
    """Mean absolute error in percent: every row counts the same."""
    return float(np.mean(ape_percent(measured, predicted)))


def median_ape_percent(measured: Floats, predicted: Floats) -> float:
    """Median absolute error in percent: half of the rows are nearer."""
    return float(np.median(ape_percent(measured, predicted)))


def kernel_macro_mape_percent(measured: Floats, predicted: Floats, groups: ArrayLike) -> float:
    """MAPE of every kernel group, averaged: a kernel counts the same however often it was run."""
    return float(np.mean(group_means(ape_percent(measured, predicted), groups)))


def point_scores(measured: Floats, predicted: Floats, groups: ArrayLike) -> dict[ScoreName, float]:
    """All scores of predicted watts, under the names that cards use."""
    return {
        "r2": r2(measured, predicted),
        "rmse_watts": rmse_watts(measured, predicted),
        "mae_watts": mae_watts(measured, predicted),
        "mape_percent": mape_percent(measured, predicted),
        "median_ape_percent": median_ape_percent(measured, predicted),
        "kernel_macro_mape_percent": kernel_macro_mape_percent(measured, predicted, groups),
    }


def spread_of(each: Sequence[dict[Name, float]]) -> dict[Name, Spread]:
    """Mean and (population) standard deviation of every score over seeded assignments."""
    return {
        name: Spread(
            mean=_rounded(np.mean([one[name] for one in each])),
            std=_rounded(np.std([one[name] for one in each])),
        )
        for name in each[0]
    }


def protocol_scores(
    protocol: Protocol,
    folds: int,
    measured: Floats,
    groups: ArrayLike,
    model: Sequence[Floats] | Floats,
    baseline: Sequence[Floats] | Floats,
) -> ProtocolScores:
    """Scores of a measured table: predictions ``[n]`` of model and baseline by assignment."""
    own, plain = (
        spread_of([point_scores(measured, one, groups) for one in each])
        for each in (model, baseline)
    )
    return ProtocolScores(
        table="measured",
        protocol=protocol,
        folds=folds,
        assignments=len(model),
        model=own,
        baseline=plain,
    )


def group_means(values: Floats, groups: ArrayLike) -> Floats:
    """Mean value of each group, in the order of the groups' numbers."""
    _, index = np.unique(np.asarray(groups), return_inverse=True)
    return np.asarray(np.bincount(index, weights=values) / np.bincount(index))


def _rounded(value: float | np.floating) -> float:
    return round(float(value), _DIGITS)


def time_scores(
    measured: Floats, predicted: Floats, programs: Indices
) -> dict[TimeScoreName, float]:
    """Scores of predicted seconds ``[n]``; see ``TimeScoreName``."""
    ape = np.abs(predicted / measured - 1) * 100
    within = np.abs(np.log(predicted / measured)) <= np.log(2)
    members = [programs == program for program in np.unique(programs)]
    return {
        "median_ape_percent": float(np.median(ape)),
        "within_25_percent_share": float(np.mean(ape <= 25)),
        "within_factor_2_share": float(np.mean(within)),
        "program_median_ape_percent": float(np.median([np.median(ape[own]) for own in members])),
        "program_within_factor_2_share": float(np.mean([within[own].mean() for own in members])),
    }
