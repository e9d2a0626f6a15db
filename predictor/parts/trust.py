"""One mark for each answer, by one rule, and which answers of several GPUs can be ranked.

    guess            trips or sizes that were assumed decide the launch (``needs``, assumed trips)
    measured here    accepted measurements of this kernel, or of this very board, are in the power
    measured board   the kernel is new to a model that was fitted on boards of this kind
    estimated board  nobody measured a board of this kind: datasheet facts and other boards' weights

The first that holds is the mark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from wattcast.models.cards import ModelCard
from wattcast.models.estimate import Basis
from wattcast.models.power import ONBOARD, PHYSICAL

Mark = Literal["measured here", "measured board", "estimated board", "guess"]
ORDER: tuple[Mark, ...] = ("measured here", "measured board", "estimated board", "guess")
"""From the best."""


def trust(
    basis: Basis,
    card: ModelCard,
    needs: Sequence[Mapping[str, Any]] = (),
    trips: Sequence[Mapping[str, Any]] = (),
) -> dict[str, str]:
    """``wattcast.predictor.messages.predict.Trust`` of a power that was told."""
    mark, why = _mark(basis, card, needs, trips)
    return {"mark": mark, "why": why}


def _mark(
    basis: Basis,
    card: ModelCard,
    needs: Sequence[Mapping[str, Any]],
    trips: Sequence[Mapping[str, Any]],
) -> tuple[Mark, str]:
    if needs:
        return "guess", f"{needs[0]['argument']} is not given and decides the {needs[0]['decides']}"
    if any(trip["how"] == "assumed" for trip in trips):
        return "guess", "the trips of a loop are assumed"
    if basis == "seen_kernel":
        return "measured here", "measured launches of this kernel moved it"
    if basis == "uncalibrated":
        return "estimated board", f"nobody measured the power of {_kind(card)}"
    more = ", outside what it was fitted on" if basis == "extrapolated" else ""
    if card.board is not None or card.source == ONBOARD:
        return "measured here", f"the model was fitted on your measurements{more}"
    return "measured board", f"the model was fitted on boards of this kind{more}"


def _kind(card: ModelCard) -> str:
    return "boards of this kind" if card.board is None else "this board"


def incomparable(answers: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """Why the power of each answer is not to be ranked with the others'; ``None``: it is.

    Ranked are answers of the best mark there is, by one kind of model (the physical one where it
    told any, else trees of the source of the first of them), and inside what it was fitted on where
    any is. Each answer has ``trust``, ``model`` and ``power``.
    """
    told = [one for one in answers if one["trust"] is not None]
    if not told:
        return ["no model tells its power"] * len(answers)
    # What you measured and what others measured of the board are models of measurements alike.
    least = max(min(map(_place, told)), ORDER.index("measured board"))
    marked = [one for one in told if _place(one) <= least]
    kinds = [_kind_of(one) for one in marked]
    kind = PHYSICAL if PHYSICAL in kinds else kinds[0]
    same = [one for one, its in zip(marked, kinds, strict=True) if its == kind]
    inside = not all(map(_extrapolates, same))

    def why(one: Mapping[str, Any]) -> str | None:
        if one["trust"] is None:
            return "no model tells its power"
        if _place(one) > least:
            return f"{one['trust']['mark']}: {one['trust']['why']}"
        if _kind_of(one) != kind:
            told_by = f"{one['model']['family']}, {one['model']['source']}"
            return f"another kind of model tells its power ({told_by}); model: physical tells all"
        return "its power is extrapolated" if _extrapolates(one) and inside else None

    return [why(one) for one in answers]


def _place(answer: Mapping[str, Any]) -> int:
    return ORDER.index(answer["trust"]["mark"])


def _kind_of(answer: Mapping[str, Any]) -> str:
    model = answer["model"]
    return str(PHYSICAL if model["family"] == PHYSICAL else model["source"])


def _extrapolates(answer: Mapping[str, Any]) -> bool:
    return bool(answer["power"]["basis"] == "extrapolated")


def apart(answers: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """GPUs whose answers are not to be ranked with the others, and why, each reason once."""
    whys = zip(answers, incomparable(answers), strict=True)
    found = dict.fromkeys((one["gpu"], why) for one, why in whys if why is not None)
    return [{"gpu": gpu, "why": why} for gpu, why in found]
