"""Kernels that share a board: who draws what while several run, and what gaps draw.

At every moment the board draws its idle power where nothing runs; else what it draws with its
clocks up (``standing``), once, plus what each running kernel moves on top of that, but no more
than its limit. So two kernels at once never draw two boards. Each launch gets what it moves and
its share of the standing power: joules of launches and gaps add up to those of the board.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattcast.predictor.messages.application import Timeline
from wattcast.predictor.traces.trace import Integers

Floats = NDArray[np.float64]

MICRO = 1_000_000
"""Powers are whole microwatts: sums that go up and down over a million launches stay exact."""

NANO_MICRO = 1e-15
"""Joules of a microwatt for a nanosecond."""


@dataclass(frozen=True)
class Board:
    """What a device draws: watts by segment between ``times`` (ns), joules by launch.

    ``watts`` has one entry less than ``times``. ``active`` counts running launches.
    """

    times: Integers
    watts: Floats
    active: Integers
    joules: Floats
    idle_joules: float
    idle_seconds: float
    shared_seconds: float
    limited_seconds: float

    @property
    def span_seconds(self) -> float:
        """Of the whole trace."""
        return float(self.times[-1] - self.times[0]) * 1e-9

    @property
    def total_joules(self) -> float:
        """Of all launches and gaps."""
        return float(self.joules.sum()) + self.idle_joules


def shared_board(
    start: Integers,
    end: Integers,
    standing_watts: Floats,
    moving_watts: Floats,
    idle_watts: float,
    limit_watts: float,
    ends: Integers,
) -> Board:
    """The board of launches ``[n]`` with the watts of each if it ran alone, in two parts.

    ``ends`` (ns): when the whole trace begins and ends; the board idles where it runs nothing.
    """
    standing = np.round(standing_watts * MICRO).astype(np.int64)
    moving = np.round(moving_watts * MICRO).astype(np.int64)
    times, places = np.unique(np.concatenate([start, end, ends]), return_inverse=True)
    begin, finish = places[: len(start)], places[len(start) : 2 * len(start)]

    def running(of: Integers) -> Integers:
        """The sum over running launches in each segment."""
        change = np.zeros(len(times), dtype=np.int64)
        np.add.at(change, begin, of)
        np.subtract.at(change, finish, of)
        return np.cumsum(change)[:-1]

    length = np.diff(times).astype(np.float64)
    active = running(np.ones(len(start), dtype=np.int64))
    stands, moves = running(standing).astype(np.float64), running(moving).astype(np.float64)
    most = float(standing.max(initial=0))
    base = np.where(active > 1, np.minimum(stands, most), stands)
    room = np.maximum(limit_watts * MICRO - base, 0.0)
    held = (moves > room) & (moves > 0)
    keeps = np.where(held, room / np.where(moves > 0, moves, 1.0), 1.0)
    share = np.where(stands > 0, base / np.where(stands > 0, stands, 1.0), 1.0)
    idle = round(idle_watts * MICRO)
    watts = np.where(active == 0, float(idle), base + keeps * moves)

    def lost(kept: Floats) -> Floats:
        """Nanoseconds' worth that each launch does not get, exactly 0 where it runs alone."""
        missed = np.concatenate([[0.0], np.cumsum((1.0 - kept) * length)])
        gone: Floats = missed[finish] - missed[begin]
        return gone

    lasts = (end - start).astype(np.float64)
    joules = (moving * (lasts - lost(keeps)) + standing * (lasts - lost(share))) * NANO_MICRO
    gaps = float(length[active == 0].sum())
    return Board(
        times=times,
        watts=watts / MICRO,
        active=active,
        joules=joules,
        idle_joules=idle * gaps * NANO_MICRO,
        idle_seconds=gaps * 1e-9,
        shared_seconds=float(length[active > 1].sum()) * 1e-9,
        limited_seconds=float(length[held & (active > 1)].sum()) * 1e-9,
    )


def timeline(board: Board, origin: int, most: int) -> Timeline:
    """Power over time in at most ``most`` stretches, each with its mean watts: joules are kept.

    Seconds count from ``origin`` (ns).
    """
    span = int(board.times[-1] - board.times[0])
    if len(board.watts) <= most:
        edges = board.times
    else:
        edges = board.times[0] + np.arange(most + 1, dtype=np.int64) * span // most
        edges = np.unique(edges)
    length = np.diff(board.times).astype(np.float64)
    energy = np.concatenate([[0.0], np.cumsum(board.watts * length)])
    busy = np.concatenate([[0.0], np.cumsum(np.where(board.active > 0, length, 0.0))])
    at = (board.times - board.times[0]).astype(np.float64)  # whole: since 1970 a double has 256 ns
    marks = (edges - board.times[0]).astype(np.float64)
    width = np.diff(marks)
    keep = width > 0
    watts = np.diff(np.interp(marks, at, energy))[keep] / width[keep]
    share = np.diff(np.interp(marks, at, busy))[keep] / width[keep]
    return Timeline(
        start_seconds=((edges[:-1] - origin)[keep] * 1e-9).tolist(),
        seconds=(width[keep] * 1e-9).tolist(),
        watts=watts.tolist(),
        busy=np.clip(share, 0.0, 1.0).tolist(),
    )
