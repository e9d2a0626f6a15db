"""Answers of the catalogue: GPUs, feature schemas and models."""

from __future__ import annotations

from typing import Any

from wattcast.predictor.messages import Answer, ModelReference


class GpuSummary(Answer):
    """One GPU: what it is and what can be predicted for it."""

    id: str
    name: str
    aliases: list[str]
    architecture: str
    compute_capability: str
    sm_count: int
    core_mhz: float
    memory_mhz: float
    power_models: list[str]
    """Families; empty: power is answered null."""
    schemas: list[str]
    """Feature schemas that have a table for this GPU."""


class GpuDetails(GpuSummary):
    """One GPU with its whole profile: every fact with unit and source."""

    profile: dict[str, Any]


class Schema(Answer):
    """What a feature schema is."""

    id: str
    version: int | str
    title: str
    source: str
    sha256: str
    gpus: list[str]
    model_inputs: list[str]


class SchemaSummary(Schema):
    """One feature schema."""

    fields: int


class SchemaField(Answer):
    """One field of a schema, in order."""

    name: str
    dtype: str
    unit: str
    description: str
    source: str
    model_input: bool
    changeable: bool


class SchemaDetails(Schema):
    """One feature schema with its fields."""

    fields: list[SchemaField]


class ObservedCoverage(Answer):
    """What a model's intervals held of measurements that came in after its answers."""

    board: str
    """As uploads label it; empty: no label."""
    model: str
    """The card's path, or a time model's family."""
    kernels: int
    """Kernels measured after they were predicted."""
    inside: int
    """Of these, those whose first measured launch was inside."""
    promised: float
    """The least level that was promised."""
    widened: float
    """How many times as wide answers are since; 1: no alarm."""


class ModelSummary(ModelReference):
    """One model; ``card`` is the path of its card."""

    created: str
    training_rows: int
    training_kernels: int
    unseen_kernel_mae_watts: float | None
    unseen_kernel_mape_percent: float | None
    """If nothing was promoted, the model with the smallest one answers."""
    unseen_kernel_time_median_ape_percent: float | None
    """Of a correction of times; power models have none."""
    observed: list[ObservedCoverage]
