"""Power of libraries' kernels of which a trace tells no sizes, from measured operators.

    python -m studies library-kernels [--operators FOLDER]

For products, attention, experts and passes over memory on the boards with watts: how much of its
limit a board draws, by how long the call lasts and by its format. Then the errors of what is
served where a trace tells only name and time (``BY_TIME`` of ``predictor/traces/library.py``): the
operator of the kernel's kind at the size that takes as long, beside the median of the rows. Models
with the sizes err by 7 and 10 % (``python -m studies operators``). Ends hold 90 % of shape groups,
each of the same weight. The models have learnt from these very rows, at their own sizes.
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
from wattcast.app.settings import Settings
from wattcast.features.gpus import load_gpu
from wattcast.predictor import Predictor
from wattcast.predictor.traces.library import at_times
from wattcast.training.data.datasets import data_root

Floats = NDArray[np.float64]

BOARDS = ("h200-sxm5", "b200")
OPERATORS = ("gemm", "prefill", "decode", "moe", "quantize")
LIKE = {"gemm": "product", "prefill": "prefill", "decode": "decode", "quantize": "pass"}
"""By which of ``BY_TIME`` an operator is told."""
EDGES = (0.0, 1e-5, 2e-5, 5e-5, 1e-4, 1e-3, 1e9)
"""Seconds between which shares are told."""

FEWEST = 100
"""Rows of a line."""


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


def ratios(predictor: Predictor, board: str, operator: str, rows: Rows) -> Shares:
    """Measured watts over those told by the time alone (``share``), of calls of 16-bit formats."""
    mine = rows.taken(np.flatnonzero(np.isfinite(rows.watts) & (rows.call["math_bits"] == 16)))
    name = LIKE[operator]
    dtype = "" if name == "pass" else "bfloat16"
    told = at_times(predictor, load_gpu(board), name, dtype, mine.seconds.tolist())
    watts = np.array([call.watts for call in told])
    return Shares(mine.watts / watts, mine.seconds, mine.watts, mine.groups)


def by_time_alone(name: str, found: Shares) -> Iterator[str]:
    """Errors of ``ratios``, whose ``bits`` are the watts."""
    middle = np.median(found.bits)
    for least in (0.0, 2e-5, 1e-4):
        long = found.taken(found.seconds >= least)
        if len(long.share) < FEWEST // 2:
            continue
        low, high = long.ends()
        errors, others = np.abs(1 / long.share - 1), np.abs(middle / long.bits - 1)
        yield (
            f"{name} by its time, from {least * 1e6:3.0f} us: {len(errors):6,} rows, mean "
            f"{errors.mean():.0%}, median {np.median(errors):.0%}, groups {low:.2f} to {high:.2f}; "
            f"the median of all rows: mean {others.mean():.0%}"
        )


def main(arguments: Sequence[str]) -> int:
    """Print the shares and errors."""
    parser = parser_of("library-kernels", __doc__)
    parser.add_argument("--operators", type=Path, default=data_root() / "operators")
    folder = parser.parse_args(arguments).operators
    predictor = Predictor(Settings())
    for operator in OPERATORS:
        for board in BOARDS:
            rows = read_rows(folder, operator, board)
            if rows is None:
                continue
            found = shares_of(rows)
            print(f"{operator} on {board}")
            for line in by_time(found):
                print(f"  {line}")
            if operator in LIKE:
                told = ratios(predictor, board, operator, rows)
                for line in by_time_alone(LIKE[operator], told):
                    print(f"  {line}")
    return 0
