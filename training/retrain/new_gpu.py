"""Calibration: the physical power model of a GPU drawn to launches measured on it.

    measured launches + pooled (or the GPU's own) parameters
      -> ways: own median; one factor; single weights half way to the median; single weights
      -> one chosen by cross-validation with kernels left out (``upload_folds.py``)
      -> scores beside the baseline, interval widths, card, verdict of ``training.retrain.gate``

Every way gives parameters of the same model: what is linear in the weights can be blended there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from wattcast.features.errors import DataError
from wattcast.models.cards import BoardFacts, ModelCard
from wattcast.models.clocks import ClockPair
from wattcast.models.learned import Marks, stored
from wattcast.models.power.activities import UnitActivities
from wattcast.models.power.physical import CLOCKS, PARAMETERS_NAME, PhysicalParameters
from wattcast.models.power.recalibration import design, refitted, weights_of
from wattcast.training.evaluation.splits import Floats, Indices
from wattcast.training.families import library_versions
from wattcast.training.provenance import (
    code_revision,
    feature_facts,
    today,
    training_facts,
    write_parameters,
)
from wattcast.training.retrain.inputs import SOURCE, Order, Retrained, Uploads
from wattcast.training.retrain.upload_folds import Judged, Ways, fold_plan, judged

FAMILY = "physical"

COLUMNS = (*UnitActivities._fields, *CLOCKS)
"""Of the uploads' vectors: activities at the predicted time, and the clocks in MHz."""

RIGID = 1e6
"""Pull of weights (``models.power.recalibration.WEIGHT_PULL``) that leaves one factor on all."""


@dataclass(frozen=True)
class Start:
    """The parameters to draw to the measurements, and the model they are of."""

    parameters: PhysicalParameters
    card: ModelCard
    pooled: bool


def calibrate_power(
    order: Order,
    uploads: Uploads,
    start: Start,
    out_dir: Path,
    *,
    opponents: Mapping[str, Floats],
    knowing: Sequence[Marks | None] = (),
    notes: tuple[str, ...] = (),
    champion: Floats | None = None,
) -> Retrained:
    """Calibrate, write the artifact below ``out_dir`` and judge it.

    The uploads' vectors are ``COLUMNS``. ``opponents`` are watts ``[n]`` of what answers now, which
    learned from what bears the marks ``knowing``; ``champion`` those of the board's calibration
    before, whose rows are not ``new``. Raises DataError for launches of fewer than two kernels, or
    power that is not positive.
    """
    rows = uploads.rows
    if len(np.unique(rows.groups)) < 2:
        raise DataError("measurements of at least two kernels are needed")
    if not np.all(rows.watts > 0):
        raise DataError("measured power must be positive")
    calibration = _Calibration(uploads, start.parameters)
    plan = fold_plan(rows, None, None)
    ancestor = start.card.marks
    known = uploads.known_to(ancestor)
    found = judged(plan, calibration.ways.out_of_fold(plan), known, start.card)
    everything = np.arange(len(rows))
    way, parameters = calibration.ways.fitted(everything)
    parameters = parameters.model_copy(update={"gpu": order.gpu})
    card = _card(order, uploads, start, way, found)
    card = write_parameters(card, out_dir, PARAMETERS_NAME, parameters)
    final = calibration.watts(parameters, everything)
    left_out = found.grouped_watts, found.baseline_watts
    footing = uploads.footing(ancestor, knowing, order.policy)
    footing = replace(footing, notes=(*notes, *footing.notes))
    compared, verdict = uploads.judged(order.policy, *left_out, opponents, final, champion, footing)
    return Retrained((card,), card, verdict, compared)


@dataclass(frozen=True)
class _Calibration:
    """The ways of one calibration."""

    uploads: Uploads
    start: PhysicalParameters

    @cached_property
    def ways(self) -> Ways[PhysicalParameters]:
        fits = {
            "median": self._median,
            "factor": lambda train: self._refitted(train, RIGID),
            "weights, half": lambda train: _blended(self._refitted(train), self._median(train)),
            "weights": self._refitted,
        }
        return Ways(self.uploads.rows, fits, self.watts, few="factor")

    @cached_property
    def _design(self) -> Floats:
        units = len(UnitActivities._fields)
        launches = [
            (UnitActivities(*row[:units]), ClockPair(*row[units:]))
            for row in self.uploads.rows.vectors.tolist()
        ]
        return design(self.start, launches)

    def watts(self, parameters: PhysicalParameters, at: Indices) -> Floats:
        """``wattcast.models.power.physical.predicted_power`` of rows, all at once."""
        scale = parameters.limit_watts - parameters.idle_watts
        watts = parameters.idle_watts + scale * (self._design[at] @ weights_of(parameters))
        return np.minimum(watts, max(parameters.limit_watts, parameters.highest_watts))

    def _refitted(self, train: Indices, weight_pull: float = 1.0) -> PhysicalParameters:
        watts = self.uploads.rows.watts[train]
        return refitted(self._started(train), self._design[train], watts, weight_pull=weight_pull)

    def _median(self, train: Indices) -> PhysicalParameters:
        """What draws the same whatever it does."""
        start = self._started(train)
        median = float(np.median(self.uploads.rows.watts[train]))
        share = (median - start.idle_watts) / (start.limit_watts - start.idle_watts)
        nothing = dict.fromkeys(start.weights, 0.0)
        return start.model_copy(
            update={
                "weights": {**nothing, "base": max(0.0, share)},
                "own_weights": dict.fromkeys(start.own_weights, 0.0),
            }
        )

    def _started(self, train: Indices) -> PhysicalParameters:
        """Idle power that nobody measured is a guess: a working board draws no less."""
        least = float(self.uploads.rows.watts[train].min())
        return self.start.model_copy(update={"idle_watts": min(self.start.idle_watts, least)})


def _blended(one: PhysicalParameters, other: PhysicalParameters) -> PhysicalParameters:
    """Half of each: both draw the same at idle, and watts are linear in the weights."""

    def half(left: Mapping[str, float], right: Mapping[str, float]) -> dict[str, float]:
        return {name: (left[name] + right[name]) / 2 for name in left}

    return one.model_copy(
        update={
            "weights": half(one.weights, other.weights),
            "own_weights": half(one.own_weights, other.own_weights),
        }
    )


def _card(order: Order, uploads: Uploads, start: Start, way: str, found: Judged) -> ModelCard:
    rows = uploads.rows
    notes = {name: "MHz" if name in CLOCKS else _NOTE for name in COLUMNS}
    return ModelCard(
        gpu=order.gpu,
        target="power",
        family=FAMILY,
        source=SOURCE,
        version=order.version,
        feature_schema=order.schema,
        features=feature_facts(COLUMNS, rows.vectors, notes),
        training=training_facts(rows.vectors, rows.watts, [str(g) for g in rows.groups]),
        sources=tuple(dict.fromkeys((*start.card.sources, *uploads.sources))),
        hyperparameters={
            "calibrated_from": start.card.folder.as_posix(),
            "way": way,
            "pooled_voltage": start.pooled,
        },
        libraries=library_versions(("numpy", "scipy")),
        scores=found.scores,
        intervals=found.intervals,
        files={PARAMETERS_NAME: "0" * 64},
        created=today(),
        code_revision=code_revision(),
        board=BoardFacts(
            label=order.board,
            watts_factor=1.0,
            batches=uploads.batches,
            base_data=True,
            **found.told(),
        ),
        learned="" if start.card.marks is None else stored(start.card.marks | uploads.learned),
    )


_NOTE = "share of the unit's peak at the predicted time"
