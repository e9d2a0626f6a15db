"""One mark for each answer, by one rule, and which answers of several GPUs can be ranked.

    guess            trips or sizes that were assumed decide the launch (``needs``, assumed trips)
    measured here    accepted measurements of this kernel, or of this very board, are in the power
    measured board   the kernel is new to a model that was fitted on boards of this kind
    estimated board  nobody measured a board of this kind: datasheet facts and other boards' weights

The first that holds is the mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from wattcast.models import cards, power
from wattcast.models.intervals import Basis
from wattcast.predictor.messages import LoopTrips, Need, predict

Mark = Literal["measured here", "measured board", "estimated board", "guess"]
ORDER: tuple[Mark, ...] = ("measured here", "measured board", "estimated board", "guess")
"""From the best."""


def trust(
    basis: Basis, card: cards.ModelCard, needs: Sequence[Need] = (), trips: Sequence[LoopTrips] = ()
) -> predict.Trust:
    """What a predicted power is worth."""
    if needs:
        why = f"{needs[0].argument} is not given and decides the {needs[0].decides}"
        return predict.Trust(mark="guess", why=why)
    if any(trip.how == "assumed" for trip in trips):
        return predict.Trust(mark="guess", why="the trips of a loop are assumed")
    if basis == "seen_kernel":
        return predict.Trust(mark="measured here", why="measured launches of this kernel moved it")
    if basis == "uncalibrated":
        kind = "boards of this kind" if card.board is None else "this board"
        return predict.Trust(mark="estimated board", why=f"nobody measured the power of {kind}")
    measured_on = card.hyperparameters.get("measured_on", card.gpu)
    if measured_on != card.gpu:
        why = f"energies are those of {measured_on}, which has the same chip"
        why = f"nobody measured the power of boards of this kind; {why}"
        return predict.Trust(mark="estimated board", why=why)
    own = card.board is not None or card.source == power.ONBOARD
    on = "your measurements" if own else "boards of this kind"
    more = ", outside what it was fitted on" if basis == "extrapolated" else ""
    mark: Mark = "measured here" if own else "measured board"
    return predict.Trust(mark=mark, why=f"the model was fitted on {on}{more}")


class Ranked(NamedTuple):
    """What decides whether answers can be ranked by their power."""

    gpu: str
    trust: predict.Trust | None
    family: str
    source: str
    basis: Basis | None

    @classmethod
    def of(cls, answer: predict.PredictAnswer) -> Ranked:
        """That of a prediction."""
        model, power = answer.model, answer.power
        family, source = ("", "") if model is None else (model.family, model.source)
        return cls(answer.gpu, answer.trust, family, source, power.basis if power else None)


def incomparable(answers: Sequence[Ranked]) -> list[str | None]:
    """Why the power of each answer is not to be ranked with the others'; ``None``: it is.

    Ranked are answers of the best mark there is, by one kind of model (the physical one where it
    predicted any, else trees of the source of the first of them), and inside what it was fitted on
    where any is.
    """
    predicted = [each for each in answers if each.trust is not None]
    if not predicted:
        return ["no model tells its power"] * len(answers)
    # What you measured and what others measured of the board are models of measurements alike.
    least = max(min(map(_place, predicted)), ORDER.index("measured board"))
    marked = [each for each in predicted if _place(each) <= least]
    kinds = [_kind_of(each) for each in marked]
    kind = power.PHYSICAL if power.PHYSICAL in kinds else kinds[0]
    same = [each for each, its in zip(marked, kinds, strict=True) if its == kind]
    inside = any(each.basis not in ("extrapolated", "uncalibrated") for each in same)

    def why(each: Ranked) -> str | None:
        if each.trust is None:
            return "no model tells its power"
        if _place(each) > least:
            return f"{each.trust.mark}: {each.trust.why}"
        if _kind_of(each) != kind:
            by = f"{each.family}, {each.source}"
            return f"another kind of model tells its power ({by}); model: physical tells all"
        return "its power is extrapolated" if each.basis == "extrapolated" and inside else None

    return [why(each) for each in answers]


def _place(answer: Ranked) -> int:
    return len(ORDER) if answer.trust is None else ORDER.index(answer.trust.mark)


def _kind_of(answer: Ranked) -> str:
    return power.PHYSICAL if answer.family == power.PHYSICAL else answer.source


def apart(answers: Sequence[Ranked]) -> list[predict.Apart]:
    """GPUs whose answers are not to be ranked with the others, and why, each reason once."""
    whys = zip(answers, incomparable(answers), strict=True)
    reasons = dict.fromkeys((each.gpu, why) for each, why in whys if why is not None)
    return [predict.Apart(gpu=gpu, why=why) for gpu, why in reasons]
