"""Data files of the package, checked by pydantic: what every TOML table here has in common."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from wattcast.features.errors import DataError

PositiveInt = Annotated[int, Field(gt=0, strict=True)]
PositiveFloat = Annotated[float, Field(gt=0, strict=True)]
Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]


class Frozen(BaseModel):
    """Frozen, and refusing keys it does not know: a misspelt key is an error."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")


class Strict(Frozen):
    """The same, and every number finite."""

    model_config = ConfigDict(allow_inf_nan=False)


Table = TypeVar("Table", bound=Strict)


def problems_of(error: ValidationError) -> list[tuple[str, str]]:
    """What does not validate: each key (``groups.add.opcodes.3``) with what is wrong there.

    Missing keys come last: a misspelt one is why another is missing.
    """
    found = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"] if part != "[key]") or "(file)"
        plain = {"extra_forbidden": "unknown key", "missing": "missing"}.get(item["type"])
        message = item["msg"].removeprefix("Value error, ")
        found.append((key, plain or f"{message} (is {item['input']!r})"))
    return sorted(found, key=lambda problem: problem[1] == "missing")


def read_toml(path: Path) -> dict[str, Any]:
    """The file as plain data. Raises DataError for what is no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path.name} is not TOML: {error}", file=path.name) from error


def checked(kind: type[Table], raw: Mapping[str, Any], file: str) -> Table:
    """The table that ``raw`` holds. Raises DataError naming the file and the keys at fault."""
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise defect(file, problems_of(error)) from error


def defect(file: str, problems: list[tuple[str, str]]) -> DataError:
    """The error that names every key at fault; its context has the first as ``key``."""
    told = "; ".join(f"{key}: {what}" for key, what in problems)
    return DataError(f"{file}: {told}", file=file, key=problems[0][0])
