"""What a service keeps besides its predictions, over one database."""

from __future__ import annotations

from sqlalchemy.engine import Engine

from wattcast.app.store import jobs, keys, measurements, registry


class Repositories:
    """All repositories of a migrated database. They share ``engine``, which whoever opened it
    closes."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.measurements = measurements.MeasurementStore(engine)
        self.key_ring = keys.KeyRing(keys.KeyStore(engine))
        self.jobs = jobs.JobStore(engine)
        self.registry = registry.RegistryStore(engine)
