"""How memory grows with a launch: the regressions of the thesis (Tables 3.3, 4.4 and 4.5) and the
clock split of Wang and Chu (ICPADS 2018, Eq. 4), fitted to measured points.

The thesis prints what its regressions gave for its boards; here they are fitted, so that a board
measured anew has the same numbers (docs/measuring.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from wattcast.features.gpus.sections import LatencyPiece

Floats = NDArray[np.float64]

MOST_PIECES = 4
"""Lines of Table 3.3."""

LEAST_POINTS = 3
"""Points a line is fitted to at least: two would always fit."""

_STARTS = np.logspace(-8, 0, 17)
"""Where the search for an exponent starts; Table 4.5 has 7e-6 to 1e-3."""


def latency_pieces(
    threads: Sequence[float], cycles: Sequence[float], most: int = MOST_PIECES
) -> tuple[LatencyPiece, ...]:
    """Lines of latency in cycles over the threads launched (section 3.3.3), and the last point's
    level beyond them.

    The number of lines, at most ``most``, is that of the least Bayesian information criterion;
    where they part, that of the least squares. Raises ValueError for fewer than ``LEAST_POINTS``.
    """
    order = np.argsort(threads, kind="stable")
    x, y = np.asarray(threads, float)[order], np.asarray(cycles, float)[order]
    if len(x) < LEAST_POINTS:
        raise ValueError(f"{len(x)} points of latency tell no line")
    best = min(_parted(x, y, most), key=lambda one: _criterion(one, len(x)))
    pieces = []
    for first, end in zip(best.starts, (*best.starts[1:], len(x)), strict=True):
        slope, constant = line(x[first:end], y[first:end])
        if constant <= 0:  # no line of latencies: they scatter about their mean
            slope, constant = 0.0, float(y[first:end].mean())
        # A line holds up to where the next begins, as the authors' data have it.
        below = int(x[end]) if end < len(x) else int(x[-1]) + 1
        pieces.append(LatencyPiece(below_threads=below, slope=slope, constant=constant))
    level = pieces[-1].slope * float(x[-1]) + pieces[-1].constant
    return (*pieces, LatencyPiece(slope=0.0, constant=level if level > 0 else float(y[-1])))


class _Parting(NamedTuple):
    squares: float
    starts: tuple[int, ...]


def _parted(x: Floats, y: Floats, most: int) -> list[_Parting]:
    """The best parting of sorted points into 1, 2 ... lines (dynamic programming)."""
    n = len(x)
    alone = {
        (first, end): _squares(x[first:end], y[first:end])
        for first in range(n)
        for end in range(first + LEAST_POINTS, n + 1)
    }
    row = {end: _Parting(alone[0, end], (0,)) for end in range(LEAST_POINTS, n + 1)}
    found = [row[n]]
    for _ in range(1, most):
        following = {}
        for end in range(LEAST_POINTS, n + 1):
            joined = [
                _Parting(row[at].squares + alone[at, end], (*row[at].starts, at))
                for at in row
                if (at, end) in alone and x[at] > x[at - 1]
            ]
            if joined:
                following[end] = min(joined, key=lambda one: one.squares)
        if n not in following:
            break
        row = following
        found.append(row[n])
    return found


def line(x: Floats, y: Floats) -> tuple[float, float]:
    """Slope and constant of least squares."""
    if np.ptp(x) == 0:
        return 0.0, float(y.mean())
    slope, constant = np.polyfit(x, y, 1)
    return float(slope), float(constant)


def _squares(x: Floats, y: Floats) -> float:
    slope, constant = line(x, y)
    return float(np.sum((y - slope * x - constant) ** 2))


def _criterion(parting: _Parting, points: int) -> float:
    """Two numbers a line, and where it begins."""
    # A resolution of a thousandth of a cycle: points that lie on lines make no perfect fit.
    spread = np.log(parting.squares / points + 1e-6)
    return float(points * spread + (3 * len(parting.starts) - 1) * np.log(points))


def saturation(n: Sequence[float], values: Sequence[float]) -> tuple[float, float, float, float]:
    """Least squares of ``a (b - exp(-c n))`` over ``n`` (above 0), the form that fits best of three
    (Table 4.4; ``studies.papers.thesis.growth`` has the others): a, b, c, and R2.
    Raises ValueError for fewer than four points."""
    x, y = np.asarray(n, float), np.asarray(values, float)
    if len(x) <= LEAST_POINTS:
        raise ValueError(f"{len(x)} points tell no growth")

    def off(numbers: Floats) -> Floats:
        a, b, c = numbers
        return np.asarray(a * (b - np.exp(-c * x)) - y)

    searches = [
        least_squares(
            lambda numbers: off(numbers) / y.max(),
            (y.max(), 1.01, start),
            bounds=([0.0, 1.0, 0.0], np.inf),
            x_scale=(y.max(), 0.01, start),
        )
        for start in _STARTS / max(1.0, x.max() * 1e-6)
    ]
    found = min(searches, key=lambda one: float(one.cost)).x
    spread = float(np.sum((y - y.mean()) ** 2))
    a, b, c = map(float, found)
    return a, b, c, 1 - float(np.sum(off(found) ** 2)) / spread if spread else 0.0


def clock_split(
    core_mhz: Sequence[float], memory_mhz: Sequence[float], cycles: Sequence[float]
) -> tuple[float, float] | None:
    """Eq. 4: latency in core cycles = A + B x core clock / memory clock; ``None`` where the ratio
    of clocks does not tell A from B (it has to differ by a tenth) or either is not above 0."""
    ratio = np.asarray(core_mhz, float) / np.asarray(memory_mhz, float)
    if np.ptp(ratio) < 0.1 * ratio.max():
        return None
    slope, constant = line(ratio, np.asarray(cycles, float))
    return (constant, slope) if constant > 0 and slope > 0 else None
