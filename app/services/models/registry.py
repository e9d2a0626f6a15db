"""Champions and versions as answers, and promotion and rollback by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wattcast.app.services.models.artifacts import RegistryArtifacts, name_of, open_version
from wattcast.app.store.registry import PACKAGED, TIME, Move, NewVersion, Place, Snapshot, Version
from wattcast.features.errors import ModelError
from wattcast.models.cards import CARD_NAME, sha256_of
from wattcast.models.power import BOOSTED_FAMILIES, PHYSICAL
from wattcast.models.time.calibration import FAMILY as TIME_FAMILY
from wattcast.predictor.catalog import observed
from wattcast.predictor.parts.power_models import TARGET, reference_of

if TYPE_CHECKING:
    from wattcast.app.services import Services

_PROMOTED = {TARGET: (*BOOSTED_FAMILIES, PHYSICAL), TIME: (TIME_FAMILY,)}
"""Families by target; of times, corrections of the default model alone."""


def registry_of(services: Services, gpu: str, target: str) -> dict[str, Any]:
    """``RegistryAnswer`` of a GPU by id or alias. Raises GpuError."""
    return _answer(services, services.gpus.load(gpu).id, target)


def promote(
    services: Services,
    gpu: str,
    target: str,
    which: tuple[str, str, str, int],
    board: str,
    actor: str,
    why: str,
) -> dict[str, Any]:
    """Make a version champion: ``which`` is family, schema, source and version number.

    This process serves it when the call returns, others within two seconds. Raises GpuError, and
    ModelError for a version that does not exist, is of no family that answers by default, or
    fails its checks.
    """
    data = services.database
    place = Place(services.gpus.load(gpu).id, board, target)
    new = _version(services, data.registry.snapshot(), place, which)
    data.registry.promote_by_hand(place, new, actor, why)
    return _served(services, place)


def rollback(
    services: Services, gpu: str, target: str, board: str, actor: str, why: str
) -> dict[str, Any]:
    """Return to the champion before. Raises GpuError, and ServiceError ``no-rollback``."""
    data = services.database
    place = Place(services.gpus.load(gpu).id, board, target)
    data.registry.rollback(place, actor, why)
    return _served(services, place)


def _served(services: Services, place: Place) -> dict[str, Any]:
    if services.champions is not None:
        services.champions.refresh()
    return _answer(services, place.gpu, place.target)


def _version(
    services: Services, snapshot: Snapshot, place: Place, which: tuple[str, str, str, int]
) -> NewVersion:
    family, schema, source, number = which
    wanted = (place.gpu, place.target, family, schema, source, number)
    known = _PROMOTED.get(place.target, ())
    if family not in known:
        raise ModelError(f"no {family} {place.target} model can be promoted", known=list(known))
    for version in snapshot.versions:
        if version.name == wanted:
            artifacts = RegistryArtifacts.of(services.settings)
            # What does not load shall not serve.
            if place.target == TIME:
                artifacts.correction(version)
            else:
                open_version(services.power, artifacts, version)
            return NewVersion(version.name, version.board, PACKAGED, version.card_sha256)
    for card in services.power.base_cards():
        if name_of(card) == wanted:
            sha256 = sha256_of(services.power.artifact(card).folder / CARD_NAME)
            return NewVersion(name_of(card), "", PACKAGED, sha256)
    raise ModelError(f"no {family} {place.target} model of version {number} for {place.gpu}")


def _default(services: Services, gpu: str, target: str) -> dict[str, Any] | None:
    """The packaged model that answers for a GPU without a promotion; of times it has no card."""
    if target != TARGET:
        return None
    try:
        return reference_of(services.power.default_artifact(gpu).card).data()
    except ModelError:
        return None


def _answer(services: Services, gpu: str, target: str) -> dict[str, Any]:
    data = services.database
    snapshot = data.registry.snapshot()
    return {
        "gpu": gpu,
        "target": target,
        "default": _default(services, gpu, target),
        "generation": snapshot.generation,
        "places": [
            {
                "board": place.board,
                "champion": _told(standing.champion.version) if standing.champion else None,
                "candidate": _told(standing.candidate) if standing.candidate else None,
            }
            for place, standing in sorted(snapshot.standings.items())
            if (place.gpu, place.target) == (gpu, target)
        ],
        "versions": [
            _told(version)
            for version in snapshot.versions
            if (version.name.gpu, version.name.target) == (gpu, target)
        ],
        "promotions": [_promotion(move) for move in data.registry.history(gpu, target)],
        "observed": observed(snapshot.coverage, gpu, target),
    }


def _promotion(move: Move) -> dict[str, Any]:
    return {
        "at": move.at.isoformat(),
        "board": move.place.board,
        "version": _told(move.version),
        "actor": move.actor,
        "why": move.why,
    }


def _told(version: Version) -> dict[str, Any]:
    name, verdict = version.name, version.verdict or {}
    return {
        "family": name.family,
        "schema": name.schema_id,
        "source": name.source,
        "version": name.version,
        "board": version.board,
        "origin": version.origin,
        "created": version.created.isoformat(),
        "card": f"/models/{name.place}",
        "job": str(version.job_id) if version.job_id else None,
        "promoted": verdict.get("promoted"),
        "reasons": list(verdict.get("reasons", ())),
    }
