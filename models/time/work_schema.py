"""Schema ``work1``: the residual's inputs, and the constants of the physical estimate under it.

It lies here and not among ``features/schemas``, which make vectors of PTX: its inputs are terms
of a time model, and most are no facts of a kernel but shares of an estimate. One file holds both,
so that one hash pins inputs and constants: a card made with other constants is not loaded.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from wattcast.features.schemas import Field
from wattcast.features.schemas.tables import fields_of, hash_of

SCHEMA_ID = "work1"
_FILE = Path(__file__).with_name("work1.toml")


@dataclass(frozen=True, slots=True)
class WorkConstants:
    """How each part of ``measured_work.PARTS`` multiplies, and the ``norm`` that combines them."""

    factors: Mapping[str, float]
    norm: float


@dataclass(frozen=True, slots=True)
class WorkSchema:
    """The file as read. ``least`` holds what no factor, nor the ``norm``, can be below."""

    id: str
    version: int
    title: str
    source: str
    fields: tuple[Field, ...]
    constants: WorkConstants
    least: WorkConstants
    sha256: str

    @property
    def model_fields(self) -> tuple[str, ...]:
        """Names of the model inputs, in order."""
        return tuple(field.name for field in self.fields if field.model_input)


@lru_cache(maxsize=1)
def work_schema() -> WorkSchema:
    """``work1`` as the package defines it."""
    raw = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    entries, norm = raw["constants"], raw["norm"]

    def constants(key: str) -> WorkConstants:
        factors = {name: float(entry.get(key, 0.0)) for name, entry in entries.items()}
        return WorkConstants(MappingProxyType(factors), float(norm[key]))

    return WorkSchema(
        id=raw["id"],
        version=raw["version"],
        title=raw["title"],
        source=raw["source"],
        fields=fields_of(raw),
        constants=constants("value"),
        least=constants("least"),
        sha256=hash_of(raw),
    )
