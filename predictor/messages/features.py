"""Body and answer of ``POST /features``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from wattcast.predictor import messages as shared
from wattcast.predictor import reports


class FeaturesRequest(shared.KernelRequest):
    """Body of ``POST /features``."""

    model_config = shared.examples("FeaturesRequest")

    gpu: shared.Name
    """GPU id or alias; see GET /gpus."""
    schema_id: shared.Name = Field("alavani2023", alias="schema")
    """Feature schema; see GET /schemas."""


class FeatureValue(shared.Answer):
    """One field of a vector; ``value`` null is missing."""

    name: str
    value: float | None
    unit: str
    source: str
    description: str
    model_input: bool


class FeaturesAnswer(shared.Reported):
    """Answer of ``POST /features``: the vector in the schema's order."""

    schema_id: str = Field(alias="schema")
    gpu: str
    kernel: shared.KernelName
    compiled: shared.Compiled | None = None
    """Null if the request had PTX."""
    features: list[FeatureValue]
    occupancy: shared.Occupancy
    registers: shared.Registers
    trip_counts: list[shared.LoopTrips]
    warnings: list[shared.WarningLine]

    def report(self) -> reports.Report:
        """Each feature with its value and unit."""
        columns = [reports.word(name, name) for name in ("name", "value", "unit")]
        return [
            reports.Table(columns, self.features, most=len(self.features)),
            reports.Warnings(self.warnings),
        ]

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """A row for each feature."""
        return (feature.data() for feature in self.features)
