"""GPUs, feature schemas and models: what can be asked about."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Request
from fastapi.responses import Response

from wattcast.app import problems
from wattcast.app.api import access, route
from wattcast.app.services import Services, services_of
from wattcast.app.services.models import registry as service
from wattcast.models import cards, operators
from wattcast.models.time.calibration import TimeCorrectionCard
from wattcast.predictor import catalog
from wattcast.predictor.messages import catalog as messages

router = route.Router(tags=["catalogue"])

GpuName = Annotated[str, Path(max_length=64, examples=["tesla-v100"])]
Target = Annotated[str, Path(max_length=32, examples=["power"])]


@router.answers("/gpus", list[messages.GpuSummary])
def gpus(request: Request) -> Response:
    """GPUs with a profile.

    Every GPU that launches can be predicted for.
    """
    services = services_of(request)
    return route.told(request, catalog.gpu_summaries(services.gpus, services.power.cards()))


@router.answers("/gpus/{gpu}", messages.GpuDetails, "unknown-gpu validation")
def gpu_details(request: Request, gpu: GpuName) -> Response:
    """One GPU with every fact and its source.

    By id or alias.
    """
    services = services_of(request)
    return route.told(request, catalog.gpu_details(services.gpus, gpu, services.power.cards()))


@router.answers("/schemas", list[messages.SchemaSummary])
def schemas() -> Response:
    """Feature schemas.

    Every named, versioned feature schema.
    """
    return route.json_response(catalog.schema_summaries())


@router.answers("/schemas/{schema_id}", messages.SchemaDetails, "unknown-schema validation")
def schema_details(
    schema_id: Annotated[str, Path(max_length=64, examples=["alavani2023"])],
) -> Response:
    """One feature schema with its fields.

    Fields in the order of the vector, with units and sources.
    """
    return route.json_response(catalog.schema_details(schema_id))


@router.answers("/models", list[messages.ModelSummary])
def models(request: Request) -> Response:
    """Trained models.

    Every artifact that passes its checks: power models, corrections of predicted times, and
    models of library operators.
    """
    services = services_of(request)
    coverage = services.power.serving.coverage
    cards = (*services.power.all_cards(), *services.operators.cards)
    return route.told(request, [catalog.model_summary(card, coverage) for card in cards])


AnyCard = cards.ModelCard | TimeCorrectionCard | cards.ScalingCard | operators.OperatorCard


def _cards(services: Services) -> tuple[AnyCard, ...]:
    scaling = catalog.scaling_cards()
    return (*services.power.all_cards(), *scaling, *services.operators.cards)


@router.answers("/models/{gpu}/{target}", list[AnyCard], "unknown-gpu unknown-model validation")
def model_cards(request: Request, gpu: GpuName, target: Target) -> Response:
    """Model cards of one GPU and target.

    Training data, scores beside the baseline, interval calibration and checksums.
    """
    services = services_of(request)
    cards = _cards(services)
    return route.json_response(catalog.model_cards(services.gpus, cards, gpu, target))


@router.answers(
    "/models/{gpu}/{target}/{name}/{version}", AnyCard, "unknown-gpu unknown-model validation"
)
def model_card(request: Request, gpu: GpuName, target: str, name: str, version: int) -> Response:
    """One model card.

    What the ``model.card`` of a prediction points to.
    """
    services = services_of(request)
    cards = _cards(services)
    return route.json_response(catalog.model_card(services.gpus, cards, gpu, target, name, version))


# --- Which model serves: versions, champion and candidate, promotion and rollback by hand ---

registry = route.Router(prefix="/models", tags=["models"])

RegisteredGpu = Annotated[str, Path(max_length=64, examples=["tesla-k20"])]


@registry.answers(
    "/{gpu}/{target}/registry", service.RegistryAnswer, "unknown-gpu validation store"
)
async def get_registry(request: Request, gpu: RegisteredGpu, target: Target) -> Response:
    """Champion, candidate and versions of a GPU.

    Every retrained version is kept, with the gate's verdict on it.
    """
    found = await route.query(request, lambda of: service.registry_of(of, gpu, target))
    return route.json_response(found)


@registry.answers(
    "/{gpu}/{target}/promote",
    service.RegistryAnswer,
    f"{problems.JSON_BODY} gpu model store",
    method="POST",
)
async def post_promote(
    request: Request, gpu: RegisteredGpu, target: Target, body: service.PromoteRequest
) -> Response:
    """Promote a version.

    Any version, whatever the gate said. All replicas serve it within two seconds.
    """
    actor = access.actor_of(request)
    made = await route.query(request, lambda of: service.promote(of, gpu, target, body, actor))
    return route.json_response(made)


@registry.answers(
    "/{gpu}/{target}/rollback",
    service.RegistryAnswer,
    f"{problems.JSON_BODY} no-rollback gpu store",
    method="POST",
)
async def post_rollback(
    request: Request, gpu: RegisteredGpu, target: Target, body: service.RollbackRequest
) -> Response:
    """Return to the previous champion.

    Undoes the last promotion. Answers are again what they were before it, bit for bit.
    """
    actor = access.actor_of(request)
    made = await route.query(request, lambda of: service.rollback(of, gpu, target, body, actor))
    return route.json_response(made)
