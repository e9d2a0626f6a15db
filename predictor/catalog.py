"""What there is: GPUs, feature schemas, models."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from wattcast.features.errors import ModelError
from wattcast.features.gpus import GpuProfile
from wattcast.features.operators import operator_schema
from wattcast.features.schemas import AnySchema, get_schema, list_schemas
from wattcast.features.schemas.tables import SchemaFile
from wattcast.models.cards import Card, ModelCard, ScalingCard
from wattcast.models.intervals import Observed
from wattcast.models.operators import OperatorCard
from wattcast.models.power.physical import POOLED
from wattcast.models.time.calibration import TimeCorrectionCard
from wattcast.predictor.parts import members
from wattcast.predictor.parts.power_models import (
    Watched,
    reference_of,
    unseen_error_percent,
    unseen_error_watts,
)

if TYPE_CHECKING:
    from wattcast.predictor import Gpus

UNSEEN_ERRORS = (
    "unseen_kernel_mae_watts",
    "unseen_kernel_mape_percent",
    "unseen_kernel_time_median_ape_percent",
)
"""Errors on kernels left out of training that a summary tells: two of power, one of time."""


def gpu_summary(
    gpu: GpuProfile, cards: tuple[ModelCard, ...], covered: Mapping[str, frozenset[str]]
) -> dict[str, Any]:
    """One GPU in a list: what it is and what can be predicted for it. ``covered``: the GPUs of
    every schema."""
    names = ("architecture", "compute_capability", "sm_count", "core_mhz", "memory_mhz")
    return {
        **members(gpu, "id", "name"),
        "aliases": list(gpu.aliases),
        **members(gpu, *names),
        "power_models": sorted({c.family for c in cards if (c.gpu, c.target) == (gpu.id, "power")}),
        "schemas": [schema for schema, ids in covered.items() if gpu.id in ids],
    }


def _covered() -> dict[str, frozenset[str]]:
    return {schema.id: frozenset(schema.gpus) for schema in list_schemas()}


def gpu_summaries(gpus: Gpus, cards: tuple[ModelCard, ...]) -> list[dict[str, Any]]:
    """All GPUs, by id."""
    covered = _covered()
    return [gpu_summary(gpu, cards, covered) for gpu in gpus.all()]


def gpu_details(gpus: Gpus, gpu_id: str, cards: tuple[ModelCard, ...]) -> dict[str, Any]:
    """One GPU with every fact, its unit and source. Raises GpuError."""
    gpu = gpus.load(gpu_id)
    return {**gpu_summary(gpu, cards, _covered()), "profile": gpu.model_dump(mode="json")}


def schema_summary(schema: AnySchema | SchemaFile) -> dict[str, Any]:
    """One schema in a list. That of operators needs no table of a GPU."""
    gpus = () if isinstance(schema, SchemaFile) else schema.gpus
    return {
        **members(schema, "id", "version", "title", "source", "sha256"),
        "gpus": sorted(gpus),
        "fields": len(schema.fields),
        "model_inputs": [field.name for field in schema.fields if field.model_input],
    }


def schema_summaries() -> list[dict[str, Any]]:
    """All schemas."""
    return [schema_summary(schema) for schema in (*list_schemas(), operator_schema())]


def schema_details(schema_id: str) -> dict[str, Any]:
    """One schema with its fields in order. Raises SchemaError."""
    operators = operator_schema()
    schema = operators if schema_id == operators.id else get_schema(schema_id)
    names = ("unit", "description", "source", "model_input", "changeable")
    fields = [
        {"name": field.name, "dtype": str(field.dtype), **members(field, *names)}
        for field in schema.fields
    ]
    return {**schema_summary(schema), "fields": fields}


def observed(
    coverage: Mapping[Watched, Observed], gpu: str, target: str, model: str | None = None
) -> list[dict[str, Any]]:
    """``ObservedCoverage`` of a GPU's models, or of one: what their intervals held, by board."""
    return [
        {**members(one, "board", "model"), **members(found, "kernels", "inside"),
         "promised": found.level, "widened": found.widening}
        for one, found in sorted(coverage.items())
        if (one.gpu, one.target) == (gpu, target) and model in (None, one.model)
    ]  # fmt: skip


def model_summary(
    card: ModelCard | TimeCorrectionCard | OperatorCard, coverage: Mapping[Watched, Observed]
) -> dict[str, Any]:
    """One model in a list: reference, size of its training, error on unseen kernels, and what its
    intervals held of later measurements."""
    errors: dict[str, float | None] = {}
    if isinstance(card, TimeCorrectionCard):
        seconds = card.score("program").model["median_ape_percent"].mean
        errors["unseen_kernel_time_median_ape_percent"] = seconds
    elif not isinstance(card, OperatorCard):  # whose errors stand by operator, in its card
        watts, percent = unseen_error_watts(card), unseen_error_percent(card)
        errors["unseen_kernel_mae_watts"] = watts if watts != float("inf") else None
        errors["unseen_kernel_mape_percent"] = percent if percent != float("inf") else None
    return {
        **reference_of(card).data(),
        "created": card.created.isoformat(),
        "training_rows": card.training.rows,
        "training_kernels": card.training.kernels,
        **dict.fromkeys(UNSEEN_ERRORS),
        **errors,
        "observed": [
            told
            for gpu in sorted({one.gpu for one in coverage if one.model == card.place})
            for told in observed(coverage, gpu, card.target, card.place)
        ],
    }


@cache
def scaling_cards() -> tuple[ScalingCard, ...]:
    """Cards of the packaged models that scale over clocks."""
    from wattcast.models.papers.scaling.card import scaling_store

    return tuple(scaling_store().list())


def _holder(gpus: Gpus, name: str) -> str:
    """What a model belongs to: a GPU, or all that nobody measured. Raises GpuError."""
    return POOLED if name == POOLED else gpus.load(name).id


def model_cards(
    gpus: Gpus, cards: tuple[Card, ...], gpu_id: str, target: str
) -> list[dict[str, Any]]:
    """Full cards of a GPU and target. Raises GpuError, or ModelError if there is none."""
    gpu = _holder(gpus, gpu_id)
    found = [card for card in cards if (card.gpu, card.target) == (gpu, target)]
    if not found:
        raise ModelError(f"no {target} model for {gpu}", gpu=gpu, target=target)
    return [card.model_dump(mode="json") for card in found]


def model_card(
    gpus: Gpus, cards: tuple[Card, ...], gpu_id: str, target: str, name: str, version: int
) -> dict[str, Any]:
    """One full card by ``<family>-<schema>-<source>`` and version. Raises GpuError, ModelError."""
    gpu = _holder(gpus, gpu_id)
    for card in cards:
        if card.folder.parts == (gpu, target, name, str(version)):
            return card.model_dump(mode="json")
    raise ModelError(f"no model {name} version {version} for {gpu} and {target}")
