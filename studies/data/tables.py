"""Where a table of the data folder comes from."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

from wattcast.features.errors import DataError
from wattcast.models.cards import Source, sha256_of
from wattcast.training.data.datasets import SOURCES_FILE, data_root, sources


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
