"""Where retrained models lie: a local folder, and a shared place for replicas on other machines.

``WATTCAST_HOME/registry`` holds artifacts as ``wattcast.models.store`` reads them. With
``WATTCAST_ARTIFACTS_URL`` (``s3://bucket/models``, say; any place fsspec knows) they are put there
too, and fetched from there where they are not local yet. Cards pin files by checksum, and the
database pins cards, so that a copy is either the artifact or no artifact.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

from wattcast.app.settings import Settings
from wattcast.app.store.registry import PACKAGED, ModelName, Version
from wattcast.features.errors import ModelError
from wattcast.models.cards import CARD_NAME, Card, ModelCard, read_card, sha256_of
from wattcast.models.store import AnyCard, Artifact, ArtifactStore
from wattcast.models.time.calibration import CorrectedTimes, TimeCorrectionCard
from wattcast.predictor.parts.power_models import PowerModels


def name_of(card: Card) -> ModelName:
    """What the registry calls the model of a card."""
    schema = card.feature_schema.id
    return ModelName(card.gpu, card.target, card.family, schema, card.source, card.version)


class RegistryArtifacts:
    """Artifacts of registered versions below ``root``, and below ``url`` where one is set.
    Raises ModelError for a ``url`` that fsspec does not know or lacks a package for."""

    def __init__(self, root: Path, url: str | None = None) -> None:
        self.root = root
        self._shared = None if url is None else _Shared(url)

    @classmethod
    def of(cls, settings: Settings) -> RegistryArtifacts:
        """Those of a service's home and shared place."""
        return cls(settings.home / "registry", settings.artifacts_url)

    def adopt(self, made: Path, card: Card) -> None:
        """Move an artifact from below ``made`` to its place, to stay there whatever happens.
        Raises OSError where the disk is full or the shared place does not answer."""
        source, place = made / card.folder, self.root / card.folder
        place.parent.mkdir(parents=True, exist_ok=True)
        for path in (*source.iterdir(), source):
            _sync(path)
        source.rename(place)
        _sync(place.parent)
        if self._shared is not None:
            files = self._shared
            remote = f"{files.root}/{card.folder.as_posix()}"
            files.system.makedirs(remote, exist_ok=True)
            # The card last: whoever sees it finds the rest.
            for name in (*sorted(card.files), CARD_NAME):
                files.system.put_file(str(place / name), f"{remote}/{name}")

    def open(self, name: ModelName, card_sha256: str) -> Artifact[ModelCard]:
        """A registered power model, checked. Raises ModelError where it is gone or not what it
        was."""
        return self._open(name, card_sha256, ModelCard)

    def correction(self, version: Version) -> CorrectedTimes:
        """The same of a registered correction of times."""
        artifact = self._open(version.name, version.card_sha256, TimeCorrectionCard)
        return CorrectedTimes(artifact)

    def _open(self, name: ModelName, card_sha256: str, kind: type[AnyCard]) -> Artifact[AnyCard]:
        folder = self.root / name.place
        if not folder.is_dir() and self._shared is not None:
            self._fetch(name.place, kind)
        artifact = ArtifactStore((self.root,), kind=kind).find(
            name.gpu,
            name.target,
            name.family,
            name.schema_id,
            source=name.source,
            version=name.version,
        )
        if sha256_of(folder / CARD_NAME) != card_sha256:
            raise ModelError(f"the card of {name.place} is not the registered one")
        return artifact

    def _fetch(self, relative: str, kind: type[Card]) -> None:
        files = self._shared
        assert files is not None
        remote, place = f"{files.root}/{relative}", self.root / relative
        partial = place.with_name(f".{place.name}.{uuid4().hex}")
        partial.mkdir(parents=True)
        try:
            try:
                files.system.get_file(f"{remote}/{CARD_NAME}", str(partial / CARD_NAME))
                card = read_card(partial / CARD_NAME, kind)
                for name in card.files:
                    files.system.get_file(f"{remote}/{name}", str(partial / name))
            except (OSError, ModelError) as error:
                raise ModelError(f"{relative} cannot be fetched: {error}") from error
            for member in card.members:
                beside = name_of(card)._replace(family=member.family, version=member.version)
                if not (self.root / beside.place).is_dir():
                    self._fetch(beside.place, kind)
            try:
                partial.rename(place)
            except OSError:
                if not place.is_dir():  # else another process was faster
                    raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def open_version(
    power: PowerModels, artifacts: RegistryArtifacts, version: Version
) -> Artifact[ModelCard]:
    """The artifact of a registered version. Raises ModelError where it is gone or has changed."""
    if version.origin != PACKAGED:
        return artifacts.open(version.name, version.card_sha256)
    for card in power.base_cards():
        if name_of(card) == version.name:
            artifact = power.artifact(card)
            if sha256_of(artifact.folder / CARD_NAME) == version.card_sha256:
                return artifact
    raise ModelError(f"the packaged model {version.name} is not in this release")


class _Shared:
    """fsspec's file system of a URL and the path on it."""

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs  # type: ignore[import-untyped]
        except ImportError as error:
            raise ModelError(
                "WATTCAST_ARTIFACTS_URL needs fsspec: pip install 'wattcast[s3]'"
            ) from error
        try:
            found: tuple[Any, str] = url_to_fs(url)
        except (ImportError, ValueError) as error:  # its package is missing; no such protocol
            raise ModelError(f"WATTCAST_ARTIFACTS_URL cannot be used: {error}") from error
        self.system, self.root = found


def _sync(path: Path) -> None:
    """Make a file or folder survive a power cut."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
