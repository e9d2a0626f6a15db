"""How models are scored: on rows, kernels, families and GPUs that they have not seen.

``random`` folds split rows, so that other launches of the same kernel are in training: what the
literature reports. ``grouped`` folds keep all rows of a kernel group on one side: what a user's
own kernel gets. ``studies.evaluation`` has other protocols and baselines. Scores are computed on
the out-of-fold predictions of all tested rows of one fold assignment; mean and spread are over
seeded assignments, since fold luck is large.

    evaluate(rows, fit, protocol, seeds)     any model, beside the median of the training rows
    cross_conformal(residuals, folds, level) intervals of a fold from the residuals of the others
    kept(fit, checkpoints, label, settings)  predictions that a fit which died need not repeat
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wattcast.models.cards import ScoreName, Spread
from wattcast.models.intervals import Coverage, Residuals, conformal_width, interval_bounds
from wattcast.training.engine import Checkpoints
from wattcast.training.evaluation.scores import (
    FOLDS,
    LABELS,
    Floats,
    Indices,
    Predict,
    Protocol,
    Rows,
    fold_assignment,
    outside_range,
    point_scores,
    spread_of,
)

Fit = Callable[[Rows], Predict]
"""Training rows -> what predicts others."""
FitPredict = Callable[[Floats, Floats, Floats], Floats]
"""(training vectors [n, k], training watts [n], test vectors [m, k]) -> test watts [m]."""


def plain(fit_predict: FitPredict) -> Fit:
    """A model of vectors and watts alone; known rows are further training rows to it."""

    def fit(train: Rows) -> Predict:
        def predict(known: Rows, test: Rows) -> Floats:
            vectors = np.concatenate([train.vectors, known.vectors])
            watts = np.concatenate([train.watts, known.watts])
            return fit_predict(vectors, watts, test.vectors)

        return predict

    return fit


def joined(parts: Sequence[Rows]) -> Rows:
    """Rows of several tables as one, numbered alike (``take`` of one ``Rows`` gives such parts).
    A label is kept where every part has it."""

    def together(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        return None if any(each is None for each in values) else np.concatenate(values)

    return Rows(**{name: together(name) for name in ("vectors", "watts", "groups", *LABELS)})


NOTHING = np.empty(0, dtype=np.int64)


class Case(NamedTuple):
    """Rows predicted together: ``known`` rows of the same kernel or GPU (often none), ``test``."""

    known: Indices
    test: Indices


class Fold(NamedTuple):
    """Training rows of one fit, and what it predicts; no row is in two of them."""

    train: Indices
    cases: tuple[Case, ...]


def folds_of(assignment: Indices) -> Iterator[Fold]:
    """The folds of an assignment: each predicted by a fit on all others, no rows known."""
    for fold in range(int(assignment.max()) + 1):
        rows = np.flatnonzero(assignment == fold)
        yield Fold(np.flatnonzero(assignment != fold), (Case(NOTHING, rows),))


def median_watts(train: Rows) -> Predict:
    """The median of all training and known rows."""

    def predict(known: Rows, test: Rows) -> Floats:
        watts = np.concatenate([train.watts, known.watts])
        return np.full(len(test), np.median(watts))

    return predict


ASSIGNMENTS = 10
"""Seeded fold assignments of a full evaluation."""
LEVEL = 0.9


@dataclass(frozen=True)
class OutOfFold:
    """Predictions of every tested row by models that did not see it, one per assignment.

    ``predicted_watts`` and ``baseline_watts`` (the median of the training rows) are
    ``[assignments, n]``, NaN where a row was not tested; ``outside`` marks rows with a feature
    outside the range of their fold's training rows. ``folds`` holds the number of each row's fold
    (-1: not tested), ``others`` the predictions of further baselines.
    """

    rows: Rows
    predicted_watts: Floats
    baseline_watts: Floats
    outside: NDArray[np.bool_]
    folds: Indices | None = None
    protocol: str = "grouped"
    others: Mapping[str, Floats] = field(default_factory=dict)

    def scores(self) -> dict[ScoreName, Spread]:
        """Mean and spread of the model's scores over the assignments."""
        return self._spread(self.predicted_watts)

    def baseline_scores(self) -> dict[ScoreName, Spread]:
        """The same of the median power of the training rows of each fold."""
        return self._spread(self.baseline_watts)

    def other_scores(self) -> dict[str, dict[ScoreName, Spread]]:
        """The same of the further baselines."""
        return {name: self._spread(watts) for name, watts in self.others.items()}

    def best_exponent(
        self, exponents: Sequence[float], floor_watts: float, level: float = LEVEL
    ) -> float:
        """How widths are to grow with the prediction, by the scores of cross-conformal ones."""
        known = [(one, folds) for one, folds, _ in self.by_assignment(self.predicted_watts)]
        return best_exponent(known, level, exponents, floor_watts)

    def residuals(self) -> Residuals:
        """All assignments' tested predictions in one list, for interval calibration."""
        count = len(self.predicted_watts)
        predicted = self.predicted_watts.ravel()
        tested = ~np.isnan(predicted)
        return Residuals(
            np.tile(self.rows.watts, count)[tested],
            predicted[tested],
            np.tile(self.rows.groups, count)[tested],
        )

    def _spread(self, each: Floats) -> dict[ScoreName, Spread]:
        return spread_of([self._point_scores(watts) for watts in each])

    def _point_scores(self, watts: Floats) -> dict[ScoreName, float]:
        tested = ~np.isnan(watts)
        return point_scores(self.rows.watts[tested], watts[tested], self.rows.groups[tested])

    def by_assignment(self, watts: Floats) -> Iterator[tuple[Residuals, Indices, Indices]]:
        """Residuals, folds and kernel groups of the tested rows of each assignment."""
        if self.folds is None:
            raise ValueError("intervals need to know the folds")
        for predicted, folds in zip(watts, self.folds, strict=True):
            tested = folds >= 0
            groups = self.rows.groups[tested]
            # In random folds the kernel is known, so that every row is a case of its own.
            units = np.arange(len(groups)) if self.protocol == "random" else groups
            yield (
                Residuals(self.rows.watts[tested], predicted[tested], units),
                folds[tested],
                groups,
            )


def evaluate(
    rows: Rows,
    fit: Fit,
    protocol: Protocol,
    seeds: Sequence[int],
    *,
    folds: int = FOLDS,
    jobs: int = 1,
    others: Mapping[str, Fit] = MappingProxyType({}),
) -> OutOfFold:
    """Predict every tested row by a model that did not see it, once per seed, beside the median.

    The model gets test rows without their power. ``folds`` as in ``splits.folds_of``; ``jobs`` fits
    at a time. Raises ValueError where the rows do not allow the protocol.
    """
    dealt = [folds_of(fold_assignment(rows, protocol, seed, folds)) for seed in seeds]
    fits = {"model": fit, "median_watts": median_watts, **others}
    watts, outside, numbers = out_of_fold(rows, fits, dealt, jobs)
    return OutOfFold(
        rows, watts.pop("model"), watts.pop("median_watts"), outside, numbers, protocol, watts
    )


def out_of_fold(
    rows: Rows, fits: Mapping[str, Fit], dealt: Sequence[Iterable[Fold]], jobs: int = 1
) -> tuple[dict[str, Floats], NDArray[np.bool_], Indices]:
    """What each of ``fits`` predicts of the tested rows, ``[assignments, n]`` (NaN: not tested).

    ``dealt`` are the folds of each assignment. Also: which rows lie outside the range of their
    training rows, and the numbers of their folds (-1: not tested).
    """
    shape = (len(dealt), len(rows))
    predicted = {name: np.full(shape, np.nan) for name in fits}
    fold_numbers = np.full(shape, -1, dtype=np.int64)
    outside = np.zeros(shape, dtype=np.bool_)

    def one(task: tuple[int, int, Fold]) -> None:
        at, number, fold = task
        train = rows.take(fold.train)
        predicts = {name: fit(train) for name, fit in fits.items()}
        for known_rows, test_rows in fold.cases:
            known, test = rows.take(known_rows), rows.take(test_rows).hidden()
            for name, predict in predicts.items():
                predicted[name][at, test_rows] = predict(known, test)
            seen = joined([train, known]) if len(known) else train
            outside[at, test_rows] = outside_range(seen.vectors, test.vectors)
            fold_numbers[at, test_rows] = number

    tasks = [
        (at, number, fold) for at, folds in enumerate(dealt) for number, fold in enumerate(folds)
    ]
    # Each task writes rows of its own; the order of tasks changes nothing.
    with ThreadPoolExecutor(jobs) as pool:
        deque(pool.map(one, tasks), maxlen=0)
    return predicted, outside, fold_numbers


def averaged(parts: Sequence[OutOfFold]) -> OutOfFold:
    """The average of several models on the same folds."""
    first = parts[0]
    mean = np.mean([part.predicted_watts for part in parts], axis=0)
    return replace(first, predicted_watts=mean)


# --- intervals out of fold ------------------------------------------------------------


def interval_score_watts(measured: Floats, low: Floats, high: Floats, level: float) -> float:
    """Mean interval score: width plus 2 / (1 - level) times the distance of a miss; less is better.

    T. Gneiting and A. E. Raftery, "Strictly proper scoring rules, prediction, and estimation",
    JASA 102 (2007), equation 43.
    """
    own = np.arange(len(measured))
    return measure_coverage("", measured, low, high, own, level).interval_score_watts


def cross_conformal(
    residuals: Residuals,
    folds: ArrayLike,
    level: float,
    *,
    exponents: Sequence[float] = (0.0,),
    floor_watts: float = 0.0,
) -> tuple[Floats, Floats]:
    """Lower and upper bounds ``[n]``, those of a fold from the residuals of the other folds.

    ``residuals.groups`` says which rows count as one (``models.intervals.conformal_factors``),
    ``exponents`` how widths may grow with the prediction (``conformal_width``): of several that
    which scores best among the other folds. Raises ModelError for predictions that are not
    positive.
    """
    fold = np.asarray(folds)
    low, high = np.empty_like(residuals.predicted_watts), np.empty_like(residuals.predicted_watts)
    for each in np.unique(fold):
        test, other = fold == each, fold != each
        known = residuals.take(other)
        exponent = best_exponent([(known, fold[other])], level, exponents, floor_watts)
        width = conformal_width(known, level, exponent)
        low[test], high[test] = interval_bounds(residuals.predicted_watts[test], width, floor_watts)
    return low, high


def best_exponent(
    assignments: Sequence[tuple[Residuals, Indices]],
    level: float,
    exponents: Sequence[float],
    floor_watts: float,
) -> float:
    """The exponent whose intervals score best, by residuals and their folds; else the first."""
    if len(exponents) == 1:
        return exponents[0]

    def score(exponent: float) -> float:
        found = []
        for residuals, folds in assignments:
            bounds = cross_conformal(
                residuals, folds, level, exponents=[exponent], floor_watts=floor_watts
            )
            found.append(interval_score_watts(residuals.measured_watts, *bounds, level))
        return float(np.mean(found))

    return min(exponents, key=score)


# --- predictions that are kept ------------------------------------------------------------


def kept(fit: Fit, checkpoints: Checkpoints, label: str, settings: Mapping[str, Any]) -> Fit:
    """As ``fit``, but a prediction made before is read instead of fitted again.

    The key covers the label, the settings and every number that goes in; what else a prediction
    follows from (library versions, rows of other GPUs) belongs into the settings.
    """
    said = json.dumps({"label": label, **settings}, sort_keys=True, default=str)

    def lazily(train: Rows) -> Predict:
        fitted: list[Predict] = []

        def predict(known: Rows, test: Rows) -> Floats:
            key = _key(said, train, known, test)
            found = checkpoints.get(key)
            if found is not None and found.shape == (len(test),):
                return found
            if not fitted:
                fitted.append(fit(train))
            watts = fitted[0](known, test)
            checkpoints.put(key, watts)
            return watts

        return predict

    return lazily


def _key(said: str, *rows: Rows) -> str:
    digest = hashlib.sha256(said.encode())
    for part in rows:
        for array in (part.vectors, part.watts, part.groups):
            digest.update(repr(array.shape).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def measure_coverage(
    protocol: str, measured: Floats, low: Floats, high: Floats, groups: ArrayLike, level: float
) -> Coverage:
    """Empirical coverage, width and interval score of intervals ``[low, high]``, each ``[n]``."""
    inside = (measured >= low) & (measured <= high)
    _, index = np.unique(np.asarray(groups), return_inverse=True)
    per_group = np.bincount(index, weights=inside) / np.bincount(index)
    missed = np.maximum(low - measured, 0) + np.maximum(measured - high, 0)
    return Coverage(
        protocol=protocol,
        rows=float(np.mean(inside)),
        kernels=float(np.mean(per_group)),
        mean_width_watts=float(np.mean(high - low)),
        interval_score_watts=float(np.mean(high - low + 2 / (1 - level) * missed)),
    )
