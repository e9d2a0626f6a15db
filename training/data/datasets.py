"""Finds and reads the published power files, with their defects, as text.

The files lie outside the repository (their licence forbids handing them on), in a folder with
``power/raw``, ``power/clean`` and ``power/kernel_names.csv``: ``$WATTCAST_DATA``, else
``../shared/data`` beside the repository, else ``fetched_data()``. What they mean is
``wattcast.training.data.cleaning``'s.
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import pandas as pd

from wattcast.features.checked import Strict, checked, read_toml
from wattcast.features.errors import DataError
from wattcast.models.cards import sha256_of
from wattcast.training.data.tables import FIRST_ROW, read_table, text, wrong

SOURCES_FILE = Path(__file__).parents[1] / "sources.toml"
SPREADSHEET_ERRORS = frozenset({"#DIV/0!", "#REF!", "#VALUE!"})
"""Failed spreadsheet formulas, kept in the published files as text."""


class SourceFile(Strict):
    """One entry of ``sources.toml``."""

    id: str
    gpu: str
    layout: Literal["thesis", "powerquant"]
    names: str
    path: str
    commit: str
    sha256: str
    unused: tuple[str, ...]
    reference_only: bool = False

    @property
    def name(self) -> str:
        """The file's own name, upstream and below ``power/raw``."""
        return Path(self.path).name


class Collection(Strict):
    """Tables of one origin that have no single upstream file; ``files`` are glob patterns."""

    id: str
    repository: str
    commit: str = ""
    licence: str
    files: tuple[str, ...]


class Sources(Strict):
    """``sources.toml``: what is trained on, where it comes from, under which licence."""

    licence: str
    repository: str
    raw_address: str
    file: tuple[SourceFile, ...]
    collection: tuple[Collection, ...]

    def get(self, source_id: str) -> SourceFile:
        """Entry by id. Raises DataError for an unknown one."""
        for source in self.file:
            if source.id == source_id:
                return source
        known = ", ".join(source.id for source in self.file)
        raise DataError(f"unknown data source {source_id!r}; known: {known}")


@dataclass(frozen=True, slots=True)
class RawTable:
    """A published file as text, cells stripped; the index of ``text`` is the line of the file on
    which a row ends (1-based)."""

    source: SourceFile
    path: Path
    sha256: str
    text: pd.DataFrame

    @property
    def complete(self) -> bool:
        """Whether this is the whole upstream file, and not a copy with fewer rows."""
        return self.sha256 == self.source.sha256


_SPELLING = ("source_file_stem", "benchmark", "kernel")
_CANONICAL = ("kernel_id", "kernel_group", "family")


@dataclass(frozen=True, slots=True)
class KernelName:
    """Canonical names of a kernel; near-twins share a ``group``."""

    kernel_id: str
    group: str
    family: str


@cache
def sources() -> Sources:
    """``sources.toml``, validated. Raises DataError if it is not as it should be."""
    return checked(Sources, read_toml(SOURCES_FILE), SOURCES_FILE.name)


def fetched_data() -> Path:
    """Where ``wattcast data fetch`` writes unless told otherwise: ``data`` in WATTCAST_HOME."""
    return Path(os.environ.get("WATTCAST_HOME") or Path.home() / ".wattcast") / "data"


def find_data() -> Path | None:
    """Folder of the data sets, or ``None`` where there is none."""
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    given = os.environ.get("WATTCAST_DATA")
    looked = (Path(given),) if given else (beside, fetched_data())
    return next((folder for folder in looked if (folder / "power" / "raw").is_dir()), None)


def data_root() -> Path:
    """As ``find_data``. Raises DataError saying what is missing and where it was looked for."""
    folder = find_data()
    if folder is None:
        raise DataError(
            "no training data: set WATTCAST_DATA to a folder that holds power/raw and "
            "power/kernel_names.csv (training/sources.toml says what they are)"
        )
    return folder


def read_raw(source_id: str, root: Path | None = None) -> RawTable:
    """Read one published file. Raises DataError if it is absent or a row is not rectangular."""
    source = sources().get(source_id)
    path = (root or data_root()) / "power" / "raw" / source.name
    cells = _read_csv(path)
    return RawTable(source, path, sha256_of(path), cells)


def read_kernel_names(root: Path | None = None) -> dict[tuple[str, str, str], KernelName]:
    """(source key, benchmark, kernel) as the files spell them -> canonical names.
    Raises DataError for a missing file, column or cell, or a spelling named twice."""
    path = (root or data_root()) / "power" / "kernel_names.csv"
    frame = read_table(path, {name: text() for name in (*_SPELLING, *_CANONICAL)})
    names: dict[tuple[str, str, str], KernelName] = {}
    spellings = frame[list(_SPELLING)].itertuples(index=False, name=None)
    canonical = frame[list(_CANONICAL)].itertuples(index=False, name=None)
    for line, (spelling, named) in enumerate(
        zip(spellings, canonical, strict=True), start=FIRST_ROW
    ):
        stem, benchmark, kernel = spelling
        key = (stem, benchmark.strip(), kernel.strip())
        name = KernelName(*named)
        if names.setdefault(key, name) != name:
            raise wrong(path, f"{key} has two names", line, "kernel_id")
    return names


def _read_csv(path: Path) -> pd.DataFrame:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            columns = next(reader, [])
            rows: dict[int, list[str]] = {}
            for row in reader:
                if len(row) != len(columns):
                    said = f"{len(row)} cells under {len(columns)} columns"
                    raise wrong(path, said, reader.line_num)
                rows[reader.line_num] = [cell.strip() for cell in row]
    except (OSError, UnicodeDecodeError) as error:
        raise wrong(path, f"cannot be read: {error}") from error
    if not rows:
        raise wrong(path, "has no rows")
    frame = pd.DataFrame(rows.values(), list(rows), columns, dtype=object)
    return frame.loc[:, ~frame.columns.duplicated()]
