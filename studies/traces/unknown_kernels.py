"""Power of kernels without code, from their launch alone: kernel families left out in turn.

    python -m studies unknown-kernels

Programs at the highest clocks of seven boards (Wang and Chu; Guerreiro et al.) and the thesis'
kernels on K20, M60 and V100. Every family counts once for each board. What is fitted is one share
(``wattcast.predictor.traces.library.SHARE``); an answer is for a family that the share has not
seen.

Nobody published the power of a product of cuBLAS, cuDNN or CUTLASS among these data (power, dvfs,
modern, sequences, programs and activity were searched). Two kinds of kernels stand in for one:
products and convolutions written by hand, which keep a board less busy than a tuned one, and
kernels that keep the FP32 pipes full, which do nothing else. They make ``PRODUCT_SHARE`` and its
ends, whole boards left out; beside them what kernels draw that keep the FP64 pipes full.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import exp, log
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from studies import parser_of
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.models.clocks import ClockPair, default_clocks
from wattcast.models.power.activities import AT_REST
from wattcast.models.power.physical import predicted_power
from wattcast.predictor.parts.power_models import PowerModels
from wattcast.predictor.parts.time_and_power import board_limit
from wattcast.predictor.traces.library import FULL_THREADS, SHARE
from wattcast.training.data.datasets import data_root

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

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
TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)

PIPES = {
    "lisboa_gtx_980": "gtx-980",
    "lisboa_gtx_titan_x": "gtx-titan-x",
    "lisboa_tesla_k40c": "tesla-k40c",
    "lisboa_titan_v": "titan-v",
    "lisboa_titan_xp": "titan-xp",
    "wang_dcgm_quadro_rtx_8000": "quadro-rtx-8000",
    "wang_dcgm_tesla_v100": "tesla-v100",
}
"""Campaigns that measured how busy the pipes are."""

BUSY = 0.85
"""Share of a pipe's peak from which it counts as full; of a sweep, of its best rate."""

BY_HAND = re.compile(
    r"matrixmul|syrk|conv|execute(?:\w*layer$|lstm|fire|tenth)|backpropforward", re.IGNORECASE
)
"""Products of matrices, convolutions and dense layers among the kernels, by their names."""


class Row(NamedTuple):
    """A measured kernel; ``threads`` is infinite where nobody published the launch.

    ``board_width``: half width, in logarithms, of what is known of the board; 0 for a measured one.
    """

    source: str
    board: str
    family: str
    name: str
    watts: float
    standing: float
    idle: float
    most: float
    board_width: float
    limit: float
    threads: float
    sms: int


class Known(NamedTuple):
    """What a board draws whatever runs, the least and the most it may, and how well it is known."""

    standing: float
    idle: float
    most: float
    width: float


def known(models: PowerModels, gpu: GpuProfile, pair: ClockPair) -> Known:
    """As ``predictor/traces/powers.py`` has it."""
    physical = models.physical(gpu)
    still = predicted_power(physical.parameters, AT_REST, pair)
    _, high = physical.card.intervals.unseen_kernel.around(np.array([still.watts]))
    width = log(float(high[0]) / still.watts) if physical.pooled else 0.0
    most = board_limit(physical.card, gpu)
    return Known(still.watts, still.components["idle"] * exp(-width), most, width)


def at_highest(root: Path, name: str) -> tuple[pd.DataFrame, ClockPair]:
    """The rows of a campaign at its highest clocks that have a power."""
    table = pd.read_csv(root / "dvfs" / f"{name}.csv")
    table = table[table.power_w.notna()]
    memory = table.mem_mhz.max()
    core = table[table.mem_mhz == memory].core_mhz.max()
    table = table[(table.mem_mhz == memory) & (table.core_mhz == core)]
    return table, ClockPair(float(core), float(memory))


def rows(root: Path) -> Iterator[Row]:
    """All kernels at the highest clocks of their board."""
    models = PowerModels(Path("none"))
    for name, board in FREQUENCY.items():
        gpu = load_gpu(board)
        table, pair = at_highest(root, name)
        stands = known(models, gpu, pair)
        for row in table[table.kind == "real"].to_dict("records"):
            family = re.sub(r"[_\d].*|Backward|Forward", "", row["benchmark"]).lower()
            warps = row.get("warps", np.nan)
            threads = np.inf if np.isnan(warps) else 32.0 * warps
            yield Row(name, board, family, row["benchmark"], row["power_w"], *stands,
                      gpu.tdp_watts, threads, gpu.sm_count)  # fmt: skip
    for name, board in THESIS.items():
        gpu = load_gpu(board)
        stands = known(models, gpu, default_clocks(gpu))
        table = pd.read_csv(root / "power" / "clean" / f"{name}.csv")
        table = table[table.flag.isna() & table.power_w.notna() & table.total_threads.notna()]
        for row in table.to_dict("records"):
            yield Row(name, board, row["family"], row["kernel"], row["power_w"], *stands,
                      gpu.tdp_watts, row["total_threads"], gpu.sm_count)  # fmt: skip


def full_pipes(root: Path, pipe: str) -> Iterator[Row]:
    """Kernels that keep a pipe (``sp`` or ``dp``) full, at the highest clocks of their board."""
    models = PowerModels(Path("none"))
    for name, board in PIPES.items():
        gpu = load_gpu(board)
        table, pair = at_highest(root, name)
        stands = known(models, gpu, pair)
        for row in table[table[f"u_{pipe}"] >= BUSY].to_dict("records"):
            yield Row(name, board, f"{pipe} full", row["benchmark"], row["power_w"], *stands,
                      gpu.tdp_watts, np.inf, gpu.sm_count)  # fmt: skip
    if pipe != "sp":
        return
    table = pd.read_csv(root / "modern" / "fma_sweep_power.csv")
    for name in ("a100-sxm4-40gb", "a40"):
        gpu, sweep = load_gpu(name), table[table.gpu == name]
        stands = known(models, gpu, default_clocks(gpu))
        best = sweep[sweep.gflop_per_second >= BUSY * sweep.gflop_per_second.max()]
        for watts in best.power_watts:
            yield Row("fma_sweep_power", gpu.id, "sp full", "fma", float(watts), *stands,
                      gpu.tdp_watts, np.inf, gpu.sm_count)  # fmt: skip


def quantiles(values: Floats, weights: Floats, levels: Sequence[float]) -> list[float]:
    """Weighted quantiles of ``values [n]``."""
    order = np.argsort(values, kind="stable")
    sums = np.cumsum(weights[order]) / weights.sum()
    places = np.minimum(np.searchsorted(sums, levels), len(values) - 1)
    return [float(each) for each in values[order][places]]


class Columns:
    """Rows as arrays ``[n]``; every family counts once for each board."""

    def __init__(self, found: Sequence[Row]) -> None:
        def column(name: str) -> Floats:
            return np.array([getattr(row, name) for row in found], dtype=float)

        self.watts, self.standing, self.idle = column("watts"), column("standing"), column("idle")
        self.limit, self.most = column("limit"), column("most")
        self.width = column("board_width")
        self.boards = np.array([row.board for row in found])
        self.families = np.array([row.family for row in found])
        keys = [(row.board, row.family) for row in found]
        self.weights = np.array([1.0 / keys.count(key) for key in keys])
        threads, sms = column("threads"), column("sms")
        self.full = np.minimum(1.0, threads / (sms * FULL_THREADS))
        self.room = self.full * (self.limit - self.standing)
        room = np.maximum(self.full, 0.02) * (self.limit - self.standing)
        self.shares = (self.watts - self.standing) / room

    def share(self, which: Bools) -> float:
        """Of these rows the median, 0 at least."""
        return max(0.0, quantiles(self.shares[which], self.weights[which], [0.5])[0])

    def told(self, share: float) -> Floats:
        """Watts by a share."""
        return self.standing + share * self.room


def left_out(found: Sequence[Row]) -> tuple[float, Floats, Floats]:
    """The share of all, ln(measured / predicted) with families left out, and weights of rows."""
    rows = Columns(found)
    errors = np.full(len(found), np.nan)
    for family in np.unique(rows.families):
        out = rows.families == family
        errors[out] = np.log(rows.watts / rows.told(rows.share(~out)))[out]
    return rows.share(np.ones(len(found), dtype=bool)), errors, rows.weights


class Told(NamedTuple):
    """Watts as they would be served, and the ends over them, ``[n]``."""

    watts: Floats
    below: Floats
    above: Floats


def by_boards(found: Sequence[Row]) -> Told:
    """Each row with its family and its board left out: of the share and of its ends."""
    rows = Columns(found)
    watts, low, high = np.zeros((3, len(found)))
    for board, family in {(row.board, row.family) for row in found}:
        at = (rows.boards == board) & (rows.families == family)
        others = (rows.boards != board) & (rows.families != family)
        watts[at] = rows.told(rows.share(others))[at]
    errors = np.log(rows.watts / watts)
    for board in np.unique(rows.boards):
        mine, others = rows.boards == board, rows.boards != board
        ends = quantiles(errors[others], rows.weights[others], TAILS)
        low[mine], high[mine] = (np.hypot(end, rows.width[mine]) for end in ends)
    least = np.minimum(np.maximum(watts * np.exp(-low), rows.idle), watts)
    most = np.maximum(np.minimum(watts * np.exp(high), rows.most), watts)
    return Told(watts, 1 - least / watts, most / watts - 1)


def products(root: Path, found: Sequence[Row]) -> Iterator[str]:
    """What stands in for products of libraries, boards left out, as lines."""
    by_hand = [row for row in found if BY_HAND.search(row.name)]
    full = list(full_pipes(root, "sp"))
    for what, some in (
        ("products and convolutions by hand", by_hand),
        ("FP32 pipes full", full),
        ("FP64 pipes full", list(full_pipes(root, "dp"))),
    ):
        rows = Columns(some)
        medians = (
            f"{board} {quantiles(rows.shares[at], rows.weights[at], [0.5])[0]:.2f}"
            for board in np.unique(rows.boards)
            if (at := rows.boards == board).any()
        )
        yield f"{what}: share {', '.join(medians)}"
    rows = Columns([*by_hand, *full])
    # Kernels by hand and full pipes count alike, and so do the boards of each.
    hand = np.arange(len(rows.watts)) < len(by_hand)
    for kind in (hand, ~hand):
        for board in np.unique(rows.boards[kind]):
            at = kind & (rows.boards == board)
            rows.weights[at] /= rows.weights[at].sum() * len(np.unique(rows.boards[kind]))
    errors = np.zeros((3, len(rows.watts)))
    usual = rows.told(SHARE)
    halfway = np.sqrt(usual * rows.told(1.0))
    for board in np.unique(rows.boards):
        out = rows.boards == board
        told = rows.told(rows.share(~out))
        for place, each in enumerate((told, halfway, usual)):
            errors[place, out] = np.log(rows.watts / each)[out]
    share = rows.share(np.ones(len(rows.watts), dtype=bool))
    names = (f"share {share:.2f}", "halfway to the limit", f"share {SHARE:.2f}")
    for name, error in zip(names, errors, strict=True):
        low, high = np.exp(quantiles(error, rows.weights, TAILS))
        mean = np.average(np.abs(np.exp(-error) - 1), weights=rows.weights)
        yield f"both, boards left out, {name}: error {mean:.0%}, x{low:.2f} to x{high:.2f}"


def main(arguments: Sequence[str]) -> int:
    """Print the errors of every choice."""
    parser = parser_of("unknown-kernels", __doc__)
    parser.parse_args(arguments)
    found = list(rows(data_root()))
    families = len({(row.board, row.family) for row in found})
    print(f"{len(found)} kernels, {families} families on boards, {LEVEL:.0%} of families left out")
    share, errors, weights = left_out(found)
    low, high = np.exp(quantiles(errors, weights, TAILS))
    error = float(np.sum(weights * np.abs(np.exp(-errors) - 1)) / weights.sum())
    print(f"share {share:.2f}, error {error:.0%}, interval x{low:.2f} to x{high:.2f}")
    every, told = Columns(found), by_boards(found)
    ratios = every.watts / told.watts
    low, high = quantiles(np.log(ratios), every.weights, TAILS)
    print(f"boards left out too: interval x{np.exp(low):.2f} to x{np.exp(high):.2f}")
    held = (ratios >= 1 - told.below - 1e-9) & (ratios <= 1 + told.above + 1e-9)
    each = {
        board: np.average(held[at], weights=every.weights[at])
        for board in np.unique(every.boards)
        if (at := every.boards == board).any()
    }
    print(
        f"held by that of the others: {np.average(held, weights=every.weights):.0%} of families, "
        f"{np.mean(list(each.values())):.0%} on average over boards ("
        + ", ".join(f"{board} {share:.0%}" for board, share in each.items())
        + ")"
    )
    for line in products(data_root(), found):
        print(line)
    return 0
