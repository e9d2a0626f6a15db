"""The activity tables: what programs do by a PTX analysis, beside what they were measured at.

One row per program and clock pair: activities (quantities of ``activity1``, totals over all
launches of one program iteration), watts, seconds, and hardware counters where a file has them.
The activities of the data folder come from a prototype's analysis of public PTX, the measurements
from the frequency-scaling data (docs/bottleneck.md names both).

``python -m studies activity FOLDER`` makes the tables of the public programs anew, as the service
answers (``studies/fitting/physical/served_activity.py``). WATTCAST_ACTIVITY names that folder.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast

import pandas as pd

from wattcast.features.activity import Activity
from wattcast.features.errors import DataError
from wattcast.models.clocks import ClockPair
from wattcast.models.power.activities import UnitActivities
from wattcast.models.time.bottleneck import CONSTANTS
from wattcast.training.data.datasets import data_root, number, read_table, text

ACTIVITY_GPUS = ("tesla-v100", "quadro-rtx-8000", "gtx-1080-ti", "tesla-p100")
"""GPUs with an activity table; the file is named like the GPU."""

TABLE_CONSTANTS = replace(CONSTANTS, reread_locality=0.6)
"""Constants of the time model for these tables.

Their DRAM sectors come from a rule that takes a block's whole footprint for its working set and
data-dependent indices for random. Where it lets data be read again, hardware counters of
GTX 1080 Ti and Tesla P100 confirm this share of it: gaussian .62 and .43, binomialOptions 1.22 and
.71, cfd 0 (``nvprof_dram_*`` beside ``footprint_bytes``; docs/bottleneck.md)."""

Kind = Literal["real", "micro"]

_NOT_TABULATED = frozenset(
    {"fp16_instructions", "tensor_instructions", "atomic_requests", "local_sectors"}
)
"""Quantities of ``activity1`` that the tables do not hold; 0 stands in."""

_COUNTED = tuple(field.name for field in fields(Activity) if field.name not in _NOT_TABULATED)


@dataclass(frozen=True, slots=True)
class MeasuredProgram:
    """One program at one clock pair. ``program`` is its name, ``variant`` its input, if any.

    ``counters`` holds what hardware counted (``dcgm_*`` shares, ``nvprof_*`` counts).
    """

    gpu: str
    program: str
    variant: str
    kind: Kind
    clocks: ClockPair
    power_watts: float
    time_seconds: float
    activity: Activity
    counters: Mapping[str, float]

    @property
    def label(self) -> tuple[str, str]:
        """What is the same program with the same input at other clocks."""
        return self.program, self.variant


def activity_path(gpu: str, root: Path | None = None) -> Path:
    """The activity table of a GPU below the data folder."""
    return (root or data_root()) / "activity" / f"{gpu}.csv"


@lru_cache(maxsize=8)
def read_activity_table(gpu: str, root: Path | None = None) -> tuple[MeasuredProgram, ...]:
    """All rows of one GPU. Raises DataError for a missing file or a cell that does not fit."""
    path = activity_path(gpu, root)
    columns = {
        "gpu": text(choices=(gpu,)),
        "benchmark": text(),
        "args": text(nullable=True),
        "kind": text(choices=("real", "micro")),
        **{name: number(positive=True) for name in ("core_mhz", "memory_mhz")},
        **{name: number(positive=True) for name in ("power_watts", "time_seconds")},
        **{name: number() for name in _COUNTED},
    }
    frame = read_table(path, columns)
    counters = [name for name in frame.columns if name.startswith(("dcgm_", "nvprof_"))]
    return tuple(_row(row, counters) for row in frame.to_dict("records"))


def _row(row: Mapping[Hashable, Any], counters: Iterable[str]) -> MeasuredProgram:
    def value(name: str) -> float:
        return float(row[name])

    counts = {name: value(name) for name in _COUNTED}
    return MeasuredProgram(
        gpu=str(row["gpu"]),
        program=str(row["benchmark"]),
        variant="" if pd.isna(row["args"]) else str(row["args"]),
        kind=cast(Kind, row["kind"]),
        clocks=ClockPair(value("core_mhz"), value("memory_mhz")),
        power_watts=value("power_watts"),
        time_seconds=value("time_seconds"),
        activity=Activity(**counts, **dict.fromkeys(_NOT_TABULATED, 0.0)),
        counters={name: value(name) for name in counters},
    )


def reference_clocks(rows: Iterable[MeasuredProgram]) -> ClockPair:
    """The highest pair a table was measured at, which scaling factors refer to."""
    return max(row.clocks for row in rows)


SERVED_FOLDER = "WATTCAST_ACTIVITY"
"""Environment variable: the folder that ``python -m studies activity`` wrote."""


@dataclass(frozen=True, slots=True)
class ServedProgram:
    """One program at one clock pair of a campaign, asked as users ask.

    ``power_watts`` and ``time_seconds`` are measured, the others are the service's:
    ``predicted_seconds``, the units' activities in that time, and the counts ``activity``.
    """

    gpu: str
    campaign: str
    program: str
    clocks: ClockPair
    power_watts: float
    time_seconds: float
    predicted_seconds: float
    units: UnitActivities
    activity: Activity


def served_folder() -> Path | None:
    """Where the tables made anew lie, or ``None`` where nobody says."""
    given = os.environ.get(SERVED_FOLDER)
    return Path(given) if given else None


def served_path(gpu: str) -> Path:
    """The table made anew of a GPU. Raises DataError where WATTCAST_ACTIVITY is not set."""
    folder = served_folder()
    if folder is None:
        raise DataError(
            "the activity tables of the service are needed: python -m studies activity FOLDER, "
            f"then set {SERVED_FOLDER} to FOLDER"
        )
    return folder / f"{gpu}.csv"


@lru_cache(maxsize=8)
def _served_table(path: Path) -> tuple[ServedProgram, ...]:
    counts = [field.name for field in fields(Activity)]
    columns = {
        **{name: text() for name in ("gpu", "campaign", "program")},
        **{name: number(positive=True) for name in ("core_mhz", "memory_mhz")},
        **{
            name: number(positive=True)
            for name in ("power_watts", "time_seconds", "predicted_seconds")
        },
        **{f"unit_{name}": number() for name in UnitActivities._fields},
        **{name: number() for name in counts},
    }
    return tuple(
        ServedProgram(
            gpu=str(row["gpu"]),
            campaign=str(row["campaign"]),
            program=str(row["program"]),
            clocks=ClockPair(float(row["core_mhz"]), float(row["memory_mhz"])),
            power_watts=float(row["power_watts"]),
            time_seconds=float(row["time_seconds"]),
            predicted_seconds=float(row["predicted_seconds"]),
            units=UnitActivities(*(float(row[f"unit_{one}"]) for one in UnitActivities._fields)),
            activity=Activity(**{name: float(row[name]) for name in counts}),
        )
        for row in read_table(path, columns).to_dict("records")
    )


def read_served_table(gpu: str) -> tuple[ServedProgram, ...]:
    """All rows of one GPU as the service answers. Raises DataError."""
    return _served_table(served_path(gpu))
