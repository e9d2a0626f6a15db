"""What there is: GPUs, feature schemas, models."""

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from wattcast.features import errors, gpus
from wattcast.features.operators import operator_schema
from wattcast.features.schemas import AnySchema, get_schema, list_schemas, tables
from wattcast.models.cards import Card, ModelCard, ScalingCard
from wattcast.models.intervals import Observed
from wattcast.models.operators import OperatorCard
from wattcast.models.power.physical import POOLED
from wattcast.models.time.calibration import TimeCorrectionCard
from wattcast.predictor import Gpus
from wattcast.predictor.messages import catalog
from wattcast.predictor.parts.power_models import (
    Watched,
    reference_of,
    unseen_error_percent,
    unseen_error_watts,
)

G = TypeVar("G", bound=catalog.GpuSummary)
S = TypeVar("S", bound=catalog.Schema)


def gpu_summaries(gpus: Gpus, cards: tuple[ModelCard, ...]) -> list[catalog.GpuSummary]:
    """All GPUs, by id: what each is and what can be predicted for it."""
    return [_gpu(catalog.GpuSummary, gpu, cards) for gpu in gpus.all()]


def gpu_details(gpus: Gpus, gpu_id: str, cards: tuple[ModelCard, ...]) -> catalog.GpuDetails:
    """One GPU with every fact, its unit and source. Raises GpuError."""
    gpu = gpus.load(gpu_id)
    return _gpu(catalog.GpuDetails, gpu, cards, profile=gpu.model_dump(mode="json"))


def _gpu(kind: type[G], gpu: gpus.GpuProfile, cards: tuple[ModelCard, ...], **more: Any) -> G:
    return kind.from_attributes(
        gpu,
        aliases=list(gpu.aliases),
        power_models=sorted({c.family for c in cards if (c.gpu, c.target) == (gpu.id, "power")}),
        schemas=[schema.id for schema in list_schemas() if gpu.id in schema.gpus],
        **more,
    )


def schema_summaries() -> list[catalog.SchemaSummary]:
    """All schemas."""
    schemas = (*list_schemas(), operator_schema())
    return [_schema(catalog.SchemaSummary, each, fields=len(each.fields)) for each in schemas]


def schema_details(schema_id: str) -> catalog.SchemaDetails:
    """One schema with its fields in order. Raises SchemaError."""
    operators = operator_schema()
    schema = operators if schema_id == operators.id else get_schema(schema_id)
    fields = [
        catalog.SchemaField.from_attributes(each, dtype=str(each.dtype)) for each in schema.fields
    ]
    return _schema(catalog.SchemaDetails, schema, fields=fields)


def _schema(kind: type[S], schema: AnySchema | tables.SchemaFile, **fields: Any) -> S:
    """That of operators needs no table of a GPU."""
    gpus = () if isinstance(schema, tables.SchemaFile) else schema.gpus
    inputs = [field.name for field in schema.fields if field.model_input]
    return kind.from_attributes(schema, gpus=sorted(gpus), model_inputs=inputs, **fields)


def observed(
    coverage: Mapping[Watched, Observed], gpu: str, target: str, model: str | None = None
) -> list[catalog.ObservedCoverage]:
    """What the intervals of a GPU's models, or of one, held, by board."""
    return [
        catalog.ObservedCoverage.from_attributes(
            found, board=one.board, model=one.model, promised=found.level, widened=found.widening
        )
        for one, found in sorted(coverage.items())
        if (one.gpu, one.target) == (gpu, target) and model in (None, one.model)
    ]


def model_summary(
    card: ModelCard | TimeCorrectionCard | OperatorCard, coverage: Mapping[Watched, Observed]
) -> catalog.ModelSummary:
    """One model in a list: reference, size of its training, error on unseen kernels, and what its
    intervals held of later measurements."""
    errors: dict[str, float | None] = dict.fromkeys(
        name for name in catalog.ModelSummary.model_fields if name.startswith("unseen_")
    )
    if isinstance(card, TimeCorrectionCard):
        seconds = card.score("program").model["median_ape_percent"].mean
        errors["unseen_kernel_time_median_ape_percent"] = seconds
    elif not isinstance(card, OperatorCard):  # whose errors stand by operator, in its card
        watts, percent = unseen_error_watts(card), unseen_error_percent(card)
        errors["unseen_kernel_mae_watts"] = watts if watts != float("inf") else None
        errors["unseen_kernel_mape_percent"] = percent if percent != float("inf") else None
    return catalog.ModelSummary.from_attributes(
        reference_of(card),
        created=card.created.isoformat(),
        training_rows=card.training.rows,
        training_kernels=card.training.kernels,
        **errors,
        observed=[
            told
            for gpu in sorted({one.gpu for one in coverage if one.model == card.place})
            for told in observed(coverage, gpu, card.target, card.place)
        ],
    )


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
        raise errors.ModelError(f"no {target} model for {gpu}", gpu=gpu, target=target)
    return [card.model_dump(mode="json") for card in found]


def model_card(
    gpus: Gpus, cards: tuple[Card, ...], gpu_id: str, target: str, name: str, version: int
) -> dict[str, Any]:
    """One full card by ``<family>-<schema>-<source>`` and version. Raises GpuError, ModelError."""
    gpu = _holder(gpus, gpu_id)
    for card in cards:
        if card.folder.parts == (gpu, target, name, str(version)):
            return card.model_dump(mode="json")
    raise errors.ModelError(f"no model {name} version {version} for {gpu} and {target}")
