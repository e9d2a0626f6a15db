"""What data are there: every table read, checked and counted.

inventory(root)   one ``TableFacts`` for each power table that can be read or should be there

Other tables are ``unread``: only studies read them (``python -m studies tables`` checks those).

``read_clean`` reads ``power/clean``: the published power rows as somebody else cleaned them.

``training.data.cleaning`` makes the same rows from the published files; these are there to hold it
against, and for users who want no cleaning of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import pandas as pd

from wattcast.features.errors import DataError
from wattcast.models.cards import sha256_of
from wattcast.training.data.cleaning import MODEL_INPUTS, NUMERIC_COLUMNS, SM_COUNT, clean
from wattcast.training.data.datasets import (
    data_root,
    find_data,
    read_kernel_names,
    read_raw,
    sources,
)
from wattcast.training.data.tables import number, read_table, text
from wattcast.training.provenance import fingerprint

TABLES = ("K20", "M60", "V100", *SM_COUNT)
"""Names of the tables, those of the files they were cleaned from (``sources.toml``)."""

FLAGS = ("idle_power", "iic_zero", "short_run", "time_not_kernel")
"""What the column ``flag`` may hold, each followed by a semicolon (rule 10)."""

_TEXT = ("benchmark", "kernel", "kernel_id", "family")
_POSITIVE = frozenset({"grid_size", "block_size", "total_threads", "power_w", "n_repeats"})
# What wattcast.training.data.cleaning keeps besides: not in these files.
_NOT_THERE = frozenset({"total_inst", "wtotal", "serial"})


def read_clean(name: str, root: Path | None = None) -> pd.DataFrame:
    """One table, checked: its columns under their uniform names, blanks as NaN.

    Raises DataError naming file, row and column for what does not fit: text where a number belongs,
    power that is not positive, a flag nobody knows.
    """
    path = (root or data_root()) / "power" / "clean" / f"{name}.csv"
    flags = rf"^(({'|'.join(FLAGS)});)*$"
    return read_table(
        path,
        {
            "gpu": text(choices=(name,)),
            **{column: text() for column in _TEXT},
            "flag": text(nullable=True, pattern=flags),
            **{
                column: number(positive=True)
                if column in _POSITIVE
                else number(nullable=True, low=0.0)
                for column in NUMERIC_COLUMNS
                if column not in _NOT_THERE
            },
        },
    )


State = Literal["complete", "shortened", "sound", "defective", "missing", "unread"]
"""``complete``: the upstream file, by its checksum; ``shortened``: readable, but not that file;
``sound``: readable, and no upstream file to hold it against; ``unread``: nothing here reads it."""


@dataclass(frozen=True)
class TableFacts:
    """One table. ``rows`` as in the file, ``kept`` of them after cleaning.

    ``dropped`` counts rows by rule, ``noted`` what was kept although something is odd.
    ``fingerprint`` is a sha256 of the rows kept, the same however the file is written; that of a
    power file is of its vectors, watts and kernel groups, before any recomputing. ``problem``
    says what is wrong with a defective or missing table.
    """

    path: str
    state: State
    sha256: str = ""
    rows: int = 0
    kept: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    noted: Mapping[str, int] = field(default_factory=dict)
    fingerprint: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Found:
    """What a reader found in a sound table."""

    state: State
    rows: int
    kept: int
    fingerprint: str
    dropped: Mapping[str, int] = field(default_factory=dict)
    noted: Mapping[str, int] = field(default_factory=dict)


Readers = Mapping[str, Callable[[], Found]]
"""Path of a table below the data folder -> what reads and counts it."""


def inventory(root: Path, further: Readers = MappingProxyType({})) -> list[TableFacts]:
    """Facts of every table below ``root``, sorted by path: also of those missing or defective.

    ``further`` reads tables besides those of power.
    """
    readers = {**_readers(root), **further}
    there = {path.relative_to(root).as_posix() for path in root.rglob("*.csv")}
    return [_facts(root, name, readers.get(name)) for name in sorted({*readers, *there})]


def data_folder(given: Path | None) -> Path:
    """``given``, else the folder of the data sets. Raises DataError where there is none."""
    folder = given or find_data()
    if folder is None or not folder.is_dir():
        raise DataError(
            f"there is no folder {folder}"
            if folder
            else "no training data: set WATTCAST_DATA, or name a folder"
        )
    return folder


def _readers(root: Path) -> Readers:
    readers: dict[str, Callable[[], Found]] = {"power/kernel_names.csv": lambda: _names(root)}
    for source in sources().file:
        readers[f"power/raw/{source.name}"] = partial(_raw, source.id, root)
    for table in TABLES:
        readers[f"power/clean/{table}.csv"] = partial(_clean, table, root)
    return readers


def _facts(root: Path, name: str, read: Callable[[], Found] | None) -> TableFacts:
    path = root / name
    if not path.is_file():
        return TableFacts(name, "missing", problem=f"{name} is not there")
    found_sha256 = sha256_of(path)
    if read is None:
        return TableFacts(name, "unread", found_sha256)
    try:
        found = read()
    except DataError as error:
        return TableFacts(name, "defective", found_sha256, problem=str(error))
    return TableFacts(
        name,
        found.state,
        found_sha256,
        found.rows,
        found.kept,
        {rule: count for rule, count in found.dropped.items() if count},
        {what: count for what, count in found.noted.items() if count},
        found.fingerprint,
    )


def _raw(source_id: str, root: Path) -> Found:
    raw, table = read_raw(source_id, root), clean(source_id, root)
    rows = table.training_rows
    idle = len(table.frame) - len(rows)
    zero = table.frame["flag"].str.contains("iic_zero")
    short = table.frame["flag"].str.contains("short_run")
    blind = table.frame["flag"].str.contains("time_not_kernel")
    return Found(
        "complete" if raw.complete else "shortened",
        len(raw.rows),
        len(rows),
        fingerprint(
            rows[list(MODEL_INPUTS)].to_numpy(float),
            rows["power_w"].to_numpy(float),
            rows["kernel_group"].tolist(),
        ),
        {**table.dropped, "5 idle_power": idle},
        {
            "4 named by rule": table.named_by_rule,
            "10 iic_zero": int(zero.sum()),
            "10 short_run": int(short.sum()),
            "10 time_not_kernel": int(blind.sum()),
        },
    )


def _names(root: Path) -> Found:
    names = read_kernel_names(root)
    return Found("sound", len(names), len(names), digest(sorted(map(repr, names.items()))))


def _clean(table: str, root: Path) -> Found:
    return _frame(read_clean(table, root))


def _frame(frame: pd.DataFrame) -> Found:
    return Found("sound", len(frame), len(frame), digest_of_frame(frame))


def digest_of_frame(frame: pd.DataFrame) -> str:
    """sha256 of the rows, however their file is written."""
    # Lines of the file are bookkeeping; the same rows elsewhere are the same rows.
    columns = sorted(name for name in frame.columns if name not in ("line", "src_row"))
    text = frame[columns].to_csv(index=False, lineterminator="\n")
    return hashlib.sha256(text.encode()).hexdigest()


def digest(lines: Iterable[str]) -> str:
    """sha256 of lines of text."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
