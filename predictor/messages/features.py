"""Body and answer of ``POST /features``."""

from __future__ import annotations

from pydantic import BaseModel, Field

from wattcast.predictor.messages import (
    Compiled,
    KernelName,
    KernelRequest,
    LoopTrips,
    Name,
    Occupancy,
    Registers,
    WarningLine,
    examples,
)


class FeaturesRequest(KernelRequest):
    """Body of ``POST /features``."""

    model_config = examples("FeaturesRequest")

    gpu: Name = Field(description="GPU id or alias; see GET /gpus.")
    schema_id: Name = Field(
        "alavani2023", alias="schema", description="Feature schema; see GET /schemas."
    )


class FeatureValue(BaseModel):
    """One field of a vector; ``value`` null is missing."""

    name: str
    value: float | None
    unit: str
    source: str
    description: str
    model_input: bool


class FeaturesAnswer(BaseModel):
    """Answer of ``POST /features``: the vector in the schema's order."""

    schema_id: str = Field(alias="schema")
    gpu: str
    kernel: KernelName
    compiled: Compiled | None = Field(None, description="Null if the request had PTX.")
    features: list[FeatureValue]
    occupancy: Occupancy
    registers: Registers
    trip_counts: list[LoopTrips]
    warnings: list[WarningLine]
