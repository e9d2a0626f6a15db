"""What a retraining is given, and what it makes.

Order, Uploads          what is asked, and the measurements of one board
Champion                what boosted models start from
Candidate               artifacts with cards, and the verdict on them
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattcast.features.errors import DataError, ModelError
from wattcast.models.cards import Marks, ModelCard, SchemaReference, Source
from wattcast.models.power.boosted import BoostedPowerModel
from wattcast.models.store import NATIVE_NAMES, AnyCard, Artifact
from wattcast.training.evaluation.scores import Floats, Rows
from wattcast.training.gate import LEAST_GROUPS, HoldOut, OldRows, Opponent, Verdict, judge
from wattcast.training.provenance import code_revision, today

SOURCE = "uploads"
"""``<source>`` of retrained models' folders."""


@dataclass(frozen=True)
class Order:
    """What to train. ``version`` is that of every artifact made; no other may have it.

    ``features`` and ``families`` are those of boosted models; ``continued``: trees are added to the
    champion's.
    """

    gpu: str
    board: str
    schema: SchemaReference
    version: int
    features: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    continued: bool = False

    @property
    def card_fields(self) -> dict[str, Any]:
        """What every card made for this order says."""
        return {
            "gpu": self.gpu,
            "source": SOURCE,
            "version": self.version,
            "feature_schema": self.schema,
            "created": today(),
            "code_revision": code_revision(),
        }


class Footing(NamedTuple):
    """Uploaded rows ``[n]`` to compare on, and notes on the choice."""

    rows: NDArray[np.bool_]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Uploads:
    """Accepted measurements of one GPU and board: vectors ``[n, k]``, watts (for target time
    seconds in their place), kernel groups.

    ``new`` ``[n]`` marks rows that the champion was not trained on. ``sources`` describe the
    batches, whose ids are ``batches``. ``marks`` ``[n]`` identify each row's kernel
    (``wattcast.models.cards``); rows without any are of kernels nobody knows.
    """

    rows: Rows
    new: NDArray[np.bool_]
    batches: tuple[str, ...]
    sources: tuple[Source, ...]
    marks: tuple[Marks, ...] = ()

    def check(self) -> None:
        """Raises DataError for rows that nothing can be learned from."""
        if len(np.unique(self.rows.groups)) < 2:
            raise DataError("measurements of at least two kernels are needed")
        if not np.all(self.rows.watts > 0):
            raise DataError("measured values must be positive")

    @property
    def learned(self) -> Marks:
        """All marks: what a model trained on these rows has learned from."""
        return frozenset().union(*self.marks)

    def known_to(self, marks: Marks | None) -> NDArray[np.bool_]:
        """Rows ``[n]`` of groups of which any row bears one of the marks; all rows for a model
        whose marks are not known (``None``)."""
        groups = self.rows.groups
        if marks is None:
            return np.ones(len(groups), dtype=np.bool_)
        hit = [group for group, own in zip(groups, self.marks, strict=False) if own & marks]
        return np.isin(groups, hit)

    def footing(self, ancestor: Marks | None, opponents: Iterable[Marks | None]) -> Footing:
        """New rows on which the candidate and what it must beat know equally much.

        Those of kernels that nothing before the candidate learned from (``ancestor``: the marks of
        the model it descends from), where there are enough; else also those of kernels that the
        opponents know, too. What only the candidate's ancestor knows would flatter it.
        """
        known, groups = self.known_to(ancestor), self.rows.groups
        known_groups = len(np.unique(groups[self.new & known]))
        if not known_groups:
            return Footing(self.new)
        count = len(np.unique(groups[self.new]))
        unseen = self.new & ~known
        what = f"{known_groups} of {count} kernel groups are in what earlier data taught the"
        if len(np.unique(groups[unseen])) >= LEAST_GROUPS:
            return Footing(unseen, (f"{what} candidate: it is judged on the others",))
        for marks in opponents:
            known &= self.known_to(marks)
        note = (
            f"{what} candidate: compared where those it must beat know them, too; what it does on "
            "kernels never measured is not measured"
        )
        return Footing(unseen | (self.new & known), (note,))

    def judged(
        self,
        cards: tuple[AnyCard, ...],
        candidate: Floats,
        baseline: Floats,
        opponents: Sequence[Opponent],
        ancestor: Marks | None,
        notes: tuple[str, ...],
        old: OldRows | None,
    ) -> Candidate[AnyCard]:
        """The candidate of ``cards`` with its verdict. ``candidate`` and ``baseline`` are
        predictions ``[n]`` of all rows with their kernels left out; ``ancestor`` as in
        ``footing``."""
        at, footing_notes = self.footing(ancestor, [each.marks for each in opponents])
        compared = HoldOut(
            measured=self.rows.watts[at],
            groups=self.rows.groups[at],
            candidate=candidate[at],
            baseline=baseline[at],
            opponents={each.name: each.predicted[at] for each in opponents},
            at=np.flatnonzero(at),
            notes=(*notes, *footing_notes),
        )
        return Candidate(cards, judge(compared, old), compared)


def knows_base(card: ModelCard) -> bool:
    """Whether a model was trained on the rows of the packaged models."""
    return card.board is None or card.board.base_data


@dataclass(frozen=True)
class Champion:
    """The boosted model to beat and to start from."""

    artifact: Artifact[ModelCard]

    @cached_property
    def model(self) -> BoostedPowerModel:
        """Its predictor."""
        return BoostedPowerModel(self.artifact)

    @property
    def card(self) -> ModelCard:
        """Its card."""
        return self.artifact.card

    def native(self, family: str) -> bytes:
        """Bytes of its native model of a family. Raises ModelError if it has none."""
        for single in self.artifact.members or (self.artifact,):
            if single.card.family == family:
                return single.read(NATIVE_NAMES[family])
        raise ModelError(f"the champion has no {family} model to continue from", family=family)

    def trees_watts(self, vectors: Floats) -> Floats:
        """Watts ``[n]`` of its trees, without the factor of its board."""
        return self.model.predict_watts(vectors) / self.card.watts_factor


@dataclass(frozen=True)
class Candidate(Generic[AnyCard]):
    """Cards of all artifacts made, the last one that of the model judged (the average of two), on
    the rows ``compared``."""

    cards: tuple[AnyCard, ...]
    verdict: Verdict
    compared: HoldOut = field(compare=False)

    @property
    def card(self) -> AnyCard:
        """The card of the model that was judged."""
        return self.cards[-1]
