"""Calibration from stored measurements: the physical power model, and the default time model.

Both look at ``activity1`` and answer for any clocks, so every measured launch counts whose activity
is known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wattcast.app.services.models.champions import TIME, open_correction
from wattcast.app.services.retrain.attempt import Attempt, Outcome
from wattcast.app.services.retrain.candidate_rows import (
    Gathered,
    Together,
    Wanted,
    gathered,
    nothing_left,
)
from wattcast.app.services.retrain.launches import MeasuredAt
from wattcast.app.services.retrain.opponents import opponent_of_launches, serving
from wattcast.app.store.registry import Place
from wattcast.features.schemas import get_schema
from wattcast.models.cards import BoardFacts, SchemaReference
from wattcast.models.power import PHYSICAL
from wattcast.models.power.physical import POOLED, PhysicalPowerModel
from wattcast.models.time.calibration import CorrectedTimes, TimeBoard, features_of
from wattcast.predictor.parts.power_models import PHYSICAL_SCHEMA, TARGET

Floats = NDArray[np.float64]


def calibrate_power(attempt: Attempt) -> Outcome:
    """Draw the physical model to measured launches, and judge it.

    It starts from the packaged model, the GPU's own or the pooled one, with all that was uploaded
    before: so a calibration does not hang on the order of the uploads. Raises DataError where the
    rows do not allow it.
    """
    from wattcast.training.retrain.inputs import Order
    from wattcast.training.retrain.new_gpu import COLUMNS, Start
    from wattcast.training.retrain.new_gpu import calibrate_power as calibrate

    gpu, power = attempt.gpu, attempt.services.power
    found = _gathered(attempt, "power")
    place = Place(gpu.id, found.board, TARGET)
    answering = serving(power, attempt.artifacts, attempt.snapshot, place)
    card = answering.card
    together, launches = _launches(attempt, found, _trained_on(card.board, place))
    beside = opponent_of_launches(answering, together.measured, launches, gpu)
    packaged = power.physical_artifact(gpu.id)
    pooled = packaged.card.gpu == POOLED
    order = Order(
        gpu=gpu.id,
        board=place.board,
        schema=_SCHEMA,
        features=COLUMNS,
        families=(PHYSICAL,),
        mode="new_gpu",
        version=attempt.data.registry.reserve_version(),
        policy=attempt.policy,
    )
    attempt.tell("folds", 0.3)
    vectors = [(*launch.activities, *launch.clocks) for launch in launches]
    retrained = calibrate(
        order,
        together.uploads(np.array(vectors, dtype=np.float64)),
        Start(PhysicalPowerModel(packaged, gpu).parameters, packaged.card, pooled),
        attempt.made,
        opponents={beside.name: beside.watts} if beside.name else {},
        notes=(beside.note,) if beside.note else (),
        champion=beside.watts if together.known else None,
    )
    return Outcome(place, retrained, attempt.rest)


def calibrate_time(attempt: Attempt) -> Outcome:
    """Correct the default time model by measured launches, and judge that.

    Raises DataError where the rows do not allow it.
    """
    from wattcast.training.retrain.gate import CHAMPION
    from wattcast.training.retrain.inputs import Order
    from wattcast.training.retrain.launch_time import DEFAULT
    from wattcast.training.retrain.launch_time import calibrate_time as calibrate

    gpu = attempt.gpu
    found = _gathered(attempt, TIME)
    place = Place(gpu.id, found.board, TIME)
    champion = _correction(attempt, place)
    known = _trained_on(None if champion is None else champion.card.board, place)
    together, launches = _launches(attempt, found, known)
    order = Order(
        gpu=gpu.id,
        board=place.board,
        schema=_SCHEMA,
        features=(),
        families=(),
        mode="new_gpu",
        version=attempt.data.registry.reserve_version(),
        policy=attempt.policy,
    )
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
    return Outcome(place, retrained, attempt.rest)


_SCHEMA = SchemaReference(id=PHYSICAL_SCHEMA, sha256=get_schema(PHYSICAL_SCHEMA).sha256)


def _gathered(attempt: Attempt, target: str) -> Gathered:
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


def _trained_on(board: BoardFacts | TimeBoard | None, place: Place) -> Sequence[str]:
    """Batches that the board's own champion was trained on."""
    return board.batches if board is not None and board.label == place.board else ()


def _correction(attempt: Attempt, place: Place) -> CorrectedTimes | None:
    """What corrects the times of a board now."""
    for board in dict.fromkeys((place.board, "")):
        version = attempt.snapshot.champion(place._replace(board=board))
        if version is not None:
            return CorrectedTimes(open_correction(attempt.artifacts, version))
    return None
