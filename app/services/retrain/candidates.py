"""The candidate of a target: its data, the way it is trained, and the model it must beat.

decide      boosted (trees fitted anew or added) or calibrated (the physical and time models)
prepare     the rows that count, who answers for their board now, the model to start from
planned     what ``dry_run`` answers: what a retraining would do with its rows
train       a judged candidate, by ``training.boosted`` or ``training.calibrated``
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from wattcast.app.services.models.artifacts import RegistryArtifacts, name_of, open_version
from wattcast.app.services.retrain import messages
from wattcast.app.services.retrain import rows as samples
from wattcast.app.store import registry, repositories
from wattcast.app.store.measurements import Batch, Measurement
from wattcast.features import errors, gpus, schemas
from wattcast.models import power, store
from wattcast.models.cards import BoardFacts, Card, ModelCard, SchemaReference
from wattcast.models.power.boosted import BoostedPowerModel
from wattcast.models.power.physical import POOLED, PhysicalPowerModel
from wattcast.models.time.calibration import CorrectedTimes, TimeBoard, features_of
from wattcast.predictor.parts.power_models import PHYSICAL_SCHEMA, unseen_error_watts
from wattcast.training import boosted, calibrated
from wattcast.training.engine import Checkpoints, open_engine
from wattcast.training.evaluation.scores import FOLDS, Floats, fold_assignment
from wattcast.training.folds import SEED
from wattcast.training.gate import CHAMPION, LEAST_GROUPS, Opponent
from wattcast.training.uploads import Candidate, Champion, Order

if TYPE_CHECKING:
    from wattcast.app.services import Services

CONTINUABLE = ("xgboost", "catboost", "average")
"""Families that more trees can be added to; the packaged average is of the other two."""

NOT_ASKED = "the uncalibrated answer was not asked: the rows lack features of activity1"

GRID_GUESSED = (
    "{guessed} rows do not tell their grid, which the {model} looks at: the answer nearest to the "
    "measurement counts, of those over the grids that it knows"
)
"""Who gets the benefit of the doubt is beaten only by what really is better. Asked at one usual
grid instead, it could look much worse than it is, and any candidate would be promoted."""

_GRIDS = np.linspace(0.02, 0.98, 13)
"""Quantiles of the grids that a model knows, at which it is asked where a row has no grid of its
own; a convention of ours."""

MOST_SHOWN = 400
"""Launches left out that a result holds, evenly chosen: as many as a picture shows apart."""


@dataclass(frozen=True)
class Retraining:
    """What is asked, and where the data are.

    ``work`` is the folder of new artifacts (``made``) and of fits that outlive an attempt
    (``folds``). ``progress`` takes the stage and the share of the work that is done.
    """

    services: Services
    data: repositories.Repositories
    request: messages.RetrainRequest
    work: Path
    progress: Callable[[str, float], None] = lambda stage, share: None

    @cached_property
    def snapshot(self) -> registry.Snapshot:
        """The registry that the candidate is judged against: as it stands when first asked."""
        return self.data.registry.snapshot()

    @cached_property
    def artifacts(self) -> RegistryArtifacts:
        """Artifacts of registered versions."""
        return RegistryArtifacts.of(self.services.settings)

    @cached_property
    def gpu(self) -> gpus.GpuProfile:
        """The board's profile."""
        return self.services.gpus.load(self.request.gpu)

    @property
    def launches(self) -> samples.Launches:
        """Models of measured launches."""
        return samples.Launches(self.services, self.gpu, self.data.measurements)

    def rows(
        self, batches: Mapping[UUID, Batch], target: messages.Target, **which: Any
    ) -> samples.TrainingRows:
        """The rows of batches that the request names, still to be loaded."""
        store, board = self.data.measurements, self.request.board
        return samples.TrainingRows(store, self.gpu, dict(batches), board, target, **which)

    def serving(self, place: registry.Place) -> store.Artifact[ModelCard]:
        """The power model that answers by default for a board now. Raises ModelError."""
        version = self.snapshot.answering(place)
        if version is None:
            return self.services.power.default_artifact(place.gpu)
        return open_version(self.services.power, self.artifacts, version)

    def champion(self, answering: store.Artifact[ModelCard], schema_id: str) -> Champion | None:
        """The boosted model to beat and to start from: the one that answers for the board now, or,
        where that one cannot be continued, the best of the packaged ones that can. ``None`` where
        none takes the schema's features."""
        if answering.card.family in CONTINUABLE and answering.card.feature_schema.id == schema_id:
            return Champion(answering)
        power = self.services.power
        cards = [
            card
            for card in power.base_cards()
            if (card.gpu, card.feature_schema.id) == (self.gpu.id, schema_id)
            and card.family in CONTINUABLE
        ]
        return Champion(power.artifact(min(cards, key=unseen_error_watts))) if cards else None


class Decision(NamedTuple):
    """How a target is trained: by which mode (``None``: times have no choice), and why."""

    mode: messages.FittedMode | None
    why: str

    @property
    def boosted(self) -> bool:
        """Whether trees are fitted; else a physical model is calibrated."""
        return self.mode in ("full", "continue")


def decide(asked: Retraining, batches: Mapping[UUID, Batch], target: messages.Target) -> Decision:
    """The way to retrain a target: as asked, or for ``auto`` by the model that answers now.

    Raises DataError where no row counts, or where rows are of several boards.
    """
    request, gpu = asked.request, asked.gpu
    if target == registry.TIME:
        return Decision(None, "the default time model is corrected, whatever the mode")
    if request.mode != "auto":
        return Decision(request.mode, "asked for")
    rows = asked.rows(batches, target, schema=request.schema_id, any_clocks=True)
    answering = asked.serving(registry.Place(gpu.id, rows.load(), target))
    family, schemas = answering.card.family, rows.schemas
    now = f"the {family} model answers for this board now"
    launches = PHYSICAL_SCHEMA in schemas and request.schema_id in (None, PHYSICAL_SCHEMA)
    if family == power.PHYSICAL and launches:
        which = "pooled over other GPUs" if answering.card.gpu == POOLED else "of this GPU"
        return Decision("new_gpu", f"{now}, {which}: it is calibrated, by launches at any clocks")
    own = samples.PREFERRED_SCHEMA if family == power.PHYSICAL else answering.card.feature_schema.id
    schema = request.schema_id or own
    if schema not in schemas or schema == PHYSICAL_SCHEMA:
        if launches:
            return Decision("new_gpu", f"no row has features of {own}, which trees take")
        schema = min(schemas)
    champion = asked.champion(answering, schema)
    if champion is not None and champion.card == answering.card:
        return Decision("continue", f"{now}: trees are added to it")
    lacks = f"no row has features of {PHYSICAL_SCHEMA}, by which it is calibrated"
    now += f", and {lacks}" if family == power.PHYSICAL else ", and no trees can be added to it"
    if champion is None:
        return Decision("full", f"{now}: trees are fitted to these rows alone")
    packaged = f"{now}: trees are added to the packaged {champion.card.family} model"
    return Decision("continue", packaged)


@dataclass(frozen=True)
class Prepared:
    """What one target is trained on: rows of one board, who answers for it now (``answering``; of
    times ``correction``, if one was promoted), and the model to start from: of trees ``champion``,
    else ``physical``."""

    asked: Retraining
    target: messages.Target
    place: registry.Place
    decision: Decision
    rows: samples.TrainingRows
    answering: store.Artifact[ModelCard] | None = None
    correction: CorrectedTimes | None = None
    champion: Champion | None = None
    physical: PhysicalPowerModel | None = None

    @property
    def schema(self) -> str:
        """The schema whose features count."""
        assert self.rows.schema is not None
        return self.rows.schema

    @property
    def inputs(self) -> tuple[str, ...]:
        """Inputs of boosted models: the champion's, without one those of the schema."""
        if self.champion is not None:
            return self.champion.card.feature_names
        return tuple(schemas.get_schema(self.schema).model_fields)

    def vectors(self) -> Floats:
        """Inputs ``[n, k]`` of boosted models."""
        return samples.vectors_of(self.rows.measured, self.schema, self.inputs, self.asked.gpu)

    def order(self, **fields: Any) -> Order:
        """What to train, under a version of its own."""
        return Order(
            gpu=self.place.gpu,
            board=self.place.board,
            schema=SchemaReference(id=self.schema, sha256=schemas.get_schema(self.schema).sha256),
            version=self.asked.data.registry.reserve_version(),
            **fields,
        )


def prepare(asked: Retraining, target: messages.Target) -> Prepared:
    """The data of a target. Raises DataError where no row counts."""
    request, power = asked.request, asked.services.power
    batches = asked.data.measurements.get_many(request.batches)
    if not batches:
        raise errors.DataError("the measurements have been deleted")
    decision = decide(asked, batches, target)
    schema = PHYSICAL_SCHEMA
    if decision.boosted:
        schema = request.schema_id or samples.shared_schema(batches.values())
    rows = asked.rows(batches, target, schema=schema, any_clocks=not decision.boosted)
    place = registry.Place(asked.gpu.id, rows.load(), target)
    answering = correction = champion = physical = None
    if target == registry.TIME:
        version = asked.snapshot.answering(place)
        if version is not None:
            correction = asked.artifacts.correction(version)
        before: BoardFacts | TimeBoard | None = correction.card.board if correction else None
    else:
        answering = asked.serving(place)
        before = answering.card.board
        if decision.boosted:
            champion = asked.champion(answering, schema)
            before = None if champion is None else champion.card.board
        else:
            # The packaged model, with all that was uploaded before: so a calibration does not
            # depend on the order of the uploads.
            physical = PhysicalPowerModel(power.physical_artifact(place.gpu), asked.gpu)
    if before is not None and before.label == place.board:
        rows.load_earlier(before.batches)
    models = answering, correction, champion, physical
    prepared = Prepared(asked, target, place, decision, rows, *models)
    if champion is not None:
        whole = samples.complete(champion.card, prepared.vectors())
        rows.drop([None if each else "a feature is missing" for each in whole])
    return prepared


# --- what the candidate must beat -----------------------------------------------------------------


def opponent(
    answering: store.Artifact[ModelCard],
    rows: Sequence[Measurement],
    gpu: gpus.GpuProfile,
    launches: Callable[[], Sequence[samples.ModelledLaunch | str]],
) -> tuple[tuple[Opponent, ...], tuple[str, ...]]:
    """The model that answers now with its watts ``[n]`` of measured rows, and notes on it.

    A GPU that nobody measured is answered by pooled weights: where the rows lack what those look
    at, they are no opponent, since the measurements themselves are more than was known before.
    """
    card = answering.card
    if card.family != power.PHYSICAL:
        name = f"{card.family} model that answers now"
        watts, guessed = boosted_watts(BoostedPowerModel(answering), rows, gpu)
        notes = (GRID_GUESSED.format(model=name, guessed=guessed),) if guessed else ()
        return (Opponent(name, watts, card.marks),), notes
    model = PhysicalPowerModel(answering, gpu)
    watts = np.full(len(rows), np.nan)
    for at, launch in enumerate(launches()):
        if not isinstance(launch, str):
            watts[at] = model.of_activities(launch.activities, launch.clocks).estimate.value
    if card.gpu == POOLED and np.isnan(watts).any():
        return (), (NOT_ASKED,)
    name = "uncalibrated physical model" if card.gpu == POOLED else "physical model"
    return (Opponent(f"{name} that answers now", watts, card.marks),), ()


def boosted_watts(
    model: BoostedPowerModel, rows: Sequence[Measurement], gpu: gpus.GpuProfile
) -> tuple[Floats, int]:
    """Watts ``[n]`` that a model gives launches whose power was measured; NaN where they lack an
    input of it, or ran at other clocks than it answers for. And at how many of them the grid
    was guessed (``GRID_GUESSED``)."""
    card = model.card
    schema, names = card.feature_schema.id, card.feature_names
    watts = np.full(len(rows), np.nan)
    having = [
        at
        for at, row in enumerate(rows)
        if schema in row.vectors and samples.at_default_clocks(row, gpu)
    ]
    if not having:
        return watts, 0
    own = [rows[at] for at in having]

    def asked(blocks: float) -> Floats:
        vectors = samples.vectors_of(own, schema, names, gpu, blocks)
        whole = samples.complete(card, vectors)
        answers = np.full(len(own), np.nan)
        if whole.any():
            answers[whole] = model.predict_watts(vectors[whole])
        return answers

    answers = asked(np.nan)
    silent = np.isnan(answers)
    if silent.any() and "blocks_per_sm" in names:
        points = np.array(model.background.points)[:, names.index("blocks_per_sm")]
        each = np.array([asked(blocks) for blocks in np.quantile(points, _GRIDS) * gpu.sm_count])
        measured = np.array([row.power_watts for row in own], dtype=np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            errors = np.nan_to_num(np.abs(np.log(each / measured)), nan=np.inf)
        nearest = each[errors.argmin(axis=0), np.arange(len(own))]
        answers = np.where(silent, nearest, answers)
    watts[np.array(having)] = answers
    return watts, int(np.count_nonzero(silent & ~np.isnan(answers)))


# --- the plan that ``dry_run`` answers ---------------------------------------------------------


def planned(prepared: Prepared) -> messages.Plan:
    """The plan of a target. Raises DataError where no row counts."""
    rows, asked = prepared.rows, prepared.asked
    if not prepared.decision.boosted:
        rows.drop(asked.launches.refused(rows.measured))
    measured = rows.measured
    uploads = rows.uploads(np.zeros((len(measured), 1)))  # no fold looks at the inputs
    silent, notes = _silent(prepared)
    unopposed = NOT_ASKED in notes
    answering = prepared.answering
    start = prepared.champion or prepared.physical
    ancestor = frozenset() if start is None else start.card.marks
    rivals = [] if answering is None or unopposed else [answering.card.marks]
    known = uploads.known_to(ancestor)
    footing = uploads.footing(ancestor, rivals)
    groups = uploads.rows.groups
    count = min(FOLDS, len(np.unique(groups)))
    folds = fold_assignment(uploads.rows, "grouped", SEED, count) if count > 1 else None
    kernels: dict[str, dict[str, Any]] = {}
    for at, row in enumerate(measured):
        own = kernels.setdefault(row.kernel_group, {"rows": 0, "earlier_rows": 0})
        own["rows" if uploads.new[at] else "earlier_rows"] += 1
        fold = None if folds is None else int(folds[at]) + 1
        own.update(kernel=row.kernel_group, known=bool(known[at]), fold=fold)
    judged = len(np.unique(groups[footing.rows]))
    unasked = 0 if unopposed else int(silent[footing.rows].sum())
    obstacles = []
    if judged < LEAST_GROUPS:
        obstacles.append(
            f"{judged} kernel groups to judge on: measure at least {LEAST_GROUPS} that the model "
            "has not learned from"
        )
    if unasked:
        obstacles.append(
            f"the {_now(prepared)} cannot be asked about {unasked} of {int(footing.rows.sum())} "
            "rows: upload rows that name their PTX, at the default clocks"
        )
    return messages.Plan(
        target=prepared.target,
        mode=prepared.decision.mode,
        why=prepared.decision.why,
        answers_now=_now(prepared),
        starts_from=None if start is None else start.card.place,
        rows=len(measured),
        kernels=[messages.PlannedKernel(**kernels[name]) for name in sorted(kernels)],
        folds=0 if folds is None else count,
        judged_kernels=judged,
        left_out=rows.left_out,
        left_out_rows=rows.left_out_rows,
        obstacles=obstacles,
        notes=[*notes, *footing.notes],
    )


def _now(prepared: Prepared) -> str:
    """The model to beat."""
    if prepared.answering is not None:
        return f"{prepared.answering.card.family} model"
    corrected = prepared.correction is not None
    return "promoted correction of times" if corrected else "default time model"


def _silent(prepared: Prepared) -> tuple[NDArray[np.bool_], tuple[str, ...]]:
    """Rows ``[n]`` about which the model that answers now cannot be asked, and notes;
    ``NOT_ASKED`` where it is a guess, and then no opponent."""
    answering, measured = prepared.answering, prepared.rows.measured
    if answering is None:
        return np.zeros(len(measured), dtype=np.bool_), ()
    if answering.card.family != power.PHYSICAL:
        model = BoostedPowerModel(answering)
        watts, guessed = boosted_watts(model, measured, prepared.asked.gpu)
        note = GRID_GUESSED.format(model=_now(prepared), guessed=guessed)
        return np.isnan(watts), (note,) if guessed else ()
    refused = prepared.asked.launches.refused(measured)
    silent = np.array([why is not None for why in refused])
    return silent, (NOT_ASKED,) if silent.any() and answering.card.gpu == POOLED else ()


# --- training -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """A judged candidate, and what it was trained on."""

    prepared: Prepared
    candidate: Candidate[Any]

    @property
    def promotes(self) -> bool:
        """Whether the candidate takes its place."""
        return self.candidate.verdict.promoted and self.prepared.asked.request.promote

    def result(self, versions: Sequence[registry.ModelName]) -> dict[str, Any]:
        """As a job answers it."""
        place, decision = self.prepared.place, self.prepared.decision
        card: Card = self.candidate.card
        return {
            "promoted": self.promotes,
            "gpu": place.gpu,
            "board": place.board or None,
            "target": place.target,
            "versions": [name._asdict() for name in versions],
            "candidate": name_of(card)._asdict(),
            "watts_factor": card.watts_factor if isinstance(card, ModelCard) else None,
            "verdict": self.candidate.verdict.model_dump(mode="json"),
            "scores": [scores.model_dump(mode="json") for scores in card.scores],
            "mode": decision.mode,
            "why": decision.why,
            "left_out": self.prepared.rows.left_out,
            "held_out": self._held_out(),
        }

    def _held_out(self) -> list[dict[str, Any]]:
        """Old and new on launches whose kernels were left out."""
        compared, measured = self.candidate.compared, self.prepared.rows.measured
        opponents = list(compared.opponents.values())
        old = opponents[-1] if opponents else np.full(len(compared.at), np.nan)
        step = -(-len(compared.at) // MOST_SHOWN) or 1
        return [
            {
                "kernel": measured[compared.at[row]].kernel_group,
                "measured": _short(compared.measured[row]),
                "old": None if np.isnan(old[row]) else _short(old[row]),
                "new": _short(compared.candidate[row]),
            }
            for row in range(0, len(compared.at), step)
        ]


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def train(prepared: Prepared) -> Outcome:
    """Train the candidate of a target and judge it.

    Raises DataError where the rows do not allow it, and ModelError for families or a champion
    that do not fit.
    """
    if prepared.decision.boosted:
        return Outcome(prepared, _boosted(prepared))
    asked, rows = prepared.asked, prepared.rows
    launches = asked.launches.modelled(rows.measured)
    rows.drop([each if isinstance(each, str) else None for each in launches])
    modelled = [each for each in launches if not isinstance(each, str)]
    calibrate = _calibrated_times if prepared.place.target == registry.TIME else _calibrated_power
    asked.progress("folds", 0.3)
    return Outcome(prepared, calibrate(prepared, modelled))


def _boosted(prepared: Prepared) -> Candidate:
    asked, rows, champion = prepared.asked, prepared.rows, prepared.champion
    settings, answering = asked.services.settings, prepared.answering
    opponents: tuple[Opponent, ...] = ()
    notes: tuple[str, ...] = ()
    if answering is not None and (champion is None or answering.card != champion.card):
        measured = rows.measured
        opponents, notes = opponent(
            answering, measured, asked.gpu, lambda: asked.launches.modelled(measured)
        )
    continued = prepared.decision.mode == "continue"
    families: tuple[str, ...] = tuple(dict.fromkeys(asked.request.families))
    if not families and continued and champion is not None:
        singles = champion.artifact.members or (champion.artifact,)
        families = tuple(single.card.family for single in singles)
    order = prepared.order(
        features=prepared.inputs, families=families or ("xgboost", "catboost"), continued=continued
    )
    with open_engine(settings.dask, settings.job_threads) as engine:
        return boosted.retrain(
            order,
            rows.uploads(prepared.vectors()),
            champion,
            asked.work / "made",
            opponents=opponents,
            notes=notes,
            engine=engine,
            checkpoints=Checkpoints(asked.work / "folds"),
            progress=asked.progress,
        )


def _calibrated_power(prepared: Prepared, launches: Sequence[samples.ModelledLaunch]) -> Candidate:
    asked, rows = prepared.asked, prepared.rows
    assert prepared.physical is not None
    assert prepared.answering is not None
    opponents, notes = opponent(prepared.answering, rows.measured, asked.gpu, lambda: launches)
    vectors = [(*launch.activities, *launch.clocks) for launch in launches]
    return calibrated.calibrate_power(
        prepared.order(),
        rows.uploads(np.array(vectors, dtype=np.float64)),
        prepared.physical.parameters,
        prepared.physical.card,
        asked.work / "made",
        opponents=opponents,
        notes=notes,
        champion=opponents[0].predicted if rows.trained_on and opponents else None,
    )


def _calibrated_times(
    prepared: Prepared, launches: Sequence[samples.ModelledLaunch]
) -> Candidate[Any]:
    asked, rows, correction = prepared.asked, prepared.rows, prepared.correction
    vectors = [features_of(each.regime, each.seconds, each.clocks) for each in launches]
    now = np.array(
        [
            each.seconds if correction is None else correction.seconds(each.regime, each.seconds)
            for each in launches
        ]
    )
    return calibrated.calibrate_time(
        prepared.order(),
        asked.gpu,
        rows.uploads(np.array(vectors, dtype=np.float64)),
        asked.work / "made",
        opponents=[Opponent(calibrated.DEFAULT if correction is None else CHAMPION, now)],
        champion=now if rows.trained_on else None,
    )
