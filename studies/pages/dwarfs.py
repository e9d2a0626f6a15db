"""Parallel dwarfs of programs, and the thesis' errors by dwarf (``studies/pages/dwarfs.toml``)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from studies.data.frequency import kernel_group
from wattcast.features.errors import DataError

DWARFS_FILE = Path(__file__).with_name("dwarfs.toml")
NOT_CLASSIFIED = "not classified"


class Dwarf(NamedTuple):
    """A dwarf and who says so: ``Table 4.7``, ``Rodinia``, ``ours``, or nobody (empty)."""

    name: str
    source: str


class _Choice(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    dwarf: str
    why: str


class PrintedError(BaseModel):
    """A row of thesis Table 4.3: kernels counted, mean absolute error in percent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kernels: int
    percent: float


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    thesis: dict[str, str]
    spellings: dict[str, str]
    rodinia: dict[str, str]
    ours: dict[str, _Choice]
    table_4_3_dwarfs: dict[str, str]
    table_4_3: dict[str, PrintedError]
    table_4_9: dict[str, dict[str, float]]


def dwarf_of(program: str) -> Dwarf:
    """Dwarf of a program under any of its names; ``NOT_CLASSIFIED`` where nobody says."""
    classes = _classes()
    for name in (_key(program), _key(kernel_group(program))):
        if name in classes:
            return classes[name]
    return Dwarf(NOT_CLASSIFIED, "")


def table_4_3_dwarf(benchmark: str) -> str:
    """Dwarf under which Table 4.3 counts a benchmark of Table 4.2, as far as the thesis tells.

    ``NOT_CLASSIFIED`` for benchmarks that neither Table 4.7 nor section 4.3.6 names.
    """
    found = _file()
    other = {_key(name): dwarf for name, dwarf in found.table_4_3_dwarfs.items()}
    dwarf = dwarf_of(benchmark)
    thesis = dwarf.name if dwarf.source == "Table 4.7" else NOT_CLASSIFIED
    return other.get(_key(benchmark), thesis)


def our_choices() -> Mapping[str, tuple[str, str]]:
    """Programs classified here: name -> (dwarf, why)."""
    return {name: (choice.dwarf, choice.why) for name, choice in _file().ours.items()}


def printed_table_4_3() -> Mapping[str, PrintedError]:
    """Thesis Table 4.3 by dwarf, in its order."""
    return _file().table_4_3


def printed_table_4_9() -> Mapping[str, Mapping[str, float]]:
    """Thesis Table 4.9: dwarf -> GPU id -> mean absolute percentage error."""
    return _file().table_4_9


@cache
def _classes() -> dict[str, Dwarf]:
    found = _file()
    classes = {_key(name): Dwarf(each.dwarf, "ours") for name, each in found.ours.items()}
    classes |= {_key(name): Dwarf(dwarf, "Rodinia") for name, dwarf in found.rodinia.items()}
    classes |= {_key(name): Dwarf(dwarf, "Table 4.7") for name, dwarf in found.thesis.items()}
    return classes | {
        _key(other): classes[_key(printed)] for other, printed in found.spellings.items()
    }


@cache
def _file() -> _File:
    try:
        return _File.model_validate(tomllib.loads(DWARFS_FILE.read_text("utf-8")))
    except ValidationError as error:
        raise DataError(f"{DWARFS_FILE.name}: {error}", file=DWARFS_FILE.name) from error


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
