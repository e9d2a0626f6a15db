"""Champions and versions as answers, and promotion and rollback by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ConfigDict, Field

from wattcast.app.services.models.artifacts import RegistryArtifacts, name_of, open_version
from wattcast.app.store.registry import PACKAGED, TIME, NewVersion, Place, Snapshot, Version
from wattcast.features.errors import ModelError
from wattcast.models.cards import CARD_NAME, ModelCard, sha256_of
from wattcast.models.power import BOOSTED_FAMILIES, PHYSICAL
from wattcast.models.time import calibration
from wattcast.predictor.catalog import observed
from wattcast.predictor.messages import Answer, Message, ModelReference, catalog
from wattcast.predictor.parts.power_models import TARGET, reference_of

if TYPE_CHECKING:
    from wattcast.app.services import Services


class VersionAnswer(Answer):
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


class PlaceAnswer(Answer):
    """Who serves for a board, and who stands by."""

    board: str
    champion: VersionAnswer | None
    """Null: the packaged default."""
    candidate: VersionAnswer | None


class PromotionAnswer(Answer):
    """A promotion that was made."""

    at: str
    board: str
    version: VersionAnswer
    actor: str
    why: str


class RegistryAnswer(Answer):
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
    observed: list[catalog.ObservedCoverage]


class RollbackRequest(Message):
    """For which board to return to the champion before."""

    model_config = ConfigDict(defer_build=False)  # FastAPI wants it when its route is declared

    board: str = Field("", max_length=64, description="Empty: the GPU's general champion.")
    why: str = Field("by hand", max_length=500)


class PromoteRequest(RollbackRequest):
    """Which version is to serve, and for which board."""

    model_config = ConfigDict(validate_by_name=True)

    family: str = Field(min_length=1, max_length=32)
    schema_id: str = Field(min_length=1, max_length=64, alias="schema")
    source: str = Field(min_length=1, max_length=32)
    version: int = Field(ge=1, le=2**31 - 1)


ServedCard = ModelCard | calibration.TimeCorrectionCard

_PROMOTED = {TARGET: (*BOOSTED_FAMILIES, PHYSICAL), TIME: (calibration.FAMILY,)}
"""Families by target; of times, corrections of the default model alone."""


def registry_of(services: Services, gpu: str, target: str) -> RegistryAnswer:
    """The registry of a GPU by id or alias. Raises GpuError."""
    return _answer(services, services.gpus.load(gpu).id, target)


def promote(
    services: Services, gpu: str, target: str, asked: PromoteRequest, actor: str
) -> RegistryAnswer:
    """Make a version champion.

    This process serves it when the call returns, others within two seconds. Raises GpuError, and
    ModelError for a version that does not exist, is of no family that answers by default, or
    fails its checks.
    """
    data = services.database
    place = Place(services.gpus.load(gpu).id, asked.board, target)
    new, _ = _version(services, data.registry.snapshot(), place, asked)
    data.registry.promote_by_hand(place, new, actor, asked.why)
    return _served(services, place)


def rollback(
    services: Services, gpu: str, target: str, asked: RollbackRequest, actor: str
) -> RegistryAnswer:
    """Return to the champion before. Raises GpuError, and ServiceError ``no-rollback``."""
    data = services.database
    place = Place(services.gpus.load(gpu).id, asked.board, target)
    data.registry.rollback(place, actor, asked.why)
    return _served(services, place)


def _served(services: Services, place: Place) -> RegistryAnswer:
    if services.champions is not None:
        services.champions.refresh()
    return _answer(services, place.gpu, place.target)


def cards(
    services: Services, gpu: str, target: str, asked: PromoteRequest
) -> tuple[ServedCard | None, ServedCard]:
    """Of the model that serves a board, ``None`` for the default time model, and of the version
    that would. Raises as ``promote``."""
    snapshot = services.database.registry.snapshot()
    place = Place(services.gpus.load(gpu).id, asked.board, target)
    _, new = _version(services, snapshot, place, asked)
    for each in (place, place._replace(board="")):
        standing = snapshot.standings.get(each)
        if standing is not None and standing.champion is not None:
            return _card(services, standing.champion.version), new
    return services.power.default_artifact(place.gpu).card if target == TARGET else None, new


def _card(services: Services, version: Version) -> ServedCard:
    """A registered version's card. Raises ModelError for one that does not load."""
    artifacts = RegistryArtifacts.of(services.settings)
    if version.name.target == TIME:
        return artifacts.correction(version).card
    return open_version(services.power, artifacts, version).card


def _version(
    services: Services, snapshot: Snapshot, place: Place, asked: PromoteRequest
) -> tuple[NewVersion, ServedCard]:
    family, number = asked.family, asked.version
    wanted = (place.gpu, place.target, family, asked.schema_id, asked.source, number)
    known = _PROMOTED.get(place.target, ())
    if family not in known:
        raise ModelError(f"no {family} {place.target} model can be promoted", known=list(known))
    for version in snapshot.versions:
        if version.name == wanted:
            card = _card(services, version)  # what does not load shall not serve
            return NewVersion(version.name, version.board, PACKAGED, version.card_sha256), card
    for card in services.power.base_cards():
        if name_of(card) == wanted:
            sha256 = sha256_of(services.power.artifact(card).folder / CARD_NAME)
            return NewVersion(name_of(card), "", PACKAGED, sha256), card
    raise ModelError(f"no {family} {place.target} model of version {number} for {place.gpu}")


def _default(services: Services, gpu: str, target: str) -> ModelReference | None:
    """The packaged model that answers for a GPU without a promotion; of times it has no card."""
    if target != TARGET:
        return None
    try:
        return reference_of(services.power.default_artifact(gpu).card)
    except ModelError:
        return None


def _answer(services: Services, gpu: str, target: str) -> RegistryAnswer:
    data = services.database
    snapshot = data.registry.snapshot()
    return RegistryAnswer(
        gpu=gpu,
        target=target,
        default=_default(services, gpu, target),
        generation=snapshot.generation,
        places=[
            PlaceAnswer(
                board=place.board,
                champion=_told(standing.champion.version) if standing.champion else None,
                candidate=_told(standing.candidate) if standing.candidate else None,
            )
            for place, standing in sorted(snapshot.standings.items())
            if (place.gpu, place.target) == (gpu, target)
        ],
        versions=[
            _told(version)
            for version in snapshot.versions
            if (version.name.gpu, version.name.target) == (gpu, target)
        ],
        promotions=[
            PromotionAnswer.from_attributes(
                move, at=move.at.isoformat(), board=move.place.board, version=_told(move.version)
            )
            for move in data.registry.history(gpu, target)
        ],
        observed=observed(snapshot.coverage, gpu, target),
    )


def _told(version: Version) -> VersionAnswer:
    verdict = version.verdict or {}
    return VersionAnswer.from_attributes(
        version.name,
        board=version.board,
        origin=version.origin,
        created=version.created.isoformat(),
        card=f"/models/{version.name.place}",
        job=str(version.job_id) if version.job_id else None,
        promoted=verdict.get("promoted"),
        reasons=list(verdict.get("reasons", ())),
    )
