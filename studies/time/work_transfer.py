"""The physical estimate on GPUs it was not fitted to: Wang and Chu's kernels with their counters.

Their files hold measured times over core and memory clocks beside nvprof's counts of the same
kernels. The constants come from one GPU at one pair of clocks; nothing here is fitted.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from studies.time.queueing_errors import DATA_SETS, DataSet, read_data_set
from wattcast.features.errors import DataError
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.memory import SECTOR_BYTES
from wattcast.models.clocks import ClockPair
from wattcast.models.time.calibration import TimeIntervals
from wattcast.models.time.measured_work import Work, combined_seconds, part_seconds
from wattcast.training.card_tables import table

COUNTERS = (
    "blocks",
    "dram_read_transactions",
    "dram_write_transactions",
    "inst_integer",
    "flop_count_sp",
    "flop_count_dp",
)
"""What a file must hold; its ``blocks`` are "(grid) (block)"."""

_DIMENSIONS = re.compile(r"\(([0-9 ]+)\)\s*\(([0-9 ]+)\)")


def work_of_counters(row: pd.Series, file: str = "") -> Work:
    """The work of a row of nvprof counts. Raises DataError for a launch of another form."""
    found = _DIMENSIONS.fullmatch(str(row["blocks"]))
    if not found:
        raise DataError(
            f"{file}: blocks is {row['blocks']!r}, not (grid) (block)", file=file, column="blocks"
        )
    grid, block = (tuple(int(size) for size in part.split()) for part in found.groups())
    sectors = row["dram_read_transactions"] + row["dram_write_transactions"]
    return Work(
        launch=Launch.of(grid, block),
        dram_bytes=float(sectors) * SECTOR_BYTES,
        int_ops=float(row["inst_integer"]),
        flops_sp=float(row["flop_count_sp"]),
        flops_dp=float(row["flop_count_dp"]),
    )


def transfer_table(intervals: TimeIntervals) -> str:
    """Errors of the physical estimate and what the ``uncalibrated`` interval holds, by GPU."""
    titles = ["GPU", "kernels", "times", "median APE %", "within 2x %", "mean of kernels",
              "inside the interval"]  # fmt: skip
    lines = []
    for data in DATA_SETS:
        frame = read_data_set(data)
        if set(COUNTERS) <= set(frame):
            lines.append(_line(data, frame.dropna(subset=[*COUNTERS]), intervals))
    return table(titles, lines)


def _line(data: DataSet, frame: pd.DataFrame, intervals: TimeIntervals) -> list[str]:
    gpu = load_gpu(data.gpu)
    errors, inside = [], []
    for _, row in frame.iterrows():
        clocks = ClockPair(float(row["core_mhz"]), float(row["mem_mhz"]))
        work = work_of_counters(row, data.file)
        seconds = combined_seconds(part_seconds(work, gpu, clocks))
        measured = float(row["time_ms"]) * 1e-3
        estimate = intervals.estimate(seconds, "uncalibrated")
        errors.append(np.log(seconds / measured))
        inside.append(estimate.low <= measured <= estimate.high)
    ape = pd.Series(np.abs(np.expm1(errors)), index=frame["kernel_name"])
    return [
        data.name,
        str(ape.index.nunique()),
        str(len(ape)),
        f"{100 * ape.median():.1f}",
        f"{100 * np.mean(np.abs(errors) <= np.log(2)):.0f}",
        f"{100 * ape.groupby(level=0).median().mean():.1f}",
        f"{np.mean(inside):.2f}",
    ]
