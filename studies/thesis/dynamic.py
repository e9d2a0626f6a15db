"""The model from events measured at run time: thesis Appendix A, on nvprof tables at many clocks.

The thesis predicts time, power and energy from 42 counters of CUPTI, the block size, registers
and both clocks. The frequency campaigns hold such counts of other programs on other GPUs: sectors
at DRAM, L2 and L1, instructions by kind, active cycles. They have no registers. Throughputs are
left out: a count over its throughput IS the time.

A campaign's rows are programs at many pairs of clocks, so random folds leave the same program at
neighbouring clocks in training, with the same counts. That, not insight, is what R2 near 1 says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression

from studies.data.frequency import NVPROF_COUNTS, NVPROF_INSTRUCTIONS, read_frequency
from studies.thesis.data import median_filled
from studies.thesis.judged import Effort, Judged, judge
from studies.thesis.regressors import REGRESSORS, scaled
from wattcast.training.evaluation.splits import FitPredict, Rows
from wattcast.training.families import SEED

CAMPAIGNS = (
    "wang_gtx_980_low",
    "wang_gtx_980_high",
    "wang_gtx_1080_ti",
    "wang_tesla_p100",
    "wang_tesla_v100",
)
"""Campaigns with nvprof counters, time and power."""

QUANTITIES: Mapping[str, str] = MappingProxyType({"energy": "J", "power": "W", "time": "s"})
"""What is predicted, and its unit: the columns of the appendix' Table 1."""

FOREST_TREES = 100
"""The appendix prints no parameters; these tables have a few hundred rows."""


def _forest() -> RandomForestRegressor:
    return RandomForestRegressor(FOREST_TREES, random_state=SEED)


MODELS: Mapping[str, FitPredict] = MappingProxyType(
    {
        "linear": scaled(LinearRegression),
        "random-forest": scaled(_forest),
        "xgboost": REGRESSORS["xgboost"],
    }
)

COUNTERS = (
    *NVPROF_COUNTS,
    *NVPROF_INSTRUCTIONS,
    "shared_load_transactions_per_request",
    "shared_store_transactions_per_request",
    "l2_tex_read_transactions",
    "inst_per_warp",
    "warps",
    "achieved_occupancy",
    "branch_efficiency",
    "warp_execution_efficiency",
)
"""Events of a launch, as far as a file has them."""


class DynamicTable(NamedTuple):
    """Rows of a campaign: inputs ``[n, k]`` by name, quantities ``[n]``, programs ``[n]``."""

    gpu: str
    inputs: pd.DataFrame
    quantities: Mapping[str, pd.Series]
    programs: pd.Series

    def rows(self, quantity: str) -> Rows:
        """Rows whose "watts" are the quantity, grouped by program."""
        return Rows.of(
            self.inputs.to_numpy(float), self.quantities[quantity].to_numpy(float), self.programs
        )


class DynamicStudy(NamedTuple):
    """One campaign: quantity -> model -> predictions; the forest's importances for power."""

    gpu: str
    judged: Mapping[str, Mapping[str, Judged]]
    importances: Mapping[str, float]


def study_dynamic(
    effort: Effort, campaigns: tuple[str, ...] = CAMPAIGNS, root: Path | None = None
) -> dict[str, DynamicStudy]:
    """Campaign -> the study on it. Raises DataError for missing or defective data."""
    found = {}
    for campaign in campaigns:
        effort.progress(campaign)
        table = dynamic_table(campaign, root)
        judged = {
            quantity: {
                model: judge(model, table.rows(quantity), fit_predict, effort)
                for model, fit_predict in MODELS.items()
            }
            for quantity in QUANTITIES
        }
        found[campaign] = DynamicStudy(table.gpu, judged, _importances(table))
    return found


def dynamic_table(campaign: str, root: Path | None = None) -> DynamicTable:
    """Counters, launch and clocks of every row, and what was measured. Raises DataError."""
    table = read_frequency(campaign, root)
    frame = table.frame
    inputs = frame[[name for name in COUNTERS if name in frame]].astype(float)
    cycles = "ipc" if "ipc" in frame else "executed_ipc"
    inputs = inputs.assign(
        core_mhz=frame["core_mhz"],
        memory_mhz=frame["memory_mhz"],
        block_size=frame["blocks"].map(threads_per_block),
        # What the thesis' event active_cycles counts, summed over SMs.
        active_cycles=frame["inst_executed"] / frame[cycles].astype(float),
    )
    power, time = frame["power_watts"], frame["time_seconds"]
    return DynamicTable(
        table.gpu, inputs, {"energy": power * time, "power": power, "time": time}, frame["group"]
    )


def threads_per_block(launch: object) -> float:
    """Threads of a block from ``(grid) (block)``; NaN where that is not what the cell holds."""
    sizes = re.findall(r"\((\d+) (\d+) (\d+)\)", str(launch))
    return float(np.prod([int(size) for size in sizes[1]])) if len(sizes) == 2 else float("nan")


def _importances(table: DynamicTable) -> dict[str, float]:
    rows = table.rows("power")
    forest = _forest().fit(median_filled(rows.vectors), rows.watts)
    shares = zip(table.inputs.columns, forest.feature_importances_, strict=True)
    return dict(sorted(((str(a), float(b)) for a, b in shares), key=lambda one: -one[1]))
