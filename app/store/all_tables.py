"""Every module that defines tables: importing this one makes ``METADATA`` complete."""

from __future__ import annotations

from wattcast.app.store import access_tables, job_tables, measurement_tables, registry_tables
from wattcast.app.store.tables import METADATA

MODULES = (access_tables, measurement_tables, job_tables, registry_tables)

__all__ = ["METADATA", "MODULES"]
