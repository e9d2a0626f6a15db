"""Power of libraries' kernels of which a trace tells no sizes, from measured operators.

    python -m studies library-kernels [--operators FOLDER]

For products, attention and experts on the boards with watts: how much of its limit a board draws,
by how long the call lasts and by its format. Then, for half-precision products from 20 us on, the
errors of the share served and of the one that other products get (``predictor/traces/library.py``).
Models with the sizes err by 7 and 10 % there (``python -m studies operators``). Ends hold 90 % of
shape groups, each of the same weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from studies import parser_of
from studies.fitting.operators import Rows, read_rows
from wattcast.predictor.traces.library import HALF_LOW, HALF_SECONDS, HALF_SHARE, PRODUCT_SHARE
from wattcast.training.data.datasets import data_root

Floats = NDArray[np.float64]

BOARDS = ("h200-sxm5", "b200")
OPERATORS = ("gemm", "prefill", "decode", "moe")
EDGES = (0.0, 1e-5, 2e-5, 5e-5, 1e-4, 1e-3, 1e9)
"""Seconds between which shares are told."""

FEWEST = 100
"""Rows of a line."""

OTHERS_SHARE = 0.2 + 0.8 * PRODUCT_SHARE
"""Of the limit, by what all other products get: boards with nothing to do draw 0.2 of it, as
5 % of the shortest calls do."""


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


def half_products(boards: Sequence[tuple[str, Shares]]) -> Iterator[str]:
    """Half-precision products from ``HALF_SECONDS`` on: each board, and the constant served."""
    for board, every in boards:
        mine = every.taken((every.bits == 16) & (every.seconds >= HALF_SECONDS))
        low, high = mine.ends()
        inside = np.mean((mine.share >= HALF_LOW) & (mine.share <= 1.0))
        yield (
            f"{board}: {len(mine.share):,} rows, median {np.median(mine.share):.2f}, groups "
            f"{low:.2f} to {high:.2f}; {HALF_LOW:g} to 1 holds {inside:.0%} of rows"
        )
        for name, told in (("served", HALF_SHARE), ("other products", OTHERS_SHARE)):
            error = np.abs(told / mine.share - 1)
            yield f"  {name}, {told:.2f}: mean {np.mean(error):.0%}, median {np.median(error):.0%}"


def main(arguments: Sequence[str]) -> int:
    """Print the shares and errors."""
    parser = parser_of("library-kernels", __doc__)
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
            print(f"{operator} on {board}")
            for line in by_time(found):
                print(f"  {line}")
        if operator == "gemm":
            print("half-precision products of 20 us and longer")
            for line in half_products(boards):
                print(f"  {line}")
    return 0
