"""Training rows as the serving rules would compute them: no train/serve skew (rule 5b).

The published rows mix conventions. What the serving rules give from a row's own columns is
computed here by the functions that serve (``features.schemas``); what a row does not allow to
compute (static counts filled in by hand, say) stays as published, and the share of rows that
the serving rule reproduces is told per feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.occupancy import occupancy
from wattcast.features.schemas import formulas
from wattcast.features.schemas.schema import derive, launch_columns
from wattcast.features.schemas.tables import Definition, GpuTable
from wattcast.training.data.cleaning import MODEL_INPUTS

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

RELATIVE_TOLERANCE = 1e-3
"""A value counts as reproduced within 0.1 %, the tolerance of the specification's shares."""
OCCUPANCY_TOLERANCE = 0.005
"""Published occupancies are rounded to two decimals."""

WAVE_COLUMNS = tuple(
    [f"{part}_{kind}_sm" for part in ("comp", "glob", "shar", "misc") for kind in ("inst", "lat")]
    + ["glob_load_sm", "glob_store_sm"]
)
"""Columns proportional to the simulated waves w, besides ``branch``."""


MISC_COMPUTE, _MISC_BRANCH, MISC_LABEL, MISC_RETURN = formulas.MISC_WEIGHTS


class Share(NamedTuple):
    """Share of rows the serving rule reproduces (``None``: not decidable) and by which rule."""

    share: float | None
    note: str


@dataclass(frozen=True)
class Recomputed:
    """Rows by the serving rules, and how many rows changed in each model input."""

    frame: pd.DataFrame
    changed: dict[str, int]


def recompute(rows: pd.DataFrame, definition: Definition, gpu: str) -> Recomputed:
    """Published training rows of one thesis file -> the same rows by the serving rules.

    K20 rows after serial 1000 follow w = ceil(T / 2496): their wave-proportional columns are
    rescaled to the serving w. Then the static counts filled in by hand, the average latencies
    that follow from counts, the issue cycles, the penalties and the occupancy are computed anew.
    """
    table = definition.gpus[gpu]
    columns = _numbers(rows)
    if gpu == "tesla-k20":
        columns |= _rescaled(columns, definition, table)
    w = _launch(columns, definition, table)["simulated_waves"]
    columns["misc_inst_kernel"] = _misc_estimate(columns, w)
    # Without loop trips a dynamic count is w times the static one, filled in by hand or not.
    told = _loop_free(columns, w) & _whole(columns["glob_inst_sm"], w)
    columns["glob_inst_kernel"] = np.where(
        told, columns["glob_inst_sm"] / w, columns["glob_inst_kernel"]
    )
    columns |= _latencies(columns, table, definition.rules.no_shared_latency)
    served = _derived(columns, definition, table)
    for name in ("total_inst", "inst_issue_cycles", "cache_penalty", "glb_penalty", "sh_penalty"):
        if name in served and name not in table.blank:
            # A row that lacks an input keeps what was published.
            columns[name] = np.where(np.isnan(served[name]), columns[name], served[name])
    columns["occupancy"] = occupancies(rows, gpu)
    frame = rows.assign(**columns)
    changed = {
        name: int(np.sum(~_close(frame[name].to_numpy(float), rows[name].to_numpy(float))))
        for name in MODEL_INPUTS
    }
    return Recomputed(frame, {name: count for name, count in changed.items() if count})


def reproduced_shares(rows: pd.DataFrame, definition: Definition, gpu: str) -> dict[str, Share]:
    """Per model input, the share of ``rows`` whose value is what the serving rule gives."""
    table = definition.gpus[gpu]
    columns = _numbers(rows)
    w = _launch(columns, definition, table)["simulated_waves"]
    latencies = _latencies(columns, table, definition.rules.no_shared_latency)
    served = _derived(columns, definition, table)
    loads_and_stores = np.isclose(
        columns["glob_load_sm"] + columns["glob_store_sm"], columns["glob_inst_sm"]
    )

    free = _loop_free(columns, w)

    def share(reproduced: Bools, note: str) -> Share:
        return Share(float(np.mean(reproduced)), note)

    def same(name: str, value: Floats, note: str) -> Share:
        return share(_close(columns[name], value), note)

    return {
        "avg_comp_lat": same(
            "avg_comp_lat",
            formulas.average_latency(columns["comp_lat_sm"], columns["comp_inst_sm"]),
            "comp_lat_sm / comp_inst_sm of the row",
        ),
        "avg_glob_lat": same(
            "avg_glob_lat", latencies["avg_glob_lat"], "load and store latency of the GPU's table"
        ),
        "avg_shar_lat": same("avg_shar_lat", latencies["avg_shar_lat"], "36 with shared loads"),
        "branch": share(_whole(columns["branch"], w), "a whole multiple of the simulated waves"),
        "comp_inst_kernel": share(
            _static(columns["comp_inst_kernel"], columns["comp_inst_sm"], w),
            "comp_inst_sm per wave is whole and no less",
        ),
        "glob_inst_kernel": share(
            _static(columns["glob_inst_kernel"], columns["glob_inst_sm"], w)
            & (_close(columns["glob_inst_sm"], columns["glob_inst_kernel"] * w) | ~free),
            "glob_inst_sm per wave is whole and no less, and equal without loop trips",
        ),
        "glob_load_sm": share(
            _whole(columns["glob_load_sm"], w) & loads_and_stores,
            "a whole multiple of the waves, and loads + stores = glob_inst_sm",
        ),
        "glob_store_sm": share(
            _whole(columns["glob_store_sm"], w) & loads_and_stores,
            "a whole multiple of the waves, and loads + stores = glob_inst_sm",
        ),
        "misc_inst_kernel": share(
            _misc(columns, w),
            "what the weights of the other lines leave of misc_inst_sm; recomputed with one "
            "label per branch",
        ),
        "inst_issue_cycles": same(
            "inst_issue_cycles", served["inst_issue_cycles"], "formula on the row's total_inst"
        ),
        "cache_penalty": same("cache_penalty", served["cache_penalty"], "formula on the row"),
        "occupancy": share(
            np.abs(occupancies(rows, gpu) - columns["occupancy"]) <= OCCUPANCY_TOLERANCE,
            "occupancy calculator on the row, to two decimals",
        ),
        "reg_thread": Share(None, "measured by the compiler, not computed"),
        "shmem_block": Share(None, "measured by the compiler, not computed"),
        "block_size": Share(None, "given by the launch"),
    }


def occupancies(rows: pd.DataFrame, gpu: str) -> Floats:
    """Theoretical occupancy of every row by the function that serves, ``[n]``."""
    profile = load_gpu(gpu)
    names = ["grid_size", "block_size", "reg_thread", "shmem_block"]
    known: dict[tuple[int, ...], float] = {}
    values = []
    for row in rows[names].astype(int).itertuples(index=False, name=None):
        grid, block, registers, shared = row
        if row not in known:
            known[row] = occupancy(profile, Launch.of(grid, block), registers, shared).occupancy
        values.append(known[row])
    return np.array(values)


def _numbers(rows: pd.DataFrame) -> dict[str, Floats]:
    return {
        str(name): rows[name].to_numpy(float)
        for name in rows.columns
        if rows[name].dtype.kind in "fi"
    }


def _rescaled(
    columns: Mapping[str, Floats], definition: Definition, table: GpuTable
) -> dict[str, Floats]:
    """Late K20 rows from ``late_waves`` to the serving w; a column that no multiple of the
    late waves is was not made by that rule and stays."""
    late = formulas.late_waves(columns["total_threads"], table.sm_count)
    w = _launch(columns, definition, table)["simulated_waves"]
    rows = columns["serial"] > formulas.K20_LATE_ROWS_AFTER
    out = {}
    for name in WAVE_COLUMNS:
        # Latencies are rarely whole; they scale with the count they belong to.
        count = columns[name.replace("_lat_", "_inst_")]
        out[name] = np.where(rows & _whole(count, late), columns[name] * w / late, columns[name])
    branch = columns["branch"]
    # Fewer branches than waves: the static count was filled in without its factor w.
    static = rows & ~_whole(branch, late) & (branch < late)
    out["branch"] = np.where(rows & _whole(branch, late), branch * w / late, branch)
    out["branch"] = np.where(static, branch * w, out["branch"])
    out["total_inst"] = formulas.total_inst(
        *(out[f"{part}_inst_sm"] for part in ("comp", "glob", "shar", "misc"))
    )
    return out


def _latencies(
    columns: Mapping[str, Floats], table: GpuTable, no_shared_latency: float
) -> dict[str, Floats]:
    loads, stores = columns["glob_load_sm"], columns["glob_store_sm"]
    threads = columns["total_threads"]
    cycles = np.vectorize(lambda count: float(table.load_cycles(count)), otypes=[float])(threads)
    store = np.vectorize(lambda count: float(table.store_cycles(count)), otypes=[float])(threads)
    average = formulas.mixed_global_latency(loads, stores, cycles, store)
    # Neither loads nor stores told, but global instructions counted: nothing to compute from.
    blind = (loads + stores == 0) & (columns["glob_inst_sm"] > 0)
    average = np.where(blind, columns["avg_glob_lat"], average)
    total = np.where(
        _close(average, columns["avg_glob_lat"]),
        columns["glob_lat_sm"],
        average * columns["glob_inst_sm"],
    )
    shared = np.where(columns["shar_inst_sm"] > 0, table.shared_load, no_shared_latency)
    return {"avg_glob_lat": average, "glob_lat_sm": total, "avg_shar_lat": shared}


def _derived(
    columns: Mapping[str, Floats], definition: Definition, table: GpuTable
) -> dict[str, Floats]:
    launch = _launch(columns, definition, table)
    return derive(table, definition.rules, {**columns, **launch})


def _launch(
    columns: Mapping[str, Floats], definition: Definition, table: GpuTable
) -> dict[str, Floats]:
    grid, block = columns["grid_size"], columns["block_size"]
    return launch_columns(table, definition.rules, grid, block)


def _close(a: Floats, b: Floats) -> Bools:
    return np.asarray(np.isclose(a, b, rtol=RELATIVE_TOLERANCE, atol=0, equal_nan=True))


def _whole(count: Floats, waves: Floats) -> Bools:
    ratio = count / waves
    return np.asarray(np.abs(ratio - np.round(ratio)) < 1e-9)


def _static(static: Floats, dynamic: Floats, waves: Floats) -> Bools:
    """Whether a static count and its dynamic one can be those of one kernel."""
    possible = (dynamic / waves >= static) & ((static > 0) == (dynamic > 0))
    return np.asarray(_whole(dynamic, waves) & possible)


def _loop_free(columns: Mapping[str, Floats], waves: Floats) -> Bools:
    """Rows without loop trips: every loop has compute lines, which would count more often."""
    return _close(columns["comp_inst_sm"], columns["comp_inst_kernel"] * waves)


def _misc_rest(columns: Mapping[str, Floats], waves: Floats) -> Floats:
    """misc_inst_sm / w - 3 compute - branches - 2 for one return: 3 labels + dynamic UNKNOWN."""
    rest = columns["misc_inst_sm"] / waves - MISC_COMPUTE * columns["comp_inst_kernel"]
    return np.asarray(rest - columns["branch"] / waves - MISC_RETURN)


def _misc(columns: Mapping[str, Floats], waves: Floats) -> Bools:
    """Whether misc_inst_kernel can be the count of UNKNOWN lines of the row's kernel.

    Without loop trips dynamic UNKNOWN is the static count, so the remainder must be three times
    a number of labels; with trips it is only bounded from below.
    """
    misc, rest = columns["misc_inst_kernel"], _misc_rest(columns, waves)
    loop_free = _loop_free(columns, waves)
    labels = _whole(rest - misc, np.full_like(rest, MISC_LABEL))
    return np.asarray(_whole(rest, np.ones_like(rest)) & (rest >= misc) & (labels | ~loop_free))


def _misc_estimate(columns: Mapping[str, Floats], waves: Floats) -> Floats:
    """misc_inst_kernel of rows where the column was filled by hand, else the column.

    The files hold there the weighted count misc_inst_sm per wave, zero, or the count of UNKNOWN
    lines, which alone is served. From a row it follows but for the number of labels, taken as
    one per branch as far as the remainder allows; for five of the six kernels whose counts the
    specification states (bfs 1 and 2, saxpy, vecAdd3, BlackScholes, not clock) that is exact.
    An estimate above the compute count comes from loop trips and is not used.
    """
    rest = _misc_rest(columns, waves)
    labels = np.minimum(np.round(columns["branch"] / waves), np.floor(rest / MISC_LABEL))
    estimate = rest - MISC_LABEL * labels
    usable = _whole(rest, np.ones_like(rest)) & (rest >= 0)
    usable &= estimate <= columns["comp_inst_kernel"]
    return np.where(~_misc(columns, waves) & usable, estimate, columns["misc_inst_kernel"])
