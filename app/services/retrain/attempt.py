"""What every kind of retraining needs of its job: the attempt, its outcome, and what the candidate
must beat, which is the answer that users of a board get now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from wattcast.app.services.models.artifacts import RegistryArtifacts, name_of
from wattcast.app.services.models.champions import open_version
from wattcast.app.services.retrain.candidate_rows import Rest, complete, vectors_of
from wattcast.app.services.retrain.launches import Launches, MeasuredAt
from wattcast.app.services.retrain.messages import Mode, RetrainRequest
from wattcast.app.store.measurements import Measurement
from wattcast.app.store.registry import ModelName, Place, Snapshot
from wattcast.app.store.repositories import Repositories
from wattcast.features.gpus import GpuProfile
from wattcast.models.cards import Card, ModelCard, SchemaReference
from wattcast.models.learned import Marks
from wattcast.models.power import PHYSICAL
from wattcast.models.power.boosted import BoostedPowerModel
from wattcast.models.power.physical import POOLED, PhysicalPowerModel
from wattcast.models.store import Artifact
from wattcast.predictor.parts.power_models import PowerModels

if TYPE_CHECKING:
    from wattcast.app.services import Services
    from wattcast.training.retrain.gate import Policy
    from wattcast.training.retrain.inputs import Order, Retrained


@dataclass(frozen=True)
class Attempt:
    """One attempt at retraining one target: where things are, and what is asked.

    ``snapshot`` is the registry that the candidate is judged against, ``made`` the folder for new
    artifacts, ``kept`` that of fits which outlive an attempt, ``tell`` takes the stage and the
    share of the work that is done.
    """

    services: Services
    data: Repositories
    artifacts: RegistryArtifacts
    snapshot: Snapshot
    gpu: GpuProfile
    request: RetrainRequest
    policy: Policy
    made: Path
    kept: Path
    tell: Callable[[str, float], None]
    rest: Rest = field(default_factory=Rest)

    def rows(self, batches: Sequence[UUID]) -> Iterator[tuple[UUID, Measurement]]:
        """Rows of batches that are of this GPU."""
        return self.data.measurements.rows(batches, gpu=self.gpu.id)

    def order(
        self,
        board: str,
        schema: SchemaReference,
        features: tuple[str, ...],
        families: tuple[str, ...],
        mode: Mode = "new_gpu",
    ) -> Order:
        """What to train for a board, under a version of its own."""
        from wattcast.training.retrain.inputs import Order

        version = self.data.registry.reserve_version()
        return Order(self.gpu.id, board, schema, features, families, mode, version, self.policy)

    @property
    def launches(self) -> Launches:
        """Works out measured launches."""
        return Launches(self.services, self.gpu, self.data.measurements.ptx)


@dataclass(frozen=True)
class Outcome:
    """A judged candidate for a place."""

    place: Place
    retrained: Retrained[Any]
    rest: Rest

    @property
    def card(self) -> Card:
        """The candidate's."""
        card: Card = self.retrained.judged
        return card

    def told(self, promote: bool, versions: Sequence[ModelName]) -> dict[str, Any]:
        """As a job's result says it."""
        card, place = self.card, self.place
        return {
            "promoted": promote,
            "gpu": place.gpu,
            "board": place.board or None,
            "target": place.target,
            "versions": [name._asdict() for name in versions],
            "candidate": name_of(card)._asdict(),
            "watts_factor": card.watts_factor if isinstance(card, ModelCard) else None,
            "verdict": self.retrained.verdict.model_dump(mode="json"),
            "scores": [scores.model_dump(mode="json") for scores in card.scores],
            "left_out": self.rest,
        }


Floats = NDArray[np.float64]

NOT_ASKED = "the uncalibrated answer was not asked: the rows lack features of activity1"


def serving(
    power: PowerModels, artifacts: RegistryArtifacts, snapshot: Snapshot, place: Place
) -> Artifact[ModelCard]:
    """The power model that answers by default for a board now. Raises ModelError."""
    version = snapshot.answering(place)
    if version is None:
        return power.default_artifact(place.gpu)
    return open_version(power, artifacts, version)


@dataclass(frozen=True)
class Opponent:
    """Watts ``[n]`` of the model that answers now, NaN where it cannot be asked; ``name`` is empty
    where it is no opponent, and ``note`` says why. ``marks`` are those of what it learned from."""

    name: str
    watts: Floats
    note: str = ""
    marks: Marks | None = None


def opponent(
    answering: Artifact[ModelCard], rows: Sequence[Measurement], launches: Launches
) -> Opponent:
    """What the model that answers now says of measured launches.

    A GPU that nobody measured is answered by pooled weights: where the rows lack what those look
    at, they are no opponent, since the measurements themselves are more than was known before.
    """
    return opponent_of_launches(answering, rows, launches.of(rows), launches.gpu)


def opponent_of_launches(
    answering: Artifact[ModelCard],
    rows: Sequence[Measurement],
    launches: Sequence[MeasuredAt | str],
    gpu: GpuProfile,
) -> Opponent:
    """The same where the launches ``[n]`` have been worked out."""
    card = answering.card
    if card.family != PHYSICAL:
        return Opponent(
            f"{card.family} model that answers now",
            boosted_watts(BoostedPowerModel(answering), rows, gpu),
            marks=card.marks,
        )
    model = PhysicalPowerModel(answering, gpu)
    watts = np.array(
        [
            np.nan
            if isinstance(launch, str)
            else model.of_activities(launch.activities, launch.clocks).estimate.value
            for launch in launches
        ],
        dtype=np.float64,
    )
    if card.gpu != POOLED:
        return Opponent("physical model that answers now", watts, marks=card.marks)
    if np.isnan(watts).any():
        return Opponent("", watts, NOT_ASKED)
    return Opponent("uncalibrated physical model that answers now", watts, marks=card.marks)


def boosted_watts(model: BoostedPowerModel, rows: Sequence[Measurement], gpu: GpuProfile) -> Floats:
    """Watts ``[n]`` that a model gives measured launches; NaN where they lack an input of it."""
    card = model.card
    schema = card.feature_schema.id
    found = np.full(len(rows), np.nan)
    having = [at for at, row in enumerate(rows) if schema in row.vectors]
    if not having:
        return found
    vectors = vectors_of([rows[at] for at in having], schema, card.feature_names, gpu)
    whole = complete(card, vectors)
    if whole.any():
        found[np.array(having)[whole]] = model.predict_watts(vectors[whole])
    return found
