"""What a service keeps besides its predictions, over one database."""

from __future__ import annotations

from sqlalchemy.engine import Engine

from wattcast.app.store.jobs import JobStore
from wattcast.app.store.keys import KeyRing, KeyStore
from wattcast.app.store.measurements import MeasurementStore
from wattcast.app.store.registry import RegistryStore


class Repositories:
    """All repositories of a migrated database. They share ``engine``, which whoever opened it
    closes."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.measurements = MeasurementStore(engine)
        self.key_ring = KeyRing(KeyStore(engine))
        self.jobs = JobStore(engine)
        self.registry = RegistryStore(engine)
