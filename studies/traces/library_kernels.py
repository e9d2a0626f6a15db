"""Power of libraries' kernels of which a trace tells no sizes, from measured operators.

    python -m studies library-kernels [--operators FOLDER]

For products, attention and experts on the boards with watts: how much of its limit a board draws,
by how long the call lasts and by its format. Then, for half-precision products from 20 us on, what
the median of one board misses on the other, beside the share that all products got before
(``PRODUCT_SHARE`` in ``predictor/traces/unknown.py``) and beside the operators' models with shape
groups left out, which need the sizes. Ends hold 90 % of shape groups, each of the same weight.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from studies.fitting.operators import Rows, read_rows
from wattcast.features.gpus import load_gpu
from wattcast.models.operators import operator_store
from wattcast.predictor.traces.unknown import HALF_LOW, HALF_SECONDS, HALF_SHARE, PRODUCT_SHARE
from wattcast.training.data.datasets import data_root

Floats = NDArray[np.float64]

BOARDS = ("h200-sxm5", "b200")
OPERATORS = ("gemm", "prefill", "decode", "moe")
EDGES = (0.0, 1e-5, 2e-5, 5e-5, 1e-4, 1e-3, 1e9)
"""Seconds between which shares are told."""

FEWEST = 100
"""Rows of a line."""

IDLE_SHARE = 0.2
"""Of the limit with clocks up: 5 % of the shortest calls of each operator drew no more."""


class Shares(NamedTuple):
    """Share of the limit ``[n]`` of some rows, with seconds, bits of the format and groups."""

    share: Floats
    seconds: Floats
    bits: Floats
    groups: NDArray[np.str_]

    def taken(self, keep: NDArray[np.bool_]) -> Shares:
        """Some of the rows."""
        return Shares(self.share[keep], self.seconds[keep], self.bits[keep], self.groups[keep])

    def ends(self) -> tuple[float, float]:
        """5 and 95 % of the groups, each of the same weight."""
        _, group = np.unique(self.groups, return_inverse=True)
        weight = 1.0 / np.bincount(group)[group]
        order = np.argsort(self.share)
        held = np.cumsum(weight[order]) / weight.sum()
        low, high = (self.share[order][np.searchsorted(held, q)] for q in (0.05, 0.95))
        return float(low), float(high)


def shares_of(rows: Rows) -> Shares:
    """Of all rows with watts."""
    whole = Shares(rows.watts / rows.limit_watts, rows.seconds, rows.call["math_bits"], rows.groups)
    return whole.taken(np.isfinite(rows.watts))


def by_time(found: Shares) -> Iterator[str]:
    """Median and ends by format and time."""
    for bits in sorted({*found.bits}):
        for low, high in pairwise(EDGES):
            at = (found.bits == bits) & (found.seconds >= low) & (found.seconds < high)
            if at.sum() >= FEWEST:
                one = found.taken(at)
                ends = one.ends()
                yield (
                    f"{bits:.0f} bits, from {low * 1e6:4.0f} us: {at.sum():6,} rows, median "
                    f"{np.median(one.share):.2f}, groups {ends[0]:.2f} to {ends[1]:.2f}"
                )


def error(told: float | Floats, found: Shares) -> str:
    """Mean and median error in percent."""
    each = np.abs(told / found.share - 1)
    return f"mean {np.mean(each):.0%}, median {np.median(each):.0%}"


def half_products(boards: Sequence[tuple[str, Shares]]) -> Iterator[str]:
    """Half-precision products from ``HALF_SECONDS`` on: constants, the other board left out."""
    long = [
        (board, one.taken((one.bits == 16) & (one.seconds >= HALF_SECONDS)))
        for board, one in boards
    ]
    for number, (board, mine) in enumerate(long):
        others = [one for at, (_, one) in enumerate(long) if at != number]
        median = float(np.median(np.concatenate([one.share for one in others])))
        low, high = mine.ends()
        held = np.mean((mine.share >= HALF_LOW) & (mine.share <= 1.0))
        before = IDLE_SHARE + PRODUCT_SHARE * (1 - IDLE_SHARE)
        yield (
            f"{board}: {len(mine.share):,} rows, median {np.median(mine.share):.2f}, groups "
            f"{low:.2f} to {high:.2f}; {HALF_LOW:g} to 1 holds {held:.0%} of rows"
        )
        yield f"  the others' median {median:.2f}: {error(median, mine)}"
        yield f"  as served, {HALF_SHARE:g}: {error(HALF_SHARE, mine)}"
        yield f"  as before, {before:.2f}: {error(before, mine)}"
    for card in operator_store().list():
        power = card.operators["gemm"].power if "gemm" in card.operators else None
        if power is not None and card.gpu in BOARDS:
            for one in power.scores:
                yield (
                    f"{card.gpu}, model with sizes, {one.protocol} left out: mean "
                    f"{one.mean_percent:.0f} %, median {one.median_percent:.0f} %"
                )


def main(arguments: Sequence[str]) -> int:
    """Print the shares and errors."""
    parser = argparse.ArgumentParser(prog="python -m studies library-kernels", description=__doc__)
    parser.add_argument("--operators", type=Path, default=data_root() / "operators")
    folder = parser.parse_args(arguments).operators
    for operator in OPERATORS:
        boards = []
        for board in BOARDS:
            rows = read_rows(folder, operator, board)
            if rows is None:
                continue
            found = shares_of(rows)
            boards.append((board, found))
            limit = load_gpu(board).tdp_watts
            print(f"{operator} on {board}, limit {rows.limit_watts:.0f} W (printed {limit:.0f} W)")
            for line in by_time(found):
                print(f"  {line}")
        if operator == "gemm":
            print("half-precision products of 20 us and longer")
            for line in half_products(boards):
                print(f"  {line}")
    return 0
