"""Training rows as the serving rules would compute them: no train/serve skew (rule 5b).

The published rows mix conventions. What the serving rules give from a row's own columns is
computed here by the functions that serve (``features.schemas``); what a row does not allow to
compute (static counts filled in by hand, say) stays as published, and the share of rows that
the serving rule reproduces is told per feature.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.occupancy import occupancy
from wattcast.features.schemas import formulas
from wattcast.features.schemas.schema import derive, launch_columns
from wattcast.features.schemas.tables import Definition, GpuTable

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

RELATIVE_TOLERANCE = 1e-3
"""A value counts as reproduced within 0.1 %, the tolerance of the specification's shares."""

K20_LATE_ROWS_AFTER = 1000
"""Rows of the K20 larger data set with a greater "Sr No." follow ``late_waves``."""

WAVE_COLUMNS = tuple(
    [f"{part}_{kind}_sm" for part in ("comp", "glob", "shar", "misc") for kind in ("inst", "lat")]
    + ["glob_load_sm", "glob_store_sm"]
)
"""Columns proportional to the simulated waves w, besides ``branch``."""


MISC_COMPUTE, _MISC_BRANCH, MISC_LABEL, MISC_RETURN = formulas.MISC_WEIGHTS


def recompute(rows: pd.DataFrame, definition: Definition, gpu: str) -> pd.DataFrame:
    """Published training rows of one thesis file -> the same rows by the serving rules.

    K20 rows after serial 1000 follow w = ceil(T / 2496): their wave-proportional columns are
    rescaled to the serving w. Then the static counts filled in by hand, the average latencies
    that follow from counts, the issue cycles, the penalties and the occupancy are computed anew.
    """
    table = definition.gpus[gpu]
    columns = numbers(rows)
    if gpu == "tesla-k20":
        columns |= _rescaled(columns, definition, table)
    w = launched(columns, definition, table)["simulated_waves"]
    columns["misc_inst_kernel"] = _misc_estimate(columns, w)
    # Without loop trips a dynamic count is w times the static one, filled in by hand or not.
    told = loop_free(columns, w) & whole(columns["glob_inst_sm"], w)
    columns["glob_inst_kernel"] = np.where(
        told, columns["glob_inst_sm"] / w, columns["glob_inst_kernel"]
    )
    columns |= latencies(columns, table, definition.rules.no_shared_latency)
    served = derived(columns, definition, table)
    for name in ("total_inst", "inst_issue_cycles", "cache_penalty", "glb_penalty", "sh_penalty"):
        if name in served and name not in table.blank:
            # A row that lacks an input keeps what was published.
            columns[name] = np.where(np.isnan(served[name]), columns[name], served[name])
    columns["occupancy"] = occupancies(rows, gpu)
    return rows.assign(**columns)


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


def numbers(rows: pd.DataFrame) -> dict[str, Floats]:
    """The numeric columns of rows, each ``[n]``."""
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
    late = late_waves(columns["total_threads"], table.sm_count)
    w = launched(columns, definition, table)["simulated_waves"]
    rows = columns["serial"] > K20_LATE_ROWS_AFTER
    out = {}
    for name in WAVE_COLUMNS:
        # Latencies are rarely whole; they scale with the count they belong to.
        count = columns[name.replace("_lat_", "_inst_")]
        out[name] = np.where(rows & whole(count, late), columns[name] * w / late, columns[name])
    branch = columns["branch"]
    # Fewer branches than waves: the static count was filled in without its factor w.
    static = rows & ~whole(branch, late) & (branch < late)
    out["branch"] = np.where(rows & whole(branch, late), branch * w / late, branch)
    out["branch"] = np.where(static, branch * w, out["branch"])
    out["total_inst"] = formulas.total_inst(
        *(out[f"{part}_inst_sm"] for part in ("comp", "glob", "shar", "misc"))
    )
    return out


def latencies(
    columns: Mapping[str, Floats], table: GpuTable, no_shared_latency: float
) -> dict[str, Floats]:
    """Columns of latencies in cycles that the GPU's table gives for the rows' counts."""
    loads, stores = columns["glob_load_sm"], columns["glob_store_sm"]
    threads = columns["total_threads"]
    cycles = np.vectorize(lambda count: float(table.load_cycles(count)), otypes=[float])(threads)
    store = np.vectorize(lambda count: float(table.store_cycles(count)), otypes=[float])(threads)
    average = mixed_global_latency(loads, stores, cycles, store)
    # Neither loads nor stores told, but global instructions counted: nothing to compute from.
    blind = (loads + stores == 0) & (columns["glob_inst_sm"] > 0)
    average = np.where(blind, columns["avg_glob_lat"], average)
    total = np.where(
        close(average, columns["avg_glob_lat"]),
        columns["glob_lat_sm"],
        average * columns["glob_inst_sm"],
    )
    shared = np.where(columns["shar_inst_sm"] > 0, table.shared_load, no_shared_latency)
    return {"avg_glob_lat": average, "glob_lat_sm": total, "avg_shar_lat": shared}


def derived(
    columns: Mapping[str, Floats], definition: Definition, table: GpuTable
) -> dict[str, Floats]:
    """What the serving rules give from a row's own columns."""
    launch = launched(columns, definition, table)
    return derive(table, definition.rules, {**columns, **launch})


def launched(
    columns: Mapping[str, Floats], definition: Definition, table: GpuTable
) -> dict[str, Floats]:
    """What the serving rules give from grid and block alone."""
    grid, block = columns["grid_size"], columns["block_size"]
    return launch_columns(table, definition.rules, grid, block)


def close(a: Floats, b: Floats) -> Bools:
    """Equal within ``RELATIVE_TOLERANCE``, or both missing."""
    return np.asarray(np.isclose(a, b, rtol=RELATIVE_TOLERANCE, atol=0, equal_nan=True))


def whole(count: Floats, waves: Floats) -> Bools:
    """Whether counts are whole multiples of the waves."""
    ratio = count / waves
    return np.asarray(np.abs(ratio - np.round(ratio)) < 1e-9)


def loop_free(columns: Mapping[str, Floats], waves: Floats) -> Bools:
    """Rows without loop trips: every loop has compute lines, which would count more often."""
    return close(columns["comp_inst_sm"], columns["comp_inst_kernel"] * waves)


def _misc_rest(columns: Mapping[str, Floats], waves: Floats) -> Floats:
    """misc_inst_sm / w - 3 compute - branches - 2 for one return: 3 labels + dynamic UNKNOWN."""
    rest = columns["misc_inst_sm"] / waves - MISC_COMPUTE * columns["comp_inst_kernel"]
    return np.asarray(rest - columns["branch"] / waves - MISC_RETURN)


def misc_possible(columns: Mapping[str, Floats], waves: Floats) -> Bools:
    """Whether misc_inst_kernel can be the count of UNKNOWN lines of the row's kernel.

    Without loop trips dynamic UNKNOWN is the static count, so the remainder must be three times
    a number of labels; with trips it is only bounded from below.
    """
    misc, rest = columns["misc_inst_kernel"], _misc_rest(columns, waves)
    free = loop_free(columns, waves)
    labels = whole(rest - misc, np.full_like(rest, MISC_LABEL))
    return np.asarray(whole(rest, np.ones_like(rest)) & (rest >= misc) & (labels | ~free))


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
    usable = whole(rest, np.ones_like(rest)) & (rest >= 0)
    usable &= estimate <= columns["comp_inst_kernel"]
    return np.where(~misc_possible(columns, waves) & usable, estimate, columns["misc_inst_kernel"])


def late_waves(threads: Floats, sm_count: int = 13, cores_per_sm: int = 192) -> Floats:
    """The other w of K20: ceil(T / (13 * 192)), in its rows after "Sr No." 1000.

    Never served; training rescales those rows to ``simulated_waves`` (accuracy.md rule 5b).
    Share: 99.6 % of 799 rows. Nothing of it is printed.
    """
    return np.asarray(np.ceil(threads / (sm_count * cores_per_sm)))


def mixed_global_latency(
    loads: Floats, stores: Floats, load_cycles: Floats, store_cycles: Floats
) -> Floats:
    """avg_glob_lat of M60, V100 and powerquant2026: (ld * L_ld + st * L_st) / (ld + st); else 0.

    alavani2023 on K20 charges ``load_latency`` for loads and stores alike instead (82-92 % of
    its rows). Printed: one latency for both. Share: 1.000 (V100, K80), .962 (M60).
    """
    cycles = loads * load_cycles + stores * store_cycles
    return formulas.average_latency(cycles, loads + stores)
