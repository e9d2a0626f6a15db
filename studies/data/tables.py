"""``python -m studies tables [DIR]``: what ``wattcast data check`` prints, of all published tables.

The exit status is 1 if a table is defective.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from studies import parser_of
from studies.data.activity_tables import ACTIVITY_GPUS, read_activity_table
from studies.data.frequency import OPCODE_COUNTS, file_names, read_frequency, read_opcode_counts
from studies.data.launches import launches_path, read_launches
from wattcast.features.errors import DataError
from wattcast.models.cards import Source, sha256_of
from wattcast.training.data.cleaning import NUMERIC_COLUMNS, SM_COUNT
from wattcast.training.data.datasets import (
    SOURCES_FILE,
    data_root,
    number,
    read_table,
    sources,
    text,
)
from wattcast.training.data.inventory import (
    Readers,
    TableFacts,
    data_folder,
    digest,
    inventory,
)

TABLES = ("K20", "M60", "V100", *SM_COUNT)
"""Names of the tables, those of the files they were cleaned from (``sources.toml``)."""

FLAGS = ("idle_power", "iic_zero", "short_run", "time_not_kernel")
"""What the column ``flag`` may hold, each followed by a semicolon (rule 10)."""

_TEXT = ("benchmark", "kernel", "kernel_id", "family")
_POSITIVE = frozenset({"grid_size", "block_size", "total_threads", "power_w", "n_repeats"})
# What wattcast.training.data.cleaning keeps besides: not in these files.
_NOT_THERE = frozenset({"total_inst", "wtotal", "serial"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = parser_of("tables", __doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="else where training looks")
    root = data_folder(parser.parse_args(arguments).folder)
    tables = inventory(root, readers(root))
    print(json.dumps([asdict(each) for each in tables], indent=2))
    return int(any(each.state == "defective" for each in tables))


def read_clean(name: str, root: Path | None = None) -> pd.DataFrame:
    """A table of ``power/clean``: published power rows as somebody else cleaned them, checked.

    Columns under their uniform names, blanks as NaN.

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


def readers(root: Path) -> Readers:
    """Readers of the tables that only studies read, below ``root``."""
    time_table = launches_path(root)
    return {
        **{f"power/clean/{each}.csv": partial(_clean, each, root) for each in TABLES},
        **{f"dvfs/{each}.csv": partial(_frequency, each, root) for each in file_names(root)},
        f"dvfs/{OPCODE_COUNTS}.csv": partial(_opcodes, root),
        **{f"activity/{gpu}.csv": partial(_activity, gpu, root) for gpu in ACTIVITY_GPUS},
        time_table.relative_to(root).as_posix(): partial(_launches, time_table),
    }


def source_of_table(path: Path, root: Path | None = None) -> Source:
    """The card entry of a table below the data folder, ``dvfs/wang_tesla_p100.csv`` say.

    Raises DataError for a table of unknown origin.
    """
    name = path.relative_to(root or data_root()).as_posix()
    for collection in sources().collection:
        if any(fnmatch(name, pattern) for pattern in collection.files):
            found = sha256_of(path)
            return Source(
                repository=collection.repository,
                path=name,
                sha256=found,
                used_sha256=found,
                licence=collection.licence,
            )
    raise DataError(f"{SOURCES_FILE.name} names no origin of {name}", file=name)


def digest_of_frame(frame: pd.DataFrame) -> str:
    """sha256 of the rows, however their file is written."""
    # Lines of the file are bookkeeping; the same rows elsewhere are the same rows.
    columns = sorted(name for name in frame.columns if name not in ("line", "src_row"))
    text = frame[columns].to_csv(index=False, lineterminator="\n")
    return hashlib.sha256(text.encode()).hexdigest()


def _sound(rows: int, kept: int, fingerprint: str, **more: Any) -> TableFacts:
    return TableFacts(state="sound", rows=rows, kept=kept, fingerprint=fingerprint, **more)


def _frequency(campaign: str, root: Path) -> TableFacts:
    table = read_frequency(campaign, root)
    kept = len(table.frame)
    rows = kept + sum(table.dropped.values())
    found = digest_of_frame(table.frame)
    return _sound(rows, kept, found, dropped=table.dropped, noted=table.noted)


def _activity(gpu: str, root: Path) -> TableFacts:
    return _records(read_activity_table(gpu, root))


def _launches(path: Path) -> TableFacts:
    return _records(read_launches(path))


def _opcodes(root: Path) -> TableFacts:
    return _frame(read_opcode_counts(root))


def _clean(table: str, root: Path) -> TableFacts:
    return _frame(read_clean(table, root))


def _frame(frame: pd.DataFrame) -> TableFacts:
    return _sound(len(frame), len(frame), digest_of_frame(frame))


def _records(rows: tuple[object, ...]) -> TableFacts:
    # The repr of a float is exact, so that equal records have equal text.
    return _sound(len(rows), len(rows), digest(map(repr, rows)))
