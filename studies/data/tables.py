"""``python -m studies tables [DIR]``: what ``wattcast data check`` prints, of all published tables.

The exit status is 1 if a table is defective.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from studies.data.activity_tables import ACTIVITY_GPUS, read_activity_table
from studies.data.frequency import OPCODE_COUNTS, file_names, read_frequency, read_opcode_counts
from studies.data.launches import launches_path, read_launches
from wattcast.features.errors import DataError
from wattcast.models.cards import Source, sha256_of
from wattcast.training.data.datasets import SOURCES_FILE, data_root, sources
from wattcast.training.data.inventory import (
    Found,
    Readers,
    data_folder,
    digest,
    digest_of_frame,
    inventory,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m studies tables", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="else where training looks")
    root = data_folder(parser.parse_args(arguments).folder)
    tables = inventory(root, readers(root))
    print(json.dumps([asdict(each) for each in tables], indent=2))
    return int(any(each.state == "defective" for each in tables))


def readers(root: Path) -> Readers:
    """Readers of the tables that only studies read, below ``root``."""
    time_table = launches_path(root)
    return {
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


def _frequency(campaign: str, root: Path) -> Found:
    table = read_frequency(campaign, root)
    kept = len(table.frame)
    rows = kept + sum(table.dropped.values())
    return Found("sound", rows, kept, digest_of_frame(table.frame), table.dropped, table.noted)


def _activity(gpu: str, root: Path) -> Found:
    return _records(read_activity_table(gpu, root))


def _launches(path: Path) -> Found:
    return _records(read_launches(path))


def _opcodes(root: Path) -> Found:
    frame = read_opcode_counts(root)
    return Found("sound", len(frame), len(frame), digest_of_frame(frame))


def _records(rows: tuple[object, ...]) -> Found:
    # The repr of a float is exact, so that equal records have equal text.
    return Found("sound", len(rows), len(rows), digest(map(repr, rows)))
