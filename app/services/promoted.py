"""Champions for the command line and Python, which run no service: looked up when one is needed.

The database of the settings is read where it exists: it is neither made nor migrated for a
prediction, and nothing is written to it. Only the models that are asked for are opened.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from app.services.artifacts import RegistryArtifacts
from app.services.champions import open_version
from app.services.power import TARGET, PowerModels
from app.store.reading import Reading, cannot_read
from app.store.registry import RegistryStore, Version
from models.power.boosted import BoostedPowerModel

if TYPE_CHECKING:
    from app.settings import Settings

Key = tuple[str, str]


class PromotedModels(Mapping[Key, BoostedPowerModel]):
    """Champions by GPU and board (empty: any), as ``app.services.power.Serving`` holds them.

    The registry is asked anew when ``registry_poll_seconds`` have passed. Every access raises
    StoreError where the database is there but cannot be read, and ``[]`` raises ModelError where
    a champion's artifact is gone or has changed: another model's watts would be no answer.
    """

    def __init__(self, settings: Settings, power: PowerModels) -> None:
        self._settings = settings
        self._power = power
        self._artifacts = RegistryArtifacts(settings.home / "registry", settings.artifacts_url)
        self._reading: Reading | None = None
        self._generation = -1
        self._versions: dict[Key, Version] = {}
        self._opened: dict[Key, tuple[int, BoostedPowerModel]] = {}
        self._looked = float("-inf")
        self._lock = threading.Lock()

    def __getitem__(self, key: Key) -> BoostedPowerModel:
        with self._lock:
            version = self._now()[key]
            opened = self._opened.get(key)
            if opened is None or opened[0] != version.id:
                model = BoostedPowerModel(open_version(self._power, self._artifacts, version))
                opened = self._opened[key] = version.id, model
            return opened[1]

    def __iter__(self) -> Iterator[Key]:
        with self._lock:
            return iter(tuple(self._now()))

    def __len__(self) -> int:
        with self._lock:
            return len(self._now())

    def _now(self) -> dict[Key, Version]:
        if time.monotonic() - self._looked >= self._settings.registry_poll_seconds:
            self._look()
            self._looked = time.monotonic()
        return self._versions

    def _look(self) -> None:
        url = self._settings.sqlalchemy_url
        if self._reading is None:
            self._reading = Reading(url)
        try:
            engine = self._reading.engine()
            if engine is None:
                self._generation, self._versions = -1, {}
                return
            registry = RegistryStore(engine)
            if registry.generation() == self._generation:
                return
            snapshot = registry.snapshot()
        except SQLAlchemyError as error:
            raise cannot_read(url, error) from error
        self._versions = {
            (place.gpu, place.board): standing.champion.version
            for place, standing in snapshot.standings.items()
            if place.target == TARGET and standing.champion is not None
        }
        self._generation = snapshot.generation
