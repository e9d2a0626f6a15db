"""Reads ``power/clean``: the published power rows as somebody else cleaned them.

``training.data.cleaning`` makes the same rows from the published files; these are there to hold it
against, and for users who want no cleaning of their own.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from wattcast.training.data.cleaning import NUMERIC_COLUMNS, SM_COUNT
from wattcast.training.data.datasets import data_root
from wattcast.training.data.tables import number, read_table, text

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
