"""The calibrated way to retrain: few numbers of a physical model, from launches of a board.

    power   own median; one factor; single weights half way to the median; single weights
    time    no correction; one factor on the default model's seconds; one factor for each regime

    measured launches + what the model starts from predicts of them
      -> one correction chosen by cross-validation with kernels left out (``folds.py``)
      -> scores beside the baseline, interval widths, card, verdict of ``training.gate``

Every correction of power gives parameters of the same model: what is linear in the weights can be
blended there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Required, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel
from scipy.optimize import nnls
from typing_extensions import TypeVar

from wattcast.features.errors import DataError
from wattcast.features.gpus import GpuProfile
from wattcast.models.cards import Marks, ModelCard, Spread
from wattcast.models.clocks import ClockPair
from wattcast.models.intervals import Residuals, calibrate, supported_level
from wattcast.models.power import PHYSICAL
from wattcast.models.power.activities import UnitActivities
from wattcast.models.power.physical import (
    CLOCKS,
    POOLED,
    SHARED_WEIGHTS,
    WEIGHTS,
    PhysicalParameters,
    regressors,
)
from wattcast.models.store import PARAMETERS_NAME, AnyCard
from wattcast.models.time import calibration
from wattcast.models.time.calibration import FAMILY as TIME_FAMILY
from wattcast.models.time.calibration import interval_of
from wattcast.training import provenance
from wattcast.training.evaluation.scores import Indices, Rows, time_scores
from wattcast.training.families import library_versions
from wattcast.training.folds import LEVEL, Corrections, Folds, folds_over, power_scores
from wattcast.training.gate import OldRows, Opponent
from wattcast.training.uploads import Candidate, Order, Uploads

# Corrects the physical model by a few measured launches of a GPU it was not fitted on.
#
# Pooled weights are right about what draws more than what, and wrong by up to half about how much
# of its limit a board draws at all. So a few rows first tell one factor on everything above idle,
# held near 1 by ``FACTOR_PULL``, and then move single weights away from it as far as they insist,
# held by ``WEIGHT_PULL``. docs/physical.md says what N rows gain.

Floats = NDArray[np.float64]

FACTOR_PULL = 1.0
"""Rows' worth of belief that the factor is 1."""

WEIGHT_PULL = 1.0
"""Pull of each weight to its scaled prior, in the squared units of the regressors of one row."""


def refitted(
    parameters: PhysicalParameters,
    regressors_of_rows: Floats,
    watts: Floats,
    weight_pull: float = WEIGHT_PULL,
) -> PhysicalParameters:
    """The parameters drawn to measured launches of their GPU; all weights stay >= 0.

    ``regressors_of_rows`` is the launches' ``design`` ``[n, k]``, ``watts`` ``[n]``, n > 0, what
    they drew. ``parameters`` are those of ``models.power.physical.parameters_for`` or fitted ones.
    Raises DataError for a reading that is not positive.
    """
    if not np.all(np.isfinite(watts) & (watts > 0)):
        raise DataError("a measured power is not positive", column="power_watts")
    idle, scale = parameters.idle_watts, parameters.limit_watts - parameters.idle_watts
    rows = regressors_of_rows * (scale / watts)[:, np.newaxis]
    target = (watts - idle) / watts
    prior = weights_of(parameters)
    expected = rows @ prior
    belief = FACTOR_PULL * float(np.mean(expected**2))
    factor = max(0.0, float(expected @ target + belief) / float(expected @ expected + belief))
    pull = np.sqrt(weight_pull)
    weights, _ = nnls(
        np.vstack([rows, pull * np.eye(len(prior))]),
        np.concatenate([target, pull * factor * prior]),
    )
    named = dict(zip(_columns(parameters), map(float, weights), strict=True))
    return parameters.model_copy(
        update={
            "weights": {name: named[name] for name in WEIGHTS},
            "own_weights": {name: named[name] for name in parameters.own_weights},
            "highest_watts": max(parameters.highest_watts, float(watts.max())),
        }
    )


def design(parameters: PhysicalParameters, launches: Floats) -> Floats:
    """What each weight multiplies ``[n, k]``, in the order of ``weights_of``, of ``launches``
    ``[n, COLUMNS]``; units that share a weight are added up."""
    columns, units = launches.T, len(UnitActivities._fields)
    clocks = ClockPair(*columns[units:])
    activities = UnitActivities(*columns[:units])
    terms = regressors(activities, clocks, parameters.reference, parameters.voltage)
    for one, weight in SHARED_WEIGHTS.items():
        if one not in parameters.own_weights:
            terms[weight] = terms[weight] + terms[one]
    return np.column_stack([terms[name] for name in _columns(parameters)])


def weights_of(parameters: PhysicalParameters) -> Floats:
    """Weights ``[k]``: those of all GPUs, and what this one has of its own."""
    return np.array([parameters.weight(name) for name in _columns(parameters)], dtype=np.float64)


def _columns(parameters: PhysicalParameters) -> tuple[str, ...]:
    """The weights that are told: those of all GPUs, and what this one has of its own."""
    return (*WEIGHTS, *parameters.own_weights)


Parameters = TypeVar("Parameters", bound=BaseModel)

COLUMNS = (*UnitActivities._fields, *CLOCKS)
"""Of the vectors of a power calibration: activities at the predicted time, and clocks in MHz."""

RIGID = 1e6
"""Pull of weights (``training.calibrated.WEIGHT_PULL``) that leaves one factor on all."""

LEAST_KERNELS = 3
"""Kernels of a regime from which it may have a factor of its own: the least whose median one odd
kernel cannot set. Whether it helps is for the cross-validation to say."""

DEFAULT = "default time model"
BASELINE = "median time"

_FILES = {PARAMETERS_NAME: "0" * 64}
"""The real checksum comes with the file; a card without any would not be valid."""


class Beside(TypedDict, total=False):
    """What a candidate is judged beside: ``opponents`` answer now; ``champion`` are watts (or
    seconds) ``[n]`` of the board's calibration before, whose rows are not ``new``; ``notes`` go
    into the verdict."""

    opponents: Required[Sequence[Opponent]]
    notes: tuple[str, ...]
    champion: Floats | None


def calibrate_power(
    order: Order,
    uploads: Uploads,
    start: PhysicalParameters,
    before: ModelCard,
    out_dir: Path,
    **beside: Unpack[Beside],
) -> Candidate[ModelCard]:
    """Draw the parameters of the model ``before`` to measured launches, write the artifact below
    ``out_dir`` and judge it.

    The uploads' vectors are ``COLUMNS``. Raises DataError for launches of
    fewer than two kernels, or power that is not positive.
    """
    rows = uploads.rows
    corrections = _PowerCorrections(rows, start)

    def card(folds: Folds, left_out: Floats, way: str) -> ModelCard:
        scores = power_scores(folds, left_out, uploads.known_to(before.marks), before)
        unit = "share of the unit's peak at the predicted time"
        units = {name: "MHz" if name in CLOCKS else unit for name in COLUMNS}
        return scores.card(
            order,
            uploads,
            before,
            before.marks,
            {"watts_factor": 1.0, "batches": uploads.batches, "base_data": True},
            family=PHYSICAL,
            features=provenance.feature_facts(COLUMNS, rows.vectors, units),
            training=provenance.training_facts(rows.vectors, rows.watts, rows.groups),
            hyperparameters={
                "calibrated_from": before.folder.as_posix(),
                "way": way,
                "pooled_voltage": before.gpu == POOLED,
            },
            libraries=library_versions(("numpy", "scipy")),
            files=_FILES,
        )

    return _calibrate(order, uploads, corrections.choice, card, out_dir, before.marks, **beside)


def calibrate_time(
    order: Order,
    gpu: GpuProfile,
    uploads: Uploads,
    out_dir: Path,
    **beside: Unpack[Beside],
) -> Candidate[calibration.TimeCorrectionCard]:
    """Correct the default time model by measured launches, write the artifact, and judge it.

    The uploads hold ``FEATURES`` and seconds. Raises DataError for launches of fewer than two
    kernels.
    """
    rows = uploads.rows
    seconds = rows.watts

    def card(folds: Folds, left_out: Floats, way: str) -> calibration.TimeCorrectionCard:
        def scores(protocol: calibration.TimeProtocol, at: int) -> calibration.TimeScores:
            predicted = rows.vectors[:, calibration.FEATURES.index("predicted_seconds")]
            return calibration.TimeScores(
                protocol=protocol,
                folds=folds.count,
                assignments=1,
                model=_spread(rows, left_out[at]),
                others={
                    DEFAULT: _spread(rows, predicted),
                    BASELINE: _spread(rows, folds.baseline_watts[at]),
                },
            )

        kernels = len(np.unique(rows.groups))
        return calibration.TimeCorrectionCard(
            **order.card_fields,
            target="time",
            family=TIME_FAMILY,
            features=provenance.feature_facts(calibration.FEATURES, rows.vectors),
            training=calibration.TimeTrainingFacts(
                rows=len(rows),
                kernels=kernels,
                kernel_groups=kernels,
                programs=kernels,
                time_minimum_seconds=float(seconds.min()),
                time_median_seconds=float(np.median(seconds)),
                time_maximum_seconds=float(seconds.max()),
                fingerprint=provenance.fingerprint(rows.vectors, seconds, rows.groups),
            ),
            sources=uploads.sources,
            hyperparameters={"way": way},
            libraries=library_versions(("numpy",)),
            scores=(scores("program", 0), scores("random", 1)),
            intervals=_time_intervals(folds, left_out, gpu),
            files=_FILES,
            board=calibration.TimeBoard(label=order.board, batches=uploads.batches),
        )

    # Nothing in the default model was fitted to a kernel, and no correction is continued.
    ancestor: Marks = frozenset()
    corrections = _time_corrections(order.gpu, rows)
    return _calibrate(order, uploads, corrections, card, out_dir, ancestor, **beside)


def _calibrate(
    order: Order,
    uploads: Uploads,
    corrections: Corrections[Parameters],
    make_card: Callable[[Folds, Floats, str], AnyCard],
    out_dir: Path,
    ancestor: Marks | None,
    opponents: Sequence[Opponent],
    notes: tuple[str, ...] = (),
    champion: Floats | None = None,
) -> Candidate[AnyCard]:
    """Choose and fit a correction, write its artifact and judge it."""
    uploads.check()
    rows, new = uploads.rows, uploads.new
    folds = folds_over(rows)
    left_out = corrections.out_of_fold(folds)
    everything = np.arange(len(rows))
    way, parameters = corrections.fitted(everything)
    card = make_card(folds, left_out, way)
    card = provenance.write_parameters(card, out_dir, parameters)
    old = None
    if champion is not None and not new.all():
        final = corrections.predict(parameters, everything)
        old = OldRows(rows.watts[~new], rows.groups[~new], final[~new], champion[~new])
    predicted = left_out[0], folds.baseline_watts[0]
    return uploads.judged((card,), *predicted, opponents, ancestor, notes, old)


@dataclass(frozen=True)
class _PowerCorrections:
    """Corrections of the parameters of a physical model by rows of ``COLUMNS``."""

    rows: Rows
    start: PhysicalParameters

    @property
    def choice(self) -> Corrections[PhysicalParameters]:
        fits = {
            "median": self._median,
            "factor": lambda train: self._refitted(train, RIGID),
            "weights, half": lambda train: _blended(self._refitted(train), self._median(train)),
            "weights": self._refitted,
        }
        return Corrections(self.rows, fits, self._watts, few="factor")

    @cached_property
    def _design(self) -> Floats:
        return design(self.start, self.rows.vectors)

    def _watts(self, parameters: PhysicalParameters, at: Indices) -> Floats:
        """``wattcast.models.power.physical.predicted_power`` of rows, all at once."""
        scale = parameters.limit_watts - parameters.idle_watts
        watts = parameters.idle_watts + scale * (self._design[at] @ weights_of(parameters))
        return np.minimum(watts, max(parameters.limit_watts, parameters.highest_watts))

    def _refitted(self, train: Indices, weight_pull: float = 1.0) -> PhysicalParameters:
        watts = self.rows.watts[train]
        return refitted(self._started(train), self._design[train], watts, weight_pull=weight_pull)

    def _median(self, train: Indices) -> PhysicalParameters:
        """What draws the same whatever it does."""
        start = self._started(train)
        median = float(np.median(self.rows.watts[train]))
        share = (median - start.idle_watts) / (start.limit_watts - start.idle_watts)
        return start.model_copy(
            update={
                "weights": {**dict.fromkeys(start.weights, 0.0), "base": max(0.0, share)},
                "own_weights": dict.fromkeys(start.own_weights, 0.0),
            }
        )

    def _started(self, train: Indices) -> PhysicalParameters:
        """Idle power that nobody measured is a guess: a working board draws no less."""
        least = float(self.rows.watts[train].min())
        return self.start.model_copy(update={"idle_watts": min(self.start.idle_watts, least)})


def _blended(first: PhysicalParameters, second: PhysicalParameters) -> PhysicalParameters:
    """Half of each: both draw the same at idle, and watts are linear in the weights."""

    def half(left: Mapping[str, float], right: Mapping[str, float]) -> dict[str, float]:
        return {name: (left[name] + right[name]) / 2 for name in left}

    return first.model_copy(
        update={
            "weights": half(first.weights, second.weights),
            "own_weights": half(first.own_weights, second.own_weights),
        }
    )


def _time_corrections(gpu: str, rows: Rows) -> Corrections[calibration.TimeCorrection]:
    predicted = rows.vectors[:, calibration.FEATURES.index("predicted_seconds")]
    regime = rows.vectors[
        :, [calibration.FEATURES.index(name) for name in calibration.REGIMES]
    ].argmax(axis=1)
    ratios = np.log(rows.watts / predicted)

    def by_kernel(at: Indices) -> Floats:
        """A kernel's launches err alike, so each kernel counts once, and an outlier little."""
        groups = rows.groups[at]
        return np.array([np.median(ratios[at[groups == group]]) for group in np.unique(groups)])

    def no_correction(_train: Indices) -> calibration.TimeCorrection:
        return calibration.TimeCorrection(gpu=gpu, log_factor=0.0)

    def one_factor(train: Indices) -> calibration.TimeCorrection:
        return calibration.TimeCorrection(gpu=gpu, log_factor=float(np.median(by_kernel(train))))

    def by_regime(train: Indices) -> calibration.TimeCorrection:
        kernels = {
            name: by_kernel(train[regime[train] == at])
            for at, name in enumerate(calibration.REGIMES)
        }
        own = {
            name: float(np.median(each))
            for name, each in kernels.items()
            if len(each) >= LEAST_KERNELS
        }
        return one_factor(train).model_copy(update={"by_regime": own})

    def predict(correction: calibration.TimeCorrection, at: Indices) -> Floats:
        factors = np.array([correction.of(name) for name in calibration.REGIMES])
        return np.asarray(predicted[at] * np.exp(factors[regime[at]]))

    fits = {"none": no_correction, "one factor": one_factor, "factor by regime": by_regime}
    return Corrections(rows, fits, predict, few="one factor")


def _time_intervals(folds: Folds, left_out: Floats, gpu: GpuProfile) -> calibration.TimeIntervals:
    rows = folds.rows
    grouped, random = (Residuals(rows.watts, left_out[at], rows.groups) for at in range(2))
    level = supported_level(len(np.unique(rows.groups)), LEVEL)
    widths = calibrate(
        grouped=grouped, random=random, outside=folds.outside, floor_watts=0.0, level=level
    )
    return calibration.TimeIntervals(
        level=level,
        unseen_kernel=calibration.TimeWidth.of(widths.unseen_kernel),
        extrapolated=calibration.TimeWidth.of(widths.extrapolated),
        uncalibrated=calibration.TimeWidth.of(interval_of(gpu)[0]),
    )


def _spread(rows: Rows, seconds: Floats) -> dict[calibration.TimeScoreName, Spread]:
    scores = time_scores(rows.watts, seconds, rows.groups)
    return {name: Spread(mean=value, std=0.0) for name, value in scores.items()}
