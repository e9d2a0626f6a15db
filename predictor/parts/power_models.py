"""The power models at hand, and which one answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from wattcast.features.errors import Diagnostic, ModelError
from wattcast.features.gpus import GpuProfile
from wattcast.models import intervals, power, store
from wattcast.models.cards import Card, ModelCard
from wattcast.models.power.boosted import BoostedPowerModel
from wattcast.models.power.physical import POOLED, PhysicalPowerModel
from wattcast.models.time.calibration import CorrectedTimes, TimeCorrectionCard
from wattcast.predictor.messages import MemberReference, ModelReference

if TYPE_CHECKING:
    from wattcast.predictor.messages import ModelChoice

TARGET = "power"
PHYSICAL_SCHEMA = "activity1"


Name = tuple[str, str, str, str, str, int]
"""GPU, target, family, schema, source and version: ``wattcast.app.store.registry.ModelName``."""


Champion = BoostedPowerModel | store.Artifact[ModelCard]
"""A promoted power model; an artifact is a physical one, which answers with a GPU's profile."""


class Missing(NamedTuple):
    """A promoted model that cannot be loaded: its family, and why."""

    family: str
    why: str


class Watched(NamedTuple):
    """Whose intervals are compared with measurements: a model's (place of its card, or family of
    a time model without one) on a GPU's board (empty: none told)."""

    target: str
    gpu: str
    board: str
    model: str


@dataclass(frozen=True)
class Serving:
    """What the registry holds: champions of power and corrections of time by (GPU, board; empty:
    any board), the cards of every retrained version, and a way to load a boosted one; and by
    target, GPU and board the champions that cannot be loaded, so that others stand in for them.
    ``coverage``: what intervals held of measurements that came in later."""

    champions: Mapping[tuple[str, str], Champion] = field(default_factory=dict)
    times: Mapping[tuple[str, str], CorrectedTimes] = field(default_factory=dict)
    cards: Mapping[Name, ModelCard] = field(default_factory=dict)
    time_cards: Mapping[Name, TimeCorrectionCard] = field(default_factory=dict)
    load: Callable[[Name], BoostedPowerModel] | None = None
    missing: Mapping[tuple[str, str, str], Missing] = field(default_factory=dict)
    coverage: Mapping[Watched, intervals.Observed] = field(default_factory=dict)


class Answering(NamedTuple):
    """The model that answers for a GPU's board (empty: any) by default."""

    board: str
    card: ModelCard
    promoted: bool


class PowerModels:
    """Boosted power models of the package and of ``home/artifacts``, loaded when first used, and
    the champions of the registry, which come before them.

    Safe from any thread. What lies on disk is looked at once per process.
    """

    def __init__(self, home: Path) -> None:
        self._store = store.ArtifactStore((store.PACKAGED_ARTIFACTS, home / "artifacts"))
        self._lock = threading.RLock()
        self._cards: tuple[ModelCard, ...] | None = None
        self._cards_of: dict[tuple[str, str], tuple[ModelCard, ...]] = {}
        self._models: dict[Name, BoostedPowerModel] = {}
        self._defaults: dict[str, ModelCard | None] = {}
        self._chosen: dict[tuple[str, str], BoostedPowerModel] = {}
        self._physical: dict[tuple[str, str], PhysicalPowerModel] = {}
        self._serving = Serving()

    @property
    def serving(self) -> Serving:
        """What the registry has promoted."""
        return self._serving

    def serve(self, serving: Serving) -> None:
        """From now on answer by these champions: all change at once."""
        self._serving = serving

    def promoted(self, gpu: str, board: str = "") -> Champion | None:
        """The champion of a GPU's board, else that of the GPU."""
        champions = self._serving.champions
        return champions.get((gpu, board)) or champions.get((gpu, ""))

    def of_one_board(self, card: ModelCard, gpu: str, board: str = "") -> bool:
        """Whether a model rests on another board than the user's: packaged, and not pooled."""
        own = self.promoted(gpu, board) is not None or card.source == power.ONBOARD
        return not own and card.gpu != POOLED

    def times(self, gpu: str, board: str = "") -> CorrectedTimes | None:
        """What corrects the default time model on a GPU's board, else on the GPU."""
        times = self._serving.times
        return times.get((gpu, board)) or times.get((gpu, ""))

    def stands_in(self, target: str, gpu: str, board: str, choice: str) -> tuple[Diagnostic, ...]:
        """What to warn of where another model stands in for a promoted one that cannot be loaded;
        ``choice`` is the family asked for, or ``auto``."""
        serving = self._serving
        found = serving.missing.get((target, gpu, board))
        if found is None:
            own = serving.champions if target == TARGET else serving.times
            found = None if (gpu, board) in own else serving.missing.get((target, gpu, ""))
        if found is None or choice not in ("auto", found.family):
            return ()
        detail = (
            f"the promoted {target} model cannot be loaded, so another one answered: {found.why}"
        )
        return (Diagnostic("promoted_model_missing", detail),)

    def kept_wide(
        self, estimate: intervals.Estimate, target: str, gpu: str, board: str, model: str
    ) -> tuple[intervals.Estimate, tuple[Diagnostic, ...]]:
        """An answer, wider where measurements of the board (else of boards without a label) said
        that the model's intervals are too narrow, and what to warn of."""
        coverage, key = self._serving.coverage, Watched(target, gpu, board, model)
        found = coverage.get(key) or coverage.get(key._replace(board=""))
        if found is None or found.widening == 1.0:
            return estimate, ()
        detail = (
            f"{found.inside} of {found.kernels} kernels measured after they were predicted lay in "
            f"their {target} intervals ({100 * found.level:g} % were promised), so this one is "
            f"{found.widening:.2g} times as wide; retrain the model on them (POST /retrain)"
        )
        return found.widen(estimate), (Diagnostic("interval_widened", detail),)

    def model_for(
        self, gpu: GpuProfile, choice: ModelChoice, board: str = ""
    ) -> BoostedPowerModel | PhysicalPowerModel:
        """The model that answers for a GPU: one look at the champions, which may change meanwhile.
        Raises ModelError where the GPU has boosted models, but none of the family asked for."""
        champion = self.promoted(gpu.id, board)
        if champion is not None and choice in ("auto", champion.card.family):
            if isinstance(champion, BoostedPowerModel):
                return champion
            return self._physical_of(gpu, champion)
        own = self._default(gpu.id) if choice == "auto" else None
        by_default = choice == "auto" and (own is None or own.family == power.PHYSICAL)
        if choice == "physical" or by_default:
            return self._physical_of(gpu)
        return self._packaged(gpu.id, choice) or self._physical_of(gpu)

    def cards(self) -> tuple[ModelCard, ...]:
        """Cards of all artifacts that pass their checks, retrained ones too."""
        found = list(self.base_cards())
        names = {_name(card) for card in found}
        found += [card for name, card in self._serving.cards.items() if name not in names]
        return tuple(found)

    def all_cards(self) -> tuple[ModelCard | TimeCorrectionCard, ...]:
        """The same, and those of corrections of time."""
        return (*self.cards(), *self._serving.time_cards.values())

    def artifact(self, card: ModelCard) -> store.Artifact[ModelCard]:
        """The artifact of one of ``base_cards``. Raises ModelError."""
        return self._store.find(
            card.gpu,
            card.target,
            card.family,
            card.feature_schema.id,
            source=card.source,
            version=card.version,
        )

    def base_cards(self) -> tuple[ModelCard, ...]:
        """Cards of all artifacts that need no promotion."""
        with self._lock:
            if self._cards is None:
                self._cards = tuple(self._store.list())
            return self._cards

    def _base_cards_of(self, gpu: str, names: str = "*") -> tuple[ModelCard, ...]:
        """Those of ``base_cards`` that are of a GPU, in folders of such ``names``; a single answer
        needs no other ones read."""
        with self._lock:
            if self._cards is not None:
                return tuple(card for card in self._cards if card.gpu == gpu)
            if (gpu, names) not in self._cards_of:
                self._cards_of[gpu, names] = tuple(self._store.list(gpu, names))
            return self._cards_of[gpu, names]

    def problems(self) -> tuple[str, ...]:
        """What is wrong with artifacts that are left out."""
        return self._store.problems()

    def _packaged(self, gpu: str, choice: ModelChoice) -> BoostedPowerModel | None:
        """The boosted model that answers without a promotion: by ``auto`` the one with the least
        ``unseen_error_percent``. ``None`` where the GPU has none; raises ModelError where it has,
        but none of the family asked for."""
        found = self._chosen.get((gpu, choice))
        if found is not None:
            return found
        with self._lock:
            newest = self._newest(gpu)
            if not newest:
                return None
            asked = [c for c in newest if choice in ("auto", c.family)]
            if not asked:
                known = sorted({card.family for card in newest})
                raise ModelError(f"no {choice} power model for {gpu}", gpu=gpu, known=known)
            card = min(asked, key=unseen_error_percent)
            model = self._chosen[gpu, choice] = self._load(card)
            return model

    def default_artifact(self, gpu: str) -> store.Artifact[ModelCard]:
        """The model that answers for a GPU without a promotion: of its boosted and its own
        physical models the one with the least ``unseen_error_percent``, else the pooled one.

        Raises ModelError where not even that passes its checks.
        """
        card = self._default(gpu)
        if card is None or card.family == power.PHYSICAL:
            return self.physical_artifact(gpu)
        return self.artifact(card)

    def _newest(self, gpu: str) -> list[ModelCard]:
        """Cards of a GPU's boosted models without a promotion, old versions left out."""
        # A GPU may have been measured by several people, each with a schema of their own.
        newest: dict[tuple[str, str, str], ModelCard] = {}
        for card in self._base_cards_of(gpu):
            if card.target == TARGET and card.family in power.BOOSTED_FAMILIES:
                key = card.family, card.feature_schema.id, card.source
                newest[key] = max(newest.get(key, card), card, key=lambda c: c.version)
        return list(newest.values())

    def _default(self, gpu: str) -> ModelCard | None:
        """The card of a GPU's own model that answers without a promotion; ``None`` if none is."""
        if gpu not in self._defaults:
            # Of equals the first: a boosted one.
            cards = [*self._newest(gpu), *self._own_physical(gpu)]
            self._defaults[gpu] = min(cards, key=unseen_error_percent, default=None)
        return self._defaults[gpu]

    def answering(self) -> list[Answering]:
        """Who answers by default for every GPU that was measured, and for boards with a champion.
        No model is loaded for it."""
        champions = self._serving.champions
        found = [Answering(board, model.card, True) for (_, board), model in champions.items()]
        for gpu in sorted({card.gpu for card in self.base_cards()} - {POOLED}):
            card = self._default(gpu)
            if card is not None and (gpu, "") not in champions:
                found.append(Answering("", card, False))
        return found

    def physical(self, gpu: GpuProfile, board: str = "") -> PhysicalPowerModel:
        """The physical model of a GPU's board: its champion where that is one, else the one fitted
        on the GPU, else the one pooled over those that were measured.

        Raises ModelError where not even the pooled one passes its checks.
        """
        champion = self.promoted(gpu.id, board)
        return self._physical_of(gpu, None if isinstance(champion, BoostedPowerModel) else champion)

    def _physical_of(
        self, gpu: GpuProfile, champion: store.Artifact[ModelCard] | None = None
    ) -> PhysicalPowerModel:
        """The model of a champion, else the packaged one."""
        which = "" if champion is None else champion.card.place
        known = self._physical.get((gpu.id, which))
        if known is not None and known.gpu is gpu:
            return known
        with self._lock:
            made = PhysicalPowerModel(champion or self.physical_artifact(gpu.id), gpu)
            self._physical[gpu.id, which] = made
            return made

    def instead_of(
        self, trees: ModelCard, gpu: GpuProfile, board: str
    ) -> PhysicalPowerModel | None:
        """Who answers where trees that ``auto`` picked extrapolate: the physical model, if it errs
        less on what it never saw than they do; else, or after a promotion, nobody."""
        physical = self._physical_of(gpu)
        better = unseen_error_percent(physical.card) < unseen_error_percent(trees)
        return physical if better and self.promoted(gpu.id, board) is None else None

    def physical_artifact(self, gpu: str) -> store.Artifact[ModelCard]:
        """The packaged physical model of a GPU, its own or the pooled one. Raises ModelError."""
        owner = gpu if self._own_physical(gpu) else POOLED
        return self._store.find(owner, TARGET, power.PHYSICAL, PHYSICAL_SCHEMA)

    def _own_physical(self, gpu: str) -> list[ModelCard]:
        wanted = TARGET, power.PHYSICAL
        cards = self._base_cards_of(gpu, f"{power.PHYSICAL}-*")
        return [c for c in cards if (c.target, c.family) == wanted]

    def referenced(self, reference: ModelReference) -> BoostedPowerModel:
        """The very model that a stored prediction names. Raises ModelError if it is gone."""
        for card in self.base_cards():
            if reference_of(card) == reference:
                return self._load(card)
        serving = self._serving
        for name, card in serving.cards.items():
            if serving.load is not None and reference_of(card) == reference:
                return serving.load(name)
        raise ModelError(
            f"the model of this prediction is gone: {reference.family} version "
            f"{reference.version} for {reference.gpu}"
        )

    def warm_up(self) -> None:
        """Load the model that ``auto`` picks for every GPU."""
        for gpu in sorted({card.gpu for card in self.base_cards()}):
            model = self.promoted(gpu)
            if not isinstance(model, BoostedPowerModel):
                model = self._packaged(gpu, "auto")
            if model is not None:
                model.warm_up()

    def _load(self, card: ModelCard) -> BoostedPowerModel:
        key = _name(card)
        with self._lock:
            if key not in self._models:
                self._models[key] = BoostedPowerModel(self.artifact(card))
            return self._models[key]


def unseen_error_watts(card: ModelCard) -> float:
    """Mean absolute error in watts on kernels left out of training; infinite if not measured.
    The scores as recomputed are those of the model that is served (rule 5b)."""
    return _unseen_error(card, "mae_watts")


def unseen_error_percent(card: ModelCard) -> float:
    """Mean absolute percentage error on kernels left out of training; infinite if not measured."""
    return _unseen_error(card, "mape_percent")


def _unseen_error(card: ModelCard, error: Literal["mae_watts", "mape_percent"]) -> float:
    for table in ("as_recomputed", "as_published", "measured"):
        for scores in card.scores:
            if scores.table == table and scores.protocol == "grouped":
                return scores.model[error].mean
    return float("inf")


def champion_of(artifact: store.Artifact[ModelCard]) -> Champion:
    """What serves of a promoted artifact. Raises ModelError where it cannot."""
    return artifact if artifact.card.family == power.PHYSICAL else BoostedPowerModel(artifact)


def _name(card: Card) -> Name:
    schema = card.feature_schema.id
    return card.gpu, card.target, card.family, schema, card.source, card.version


def reference_of(card: Card) -> ModelReference:
    """How answers name the model of a card."""
    return ModelReference.from_attributes(
        card,
        schema_id=card.feature_schema.id,
        members=[MemberReference.from_attributes(member) for member in card.members],
        card=f"/models/{card.place}",
    )
