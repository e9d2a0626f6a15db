"""What a retraining is given: uploads, base rows, the champion, and the order; what it gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, Literal

import numpy as np
from numpy.typing import NDArray

from wattcast.features.errors import ModelError
from wattcast.models.cards import ModelCard, SchemaReference, Source
from wattcast.models.learned import Marks
from wattcast.models.power.boosted import BoostedPowerModel
from wattcast.models.store import AnyCard, Artifact
from wattcast.models.trees import NATIVE_NAMES
from wattcast.training.evaluation.splits import Floats, Rows
from wattcast.training.retrain.gate import HoldOut, OldRows, Policy, Verdict, judge

SOURCE = "uploads"
"""``<source>`` of retrained models' folders."""

Mode = Literal["full", "continue", "new_gpu"]


@dataclass(frozen=True)
class Footing:
    """Uploaded rows ``[n]`` to compare on, and what to tell of the choice."""

    rows: NDArray[np.bool_]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Uploads:
    """Accepted measurements of one GPU and board: vectors ``[n, k]``, watts (for target time
    seconds in their place), kernel groups.

    ``new`` ``[n]`` marks rows that the champion was not trained on. ``sources`` describe the
    batches, whose ids are ``batches``. ``marks`` ``[n]`` tell by what each row's kernel is known
    again (``wattcast.models.learned``); rows without any are of kernels nobody knows.
    """

    rows: Rows
    new: NDArray[np.bool_]
    batches: tuple[str, ...]
    sources: tuple[Source, ...]
    marks: tuple[Marks, ...] = ()

    @property
    def learned(self) -> Marks:
        """All marks: what a model trained on these rows has learned from."""
        return frozenset().union(*self.marks)

    def known_to(self, marks: Marks | None) -> NDArray[np.bool_]:
        """Rows ``[n]`` of groups of which any row bears one of the marks; of a model that does not
        tell what it learned from (``None``), all."""
        groups = self.rows.groups
        if marks is None:
            return np.ones(len(groups), dtype=np.bool_)
        hit = [group for group, own in zip(groups, self.marks, strict=False) if own & marks]
        return np.isin(groups, hit)

    def judged(
        self,
        policy: Policy,
        candidate: Floats,
        baseline: Floats,
        opponents: Mapping[str, Floats],
        final: Floats,
        champion: Floats | None,
        footing: Footing,
    ) -> tuple[HoldOut, Verdict]:
        """The rows compared on, and the verdict on a calibration. All but ``footing`` are
        predictions ``[n]``: of the candidate and the baseline with kernels left out, of what
        answers now, of the ``final`` fit, and of the board's calibration before, if there was
        one."""
        rows, old = self.rows, ~self.new
        before = None
        if champion is not None and old.any():
            before = OldRows(rows.watts[old], rows.groups[old], final[old], champion[old])
        compared = self.hold_out(candidate, baseline, opponents, footing)
        return compared, judge(compared, before, policy)

    def hold_out(
        self,
        candidate: Floats,
        baseline: Floats,
        opponents: Mapping[str, Floats],
        footing: Footing,
    ) -> HoldOut:
        """The rows to compare on, with predictions ``[n]`` of all rows as ``judged`` takes them."""
        rows, at = self.rows, footing.rows
        return HoldOut(
            measured=rows.watts[at],
            groups=rows.groups[at],
            candidate=candidate[at],
            baseline=baseline[at],
            opponents={name: values[at] for name, values in opponents.items()},
            at=np.flatnonzero(at),
            notes=footing.notes,
        )

    def footing(
        self, ancestor: Marks | None, opponents: Iterable[Marks | None], policy: Policy
    ) -> Footing:
        """New rows on which the candidate and what it must beat know equally much.

        Those of kernels that nothing before the candidate learned from (``ancestor``: the marks of
        the model it descends from), where there are enough; else also those of kernels that the
        opponents know, too. What only the candidate's ancestor knows would flatter it.
        """
        known, groups = self.known_to(ancestor), self.rows.groups
        told = len(np.unique(groups[self.new & known]))
        if not told:
            return Footing(self.new)
        count = len(np.unique(groups[self.new]))
        unseen = self.new & ~known
        what = f"{told} of {count} kernel groups are in what earlier data taught the candidate"
        if len(np.unique(groups[unseen])) >= policy.least_groups:
            return Footing(unseen, (f"{what}: it is judged on the others",))
        for one in opponents:
            known &= self.known_to(one)
        note = (
            f"{what}: compared where those it must beat know them, too; what it does on kernels "
            "never measured is not measured"
        )
        return Footing(unseen | (self.new & known), (note,))


@dataclass(frozen=True)
class Base:
    """Rows that the packaged models were trained on, and where they come from."""

    rows: Rows
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Order:
    """What to train. ``version`` is that of every artifact made; no other may have it."""

    gpu: str
    board: str
    schema: SchemaReference
    features: tuple[str, ...]
    families: tuple[str, ...]
    mode: Mode
    version: int
    policy: Policy = field(default_factory=Policy)


@dataclass(frozen=True)
class Champion:
    """The model to beat and to start from."""

    artifact: Artifact[ModelCard]

    @cached_property
    def model(self) -> BoostedPowerModel:
        """Its predictor."""
        return BoostedPowerModel(self.artifact)

    @property
    def card(self) -> ModelCard:
        """Its card."""
        return self.artifact.card

    def start(self, family: str) -> bytes:
        """Bytes of its native model of a family. Raises ModelError if it has none."""
        for single in self.artifact.members or (self.artifact,):
            if single.card.family == family:
                return single.file(NATIVE_NAMES[family]).read_bytes()
        raise ModelError(f"the champion has no {family} model to continue from", family=family)

    def trees_watts(self, vectors: Floats) -> Floats:
        """What its trees say ``[n]``, without the factor of its board."""
        return self.model.predict_watts(vectors) / self.card.watts_factor


@dataclass(frozen=True)
class Retrained(Generic[AnyCard]):
    """Cards of all artifacts made; ``judged`` is that of the candidate (the average of two), on the
    rows ``compared``."""

    cards: tuple[AnyCard, ...]
    judged: AnyCard
    verdict: Verdict
    compared: HoldOut = field(compare=False)


def known_range(
    base: Base | None, champion: Champion | None, order: Order
) -> tuple[Floats, Floats] | None:
    """Least and largest value of each feature that a model knows without the uploads."""
    if order.mode == "continue" and champion is not None:
        features = champion.card.features
        return np.array([f.minimum for f in features]), np.array([f.maximum for f in features])
    if base is not None:
        vectors = base.rows.vectors
        return np.fmin.reduce(vectors, axis=0), np.fmax.reduce(vectors, axis=0)
    return None


def knows_base(card: ModelCard) -> bool:
    """Whether a model was trained on the rows of the packaged models."""
    return card.board is None or card.board.base_data
