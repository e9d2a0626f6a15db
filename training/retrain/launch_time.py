"""Calibration of the default time model: a factor on its seconds from launches timed on a board.

timed launches + what the default model predicts of them
  -> ways: no correction; one factor; one factor for each regime
  -> one chosen by cross-validation with kernels left out (``upload_folds.py``)
  -> scores beside the model as it is and the baseline, interval widths, card, verdict of
     ``wattcast.training.retrain.gate``
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wattcast.features.errors import DataError
from wattcast.features.gpus import GpuProfile
from wattcast.models.cards import Spread
from wattcast.models.intervals import Residuals, calibrate, supported_level
from wattcast.models.time.calibration import (
    FAMILY,
    FEATURES,
    PARAMETERS_NAME,
    REGIMES,
    TimeBoard,
    TimeCorrection,
    TimeCorrectionCard,
    TimeIntervals,
    TimeProtocol,
    TimeScoreName,
    TimeScores,
    TimeTrainingFacts,
    TimeWidth,
)
from wattcast.models.time.spread import interval_of
from wattcast.training.evaluation.scores import time_scores
from wattcast.training.evaluation.splits import Floats, Indices, Rows
from wattcast.training.families import library_versions
from wattcast.training.provenance import (
    code_revision,
    feature_facts,
    fingerprint,
    today,
    write_parameters,
)
from wattcast.training.retrain.inputs import SOURCE, Order, Retrained, Uploads
from wattcast.training.retrain.upload_folds import LEVEL, Plan, Ways, fold_plan

LEAST_KERNELS = 3
"""Kernels of a regime from which it may have a factor of its own: the least whose median one odd
kernel cannot set. Whether it helps is for the cross-validation to say."""

DEFAULT = "default time model"
BASELINE = "median time"


def calibrate_time(
    order: Order,
    gpu: GpuProfile,
    uploads: Uploads,
    out_dir: Path,
    *,
    opponents: Mapping[str, Floats],
    champion: Floats | None = None,
) -> Retrained[TimeCorrectionCard]:
    """Calibrate, write the artifact below ``out_dir`` and judge it.

    The uploads hold ``FEATURES`` and seconds. ``opponents`` are seconds ``[n]`` of what answers
    now, ``champion`` those of the board's correction before, whose rows are not ``new``. Raises
    DataError for launches of fewer than two kernels.
    """
    rows = uploads.rows
    if len(np.unique(rows.groups)) < 2:
        raise DataError("measurements of at least two kernels are needed")
    ways = _ways(order.gpu, rows)
    plan = fold_plan(rows, None, None)
    left_out = ways.out_of_fold(plan)
    everything = np.arange(len(rows))
    way, correction = ways.fitted(everything)
    card = _Card(order, gpu, uploads, plan, left_out, way).card()
    card = write_parameters(card, out_dir, PARAMETERS_NAME, correction)
    final = ways.predict(correction, everything)
    baseline = plan.baseline_watts[0]
    # Nothing in the default model was fitted to a kernel, and no correction is continued.
    footing = uploads.footing(frozenset(), (), order.policy)
    compared, verdict = uploads.judged(
        order.policy, left_out[0], baseline, opponents, final, champion, footing
    )
    return Retrained((card,), card, verdict, compared)


def _ways(gpu: str, rows: Rows) -> Ways[TimeCorrection]:
    predicted = rows.vectors[:, FEATURES.index("predicted_seconds")]
    regime = rows.vectors[:, [FEATURES.index(one) for one in REGIMES]].argmax(axis=1)
    ratios = np.log(rows.watts / predicted)

    def by_kernel(at: Indices) -> Floats:
        """A kernel's launches err alike, so each kernel counts once, and an outlier little."""
        groups = rows.groups[at]
        return np.array([np.median(ratios[at[groups == one]]) for one in np.unique(groups)])

    def none(_train: Indices) -> TimeCorrection:
        return TimeCorrection(gpu=gpu, log_factor=0.0)

    def one_factor(train: Indices) -> TimeCorrection:
        return TimeCorrection(gpu=gpu, log_factor=float(np.median(by_kernel(train))))

    def by_regime(train: Indices) -> TimeCorrection:
        general = one_factor(train)
        own = {}
        for number, name in enumerate(REGIMES):
            each = by_kernel(train[regime[train] == number])
            if len(each) >= LEAST_KERNELS:
                own[name] = float(np.median(each))
        return general.model_copy(update={"by_regime": own})

    def predict(correction: TimeCorrection, at: Indices) -> Floats:
        factors = np.array([correction.of(name) for name in REGIMES])
        return np.asarray(predicted[at] * np.exp(factors[regime[at]]))

    fits = {"none": none, "one factor": one_factor, "factor by regime": by_regime}
    return Ways(rows, fits, predict, few="one factor")


@dataclass(frozen=True)
class _Card:
    """What goes into the card."""

    order: Order
    gpu: GpuProfile
    uploads: Uploads
    plan: Plan
    left_out: Floats
    way: str

    def card(self) -> TimeCorrectionCard:
        order, rows = self.order, self.uploads.rows
        kernels, seconds = len(np.unique(rows.groups)), rows.watts
        return TimeCorrectionCard(
            gpu=order.gpu,
            target="time",
            family=FAMILY,
            source=SOURCE,
            version=order.version,
            feature_schema=order.schema,
            features=feature_facts(FEATURES, rows.vectors),
            training=TimeTrainingFacts(
                rows=len(rows),
                kernels=kernels,
                kernel_groups=kernels,
                programs=kernels,
                time_minimum_seconds=float(seconds.min()),
                time_median_seconds=float(np.median(seconds)),
                time_maximum_seconds=float(seconds.max()),
                fingerprint=fingerprint(rows.vectors, seconds, [str(g) for g in rows.groups]),
            ),
            sources=self.uploads.sources,
            hyperparameters={"way": self.way},
            libraries=library_versions(("numpy",)),
            scores=(self._scores("program", 0), self._scores("random", 1)),
            intervals=self._intervals(),
            files={PARAMETERS_NAME: "0" * 64},
            created=today(),
            code_revision=code_revision(),
            board=TimeBoard(label=order.board, batches=self.uploads.batches),
        )

    def _scores(self, protocol: TimeProtocol, at: int) -> TimeScores:
        rows = self.uploads.rows
        return TimeScores(
            protocol=protocol,
            folds=self.plan.count,
            assignments=1,
            model=_spread(rows, self.left_out[at]),
            others={
                DEFAULT: _spread(rows, rows.vectors[:, FEATURES.index("predicted_seconds")]),
                BASELINE: _spread(rows, self.plan.baseline_watts[at]),
            },
        )

    def _intervals(self) -> TimeIntervals:
        rows = self.uploads.rows
        grouped, random = (Residuals(rows.watts, self.left_out[at], rows.groups) for at in range(2))
        level = supported_level(len(np.unique(rows.groups)), LEVEL)
        found = calibrate(
            grouped=grouped, random=random, outside=self.plan.outside, floor_watts=0.0, level=level
        )
        return TimeIntervals(
            level=level,
            unseen_kernel=TimeWidth.of(found.unseen_kernel),
            extrapolated=TimeWidth.of(found.extrapolated),
            uncalibrated=TimeWidth.of(interval_of(self.gpu)[0]),
        )


def _spread(rows: Rows, seconds: Floats) -> dict[TimeScoreName, Spread]:
    found = time_scores(rows.watts, seconds, rows.groups)
    return {name: Spread(mean=value, std=0.0) for name, value in found.items()}
