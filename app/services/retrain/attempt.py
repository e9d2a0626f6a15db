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
from wattcast.app.services.retrain.candidate_rows import (
    Rest,
    at_default_clocks,
    complete,
    vectors_of,
)
from wattcast.app.services.retrain.launches import Launches, MeasuredAt
from wattcast.app.services.retrain.messages import RetrainRequest
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
from wattcast.predictor.parts.power_models import TARGET, PowerModels

if TYPE_CHECKING:
    from wattcast.app.services import Services
    from wattcast.training.retrain.gate import Policy
    from wattcast.training.retrain.inputs import Mode as FitMode
    from wattcast.training.retrain.inputs import Order, Retrained


@dataclass(frozen=True)
class Attempt:
    """One attempt at retraining one target: where things are, and what is asked.

    ``snapshot`` is the registry that the candidate is judged against, ``made`` the folder for new
    artifacts, ``kept`` that of fits which outlive an attempt, ``tell`` takes the stage and the
    share of the work that is done. ``mode`` is what ``auto`` has come to for a power model, ``why``
    the reason (``plan.chosen``).
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
    mode: FitMode = "new_gpu"
    why: str = ""
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
    ) -> Order:
        """What to train for a board, under a version of its own."""
        from wattcast.training.retrain.inputs import Order

        version = self.data.registry.reserve_version()
        own = features, families, self.mode, version, self.policy
        return Order(self.gpu.id, board, schema, *own)

    @property
    def launches(self) -> Launches:
        """Works out measured launches."""
        return Launches(self.services, self.gpu, self.data.measurements.ptx)


@dataclass(frozen=True)
class Outcome:
    """A judged candidate for a place; ``measured`` are the uploaded rows it was trained on."""

    place: Place
    retrained: Retrained[Any]
    attempt: Attempt
    measured: Sequence[Measurement]

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
            "mode": self.attempt.mode if place.target == TARGET else None,
            "why": self.attempt.why,
            "left_out": self.attempt.rest.counts,
            "held_out": self._held_out(),
        }

    def _held_out(self) -> list[dict[str, Any]]:
        """Old and new on launches whose kernels were left out."""
        found = self.retrained.compared
        old = list(found.opponents.values())[-1] if found.opponents else None
        step = -(-len(found.at) // MOST_SHOWN) or 1
        return [
            {
                "kernel": self.measured[found.at[row]].kernel_group,
                "measured": _short(found.measured[row]),
                "old": None if old is None or np.isnan(old[row]) else _short(old[row]),
                "new": _short(found.candidate[row]),
            }
            for row in range(0, len(found.at), step)
        ]


MOST_SHOWN = 400
"""Launches left out that a result holds, evenly chosen: as many as a picture shows apart."""


def _short(value: float) -> float:
    return float(f"{value:.6g}")


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
        name = f"{card.family} model that answers now"
        watts, guessed = boosted_watts(BoostedPowerModel(answering), rows, gpu)
        note = GRID_GUESSED.format(model=name, guessed=guessed) if guessed else ""
        return Opponent(name, watts, note, card.marks)
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


GRID_GUESSED = (
    "{guessed} rows do not tell their grid, which the {model} looks at: the answer nearest to the "
    "measurement counts, of those over the grids that it knows"
)
"""Who gets the benefit of the doubt is beaten only by what really is better. Asked at one usual
grid instead, it could look much worse than it is, and any candidate would be promoted."""

_GRIDS = np.linspace(0.02, 0.98, 13)
"""Quantiles of the grids that a model knows, at which it is asked where a row does not tell its
own; a convention of ours."""


def boosted_watts(
    model: BoostedPowerModel, rows: Sequence[Measurement], gpu: GpuProfile
) -> tuple[Floats, int]:
    """Watts ``[n]`` that a model gives launches whose power was measured; NaN where they lack an
    input of it, or ran at other clocks than it answers for. And at how many of them the grid
    was guessed (``GRID_GUESSED``)."""
    card = model.card
    schema = card.feature_schema.id
    found = np.full(len(rows), np.nan)
    having = [
        at for at, row in enumerate(rows) if schema in row.vectors and at_default_clocks(row, gpu)
    ]
    if not having:
        return found, 0
    own, names = [rows[at] for at in having], card.feature_names

    def asked(blocks: float) -> Floats:
        vectors = vectors_of(own, schema, names, gpu, blocks)
        whole = complete(card, vectors)
        watts = np.full(len(own), np.nan)
        if whole.any():
            watts[whole] = model.predict_watts(vectors[whole])
        return watts

    watts = asked(np.nan)
    silent = np.isnan(watts)
    if silent.any() and "blocks_per_sm" in names:
        points = np.array(model.background.points)[:, names.index("blocks_per_sm")]
        each = np.array([asked(blocks) for blocks in np.quantile(points, _GRIDS) * gpu.sm_count])
        measured = np.array([row.power_watts for row in own], dtype=np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            errors = np.nan_to_num(np.abs(np.log(each / measured)), nan=np.inf)
        nearest = each[errors.argmin(axis=0), np.arange(len(own))]
        watts = np.where(silent, nearest, watts)
    found[np.array(having)] = watts
    return found, int(np.count_nonzero(silent & ~np.isnan(watts)))
