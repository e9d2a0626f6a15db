"""The published rows, recomputed from their own columns; prints the share that agrees."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from studies.data import recompute as recomputing
from wattcast.features.schemas import formulas, get_schema
from wattcast.features.schemas.schema import derive, launch_columns

Columns = Mapping[str, NDArray[np.float64]]

DATA = Path(os.environ.get("WATTCAST_DATA") or Path(__file__).parents[3] / "shared" / "data")

THESIS = {
    "tesla-k20": "Power Model Inputs - K20_larger_dataset.csv",
    "tesla-m60": "Power Model Inputs - Maxwell_data.csv",
    "tesla-v100": "Power Model Inputs - V100_data.csv",
}
POWERQUANT = {
    "tesla-k80": "all_merge_df_K80.csv",
    "tesla-v100": "all_merge_df_Tesla.csv",
    "ampere-84sm": "all_merge_df_Ampere.csv",
    "ada-24sm": "all_merge_df_AdaLovelace.csv",
}
NAMES = {
    "Total Threads": "total_threads",
    "global_Throughput": "Global_Throughput",
    "GridSize": "grid_size",
    "BlockSize": "block_size",
    "Comp_inst_kernel": "comp_inst_kernel",
}
POWERQUANT_TOTALS = {"saxpy": 53, "bfs2": 73, "BlackScholes_kernel": 485}
"""total_inst of one wave where PTX is known (specification, section 7)."""

FLOORS = {
    # (GPU, column): the least share that must agree. 0.99 and 0.985 are the project's demand;
    # the others are the shares stated for the complete files, less the rows missing here.
    **{(gpu, "inst_issue_cycles"): 0.99 for gpu in THESIS},
    **{(gpu, "cache_penalty"): 0.985 for gpu in THESIS},
    ("tesla-k20", "glb_penalty"): 0.99,
    ("tesla-m60", "glb_penalty"): 0.99,
    **{(gpu, "total_inst"): 0.985 for gpu in THESIS},
    **{(gpu, "total_threads"): 0.998 for gpu in THESIS},
    **{(gpu, "wtotal"): 0.998 for gpu in THESIS},
    **{(gpu, "avg_comp_lat"): 0.96 for gpu in THESIS},
    ("tesla-k20", "avg_glob_lat"): 0.82,
    ("tesla-m60", "avg_glob_lat"): 0.95,
    ("tesla-v100", "avg_glob_lat"): 0.99,
    ("tesla-k20", "glob_inst_sm"): 0.89,
    ("tesla-m60", "glob_inst_sm"): 0.92,
    ("tesla-v100", "glob_inst_sm"): 0.97,
    ("tesla-k20", "Global_Throughput"): 0.99,
    ("tesla-m60", "Global_Throughput"): 0.99,
    ("tesla-k20", "sh_throughput"): 0.99,
    ("tesla-m60", "sh_throughput"): 0.99,
    ("tesla-k20", "sh_penalty"): 0.99,
    ("tesla-m60", "sh_penalty"): 0.70,
    ("tesla-k20", "n_warps"): 0.99,
    ("tesla-k20", "waves"): 0.99,
    **{(gpu, "simulated waves"): 0.90 for gpu in THESIS},
    ("tesla-k20", "late waves"): 0.99,
}

Show = Callable[[str], None]


@pytest.fixture
def show(record_property: Callable[[str, object], None]) -> Show:
    """Print after the run (tests/features/conftest.py), also from pytest-xdist's workers."""
    return lambda text: record_property("table", text)


def read(name: str, folder: str = "raw") -> pd.DataFrame:
    """A published or cleaned file: columns by their names in the schemas, NaN where no number."""
    path = DATA / "power" / folder / name
    if not path.is_file():
        pytest.skip(f"published data not found: {path.name} under WATTCAST_DATA or ../shared/data")
    frame = pd.read_csv(path, encoding="utf-8-sig", dtype=str)
    frame.columns = [NAMES.get(cell, cell.replace("_sim", "_sm")) for cell in map(str.strip, frame)]
    kernel = frame.get("KernelName", frame.get("Kernel Name"))
    numbers = frame.apply(pd.to_numeric, errors="coerce").assign(kernel=kernel)
    return numbers[frame["grid_size"].notna()]


def columns_of(frame: pd.DataFrame) -> dict[str, NDArray[np.float64]]:
    """The numeric columns."""
    return {name: column.to_numpy(float) for name, column in frame.drop(columns="kernel").items()}


def agree(
    computed: NDArray[np.float64], published: NDArray[np.float64], decimals: float = 0.0
) -> NDArray[np.bool_]:
    """Within 0.1 %, or within half a unit of the last decimal that the file prints."""
    return np.abs(computed - published) <= np.maximum(1e-3 * np.abs(published), decimals)


def recompute(gpu_id: str, rows: Columns) -> dict[str, NDArray[np.float64]]:
    """Every column that others of the row give, by the serving code."""
    schema = get_schema("alavani2023")
    table = schema.table(gpu_id)
    threads, loads, stores = rows["total_threads"], rows["glob_load_sm"], rows["glob_store_sm"]
    launch = launch_columns(table, schema.rules, rows["grid_size"], rows["block_size"])
    counted = {name: column for name, column in rows.items() if name != "total_inst"}
    out = derive(table, schema.rules, rows) | {
        "total_inst": derive(table, schema.rules, counted)["total_inst"],
        "total_threads": launch["total_threads"],
        "avg_comp_lat": formulas.average_latency(rows["comp_lat_sm"], rows["comp_inst_sm"]),
        "avg_glob_lat": recomputing.mixed_global_latency(
            loads, stores, table.load_cycles(threads), table.store_cycles(threads)
        ),
        "glob_inst_sm": loads + stores,
    }
    if gpu_id == "tesla-k20":
        out |= {name: launch[name] for name in ("n_warps", "waves")}
    return out


def wave_shares(gpu_id: str, rows: Columns) -> dict[str, tuple[int, float]]:
    """Rows whose comp_inst_sm is a whole multiple of comp_inst_kernel, and the share w gives."""
    schema = get_schema("alavani2023")
    table = schema.table(gpu_id)
    kernel = np.where(rows["comp_inst_kernel"] > 0, rows["comp_inst_kernel"], np.nan)
    waves = rows["comp_inst_sm"] / kernel
    whole = (waves > 0) & (np.abs(waves - np.round(waves)) < 1e-9)
    launch = launch_columns(table, schema.rules, rows["grid_size"], rows["block_size"])
    late = np.zeros(len(waves), dtype=bool)
    shares = {}
    if gpu_id == "tesla-k20":
        late = rows["Sr No."] > recomputing.K20_LATE_ROWS_AFTER
        hit = recomputing.late_waves(launch["total_threads"])[whole & late] == waves[whole & late]
        shares["late waves"] = (len(hit), float(hit.mean()))
    hit = launch["simulated_waves"][whole & ~late] == waves[whole & ~late]
    return shares | {"simulated waves": (len(hit), float(hit.mean()))}


@pytest.mark.parametrize("gpu_id", THESIS)
def test_the_thesis_rows_follow_from_their_own_columns(gpu_id: str, show: Show) -> None:
    rows = columns_of(read(THESIS[gpu_id]))
    shares = {}
    for name, computed in recompute(gpu_id, rows).items():
        published = rows.get(name)
        if published is None or np.isnan(published).all():
            continue
        # total_threads is recomputed from grid and block, everything else rows with a value
        known = ~np.isnan(published)
        # Four printed decimals hide small n_warps and penalties.
        hit = agree(computed, published, decimals=5.1e-5)[known]
        shares[name] = (len(hit), float(hit.mean()))
    shares |= wave_shares(gpu_id, rows)
    lines = [f"  {name:18} {share:6.3f} of {count} rows" for name, (count, share) in shares.items()]
    show(f"{THESIS[gpu_id]}: share reproduced within 0.1 %\n" + "\n".join(lines))
    demanded = {name: floor for (gpu, name), floor in FLOORS.items() if gpu == gpu_id}
    low = {
        name: (shares[name][1], floor)
        for name, floor in demanded.items()
        if shares[name][1] < floor
    }
    assert not low


@pytest.mark.parametrize("gpu_id", POWERQUANT)
def test_the_powerquant_rows_follow_from_launch_and_counts(gpu_id: str, show: Show) -> None:
    frame = read(POWERQUANT[gpu_id])
    rows, kernels = columns_of(frame), frame["kernel"]
    schema = get_schema("powerquant2026")
    table = schema.table(gpu_id)
    launch = launch_columns(table, schema.rules, rows["grid_size"], rows["block_size"])
    threads, waves = launch["total_threads"], launch["simulated_waves"]
    loads, stores = rows["glob_load_sm"], rows["glob_store_sm"]
    own_device = loads + stores == rows["glob_inst_kernel"] * waves  # some V100 rows: another
    load_cycles, store_cycles = table.load_cycles(threads), table.store_cycles(threads)
    shares = {"simulated waves": (len(waves), float(own_device.mean()))}

    average = recomputing.mixed_global_latency(loads, stores, load_cycles, store_cycles)
    hit = agree(average, rows["avg_glob_lat"])[own_device]
    shares["avg_glob_lat"] = (len(hit), float(hit.mean()))

    # The last global instruction is a load or a store; the rows do not say which.
    facts = {**rows, **launch}
    by_last = [
        derive(table, schema.rules, {**facts, "last_global_cycles": cycles})["cache_penalty"]
        for cycles in (load_cycles, store_cycles)
    ]
    # T * G overflowed 32 bits upstream in the V100 and Ampere files.
    limit = 2.0**31 if gpu_id in ("tesla-v100", "ampere-84sm") else np.inf
    unbroken = (threads * rows["glob_inst_kernel"] * waves < limit) & own_device
    hit = np.any([agree(penalty, rows["cache_penalty"]) for penalty in by_last], axis=0)[unbroken]
    shares["cache_penalty"] = (len(hit), float(hit.mean()))

    totals = np.array([POWERQUANT_TOTALS.get(name, np.nan) for name in kernels]) * waves
    issue = derive(table, schema.rules, {**facts, "total_inst": totals})["inst_issue_cycles"]
    # So did T / B * total_inst / 2 (formulas.issue_cycles_powerquant).
    batch = np.sqrt(table.issue_divisor) / 2
    unbroken = (threads / batch * totals / 2 < 2**31) & own_device
    hit = (issue == rows["inst_issue_cycles"])[unbroken]
    shares["inst_issue_cycles"] = (len(hit), float(hit.mean()))

    lines = [f"  {name:18} {share:6.3f} of {count} rows" for name, (count, share) in shares.items()]
    show(f"{POWERQUANT[gpu_id]}: share reproduced\n" + "\n".join(lines))
    assert shares["simulated waves"][1] >= (0.9 if gpu_id == "tesla-v100" else 0.999)
    assert shares["avg_glob_lat"][1] >= 0.99
    assert shares["cache_penalty"][1] >= 0.97
    assert shares["inst_issue_cycles"][1] >= 0.98


@pytest.mark.parametrize(
    ("gpu_id", "name"),
    [
        ("tesla-k80", "K80.csv"),
        ("tesla-v100", "PQ_V100.csv"),
        ("ampere-84sm", "PQ_Ampere84.csv"),
        ("ada-24sm", "PQ_Ada24.csv"),
    ],
)
def test_the_cleaned_powerquant_rows_follow_the_recomputed_schema(
    gpu_id: str, name: str, show: Show
) -> None:
    rows = columns_of(read(name, "clean"))
    schema = get_schema("powerquant2026r")
    table = schema.table(gpu_id)
    launch = launch_columns(table, schema.rules, rows["grid_size"], rows["block_size"])
    computed = derive(table, schema.rules, {**rows, **launch})["inst_issue_cycles"]
    waves = float((launch["waves"] == rows["waves"]).mean())
    issue = float((computed == rows["inst_issue_cycles"]).mean())
    show(f"{name}: share reproduced, waves {waves:.3f}, inst_issue_cycles {issue:.3f}")
    assert (waves, issue) == (1.0, 1.0)
