"""What data are there: every table read, checked and counted.

inventory(root)   one ``TableFacts`` for each power table that can be read or should be there

Other tables are ``unread``: only studies read them (``python -m studies tables`` checks those).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from wattcast.features.errors import DataError
from wattcast.models.cards import sha256_of
from wattcast.training.data import datasets
from wattcast.training.data.cleaning import MODEL_INPUTS, clean
from wattcast.training.provenance import fingerprint

State = Literal["complete", "shortened", "sound", "defective", "missing", "unread"]
"""``complete``: the upstream file, by its checksum; ``shortened``: readable, but not that file;
``sound``: readable, and no upstream file to hold it against; ``unread``: nothing here reads it."""


@dataclass(frozen=True)
class TableFacts:
    """One table. ``rows`` as in the file, ``kept`` of them after cleaning.

    ``dropped`` counts rows by rule, ``noted`` what was kept although something is odd.
    ``fingerprint`` is a sha256 of the rows kept, the same however the file is written; that of a
    power file is of its vectors, watts and kernel groups, before any recomputing. ``problem``
    says what is wrong with a defective or missing table. Readers of sound tables leave ``path`` and
    ``sha256`` to ``inventory``.
    """

    path: str = ""
    state: State = "missing"
    sha256: str = ""
    rows: int = 0
    kept: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    noted: Mapping[str, int] = field(default_factory=dict)
    fingerprint: str = ""
    problem: str = ""


Readers = Mapping[str, Callable[[], TableFacts]]
"""Path of a table below the data folder -> what reads and counts it."""


def inventory(root: Path, further: Readers = MappingProxyType({})) -> list[TableFacts]:
    """Facts of every table below ``root``, sorted by path: also of those missing or defective.
    ``further`` reads tables besides those of power."""
    readers = {**_readers(root), **further}
    there = {path.relative_to(root).as_posix() for path in root.rglob("*.csv")}
    return [_facts(root, name, readers.get(name)) for name in sorted({*readers, *there})]


def data_folder(given: Path | None) -> Path:
    """``given``, else the folder of the data sets. Raises DataError where there is none."""
    folder = given or datasets.find_data()
    if folder is None or not folder.is_dir():
        raise DataError(
            f"there is no folder {folder}"
            if folder
            else "no training data: set WATTCAST_DATA, or name a folder"
        )
    return folder


def _readers(root: Path) -> Readers:
    readers: dict[str, Callable[[], TableFacts]] = {"power/kernel_names.csv": lambda: _names(root)}
    for source in datasets.sources().file:
        readers[f"power/raw/{source.name}"] = partial(_raw, source.id, root)
    return readers


def _facts(root: Path, name: str, read: Callable[[], TableFacts] | None) -> TableFacts:
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
    dropped = {rule: count for rule, count in found.dropped.items() if count}
    noted = {what: count for what, count in found.noted.items() if count}
    return replace(found, path=name, sha256=found_sha256, dropped=dropped, noted=noted)


def _raw(source_id: str, root: Path) -> TableFacts:
    raw, table = datasets.read_raw(source_id, root), clean(source_id, root)
    rows = table.training_rows
    idle = len(table.frame) - len(rows)
    zero = table.frame["flag"].str.contains("iic_zero")
    short = table.frame["flag"].str.contains("short_run")
    blind = table.frame["flag"].str.contains("time_not_kernel")
    return TableFacts(
        state="complete" if raw.complete else "shortened",
        rows=len(raw.text),
        kept=len(rows),
        fingerprint=fingerprint(
            rows[list(MODEL_INPUTS)].to_numpy(float),
            rows["power_w"].to_numpy(float),
            rows["kernel_group"].tolist(),
        ),
        dropped={**table.dropped, "5 idle_power": idle},
        noted={
            "4 named by rule": table.named_by_rule,
            "10 iic_zero": int(zero.sum()),
            "10 short_run": int(short.sum()),
            "10 time_not_kernel": int(blind.sum()),
        },
    )


def _names(root: Path) -> TableFacts:
    names = datasets.read_kernel_names(root)
    count, found = len(names), digest(sorted(map(repr, names.items())))
    return TableFacts(state="sound", rows=count, kept=count, fingerprint=found)


def digest(lines: Iterable[str]) -> str:
    """sha256 of lines of text."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
