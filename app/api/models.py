"""Which model serves: versions, champion and candidate, promotion and rollback by hand."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from wattcast.app import problems
from wattcast.app.api.access import actor_of
from wattcast.app.api.catalog import ObservedCoverage
from wattcast.app.api.route import Router, json_response, query
from wattcast.app.services.models import registry as service
from wattcast.predictor.messages import Described, ModelReference

router = Router(prefix="/models", tags=["models"])

GpuName = Annotated[str, Path(max_length=64, examples=["tesla-k20"])]
Target = Annotated[str, Path(max_length=32, examples=["power"])]


class VersionAnswer(Described):
    """A registered version of a model; never changed."""

    family: str
    schema_id: str = Field(alias="schema")
    source: str
    version: int
    board: str
    origin: str
    """`packaged` or `retrained`."""
    created: str
    card: str
    """Path of its card."""
    job: str | None
    """The job that made it."""
    promoted: bool | None
    """Verdict of the gate; null if it did not run."""
    reasons: list[str]
    """Why it was not promoted."""


class PlaceAnswer(Described):
    """Who serves for a board, and who stands by."""

    board: str
    champion: VersionAnswer | None
    """Null: the packaged default."""
    candidate: VersionAnswer | None


class PromotionAnswer(Described):
    """A promotion that was made."""

    at: str
    board: str
    version: VersionAnswer
    actor: str
    why: str


class RegistryAnswer(Described):
    """The registry of one GPU and target."""

    gpu: str
    target: str
    default: ModelReference | None
    """The packaged model that answers where no version was promoted; null for times."""
    generation: int
    """Increases with every change of any champion."""
    places: list[PlaceAnswer]
    versions: list[VersionAnswer]
    promotions: list[PromotionAnswer]
    """Newest first, including those undone since."""
    observed: list[ObservedCoverage]


class PromoteRequest(BaseModel):
    """Which version is to serve, and for which board."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    family: str = Field(min_length=1, max_length=32)
    schema_id: str = Field(min_length=1, max_length=64, alias="schema")
    source: str = Field(min_length=1, max_length=32)
    version: int = Field(ge=1, le=2**31 - 1)
    board: str = Field("", max_length=64, description="Empty: the GPU's general champion.")
    why: str = Field("by hand", max_length=500)


class RollbackRequest(BaseModel):
    """For which board to return to the champion before."""

    model_config = ConfigDict(extra="forbid")

    board: str = Field("", max_length=64)
    why: str = Field("by hand", max_length=500)


@router.answers("/{gpu}/{target}/registry", RegistryAnswer, "unknown-gpu validation store")
async def get_registry(request: Request, gpu: GpuName, target: Target) -> Response:
    """Champion, candidate and versions of a GPU.

    Every retrained version is kept, with the gate's verdict on it.
    """
    found = await query(request, lambda of: service.registry_of(of, gpu, target))
    return json_response(found)


@router.answers(
    "/{gpu}/{target}/promote",
    RegistryAnswer,
    f"{problems.JSON_BODY} gpu model store",
    method="POST",
)
async def post_promote(
    request: Request, gpu: GpuName, target: Target, body: PromoteRequest
) -> Response:
    """Promote a version.

    Any version, whatever the gate said. All replicas serve it within two seconds.
    """
    actor = actor_of(request)
    which = body.family, body.schema_id, body.source, body.version
    made = await query(
        request, lambda of: service.promote(of, gpu, target, which, body.board, actor, body.why)
    )
    return json_response(made)


@router.answers(
    "/{gpu}/{target}/rollback",
    RegistryAnswer,
    f"{problems.JSON_BODY} no-rollback gpu store",
    method="POST",
)
async def post_rollback(
    request: Request, gpu: GpuName, target: Target, body: RollbackRequest
) -> Response:
    """Return to the previous champion.

    Undoes the last promotion. Answers are again what they were before it, bit for bit.
    """
    actor = actor_of(request)
    made = await query(
        request, lambda of: service.rollback(of, gpu, target, body.board, actor, body.why)
    )
    return json_response(made)
