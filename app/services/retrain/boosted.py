"""Retraining of boosted power models on stored measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattcast.app.services.retrain.attempt import Attempt, Outcome
from wattcast.app.services.retrain.candidate_rows import Wanted, base_rows, gathered
from wattcast.app.services.retrain.opponents import opponent, serving
from wattcast.app.store.registry import Place
from wattcast.models.cards import ModelCard
from wattcast.models.store import Artifact
from wattcast.predictor.parts.power_models import TARGET, unseen_error_watts

if TYPE_CHECKING:
    from wattcast.training.retrain.inputs import Champion

CONTINUABLE = ("xgboost", "catboost", "average")
"""Families that more trees can be added to; the packaged average is of the other two."""


def retrain_power(attempt: Attempt) -> Outcome:
    """Fit anew, or continue the champion, and judge the result.

    Raises DataError where the rows do not allow it, and ModelError for families or a champion
    that do not fit.
    """
    from wattcast.training.checkpoints import Checkpoints
    from wattcast.training.engine import open_engine
    from wattcast.training.retrain.inputs import Order
    from wattcast.training.retrain.run import retrain

    request, gpu, rest = attempt.request, attempt.gpu, attempt.rest
    measurements, settings = attempt.data.measurements, attempt.services.settings
    batches = measurements.get_many(request.batches)
    wanted = Wanted(gpu, request.board)
    found = gathered(batches, attempt.rows, wanted, request.schema_id, rest)
    place = Place(gpu.id, found.board, TARGET)
    answering = serving(attempt.services.power, attempt.artifacts, attempt.snapshot, place)
    champion = _champion(attempt, answering, place, found.schema_id)
    board = None if champion is None else champion.card.board
    trained_on = board.batches if board is not None and board.label == place.board else ()
    together = found.with_earlier(trained_on, measurements, attempt.rows, rest)
    uploads, measured = found.boosted(champion, together, rest)
    beside = None
    if champion is None or answering.card != champion.card:
        beside = opponent(answering, measured, attempt.launches)
    order = Order(
        gpu=place.gpu,
        board=place.board,
        schema=found.reference,
        features=found.inputs(champion),
        families=_families(attempt, champion),
        mode=request.mode,
        version=attempt.data.registry.reserve_version(),
        policy=attempt.policy,
    )
    with open_engine(settings.dask, settings.job_threads, settings.dask_rows) as engine:
        retrained = retrain(
            order,
            uploads,
            base_rows(gpu.id, champion) if request.mode == "full" else None,
            champion,
            attempt.made,
            opponents={beside.name: beside.watts} if beside and beside.name else {},
            notes=(beside.note,) if beside and beside.note else (),
            engine=engine,
            checkpoints=Checkpoints(attempt.kept),
            progress=attempt.tell,
        )
    return Outcome(place, retrained, rest)


def _champion(
    attempt: Attempt, answering: Artifact[ModelCard], place: Place, schema_id: str
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
        if (card.gpu, card.feature_schema.id) == (place.gpu, schema_id)
        and card.family in CONTINUABLE
    ]
    return Champion(power.artifact(min(known, key=unseen_error_watts))) if known else None


def _families(attempt: Attempt, champion: Champion | None) -> tuple[str, ...]:
    request = attempt.request
    if request.families:
        return tuple(dict.fromkeys(request.families))
    if request.mode == "continue" and champion is not None:
        singles = champion.artifact.members or (champion.artifact,)
        return tuple(single.card.family for single in singles)
    return ("xgboost", "catboost")
