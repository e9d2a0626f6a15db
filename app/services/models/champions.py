"""Keeps this process serving the registry's champions, whoever promotes them.

A thread asks for the registry's generation every half second. Where it moved, the champions' models
are opened, checked and warmed up first, and then all of them take their places at once, between
two predictions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from wattcast.app.logs import log
from wattcast.app.services.models.artifacts import RegistryArtifacts, open_version
from wattcast.app.store import registry as store
from wattcast.features.errors import ModelError, WattcastError
from wattcast.models.cards import ModelCard
from wattcast.models.power.boosted import BoostedPowerModel
from wattcast.models.store import PACKAGED_ARTIFACTS, Artifact
from wattcast.models.time.calibration import CorrectedTimes, TimeCorrectionCard
from wattcast.predictor.parts import power_models

Model = TypeVar("Model")

LOADING = (WattcastError, OSError, ValueError)
"""What loading an artifact raises: it is gone, has changed, or cannot be read."""

RETRY_SECONDS = 5.0
"""How often a champion that cannot be loaded is tried again: somebody may put it back."""

_CLOSE_SECONDS = 1.0
"""How long closing waits for the thread, which may be loading a model."""

SPARE_MODELS = 8
"""Loaded models kept besides the champions; each takes a few MB."""

POLL_SECONDS = 0.5
"""How often a service looks for promoted models: one row is read."""


class Champions:
    """Watches the registry for ``power``. ``start`` and ``close`` its thread; or ``refresh``."""

    def __init__(
        self,
        power: power_models.PowerModels,
        registry: store.RegistryStore,
        artifacts: RegistryArtifacts,
    ) -> None:
        self._power = power
        self._registry = registry
        self._artifacts = artifacts
        self._opened: dict[int, power_models.Champion] = {}
        self._times: dict[int, CorrectedTimes] = {}
        self._cards: dict[power_models.Name, ModelCard | TimeCorrectionCard] = {}
        self._generation = -1
        self._failing = False
        self._missing: dict[tuple[str, str, str], power_models.Missing] = {}
        self._unopened: dict[tuple[str, str, str], power_models.Missing] = {}
        self._retry_at = 0.0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="champions", daemon=True)

    def start(self) -> None:
        """Serve what is promoted now, and watch."""
        self._refresh_or_log()
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; does not wait."""
        self._closing.set()

    def close(self) -> None:
        """Stop watching."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)

    @property
    def problems(self) -> tuple[str, ...]:
        """What is promoted and does not serve, with the reason; or that nobody could be asked."""
        if self._generation < 0:
            return ("the registry of promoted models has not been read yet; see the log",)
        return tuple(
            f"the promoted {missing.family} model of {target} for {gpu}"
            f"{f' board {board}' if board else ''} cannot be loaded: {missing.why}"
            for (target, gpu, board), missing in sorted(self._missing.items())
        )

    def refresh(self) -> None:
        """Serve the registry's champions if they changed, and look again for those that could not
        be loaded. Raises SQLAlchemyError."""
        with self._lock:
            again = bool(self._missing) and time.monotonic() >= self._retry_at
            if self._registry.generation() == self._generation and not again:
                return
            snapshot = self._registry.snapshot()
            changed, before = snapshot.generation != self._generation, self._missing
            self._unopened = {}
            self._power.serve(self._serving(snapshot))
            # Not before all serve: until then what was told holds.
            self._missing = self._unopened
            self._generation = snapshot.generation
            self._retry_at = time.monotonic() + RETRY_SECONDS
            self._tell(before)
        if changed:
            log().info("serving champions", generation=snapshot.generation)

    def _tell(self, before: Mapping[tuple[str, str, str], power_models.Missing]) -> None:
        """Log what cannot be loaded any more, or can again."""
        for place, missing in self._missing.items():
            if before.get(place) != missing:
                log().error("champion does not load", place=place, why=missing.why)
        for place in before.keys() - self._missing.keys():
            log().info("champion serves again", place=place)

    def _serving(self, snapshot: store.Snapshot) -> power_models.Serving:
        before = self._power.serving
        champions = self._standing(snapshot, power_models.TARGET, self._warm, before.champions)
        times = self._standing(snapshot, store.TIME, self._correction, before.times)
        self._forget([id(model) for model in champions.values()])
        versions = {version.name: version for version in snapshot.versions}

        def load(name: power_models.Name) -> BoostedPowerModel:
            with self._lock:
                model = self._model(versions[store.ModelName(*name)])
            if not isinstance(model, BoostedPowerModel):
                raise ModelError(f"{model.card.place} is not a boosted model")
            return model

        self._read_cards(snapshot)
        cards = {n: card for n, card in self._cards.items() if isinstance(card, ModelCard)}
        time_cards = {n: c for n, c in self._cards.items() if isinstance(c, TimeCorrectionCard)}
        unopened = dict(self._unopened)
        return power_models.Serving(
            champions, times, cards, time_cards, load, unopened, snapshot.coverage
        )

    def _standing(
        self,
        snapshot: store.Snapshot,
        target: str,
        load: Callable[[store.Version], Model],
        before: Mapping[tuple[str, str], Model],
    ) -> dict[tuple[str, str], Model]:
        """The champions of a target by GPU and board."""
        served = {}
        for key, version in snapshot.champions(target).items():
            try:
                served[key] = load(version)
            except LOADING as error:
                why = error.detail if isinstance(error, WattcastError) else str(error)
                for root in (self._artifacts.root, PACKAGED_ARTIFACTS):  # callers read it, too
                    why = why.replace(f"{root}/", "")
                self._unopened[target, *key] = power_models.Missing(version.name.family, why)
                # A model that answered well a moment ago is better than none.
                if key in before:
                    served[key] = before[key]
        return served

    def _model(self, version: store.Version) -> power_models.Champion:
        if version.id not in self._opened:
            self._opened[version.id] = power_models.champion_of(self.artifact(version))
        return self._opened[version.id]

    def _warm(self, version: store.Version) -> power_models.Champion:
        model = self._model(version)
        if isinstance(model, BoostedPowerModel):
            model.warm_up()
        return model

    def _correction(self, version: store.Version) -> CorrectedTimes:
        """A correction of times; all stay open, being a few numbers each."""
        if version.id not in self._times:
            self._times[version.id] = self._artifacts.correction(version)
        return self._times[version.id]

    def _forget(self, serving: Sequence[int]) -> None:
        """Of models that do not serve, a few stay loaded: for rollbacks and explanations."""
        spare = [key for key, model in self._opened.items() if id(model) not in serving]
        for key in spare[:-SPARE_MODELS]:
            del self._opened[key]

    def _read_cards(self, snapshot: store.Snapshot) -> None:
        """The cards of all retrained versions that can be read."""
        for version in snapshot.versions:
            if version.origin == store.PACKAGED or version.name in self._cards:
                continue
            try:
                own = self._correction if version.name.target == store.TIME else self.artifact
                self._cards[version.name] = own(version).card
            except LOADING as error:
                if snapshot.generation != self._generation:
                    log().error("retrained model left out", name=version.name, why=str(error))

    def artifact(self, version: store.Version) -> Artifact[ModelCard]:
        """A registered artifact. Raises ModelError where it is gone or has changed."""
        return open_version(self._power, self._artifacts, version)

    def _run(self) -> None:
        while not self._closing.wait(POLL_SECONDS):
            self._refresh_or_log()

    def _refresh_or_log(self) -> None:
        try:
            self.refresh()
            self._failing = False
        except (SQLAlchemyError, OSError) as error:
            if not self._failing:
                log().error("cannot ask for champions; trying again", why=str(error.args[:1]))
            self._failing = True
