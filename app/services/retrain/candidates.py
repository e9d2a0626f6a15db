"""The candidates: boosted power models fitted anew or continued (modes full and continue), and
calibrations of the physical power model (mode new_gpu) and of the default time model.

Calibrations look at ``activity1`` and answer for any clocks, so every measured launch counts whose
activity is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wattcast.app.services.models.champions import TIME
from wattcast.app.services.retrain.attempt import (
    Attempt,
    Outcome,
    opponent,
    opponent_of_launches,
    serving,
)
from wattcast.app.services.retrain.candidate_rows import (
    Gathered,
    Together,
    Wanted,
    base_rows,
    gathered,
    nothing_left,
)
from wattcast.app.services.retrain.launches import MeasuredAt
from wattcast.app.store.measurements import Measurement
from wattcast.app.store.registry import Place
from wattcast.features.schemas import get_schema
from wattcast.models.cards import BoardFacts, ModelCard, SchemaReference
from wattcast.models.power import PHYSICAL
from wattcast.models.power.physical import POOLED, PhysicalPowerModel
from wattcast.models.store import Artifact
from wattcast.models.time.calibration import CorrectedTimes, TimeBoard, features_of
from wattcast.predictor.parts.power_models import PHYSICAL_SCHEMA, TARGET, unseen_error_watts

if TYPE_CHECKING:
    from wattcast.training.retrain.inputs import Champion, Uploads


CONTINUABLE = ("xgboost", "catboost", "average")
"""Families that more trees can be added to; the packaged average is of the other two."""


def retrain_power(attempt: Attempt) -> Outcome:
    """Fit anew, or continue the champion, and judge the result.

    Raises DataError where the rows do not allow it, and ModelError for families or a champion
    that do not fit.
    """
    from wattcast.training.checkpoints import Checkpoints
    from wattcast.training.engine import open_engine
    from wattcast.training.retrain.run import retrain

    gpu, settings = attempt.gpu, attempt.services.settings
    given = boosted_rows(attempt)
    found, place, champion, measured = given.found, given.place, given.champion, given.measured
    beside = None
    if champion is None or given.answering.card != champion.card:
        beside = opponent(given.answering, measured, attempt.launches)
    inputs, families = found.inputs(champion), _families(attempt, champion)
    order = attempt.order(place.board, found.reference, inputs, families)
    with open_engine(settings.dask, settings.job_threads, settings.dask_rows) as engine:
        retrained = retrain(
            order,
            given.uploads,
            base_rows(gpu.id, champion) if attempt.mode == "full" else None,
            champion,
            attempt.made,
            opponents={beside.name: beside.watts} if beside and beside.name else {},
            knowing=(beside.marks,) if beside and beside.name else (),
            notes=(beside.note,) if beside and beside.note else (),
            engine=engine,
            checkpoints=Checkpoints(attempt.kept),
            progress=attempt.tell,
        )
    return Outcome(place, retrained, attempt, measured)


@dataclass(frozen=True)
class BoostedRows:
    """What trees are fitted to: the rows as models take them, and the measurements behind them in
    the same order; who answers for their board now, and the trees to start from."""

    found: Gathered
    place: Place
    answering: Artifact[ModelCard]
    champion: Champion | None
    uploads: Uploads
    measured: Sequence[Measurement]


def boosted_rows(attempt: Attempt) -> BoostedRows:
    """The rows of a request that trees can be fitted to. Raises DataError where there are none."""
    request, rest = attempt.request, attempt.rest
    measurements = attempt.data.measurements
    batches = measurements.get_many(request.batches)
    wanted = Wanted(attempt.gpu, request.board)
    found = gathered(batches, attempt.rows, wanted, request.schema_id, rest)
    place = Place(attempt.gpu.id, found.board, TARGET)
    answering = serving(attempt.services.power, attempt.artifacts, attempt.snapshot, place)
    champion = champion_for(attempt, answering, found.schema_id)
    known = trained_on(None if champion is None else champion.card.board, place)
    together = found.with_earlier(known, measurements, attempt.rows, rest)
    uploads, measured = found.boosted(champion, together, rest)
    return BoostedRows(found, place, answering, champion, uploads, measured)


def champion_for(
    attempt: Attempt, answering: Artifact[ModelCard], schema_id: str
) -> Champion | None:
    """The model to beat and to start from: the one that answers for this board now, or, where
    that one cannot be continued, the best of the packaged ones that can.

    ``None`` where there is none that takes the uploads' features.
    """
    from wattcast.training.retrain.inputs import Champion

    card = answering.card
    if card.family in CONTINUABLE and card.feature_schema.id == schema_id:
        return Champion(answering)
    power = attempt.services.power
    known = [
        card
        for card in power.base_cards()
        if (card.gpu, card.feature_schema.id) == (attempt.gpu.id, schema_id)
        and card.family in CONTINUABLE
    ]
    return Champion(power.artifact(min(known, key=unseen_error_watts))) if known else None


def _families(attempt: Attempt, champion: Champion | None) -> tuple[str, ...]:
    request = attempt.request
    if request.families:
        return tuple(dict.fromkeys(request.families))
    if attempt.mode == "continue" and champion is not None:
        singles = champion.artifact.members or (champion.artifact,)
        return tuple(single.card.family for single in singles)
    return ("xgboost", "catboost")


def calibrate_power(attempt: Attempt) -> Outcome:
    """Draw the physical model to measured launches, and judge it.

    It starts from the packaged model, the GPU's own or the pooled one, with all that was uploaded
    before: so a calibration does not hang on the order of the uploads. Raises DataError where the
    rows do not allow it.
    """
    from wattcast.training.retrain.new_gpu import COLUMNS, Start
    from wattcast.training.retrain.new_gpu import calibrate_power as calibrate

    gpu, power = attempt.gpu, attempt.services.power
    found = launch_rows(attempt, TARGET)
    place = Place(gpu.id, found.board, TARGET)
    answering = serving(power, attempt.artifacts, attempt.snapshot, place)
    card = answering.card
    together, launches = _launches(attempt, found, trained_on(card.board, place))
    beside = opponent_of_launches(answering, together.measured, launches, gpu)
    packaged = power.physical_artifact(gpu.id)
    pooled = packaged.card.gpu == POOLED
    order = attempt.order(place.board, _SCHEMA, COLUMNS, (PHYSICAL,))
    attempt.tell("folds", 0.3)
    vectors = [(*launch.activities, *launch.clocks) for launch in launches]
    retrained = calibrate(
        order,
        together.uploads(np.array(vectors, dtype=np.float64)),
        Start(PhysicalPowerModel(packaged, gpu).parameters, packaged.card, pooled),
        attempt.made,
        opponents={beside.name: beside.watts} if beside.name else {},
        knowing=(beside.marks,) if beside.name else (),
        notes=(beside.note,) if beside.note else (),
        champion=beside.watts if together.known else None,
    )
    return Outcome(place, retrained, attempt, together.measured)


def calibrate_time(attempt: Attempt) -> Outcome:
    """Correct the default time model by measured launches, and judge that.
    Raises DataError where the rows do not allow it."""
    from wattcast.training.retrain.gate import CHAMPION
    from wattcast.training.retrain.launch_time import DEFAULT
    from wattcast.training.retrain.launch_time import calibrate_time as calibrate

    gpu = attempt.gpu
    found = launch_rows(attempt, TIME)
    place = Place(gpu.id, found.board, TIME)
    champion = correction_of(attempt, place)
    known = trained_on(None if champion is None else champion.card.board, place)
    together, launches = _launches(attempt, found, known)
    order = attempt.order(place.board, _SCHEMA, (), ())
    attempt.tell("folds", 0.3)
    vectors = [features_of(each.regime, each.seconds, each.clocks) for each in launches]
    now = np.array(
        [
            each.seconds if champion is None else champion.seconds(each.regime, each.seconds)
            for each in launches
        ]
    )
    retrained = calibrate(
        order,
        gpu,
        together.uploads(np.array(vectors, dtype=np.float64)),
        attempt.made,
        opponents={DEFAULT if champion is None else CHAMPION: now},
        champion=now if known else None,
    )
    return Outcome(place, retrained, attempt, together.measured)


_SCHEMA = SchemaReference(id=PHYSICAL_SCHEMA, sha256=get_schema(PHYSICAL_SCHEMA).sha256)


def launch_rows(attempt: Attempt, target: str) -> Gathered:
    """The rows of a request that the physical power model, or the default time model, can be held
    against, at any clocks. Raises DataError where there are none."""
    request = attempt.request
    batches = attempt.data.measurements.get_many(request.batches)
    wanted = Wanted(
        attempt.gpu, request.board, "power" if target == TARGET else "time", any_clocks=True
    )
    return gathered(batches, attempt.rows, wanted, PHYSICAL_SCHEMA, attempt.rest)


def _launches(
    attempt: Attempt, found: Gathered, trained_on: Sequence[str]
) -> tuple[Together, list[MeasuredAt]]:
    """The rows whose launch the models can work out, and those launches in the same order."""
    together = found.with_earlier(trained_on, attempt.data.measurements, attempt.rows, attempt.rest)
    launches = attempt.launches.of(together.measured)
    reasons = [each if isinstance(each, str) else None for each in launches]
    together = together.where(reasons, attempt.rest)
    if not together.rows:
        raise nothing_left(attempt.gpu, attempt.rest)
    return together, [each for each in launches if not isinstance(each, str)]


def trained_on(board: BoardFacts | TimeBoard | None, place: Place) -> Sequence[str]:
    """Batches that the board's own champion was trained on."""
    return board.batches if board is not None and board.label == place.board else ()


def correction_of(attempt: Attempt, place: Place) -> CorrectedTimes | None:
    """What corrects the times of a board now."""
    version = attempt.snapshot.answering(place)
    if version is None:
        return None
    return CorrectedTimes(attempt.artifacts.open_correction(version.name, version.card_sha256))
