"""Folds over uploaded rows, and what their out-of-fold predictions give: scores and intervals.

``Corrections`` chooses one of several corrections by the training rows alone. ``board_factor`` is
what a board draws relative to the one that a model was trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from wattcast.models.cards import BoardFacts, Marks, ModelCard, ProtocolScores, stored
from wattcast.models.intervals import (
    IntervalCalibration,
    Residuals,
    calibrate,
    supported_level,
)
from wattcast.training.evaluation import scores as splits
from wattcast.training.evaluation.scores import group_means, protocol_scores
from wattcast.training.gate import log_error
from wattcast.training.uploads import Order, Uploads

Fitted = TypeVar("Fitted")
Known = NDArray[np.bool_]

SEED = 0
"""Of the one fold assignment: a retraining is judged once, and the same every time."""

LEVEL = 0.9
"""Nominal level of the intervals, that of the packaged models."""

PROTOCOLS: tuple[splits.Protocol, ...] = ("grouped", "random")

MARGIN = 0.05
"""Share by which a correction must err less than the simpler ones to be taken, as in
``wattcast.training.few_shot``: the best of several always looks a little better than it is."""

CONFIDENCE = 0.95
"""Confidence at which a board's factor must differ from 1 to be used."""


def board_factor(
    measured: splits.Floats, reference: splits.Floats, groups: splits.Indices
) -> float:
    """Ratio of measured watts ``[n]`` to what another board would draw (``reference``).

    The median over kernel groups of each group's median ratio, so that neither a kernel with many
    launches nor a few outliers decide. 1 where the sign test (distribution-free, by group) cannot
    tell it from none: a factor drawn from noise would only add noise. Rows whose reference is
    not a positive number are left out.
    """
    from scipy.stats import binomtest

    known = np.isfinite(reference) & (reference > 0)
    ratios = np.log(measured[known] / reference[known])
    own = groups[known]
    each = np.array([np.median(ratios[own == group]) for group in np.unique(own)])
    above, below = int(np.sum(each > 0)), int(np.sum(each < 0))
    if not above + below or binomtest(above, above + below).pvalue > 1 - CONFIDENCE:
        return 1.0
    return float(np.exp(np.median(each)))


@dataclass(frozen=True)
class UploadFold:
    """Uploaded rows that train and that are tested; ``protocol`` is an index of ``PROTOCOLS``.
    ``factor`` is the board's, from the training rows alone."""

    protocol: int
    train: splits.Indices
    test: splits.Indices
    factor: float


@dataclass(frozen=True)
class Folds:
    """All folds over uploaded rows.

    ``baseline_watts`` ``[protocols, n]`` is the median of each fold's training rows, ``outside``
    ``[n]`` marks rows beyond the range of their grouped fold's training rows, ``factor`` is the
    board's from all rows, ``count`` the folds of a protocol.
    """

    rows: splits.Rows
    folds: tuple[UploadFold, ...]
    baseline_watts: splits.Floats
    outside: NDArray[np.bool_]
    factor: float
    count: int

    def unpredicted(self) -> splits.Floats:
        """Out-of-fold predictions ``[protocols, n]`` before any is made."""
        return np.full((len(PROTOCOLS), len(self.rows)), np.nan)


def folds_over(
    rows: splits.Rows,
    reference: splits.Floats | None = None,
    known: tuple[splits.Floats, splits.Floats] | None = None,
) -> Folds:
    """Grouped and random folds over uploaded rows.

    ``reference`` ``[n]`` are watts that the champion's trees give, ``known`` the least and
    largest value of each feature ``[k]`` that a model knows without the uploads.
    """
    everything = np.arange(len(rows))

    def factor(at: splits.Indices) -> float:
        if reference is None:
            return 1.0
        return board_factor(rows.watts[at], reference[at], rows.groups[at])

    count = min(splits.FOLDS, len(np.unique(rows.groups)))
    folds = []
    baseline = np.full((len(PROTOCOLS), len(rows)), np.nan)
    outside = np.zeros(len(rows), dtype=np.bool_)
    for at, protocol in enumerate(PROTOCOLS):
        assignment = splits.fold_assignment(rows, protocol, SEED, count)
        for number in range(count):
            test, train = np.flatnonzero(assignment == number), np.flatnonzero(assignment != number)
            baseline[at, test] = np.median(rows.watts[train])
            folds.append(UploadFold(at, train, test, factor(train)))
            if protocol == "grouped":
                seen = np.vstack([rows.vectors[train], *(known or ())])
                outside[test] = splits.outside_range(seen, rows.vectors[test])
    return Folds(rows, tuple(folds), baseline, outside, factor(everything), count)


@dataclass(frozen=True)
class Corrections(Generic[Fitted]):
    """Corrections by name, the simplest first: each is fitted on training rows, and ``predict``
    asks what was fitted about other rows ``[m]``. ``few`` is taken where there are fewer than two
    kernels to choose by."""

    rows: splits.Rows
    fits: Mapping[str, Callable[[splits.Indices], Fitted]]
    predict: Callable[[Fitted, splits.Indices], splits.Floats]
    few: str

    def fitted(self, train: splits.Indices) -> tuple[str, Fitted]:
        """The correction chosen on training rows, fitted on them."""
        name = self._choice(train)
        return name, self.fits[name](train)

    def out_of_fold(self, folds: Folds) -> splits.Floats:
        """Predictions ``[protocols, n]``, the choice of each fold made on its training rows."""
        predicted = folds.unpredicted()
        for fold in folds.folds:
            _, fitted = self.fitted(fold.train)
            predicted[fold.protocol, fold.test] = self.predict(fitted, fold.test)
        return predicted

    def _choice(self, train: splits.Indices) -> str:
        rows = self.rows.take(train)
        kernels = len(np.unique(rows.groups))
        if kernels < 2:
            return self.few
        fold = splits.fold_assignment(rows, "grouped", SEED, min(splits.FOLDS, kernels))
        chosen, least = "", np.inf
        for name, fit in self.fits.items():
            predicted = np.empty(len(train))
            for number in np.unique(fold):
                test = fold == number
                predicted[test] = self.predict(fit(train[~test]), train[test])
            error = group_means(log_error(rows.watts, predicted), rows.groups).mean()
            if not chosen or error < (1 - MARGIN) * least:
                chosen, least = name, error
        return chosen


@dataclass(frozen=True)
class PowerScores:
    """What out-of-fold watts give: those of the grouped folds and their baseline, ``[n]``, the
    scores of both protocols (grouped ones of ``unseen_groups`` alone), and interval widths: those
    of the model named in ``widths_from`` where they could not be measured."""

    grouped_watts: splits.Floats
    baseline_watts: splits.Floats
    scores: tuple[ProtocolScores, ...]
    intervals: IntervalCalibration
    unseen_groups: int
    widths_from: str

    def card(
        self,
        order: Order,
        uploads: Uploads,
        before: ModelCard | None,
        ancestor: Marks | None,
        board: Mapping[str, Any],
        **fields: Any,
    ) -> ModelCard:
        """The card of a model with these scores, made from ``before``. Where what its ``ancestor``
        learned from is not known (``None``), it is not known of this one either. ``board`` are the
        other fields of ``BoardFacts``, ``fields`` those of the card."""
        sources = (*(before.sources if before else ()), *uploads.sources)
        return ModelCard(
            **order.card_fields,
            **fields,
            target="power",
            sources=tuple(dict.fromkeys(sources)),
            scores=self.scores,
            intervals=self.intervals,
            board=BoardFacts(
                label=order.board,
                unseen_groups=self.unseen_groups,
                unseen_kernel="not measured" if self.widths_from else "measured",
                widths_from=self.widths_from,
                **board,
            ),
            learned="" if ancestor is None else stored(ancestor | uploads.learned),
        )


def power_scores(
    folds: Folds, watts: splits.Floats, known: Known, before: ModelCard | None
) -> PowerScores:
    """Scores and intervals of out-of-fold watts ``[protocols, n]``.

    ``known`` ``[n]`` marks rows of kernels that the model ``before``, from which the candidate
    descends, had learned from: no fold leaves those out, so they say nothing about unseen kernels.
    Grouped scores are those of the others; where these are too few for an interval, it is that of
    ``before``.
    """
    rows, unseen = folds.rows, ~known
    groups = len(np.unique(rows.groups[unseen]))
    grouped, random = (
        Residuals(rows.watts, np.maximum(watts[at], 1e-3), rows.groups)
        for at in range(len(PROTOCOLS))
    )
    level = supported_level(groups, LEVEL)
    measured = before is None or level >= LEVEL
    if before is None or measured:
        floor = 0.0 if before is None else before.intervals.floor_watts * min(1.0, folds.factor)
        intervals = calibrate(
            grouped=grouped.take(unseen),
            random=random,
            outside=folds.outside[unseen],
            floor_watts=min(floor, float(rows.watts.min())),
            level=level,
        )
    else:
        intervals = before.intervals.inherited(grouped, random, folds.factor)
    everything = np.ones(len(rows), dtype=np.bool_)
    scored = dict(zip(PROTOCOLS, (unseen, everything), strict=True))
    return PowerScores(
        watts[0],
        folds.baseline_watts[0],
        tuple(
            protocol_scores(
                protocol,
                folds.count,
                rows.watts[on],
                rows.groups[on],
                [watts[at][on]],
                [folds.baseline_watts[at][on]],
            )
            for at, (protocol, on) in enumerate(scored.items())
            if protocol == "random" or groups > 1
        ),
        intervals,
        groups,
        "" if before is None or measured else before.folder.as_posix(),
    )
