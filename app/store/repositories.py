"""What a service keeps besides its predictions, over one database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from sqlalchemy.engine import Engine

from wattcast.app.store.jobs import JobStore
from wattcast.app.store.keys import KeyRing, KeyStore
from wattcast.app.store.measurements import MeasurementStore
from wattcast.app.store.registry import RegistryStore


@dataclass(frozen=True)
class Repositories:
    """Repositories that share ``engine``, which whoever opened it closes."""

    engine: Engine
    measurements: MeasurementStore
    keys: KeyStore
    key_ring: KeyRing
    jobs: JobStore
    registry: RegistryStore

    @classmethod
    def over(cls, engine: Engine) -> Self:
        """All repositories of a migrated database."""
        keys = KeyStore(engine)
        return cls(
            engine,
            MeasurementStore(engine),
            keys,
            KeyRing(keys),
            JobStore(engine),
            RegistryStore(engine),
        )
