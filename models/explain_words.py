"""What the parts of an explanation mean, in plain sentences, and what a programmer can change.

``meaning_of`` answers for features of the published schemas, components of power and resources of
the time models alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from wattcast.features.checked import Strict, Text, checked, read_toml
from wattcast.features.schemas import get_schema


class Meaning(NamedTuple):
    """A sentence that says what it is, and how the programmer changes it (``None``: cannot)."""

    sentence: str
    change: str | None

    @property
    def changeable(self) -> bool:
        """Whether the programmer can change it."""
        return self.change is not None


_CODE = "change the kernel's code"


class Words(Strict):
    """What a part is, in the middle of a sentence, and how to change it."""

    what: Text
    change: Text | None = None


class _Tables(Strict):
    features: Mapping[str, Words]
    components: Mapping[str, Words]
    resources: Mapping[str, Words]


_FILE = Path(__file__).with_suffix(".toml")
_TABLES = checked(_Tables, read_toml(_FILE), _FILE.name)
FEATURES, COMPONENTS, RESOURCES = _TABLES.features, _TABLES.components, _TABLES.resources


def meaning_of(name: str, target: str, schema_id: str | None = None) -> Meaning:
    """What a part of an explanation of ``power`` or ``time`` means.

    ``schema_id`` is that of a model on features; their schemas tell what is not listed here.
    """
    if schema_id is not None and name in FEATURES:
        return _sentence(FEATURES[name].what, FEATURES[name].change)
    if schema_id is not None:
        for field in get_schema(schema_id).fields:
            if field.name == name:
                described = field.description[:1].lower() + field.description[1:]
                return _sentence(described, _CODE if field.changeable else None)
    known = (RESOURCES if target == "time" else COMPONENTS).get(name)
    if known is None:
        return Meaning(f"{name.replace('_', ' ')}, a part of the model.", None)
    return _sentence(known.what, known.change)


def _sentence(what: str, change: str | None) -> Meaning:
    told = f"{what[:1].upper()}{what[1:]}. "
    if change is None:
        return Meaning(f"{told}The programmer cannot change it.", None)
    return Meaning(f"{told}The programmer can change it: {change}.", change)
