"""What a service keeps besides its predictions, over one database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from sqlalchemy.engine import Engine

from app.store.jobs import JobStore
from app.store.keys import KeyRing, KeyStore
from app.store.measurements import MeasurementStore
from app.store.registry import RegistryStore


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
    def over(cls, engine: Engine, key_cache_seconds: float = 5.0) -> Self:
        """All repositories of a migrated database."""
        keys = KeyStore(engine)
        return cls(
            engine,
            MeasurementStore(engine),
            keys,
            KeyRing(keys, key_cache_seconds),
            JobStore(engine),
            RegistryStore(engine),
        )
