"""What every kind of retraining needs of its job, and what it gives back to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from wattcast.app.services.models.artifacts import RegistryArtifacts, name_of
from wattcast.app.services.retrain.candidate_rows import Rest
from wattcast.app.services.retrain.launches import Launches
from wattcast.app.services.retrain.messages import RetrainRequest
from wattcast.app.store.measurements import Measurement
from wattcast.app.store.registry import ModelName, Place, Snapshot
from wattcast.app.store.repositories import Repositories
from wattcast.features.gpus import GpuProfile
from wattcast.models.cards import Card, ModelCard

if TYPE_CHECKING:
    from wattcast.app.services import Services
    from wattcast.training.retrain.gate import Policy
    from wattcast.training.retrain.inputs import Retrained


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
            "left_out": self.rest.reasons,
        }
