"""Power of kernels without code, from their launch alone: kernel families left out in turn.

    python -m studies unknown-kernels

Programs at the highest clocks of seven boards (Wang and Chu; Guerreiro et al.) and the thesis'
kernels on K20, M60 and V100. Every family counts once for each board. What is fitted is one share
(``wattcast.predictor.traces.unknown.SHARE``); an answer is for a family that the share has not
seen. Compared: from how many threads a board is full (``FULL_THREADS``), and a share for each kind
of name.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.models.clocks import ClockPair, default_clocks
from wattcast.models.power.activities import UnitActivities
from wattcast.models.power.physical import predicted_power
from wattcast.predictor.parts.power_models import PowerModels
from wattcast.predictor.traces.unknown import family_of
from wattcast.training.data.datasets import data_root

Floats = NDArray[np.float64]

FREQUENCY = {
    "wang_dcgm_quadro_rtx_8000": "quadro-rtx-8000",
    "wang_dcgm_tesla_v100": "tesla-v100",
    "wang_gtx_1080_ti": "gtx-1080-ti",
    "wang_gtx_980_high": "gtx-980",
    "wang_rtx_2070_super": "rtx-2070-super",
    "wang_tesla_p100": "tesla-p100",
    "lisboa_gtx_titan_x": "gtx-titan-x",
}
THESIS = {"K20": "tesla-k20", "M60": "tesla-m60", "V100": "tesla-v100"}
LEVEL = 0.9


class Row(NamedTuple):
    """A measured kernel; ``threads`` is infinite where nobody published the launch."""

    board: str
    family: str
    name: str
    watts: float
    standing: float
    limit: float
    threads: float
    sms: int


def rows(root: Path) -> Iterator[Row]:
    """All kernels at the highest clocks of their board."""
    models = PowerModels(Path("none"))

    def standing(gpu: GpuProfile, pair: ClockPair) -> float:
        nothing = UnitActivities(*(0.0 for _ in UnitActivities._fields))
        return predicted_power(models.physical(gpu).parameters, nothing, pair).watts

    for name, board in FREQUENCY.items():
        gpu = load_gpu(board)
        table = pd.read_csv(root / "dvfs" / f"{name}.csv")
        table = table[table.power_w.notna() & (table.kind == "real")]
        memory = table.mem_mhz.max()
        core = table[table.mem_mhz == memory].core_mhz.max()
        table = table[(table.mem_mhz == memory) & (table.core_mhz == core)]
        stands = standing(gpu, ClockPair(float(core), float(memory)))
        for row in table.to_dict("records"):
            family = re.sub(r"[_\d].*|Backward|Forward", "", row["benchmark"]).lower()
            warps = row.get("warps", np.nan)
            threads = np.inf if np.isnan(warps) else 32.0 * warps
            yield Row(board, family, row["benchmark"], row["power_w"], stands, gpu.tdp_watts,
                      threads, gpu.sm_count)  # fmt: skip
    for name, board in THESIS.items():
        gpu = load_gpu(board)
        stands = standing(gpu, default_clocks(gpu))
        table = pd.read_csv(root / "power" / "clean" / f"{name}.csv")
        table = table[table.flag.isna() & table.power_w.notna() & table.total_threads.notna()]
        for row in table.to_dict("records"):
            yield Row(board, row["family"], row["kernel"], row["power_w"], stands, gpu.tdp_watts,
                      row["total_threads"], gpu.sm_count)  # fmt: skip


def quantiles(values: Floats, weights: Floats, levels: Sequence[float]) -> list[float]:
    """Weighted quantiles of ``values [n]``."""
    order = np.argsort(values, kind="stable")
    sums = np.cumsum(weights[order]) / weights.sum()
    places = np.minimum(np.searchsorted(sums, levels), len(values) - 1)
    return [float(each) for each in values[order][places]]


def left_out(
    found: Sequence[Row], full_threads: float, kind: Callable[[Row], str]
) -> tuple[float, Floats, Floats]:
    """The share of all, ln(measured / predicted) with families left out, and weights of rows."""
    watts, stands, limit, threads, sms = (
        np.array([getattr(row, name) for row in found], dtype=float)
        for name in ("watts", "standing", "limit", "threads", "sms")
    )
    keys = [(row.board, row.family) for row in found]
    weights = np.array([1.0 / keys.count(key) for key in keys])
    full = np.minimum(1.0, threads / (sms * full_threads)) if full_threads else np.ones(len(watts))
    share = (watts - stands) / (limit - stands) / np.maximum(full, 0.02)
    families = np.array([row.family for row in found])
    kinds = np.array([kind(row) for row in found])
    errors = np.full(len(found), np.nan)
    for family in np.unique(families):
        for one in np.unique(kinds[families == family]):
            out = (families == family) & (kinds == one)
            known = (families != family) & (kinds == one)
            if not known.any():
                known = families != family
            (fitted,) = quantiles(share[known], weights[known], [0.5])
            told = stands[out] + max(0.0, fitted) * full[out] * (limit - stands)[out]
            errors[out] = np.log(watts[out] / told)
    (whole,) = quantiles(share, weights, [0.5])
    return whole, errors, weights


def main(arguments: Sequence[str]) -> int:
    """Print the errors of every choice."""
    parser = argparse.ArgumentParser(prog="python -m studies unknown-kernels", description=__doc__)
    parser.parse_args(arguments)
    found = list(rows(data_root()))
    families = len({(row.board, row.family) for row in found})
    print(f"{len(found)} kernels, {families} families on boards, {LEVEL:.0%} of families left out")
    tail = (1 - LEVEL) / 2
    for kinds, kind in (
        ("one share", lambda row: ""),
        ("by name", lambda row: family_of(row.name)),
    ):
        for full in (0, 256, 1024, 2048):
            share, errors, weights = left_out(found, full, kind)
            low, high = quantiles(errors, weights, [tail, 1 - tail])
            error = float(np.sum(weights * np.abs(np.exp(-errors) - 1)) / weights.sum())
            print(
                f"{kinds:9} full from {full:4} threads of an SM: share {share:.2f}, error "
                f"{error:.0%}, interval x{np.exp(low):.2f} to x{np.exp(high):.2f}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
