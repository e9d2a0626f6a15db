"""Folds over uploaded rows, and what their out-of-fold predictions give: scores and intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattcast.models.cards import ProtocolScores
from wattcast.models.intervals import IntervalCalibration, Residuals, calibrate
from wattcast.training.board import board_factor
from wattcast.training.evaluation.rows import Floats, Indices, Rows
from wattcast.training.evaluation.scores import point_scores, spread_of
from wattcast.training.evaluation.splits import FOLDS, Protocol, fold_assignment

SEED = 0
"""Of the one fold assignment: a retraining is judged once, and the same every time."""

LEVEL = 0.9
"""Nominal level of the intervals, that of the packaged models."""

PROTOCOLS: tuple[Protocol, ...] = ("grouped", "random")


@dataclass(frozen=True)
class UploadFold:
    """Uploaded rows that train and that are tested; ``protocol`` is an index of ``PROTOCOLS``.

    ``factor`` is the board's, from the training rows alone.
    """

    protocol: int
    train: Indices
    test: Indices
    factor: float


@dataclass(frozen=True)
class Plan:
    """All folds. ``baseline_watts`` ``[protocols, n]`` is the median of each fold's uploaded
    training rows, ``outside`` ``[n]`` marks rows beyond what their grouped fold trained on,
    ``factor`` is the board's from all rows."""

    rows: Rows
    folds: tuple[UploadFold, ...]
    baseline_watts: Floats
    outside: np.ndarray[tuple[int], np.dtype[np.bool_]]
    factor: float
    count: int
    protocols: tuple[Protocol, ...] = PROTOCOLS


@dataclass(frozen=True)
class Judged:
    """What out-of-fold predictions give: watts of the grouped folds and their baseline, ``[n]``,
    the scores of both protocols, and interval widths."""

    grouped_watts: Floats
    baseline_watts: Floats
    scores: tuple[ProtocolScores, ...]
    intervals: IntervalCalibration


def fold_plan(rows: Rows, reference: Floats | None, known: tuple[Floats, Floats] | None) -> Plan:
    """Grouped and random folds over uploaded rows.

    ``reference`` ``[n]`` are watts that the champion's trees give, ``known`` the least and
    largest value of each feature ``[k]`` that a model knows without the uploads.
    """
    count = min(FOLDS, len(np.unique(rows.groups)))
    folds = []
    baseline = np.full((len(PROTOCOLS), len(rows)), np.nan)
    outside = np.zeros(len(rows), dtype=np.bool_)
    for at, protocol in enumerate(PROTOCOLS):
        assignment = fold_assignment(rows, protocol, SEED, count)
        for number in range(count):
            test, train = np.flatnonzero(assignment == number), np.flatnonzero(assignment != number)
            baseline[at, test] = np.median(rows.watts[train])
            folds.append(UploadFold(at, train, test, _factor(rows.take(train), reference, train)))
            if protocol == "grouped":
                outside[test] = _beyond(rows.vectors[train], rows.vectors[test], known)
    everything = np.arange(len(rows))
    return Plan(rows, tuple(folds), baseline, outside, _factor(rows, reference, everything), count)


def judged(plan: Plan, watts: Floats) -> Judged:
    """Scores and intervals of out-of-fold watts ``[protocols, n]``."""
    rows = plan.rows
    grouped, random = (
        Residuals(rows.watts, np.maximum(watts[at], 1e-3), rows.groups)
        for at in range(len(PROTOCOLS))
    )
    scores = tuple(
        ProtocolScores(
            table="measured",
            protocol=protocol,
            folds=plan.count,
            assignments=1,
            model=spread_of([point_scores(rows.watts, watts[at], rows.groups)]),
            baseline=spread_of([point_scores(rows.watts, plan.baseline_watts[at], rows.groups)]),
        )
        for at, protocol in enumerate(PROTOCOLS)
    )
    intervals = calibrate(
        grouped=grouped,
        random=random,
        outside=plan.outside,
        floor_watts=float(rows.watts.min()),
        level=LEVEL,
    )
    return Judged(watts[0], plan.baseline_watts[0], scores, intervals)


def _factor(rows: Rows, reference: Floats | None, at: Indices) -> float:
    if reference is None:
        return 1.0
    return board_factor(rows.watts, reference[at], rows.groups)


def _beyond(
    train: Floats, test: Floats, known: tuple[Floats, Floats] | None
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    low, high = np.fmin.reduce(train, axis=0), np.fmax.reduce(train, axis=0)
    if known is not None:
        low, high = np.fmin(low, known[0]), np.fmax(high, known[1])
    return np.asarray(((test < low) | (test > high)).any(axis=1))
