"""Tables that only studies read: power rows as others cleaned them; where a table comes from."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pandas as pd

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

TABLES = ("K20", "M60", "V100", *SM_COUNT)
"""Names of the tables, those of the files they were cleaned from (``sources.toml``)."""

FLAGS = ("idle_power", "iic_zero", "short_run", "time_not_kernel")
"""What the column ``flag`` may hold, each followed by a semicolon (rule 10)."""

_TEXT = ("benchmark", "kernel", "kernel_id", "family")
_POSITIVE = frozenset({"grid_size", "block_size", "total_threads", "power_w", "n_repeats"})
# What wattcast.training.data.cleaning keeps besides: not in these files.
_NOT_THERE = frozenset({"total_inst", "wtotal", "serial"})


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
