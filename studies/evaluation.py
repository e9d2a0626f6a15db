"""Protocols and baselines of evaluation that only studies ask for.

| protocol | left out | answers |
|---|---|---|
| ``random`` | a fifth of the rows | a new launch of a kernel that was measured |
| ``grouped`` | a fifth of the kernel groups | a new kernel |
| ``family`` | a fifth of the families | a new kind of program |
| ``gpu`` | one GPU | a GPU nobody measured |
| ``new_gpu`` | one GPU but for ``shots`` random rows | a GPU measured a little |
| ``known`` | as ``grouped``, but for ``shots`` rows of each kernel | the same, measured a little |

    evaluate(rows, fit, protocol, seeds)     any protocol, any model
    cross_validate(rows, fit_predict, ...)   the same for a model of vectors and watts alone

``BASELINES`` know next to nothing of a kernel; every score stands beside theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial import cKDTree

from studies.fitting.out_of_fold import (
    LEVEL,
    NOTHING,
    Case,
    Fit,
    FitPredict,
    Fold,
    OutOfFold,
    cross_conformal,
    interval_score_watts,
    joined,
    measure_coverage,
    median_watts,
    out_of_fold,
    plain,
)
from wattcast.models.cards import ScoreName, Spread
from wattcast.training.evaluation.scores import (
    FOLDS,
    Floats,
    Indices,
    Predict,
    Protocol,
    Rows,
    dealt,
    fold_assignment,
    spread_of,
)

Baseline = Literal["median_watts", "clock_median_watts", "nearest_watts", "own_median_watts"]
AnyProtocol = Literal[Protocol, "family", "gpu", "new_gpu", "known"]
WITH_SHOTS: tuple[AnyProtocol, ...] = ("new_gpu", "known")
"""Protocols in which some rows of what is left out are known."""

IntervalScoreName = Literal[
    "coverage", "kernel_macro_coverage", "mean_width_watts", "interval_score_watts"
]

Label = TypeVar("Label")

CONSTANT = (1.0,)
"""The exponent of intervals of equally many watts around each prediction."""


def clock_median_watts(train: Rows) -> Predict:
    """The median of the training and known rows at the same clocks."""

    def predict(known: Rows, test: Rows) -> Floats:
        measured = joined([train, known]) if len(known) else train
        watts = np.full(len(test), np.median(measured.watts))
        if measured.clocks is not None and test.clocks is not None:
            for clock in np.intersect1d(measured.clocks, test.clocks):
                watts[test.clocks == clock] = np.median(measured.watts[measured.clocks == clock])
        return watts

    return predict


def nearest_watts(train: Rows) -> Predict:
    """The power of the nearest training or known row.

    Features are standardised by mean and deviation of the training rows; a missing value lies
    at the mean, a feature that never varies has no say.
    """
    places = _Places(train.vectors)
    neighbours = cKDTree(places(train.vectors))

    def predict(known: Rows, test: Rows) -> Floats:
        at = places(test.vectors)
        distance, index = neighbours.query(at)
        watts: Floats = train.watts[index]
        if len(known):
            known_distance, index = cKDTree(places(known.vectors)).query(at)
            watts = np.where(known_distance < distance, known.watts[index], watts)
        return watts

    return predict


def own_median_watts(train: Rows) -> Predict:
    """The median of the known rows; of the training rows where none are known."""

    def predict(known: Rows, test: Rows) -> Floats:
        return np.full(len(test), np.median((known if len(known) else train).watts))

    return predict


BASELINES: Mapping[Baseline, Fit] = MappingProxyType(
    {
        "median_watts": median_watts,
        "clock_median_watts": clock_median_watts,
        "nearest_watts": nearest_watts,
        "own_median_watts": own_median_watts,
    }
)


class _Places:
    """Where rows lie, standardised as the training rows are."""

    def __init__(self, vectors: Floats) -> None:
        present = ~np.isnan(vectors)
        counts = np.maximum(present.sum(axis=0), 1)
        filled = np.where(present, vectors, 0.0)
        self.mean = filled.sum(axis=0) / counts
        deviation = np.where(present, vectors - self.mean, 0.0)
        scale = np.sqrt((deviation**2).sum(axis=0) / counts)
        # Rounding of the mean leaves a constant column a deviation of its last digits.
        self.scale = np.where(scale > 1e-12 * np.abs(self.mean), scale, np.inf)

    def __call__(self, vectors: Floats) -> Floats:
        return np.asarray(np.nan_to_num((vectors - self.mean) / self.scale, nan=0.0))


@dataclass(frozen=True)
class BesideBaselines(OutOfFold):
    """Predictions out of fold beside those of the further baselines, ``others``."""

    others: Mapping[Baseline, Floats] = field(default_factory=dict)

    def take(self, rows: Indices) -> BesideBaselines:
        """What was predicted of the chosen rows, one GPU's say."""
        return replace(
            self,
            rows=self.rows.take(rows),
            predicted_watts=self.predicted_watts[:, rows],
            baseline_watts=self.baseline_watts[:, rows],
            outside=self.outside[:, rows],
            folds=None if self.folds is None else self.folds[:, rows],
            others={name: watts[:, rows] for name, watts in self.others.items()},
        )

    def other_scores(self) -> dict[Baseline, dict[ScoreName, Spread]]:
        """The same of the further baselines."""
        return {name: self._spread(watts) for name, watts in self.others.items()}

    def interval_scores(
        self,
        exponents: Sequence[float] = (0.0,),
        level: float = LEVEL,
        *,
        floor_watts: float = 0.0,
        of: Baseline | None = None,
    ) -> dict[IntervalScoreName, Spread]:
        """What intervals hold whose width comes from the residuals of the other folds alone.

        They are around the model's predictions, or around those ``of`` a baseline; ``exponents``
        and ``floor_watts`` are those of ``cross_conformal``.

        The residuals were left by models that saw the fold under test, as in cross-conformal
        prediction; ``evaluation.calibration`` nests that away too, at six times the fits. Raises
        ValueError for predictions without fold numbers.
        """
        return spread_of(
            [
                interval_scores(
                    known.measured_watts,
                    *cross_conformal(
                        known, folds, level, exponents=exponents, floor_watts=floor_watts
                    ),
                    groups,
                    level,
                )
                for known, folds, groups in self.by_assignment(self._predicted(of))
            ]
        )

    def _predicted(self, of: Baseline | None) -> Floats:
        if of is None:
            return self.predicted_watts
        return self.baseline_watts if of == "median_watts" else self.others[of]


def evaluate(
    rows: Rows,
    fit: Fit,
    protocol: AnyProtocol,
    seeds: Sequence[int],
    *,
    folds: int = FOLDS,
    shots: int = 0,
    jobs: int = 1,
) -> BesideBaselines:
    """Predict every tested row by a model that did not see it, once per seed, with baselines.

    The model gets test rows without their power. ``shots`` and ``folds`` as in
    ``folds_of``; ``jobs`` fits at a time. Raises ValueError where the rows do not
    allow the protocol.
    """
    baselines: dict[str, Fit] = {
        name: baseline
        for name, baseline in BASELINES.items()
        if name != "own_median_watts" or protocol in WITH_SHOTS
    }
    each = [folds_of(rows, protocol, seed, folds=folds, shots=shots) for seed in seeds]
    watts, outside, numbers = out_of_fold(rows, {"model": fit, **baselines}, each, jobs)
    others: dict[Baseline, Floats] = {
        name: watts[name] for name in BASELINES if name in watts and name != "median_watts"
    }
    return BesideBaselines(
        rows, watts["model"], watts["median_watts"], outside, numbers, protocol, others
    )


def cross_validate(
    rows: Rows,
    fit_predict: FitPredict,
    protocol: Protocol,
    seeds: Sequence[int],
    *,
    folds: int = FOLDS,
    jobs: int = 1,
) -> BesideBaselines:
    """As ``evaluate``, for a model that needs vectors and watts alone."""
    return evaluate(rows, plain(fit_predict), protocol, seeds, folds=folds, jobs=jobs)


def folds_of(
    rows: Rows, protocol: AnyProtocol, seed: int, *, folds: int = FOLDS, shots: int = 0
) -> Iterator[Fold]:
    """The folds of one seeded assignment.

    ``shots`` rows (at least 1 with ``new_gpu`` and ``known``, else 0) are known, drawn by the
    seed; a GPU or kernel with no more rows than that is not tested. ``gpu`` is the same for every
    seed. Raises ValueError where the rows lack the label a protocol splits by, or hold too few.
    """
    if (shots > 0) != (protocol in WITH_SHOTS):
        raise ValueError(f"the protocol {protocol} does not go with {shots} known rows")
    if protocol in ("gpu", "new_gpu"):
        yield from _one_gpu_out(rows, seed, shots)
        return
    if protocol == "family":
        labels = _label(rows.families, "families")
        assignment = dealt(labels, "families", folds, np.random.default_rng(seed))
    else:
        kind: Protocol = "random" if protocol == "random" else "grouped"
        assignment = fold_assignment(rows, kind, seed, folds)
    # Another stream than the one that dealt the folds: which rows are known must not follow it.
    generator = np.random.default_rng([seed, 1])
    for fold in range(folds):
        train, test = np.flatnonzero(assignment != fold), np.flatnonzero(assignment == fold)
        if protocol == "known":
            units = units_of(rows)[test]
            cases = (
                _case(test[units == unit], shots, generator) for unit in np.unique(units).tolist()
            )
            yield Fold(train, tuple(case for case in cases if len(case.test)))
        else:
            yield Fold(train, (Case(NOTHING, test),))


def units_of(rows: Rows) -> Indices:
    """What "a kernel" is to protocols that measure some of its launches, ``[n]``."""
    return rows.groups if rows.kernels is None else rows.kernels


def _one_gpu_out(rows: Rows, seed: int, shots: int) -> Iterator[Fold]:
    gpus = _label(rows.gpus, "GPUs")
    names = np.unique(gpus)
    if len(names) < 2:
        raise ValueError("leaving a GPU out needs two of them")
    generator = np.random.default_rng([seed, 1])
    for name in names:
        own = np.flatnonzero(gpus == name)
        case = _case(own, shots, generator) if shots else Case(NOTHING, own)
        if len(case.test):
            yield Fold(np.flatnonzero(gpus != name), (case,))


def _case(own: Indices, shots: int, generator: np.random.Generator) -> Case:
    order = generator.permutation(own)
    if len(own) <= shots:
        return Case(own, NOTHING)
    return Case(np.sort(order[:shots]), np.sort(order[shots:]))


def _label(label: Label | None, what: str) -> Label:
    if label is None:
        raise ValueError(f"these rows do not give their {what}")
    return label


def coverage(measured: Floats, low: Floats, high: Floats) -> float:
    """Share of rows inside their interval."""
    return float(np.mean((low <= measured) & (measured <= high)))


def interval_scores(
    measured: Floats, low: Floats, high: Floats, groups: ArrayLike, level: float
) -> dict[IntervalScoreName, float]:
    """All scores of intervals at a nominal level."""
    found = measure_coverage("", measured, low, high, groups, level)
    return {
        "coverage": coverage(measured, low, high),
        "kernel_macro_coverage": found.kernels,
        "mean_width_watts": found.mean_width_watts,
        "interval_score_watts": interval_score_watts(measured, low, high, level),
    }
