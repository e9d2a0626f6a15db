"""The thesis' published pairs of measured and predicted times, and the spread they give.

``table_4_8.csv`` holds those of model 2 (thesis Table 4.8, microseconds, 44 kernels on four GPUs),
``table_4_2.csv`` those of model 1 (Table 4.2, 45 kernels on Tesla K20). The factors of
``wattcast.models.time.calibration`` are ``spread_of`` them.
"""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from math import log
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from studies.data.frequency import kernel_group
from wattcast.features.errors import DataError
from wattcast.models.intervals import EXTRAPOLATED_WIDENING, Basis, IntervalWidth, conformal_factors
from wattcast.models.time.calibration import LEVEL

TABLE = Path(__file__).with_name("table_4_8.csv")
DELAY_TABLE = Path(__file__).with_name("table_4_2.csv")
GPUS = ("tesla-k20", "quadro-k4200", "tesla-m60", "gtx-1050")


class Pair(NamedTuple):
    """A measured and a predicted kernel time in microseconds (thesis Tables 4.2 and 4.8)."""

    benchmark: str
    kernel: str
    gpu: str
    actual_us: float
    predicted_us: float

    @property
    def log_ratio(self) -> float:
        """ln(measured / predicted)."""
        return log(self.actual_us / self.predicted_us)


def published_pairs(path: Path = TABLE) -> tuple[Pair, ...]:
    """All pairs of Table 4.8 (model 2). Raises DataError naming file, row and column."""
    return tuple(
        Pair(
            row["benchmark"],
            row["kernel"],
            gpu,
            _microseconds(path, number, row, f"{gpu}_actual_us"),
            _microseconds(path, number, row, f"{gpu}_predicted_us"),
        )
        for number, row in _rows(path)
        for gpu in GPUS
    )


def published_delay_pairs(path: Path = DELAY_TABLE) -> tuple[Pair, ...]:
    """All pairs of Table 4.2 (model 1, Tesla K20). Raises DataError naming file, row and column."""
    return tuple(
        Pair(
            row["benchmark"],
            row["kernel"],
            "tesla-k20",
            _microseconds(path, number, row, "actual_us"),
            _microseconds(path, number, row, "predicted_us"),
        )
        for number, row in _rows(path)
    )


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(enumerate(csv.DictReader(file), start=2))


def _microseconds(path: Path, number: int, row: Mapping[str, str], column: str) -> float:
    try:
        value = float(row[column])
    except (KeyError, TypeError, ValueError):
        value = 0.0
    if not value > 0:
        raise DataError(
            f"{path.name}, row {number}: {column} is no time above 0",
            file=path.name,
            row=number,
            column=column,
        )
    return value


def spread_of(pairs: Sequence[Pair], gpu_id: str) -> tuple[IntervalWidth, Basis]:
    """Interval factors at 90 % for a GPU from published pairs, and what they rest on.

    A GPU of the table gets its own spread, any other that of all its GPUs, both
    ``EXTRAPOLATED_WIDENING`` times as wide in logarithms with basis ``extrapolated``: the times are
    those of the authors' tool, whose readings of the ambiguous steps are not known to be ours.
    Kernels of one benchmark count as one group, as in ``wattcast.models.intervals``.
    """
    own = [pair for pair in pairs if pair.gpu == gpu_id]
    used = own or list(pairs)
    names = sorted({pair.benchmark for pair in used})
    groups = [names.index(pair.benchmark) for pair in used]
    low, high = conformal_factors([pair.log_ratio for pair in used], groups, LEVEL)
    width = IntervalWidth(low_factor=low, high_factor=high)
    return width.widened(EXTRAPOLATED_WIDENING), "extrapolated"


# --- Parallel dwarfs of programs ----------------------------------------------------------------


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


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    thesis: dict[str, str]
    spellings: dict[str, str]
    rodinia: dict[str, str]
    ours: dict[str, _Choice]


def dwarf_of(program: str) -> Dwarf:
    """Dwarf of a program under any of its names; ``NOT_CLASSIFIED`` where nobody says."""
    classes = _classes()
    for name in (_key(program), _key(kernel_group(program))):
        if name in classes:
            return classes[name]
    return Dwarf(NOT_CLASSIFIED, "")


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
