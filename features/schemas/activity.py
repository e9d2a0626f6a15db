"""Schema ``activity1``: the vector of what a launch physically does, on any GPU."""

from __future__ import annotations

import tomllib
from functools import cached_property
from importlib.resources import files

from wattcast.features.activity import Activity
from wattcast.features.diagnostics import Diagnostic
from wattcast.features.gpus import list_gpus
from wattcast.features.schemas.schema import FeatureVector
from wattcast.features.schemas.tables import Field, fields_of, hash_of


class ActivitySchema:
    """Counts of one launch; it needs no table, so it covers every GPU with a profile."""

    def __init__(self) -> None:
        text = files(__package__).joinpath("activity1.toml").read_text(encoding="utf-8")
        self._raw = tomllib.loads(text)

    def __repr__(self) -> str:
        return f"ActivitySchema(version={self.version})"

    @property
    def id(self) -> str:
        """``activity1``."""
        return str(self._raw["id"])

    @property
    def version(self) -> int:
        """Counts up with every change of the definition."""
        return int(self._raw["version"])

    @property
    def title(self) -> str:
        """One line for people."""
        return str(self._raw["title"])

    @property
    def source(self) -> str:
        """Where the definition comes from."""
        return str(self._raw["source"])

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The features, in order; all are model inputs."""
        return fields_of(self._raw)

    @cached_property
    def sha256(self) -> str:
        """Hash over the definition; a model card carries it."""
        return hash_of(self._raw)

    @property
    def gpus(self) -> tuple[str, ...]:
        """Ids of all GPUs with a profile."""
        return tuple(gpu.id for gpu in list_gpus())

    @cached_property
    def model_fields(self) -> tuple[str, ...]:
        """Names of the model inputs, in order."""
        return tuple(field.name for field in self.fields if field.model_input)

    def vector(
        self, activity: Activity, gpu_id: str, diagnostics: tuple[Diagnostic, ...] = ()
    ) -> FeatureVector:
        """The vector of a measured activity."""
        measured = activity.values()
        values = {field.name: measured[field.name] for field in self.fields}
        return FeatureVector(self.id, gpu_id, values, self.model_fields, diagnostics)
