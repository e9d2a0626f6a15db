"""Feature schemas of the scaling models: names of their inputs, by kind of counters.

They lie here and not among ``features/schemas``, which make vectors of PTX: these inputs come from
hardware counters, or from the physical scaling model itself. ``<kind>1`` names the physical model's
inputs, ``<kind>_time1`` and ``<kind>_power1`` those of the trees that correct it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from wattcast.features.errors import SchemaError
from wattcast.models.dvfs.use import UNITS, CounterKind

Quantity = Literal["time", "power"]

RISING: Mapping[Quantity, tuple[str, ...]] = MappingProxyType(
    {
        "time": ("log_time", "core_slowdown", "memory_slowdown"),
        "power": ("core_speed",),
    }
)
"""First inputs of the trees, with which a prediction may only rise: the logarithms of the physical
model's relative time and of the reference clocks over the clocks, which all fall as a clock rises;
for power that of the core clock."""

_BESIDE: Mapping[Quantity, tuple[str, ...]] = MappingProxyType(
    {
        "time": ("dram_share", "core_share", "core_latency_share"),
        "power": ("memory_speed", "use_dram"),
    }
)


def physical_schema(kind: CounterKind) -> str:
    """Schema id of the physical model's inputs."""
    return f"{kind}1"


def trees_schema(kind: CounterKind, quantity: Quantity) -> str:
    """Schema id of the inputs of the trees that correct a quantity."""
    return f"{kind}_{quantity}1"


def inputs(kind: CounterKind, quantity: Quantity | None = None) -> tuple[str, ...]:
    """Names of the physical model's inputs, or of those of a quantity's trees, in order."""
    uses = tuple(f"use_{unit}" for unit in UNITS[kind])
    if quantity is None:
        return (*uses, "use_dram", "time_seconds")
    return (*RISING[quantity], *_BESIDE[quantity], *uses)


_QUANTITIES: tuple[Quantity, ...] = ("time", "power")
SCHEMAS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {physical_schema(kind): inputs(kind) for kind in UNITS}
    | {
        trees_schema(kind, quantity): inputs(kind, quantity)
        for kind in UNITS
        for quantity in _QUANTITIES
    }
)
"""Schema id -> names of its inputs."""


def schema_hash(schema_id: str) -> str:
    """sha256 of a schema's input names. Raises SchemaError for an unknown one."""
    if schema_id not in SCHEMAS:
        raise SchemaError(f"unknown schema {schema_id!r}; known: {', '.join(SCHEMAS)}")
    return hashlib.sha256("\n".join(SCHEMAS[schema_id]).encode()).hexdigest()
