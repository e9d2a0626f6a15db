"""GPUs, feature schemas and models: what can be asked about."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Request
from fastapi.responses import Response
from pydantic import Field

from wattcast.app.api.route import Router, json_response
from wattcast.app.services import Services, services_of
from wattcast.models.cards import ModelCard, ScalingCard
from wattcast.models.operators import OperatorCard
from wattcast.models.time.calibration import TimeCorrectionCard
from wattcast.predictor import catalog
from wattcast.predictor.messages import Described

router = Router(tags=["catalogue"])

GpuName = Annotated[str, Path(max_length=64, examples=["tesla-v100"])]


class GpuSummary(Described):
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


class _Schema(Described):
    id: str
    version: int | str
    title: str
    source: str
    sha256: str
    gpus: list[str]
    model_inputs: list[str]


class SchemaSummary(_Schema):
    """One feature schema."""

    fields: int


class SchemaField(Described):
    """One field of a schema, in order."""

    name: str
    dtype: str
    unit: str
    description: str
    source: str
    model_input: bool
    changeable: bool


class SchemaDetails(_Schema):
    """One feature schema with its fields."""

    fields: list[SchemaField]


class ObservedCoverage(Described):
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


class ModelSummary(Described):
    """One model; ``card`` is the path of its card."""

    family: str
    version: int
    schema_id: str = Field(alias="schema")
    source: str
    gpu: str
    target: str
    members: list[dict[str, Any]]
    card: str
    created: str
    training_rows: int
    training_kernels: int
    unseen_kernel_mae_watts: float | None
    unseen_kernel_mape_percent: float | None
    """If nothing was promoted, the model with the smallest one answers."""
    unseen_kernel_time_median_ape_percent: float | None
    """Of a correction of times; power models have none."""
    observed: list[ObservedCoverage]


@router.answers("/gpus", list[GpuSummary])
def gpus(request: Request) -> Response:
    """GPUs with a profile.

    Every GPU that launches can be predicted for.
    """
    services = services_of(request)
    return json_response(catalog.gpu_summaries(services.gpus, services.power.cards()))


@router.answers("/gpus/{gpu}", GpuDetails, "unknown-gpu validation")
def gpu_details(request: Request, gpu: GpuName) -> Response:
    """One GPU with every fact and its source.

    By id or alias.
    """
    services = services_of(request)
    return json_response(catalog.gpu_details(services.gpus, gpu, services.power.cards()))


@router.answers("/schemas", list[SchemaSummary])
def schemas() -> Response:
    """Feature schemas.

    Every named, versioned feature schema.
    """
    return json_response(catalog.schema_summaries())


@router.answers("/schemas/{schema_id}", SchemaDetails, "unknown-schema validation")
def schema_details(
    schema_id: Annotated[str, Path(max_length=64, examples=["alavani2023"])],
) -> Response:
    """One feature schema with its fields.

    Fields in the order of the vector, with units and sources.
    """
    return json_response(catalog.schema_details(schema_id))


@router.answers("/models", list[ModelSummary])
def models(request: Request) -> Response:
    """Trained models.

    Every artifact that passes its checks: power models, corrections of predicted times, and
    models of library operators.
    """
    services = services_of(request)
    coverage = services.power.serving.coverage
    cards = (*services.power.all_cards(), *services.operators.cards())
    return json_response([catalog.model_summary(card, coverage) for card in cards])


AnyCard = ModelCard | TimeCorrectionCard | ScalingCard | OperatorCard


def _cards(services: Services) -> tuple[AnyCard, ...]:
    scaling = catalog.scaling_cards()
    return (*services.power.all_cards(), *scaling, *services.operators.cards())


@router.answers("/models/{gpu}/{target}", list[AnyCard], "unknown-gpu unknown-model validation")
def model_cards(
    request: Request, gpu: GpuName, target: Annotated[str, Path(max_length=32, examples=["power"])]
) -> Response:
    """Model cards of one GPU and target.

    Training data, scores beside the baseline, interval calibration and checksums.
    """
    services = services_of(request)
    cards = _cards(services)
    return json_response(catalog.model_cards(services.gpus, cards, gpu, target))


@router.answers(
    "/models/{gpu}/{target}/{name}/{version}", AnyCard, "unknown-gpu unknown-model validation"
)
def model_card(request: Request, gpu: GpuName, target: str, name: str, version: int) -> Response:
    """One model card.

    What the ``model.card`` of a prediction points to.
    """
    services = services_of(request)
    cards = _cards(services)
    return json_response(catalog.model_card(services.gpus, cards, gpu, target, name, version))
