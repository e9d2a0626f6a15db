"""Derived columns of a row from its other columns: one code for serving and for training."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from wattcast.features.schemas import formulas
from wattcast.features.schemas.formulas import Floats
from wattcast.features.schemas.tables import GpuTable, Rules


def launch_columns(
    table: GpuTable, rules: Rules, grid: ArrayLike, block: ArrayLike
) -> dict[str, Floats]:
    """Columns that only the launch decides: total_threads, n_warps, simulated_waves (w), waves.

    ``waves`` is the column as the files of ``rules`` hold it.
    """
    blocks = np.asarray(grid, dtype=np.float64)
    threads = np.asarray(blocks * np.asarray(block, dtype=np.float64))
    simulated = formulas.simulated_waves(blocks, block, table.sm_count, table.threads_per_sm)
    waves = {
        "blocks_per_sm": formulas.waves_column(blocks, table.sm_count),
        "simulated": simulated,
        "threads": formulas.thread_waves(threads, table.sm_count, table.threads_per_sm),
    }
    return {
        "total_threads": threads,
        "n_warps": formulas.n_warps(blocks),
        "simulated_waves": simulated,
        "waves": waves[rules.waves_column],
    }


def derive(table: GpuTable, rules: Rules, columns: Mapping[str, ArrayLike]) -> dict[str, Floats]:
    """Columns computed from other columns of the same row, for one GPU.

    ``columns`` needs total_threads and the inputs of what is wanted; what its inputs do not
    allow is left out of the answer (a KeyError never comes out). Answer, where possible:
    total_inst, wtotal, inst_issue_cycles, cache_penalty, Global_Throughput, glb_penalty,
    sh_throughput, sh_penalty. Inputs besides Table 5.4's names: ``simulated_waves`` and
    ``last_global_cycles`` (latency of the last global instruction; powerquant2026 only).
    """
    known = {name: np.asarray(value, dtype=np.float64) for name, value in columns.items()}
    out: dict[str, Floats] = {}
    threads = known["total_threads"]
    out["wtotal"] = formulas.wtotal(threads, *rules.wtotal)
    parts = [known.get(f"{part}_inst_sm") for part in ("comp", "glob", "shar", "misc")]
    if "total_inst" in known:
        out["total_inst"] = known["total_inst"]
    elif all(part is not None for part in parts):
        out["total_inst"] = formulas.total_inst(*[part for part in parts if part is not None])
    issue = _issue_cycles(table, known, out.get("total_inst"))
    if issue is not None:
        out["inst_issue_cycles"] = issue
    cache = _cache_penalty(table, rules, known, out["wtotal"])
    if cache is not None:
        out["cache_penalty"] = cache
    out |= _penalties(table, known)
    return out


def _issue_cycles(
    table: GpuTable, known: Mapping[str, Floats], total: Floats | None
) -> Floats | None:
    threads, divisor = known["total_threads"], table.issue_divisor
    if table.issue_rule == "cleaned":
        names = ("comp_inst_kernel", "glob_inst_kernel", "misc_inst_kernel")
        if not all(name in known for name in names):
            return None
        compute, global_, misc = (known[name] for name in names)
        waves = formulas.thread_waves(threads, table.sm_count, table.threads_per_sm)
        return formulas.issue_cycles_cleaned(threads, waves, compute, global_, misc, divisor)
    if total is None:
        return None
    if table.issue_rule == "thesis":
        return formulas.issue_cycles_thesis(threads, total, divisor)
    return formulas.issue_cycles_powerquant(threads, total, divisor)


def _cache_penalty(
    table: GpuTable, rules: Rules, known: Mapping[str, Floats], wtotal: Floats
) -> Floats | None:
    latency_name = {
        "average": "avg_glob_lat",
        "total": "glob_lat_sm",
        "last": "last_global_cycles",
    }[table.cache_latency]
    latency = known.get(latency_name)
    if rules.static_global:
        static, waves = known.get("glob_inst_kernel"), known.get("simulated_waves")
        count = None if static is None or waves is None else np.asarray(static * waves)
    else:
        count = known.get("glob_inst_sm")
    if latency is None or count is None:
        return None
    return formulas.cache_penalty(known["total_threads"], count, latency, wtotal, table.l2_bytes)


def _penalties(table: GpuTable, known: Mapping[str, Floats]) -> dict[str, Floats]:
    out: dict[str, Floats] = {}
    threads, ghz = known["total_threads"], table.memory_ghz
    if table.global_throughput and ghz and "glob_inst_sm" in known:
        count = known["glob_inst_sm"]
        out["Global_Throughput"] = formulas.throughput(count, *table.global_throughput)
        out["glb_penalty"] = formulas.glb_penalty(
            threads, count, out["Global_Throughput"], table.sm_count, ghz
        )
    if table.shared_throughput and ghz and "shar_inst_sm" in known:
        count = known["shar_inst_sm"]
        out["sh_throughput"] = formulas.throughput(count, *table.shared_throughput)
        penalty = (
            formulas.sh_penalty_k20 if table.sh_penalty_rule == "k20" else formulas.sh_penalty_m60
        )
        out["sh_penalty"] = penalty(threads, count, out["sh_throughput"], ghz)
    return out
