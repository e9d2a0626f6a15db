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
from wattcast.models.power import ONBOARD

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


def apart(answers: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """GPUs whose answers are not to be ranked with the others, and why: their mark is weaker than
    the best one's, or their power is extrapolated where another's of that mark is not."""
    told = [one for one in answers if one["trust"] is not None]
    found = [
        {"gpu": one["gpu"], "why": "no model tells its power"}
        for one in answers
        if one["trust"] is None
    ]
    if not told:
        return found
    places = [ORDER.index(one["trust"]["mark"]) for one in told]
    # What you measured and what others measured of the board are models of measurements alike.
    least = max(min(places), ORDER.index("measured board"))
    ranked = [one for one, place in zip(told, places, strict=True) if place <= least]
    inside = any(one["power"]["basis"] != "extrapolated" for one in ranked)
    for one, place in zip(told, places, strict=True):
        if place > least:
            found.append(
                {"gpu": one["gpu"], "why": f"{one['trust']['mark']}: {one['trust']['why']}"}
            )
        elif inside and one["power"]["basis"] == "extrapolated":
            found.append({"gpu": one["gpu"], "why": "its power is extrapolated"})
    return found
