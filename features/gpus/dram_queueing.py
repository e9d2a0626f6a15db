"""Device memory as a queue: latency and service time of one transaction, where measured."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, model_validator

from wattcast.features.gpus.clocks import ClockList
from wattcast.features.gpus.facts import Cycles, Fact, InUnit, PositiveFloat, Strict, Text

CycleMegahertz = Annotated[Fact[PositiveFloat], AfterValidator(InUnit("cycle MHz"))]


class ServiceTable(Strict):
    """Core cycles between two 32-byte sectors that one SM gets when all SMs stream.

    ``cycles[i]`` was measured with core and memory clock both at ``memory_mhz[i]``.
    """

    unit: Annotated[str, StringConstraints(pattern="^cycle$")]
    source: str
    note: Text | None = None
    memory_mhz: ClockList
    cycles: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _a_rising_clock_serves_sooner(self) -> ServiceTable:
        if len(self.cycles) != len(self.memory_mhz):
            raise ValueError(f"{len(self.memory_mhz)} clocks but {len(self.cycles)} cycles")
        if any(later > sooner for sooner, later in pairwise(self.cycles)):
            raise ValueError("cycles must not rise with the memory clock")
        return self


class DramQueueing(Strict):
    """Parameters of Wang and Chu's memory model (docs/frequency.md), in core cycles.

    A load that misses every cache takes ``latency_core_cycles`` plus ``latency_memory_cycles``
    x core clock / memory clock (their Eq. 4). ``service_table`` is their Table III,
    ``service_a`` / memory MHz + ``service_b`` a smooth curve through it.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, ignored_types=(cached_property,)
    )

    latency_core_cycles: Cycles
    latency_memory_cycles: Cycles
    service_table: ServiceTable
    service_a: CycleMegahertz
    service_b: Cycles

    @cached_property
    def service_cycles(self) -> Mapping[float, float]:
        """The table: memory clock in MHz to core cycles at a ratio of clocks of 1."""
        table = self.service_table
        return MappingProxyType(dict(zip(table.memory_mhz, table.cycles, strict=True)))
