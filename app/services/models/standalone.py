"""Champions for the command line and Python, which run no service: looked up when one is needed.

The database of the settings is read where it exists: it is neither made nor migrated for a
prediction, and nothing is written to it. Only the models that are asked for are opened.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from wattcast.app.store import HEAD
from wattcast.models.intervals import Observed
from wattcast.models.time.calibration import CorrectedTimes
from wattcast.predictor import Predictor
from wattcast.predictor.parts import power_models

if TYPE_CHECKING:
    from wattcast.app.settings import Settings
    from wattcast.app.store.database import Reading
    from wattcast.app.store.registry import Snapshot, Version

Key = TypeVar("Key")
Kept = TypeVar("Kept")
Model = TypeVar("Model")

POLL_SECONDS = 0.5
"""How often one process asks the registry, as a service does (``champions``)."""

_UNREAD = (
    "%s: models promoted there are left out, reading them needs SQLAlchemy: "
    "pip install 'wattcast[serve]', or WATTCAST_REGISTRY=off to leave them out for good"
)
"""What to say of a service's database where the extra that reads it is not installed."""

MOST_OPENED = 8
"""Opened models kept of each target; each takes a few MB."""


def standalone_predictor(settings: Settings, registry: bool = True, own: bool = True) -> Predictor:
    """A predictor without a service, which keeps nothing. ``registry``: promoted models answer,
    where there is a database that names any, unless ``settings`` say otherwise. ``own``: source is
    the caller's, and compiled even where no isolation is in force."""
    made = Predictor(settings, own=own)
    if registry and settings.registry == "auto":
        made.power.serve(serving(settings, made.power))
    return made


def serving(settings: Settings, power: power_models.PowerModels) -> power_models.Serving:
    """Champions of power and corrections of time, as a service would answer by them.
    The database layer is imported where there is a database."""
    registry = _Registry(settings)

    def champion(version: Version) -> power_models.Champion:
        from wattcast.app.services.models import artifacts

        own = artifacts.RegistryArtifacts.of(settings)
        return power_models.champion_of(artifacts.open_version(power, own, version))

    def correction(version: Version) -> CorrectedTimes:
        from wattcast.app.services.models.artifacts import RegistryArtifacts

        return RegistryArtifacts.of(settings).correction(version)

    return power_models.Serving(
        Promoted(lambda: registry.champions(power_models.TARGET), _once(champion)),
        times=Promoted(lambda: registry.champions("time"), _once(correction)),
        coverage=Promoted(registry.coverage, lambda observed: observed),
    )


def _once(open_: Callable[[Version], Model]) -> Callable[[Version], Model]:
    """``open_`` that opens each version once."""
    opened: dict[int, Model] = {}

    def kept(version: Version) -> Model:
        if version.id not in opened:
            if len(opened) >= MOST_OPENED:
                opened.clear()
            opened[version.id] = open_(version)
        return opened[version.id]

    return kept


class Promoted(Mapping[Key, Model]):
    """What the registry holds ``now``, as ``Serving`` holds it; a value is opened when asked for.

    Every access raises StoreError where the database is there but cannot be read, and ``[]``
    raises ModelError where an artifact is gone or has changed: another model's answer would be
    none.
    """

    def __init__(self, now: Callable[[], Mapping[Key, Kept]], open_: Callable[[Kept], Model]):
        self._now: Callable[[], Mapping[Key, Any]] = now
        self._open: Callable[[Any], Model] = open_

    def __getitem__(self, key: Key) -> Model:
        return self._open(self._now()[key])

    def __iter__(self) -> Iterator[Key]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())


class _Registry:
    """The registry's champions, asked anew when ``POLL_SECONDS`` have passed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._reading: Reading | None = None
        self._snapshot: Snapshot | None = None
        self._looked = float("-inf")
        self._told = False
        self._lock = threading.Lock()

    def champions(self, target: str) -> dict[tuple[str, str], Version]:
        """Champions of a target. Raises StoreError."""
        snapshot = self._now()
        return {} if snapshot is None else snapshot.champions(target)

    def coverage(self) -> Mapping[power_models.Watched, Observed]:
        """What intervals held. Raises StoreError."""
        snapshot = self._now()
        return {} if snapshot is None else snapshot.coverage

    def _now(self) -> Snapshot | None:
        with self._lock:
            if time.monotonic() - self._looked >= POLL_SECONDS:
                self._look()
                self._looked = time.monotonic()
            return self._snapshot

    def _look(self) -> None:
        file = self._settings.database_file
        if file is not None and not file.is_file():
            self._snapshot = None
            return
        if file is not None and self._reading is None and _never_changed(file):
            return
        try:
            from sqlalchemy.exc import SQLAlchemyError

            from wattcast.app.store.database import Reading, cannot_read
            from wattcast.app.store.registry import RegistryStore
        except ModuleNotFoundError:
            if file is None:
                raise
            if not self._told:
                logging.getLogger(__name__).warning(_UNREAD, file)
            self._told = True
            return
        url = self._settings.sqlalchemy_url
        if self._reading is None:
            self._reading = Reading(url)
        try:
            engine = self._reading.engine()
            if engine is None:
                self._snapshot = None
                return
            registry, known = RegistryStore(engine), self._snapshot
            if known is None or registry.generation() != known.generation:
                self._snapshot = registry.snapshot()
        except SQLAlchemyError as error:
            raise cannot_read(url, error) from error


def _never_changed(file: Path) -> bool:
    """Whether nothing was ever promoted or observed, by the registry's generation alone: told
    without SQLAlchemy, which takes longer to load than a small kernel to predict."""
    import sqlite3

    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as reading:
            revision = reading.execute("SELECT version_num FROM alembic_version").fetchone()
            found = reading.execute("SELECT generation FROM registry").fetchone()
    except sqlite3.Error:
        return False  # SQLAlchemy tells what is wrong
    return bool(revision == (HEAD,) and found == (0,))
