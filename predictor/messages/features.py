"""Body and answer of ``POST /features``."""

from __future__ import annotations

from pydantic import BaseModel, Field

from wattcast.predictor import messages as shared


class FeaturesRequest(shared.KernelRequest):
    """Body of ``POST /features``."""

    model_config = shared.examples("FeaturesRequest")

    gpu: shared.Name = Field(description="GPU id or alias; see GET /gpus.")
    schema_id: shared.Name = Field(
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
    kernel: shared.KernelName
    compiled: shared.Compiled | None = Field(None, description="Null if the request had PTX.")
    features: list[FeatureValue]
    occupancy: shared.Occupancy
    registers: shared.Registers
    trip_counts: list[shared.LoopTrips]
    warnings: list[shared.WarningLine]
