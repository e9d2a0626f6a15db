"""The sum over all launches with its interval: what errors share stays, what is a kernel's own
averages out.

Of the squared half width of a kernel's power a share is an error that all kernels of the model have
on that board alike; the rest is the kernel's own. So many kernels are surer than one, and not
without end:

    half(sum)^2 = SHARED (sum of half widths)^2 + (1 - SHARED) sum of (half width of a kernel)^2

Launches of one kernel err alike, whatever their grids and on whichever board of the kind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import hypot, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from wattcast.models.estimate import BASIS_ORDER, Basis
from wattcast.predictor.messages import Energy
from wattcast.predictor.traces.powers import Device, KindPower
from wattcast.predictor.traces.trace import Trace

Floats = NDArray[np.float64]

Told = Literal["code", "code, board never measured", "no code"]

SHARED: Mapping[Told, float] = {
    "code": 0.05,
    "code, board never measured": 1.0,
    "no code": 1.0,
}
"""Share of the squared half width: the least at which totals of random mixes of 3 to 50 kernels,
left out, held their level on every board (``python -m studies trace-totals``). With code on a board
that is known 0.05 held 0.94 to 0.99 of the totals of eleven boards, 0 held 0.87 on the worst, and 1
all at twice the width. For boards left out 0.45 held 0.92 on average over six boards but 0.72 on
one, and 1 from 0.88 on: errors are the board's. So they are without code (0.55 of K20's, in
logarithms, beside 0.23 of a kernel's own)."""


def joined(halves: Floats, shared: float) -> float:
    """Half width of a sum whose terms have these ``[n]``, of each of whose squares ``shared`` is an
    error that all have alike."""
    return sqrt(shared * float(halves.sum()) ** 2 + (1 - shared) * float((halves**2).sum()))


def told_by(power: KindPower) -> Told:
    """Which of the models tells it."""
    if not power.how.startswith("code"):
        return "no code"
    return "code, board never measured" if power.estimate.basis == "uncalibrated" else "code"


def relative_ends(trace: Trace, found: Sequence[Device]) -> tuple[Floats, Floats]:
    """Ends of each launch's power over its value."""
    below, above = np.ones(len(trace)), np.ones(len(trace))
    for device in found:
        low, high = np.ones(len(trace.kinds)), np.ones(len(trace.kinds))
        for kind, power in device.kinds.items():
            value = power.estimate.value
            low[kind], high[kind] = power.estimate.low / value, power.estimate.high / value
        below[device.at] = low[trace.kind[device.at]]
        above[device.at] = high[trace.kind[device.at]]
    return below, above


def gaps_of(device: Device) -> dict[str, float]:
    """Idle power may be that of clocks which have not fallen yet; on a board that nobody measured
    it is a guess both ways."""
    board, powers = device.board, device.powers
    joules, seconds = board.idle_joules, board.idle_seconds
    least = np.exp(-powers.board_width)
    return {
        "seconds": seconds,
        "joules": joules,
        "low": joules * float(least),
        "high": max(joules, powers.standing_watts * seconds / float(least)),
    }


def total_of(
    joules: Floats,
    below: Floats,
    above: Floats,
    trace: Trace,
    found: Sequence[Device],
    gaps: Sequence[Mapping[str, float]],
) -> Energy:
    """The energy of all launches and gaps of some devices, with its interval.

    Models and gaps err for different reasons, and so do kinds of boards. Where a board is itself a
    guess, what is shared adds up.
    """
    value, level, bases = 0.0, 0.9, set[Basis]()
    own: dict[tuple[str, Told], dict[str, Floats]] = {}
    idle: dict[str, Floats] = {}
    guesses = {device.gpu.id for device in found if device.powers.estimated}
    for device, gap in zip(found, gaps, strict=True):
        value += float(joules[device.at].sum()) + gap["joules"]
        ends = np.array([gap["joules"] - gap["low"], gap["high"] - gap["joules"]])
        idle[device.gpu.id] = idle.get(device.gpu.id, np.zeros(2)) + ends
        kinds, size, mine = trace.kind[device.at], len(trace.kinds), joules[device.at]
        lower = np.bincount(kinds, mine * (1.0 - below[device.at]), minlength=size)
        upper = np.bincount(kinds, mine * (above[device.at] - 1.0), minlength=size)
        for kind, power in device.kinds.items():
            kernels = own.setdefault((device.gpu.id, told_by(power)), {})
            name = trace.kinds[kind].name
            both = np.array([lower[kind], upper[kind]])
            kernels[name] = kernels.get(name, np.zeros(2)) + both
            level = min(level, power.estimate.level)
            bases.add(power.estimate.basis)
    halves = [half_width(own, idle, guesses, side) for side in (0, 1)]
    return Energy(
        joules=value,
        low=max(0.0, value - halves[0]),
        high=value + halves[1],
        level=level,
        basis=max(bases, key=BASIS_ORDER.index),
    )


def half_width(
    own: Mapping[tuple[str, Told], Mapping[str, Floats]],
    idle: Mapping[str, Floats],
    guesses: Collection[str],
    side: int,
) -> float:
    """Half width below (0) or above (1) the total: of kernels by kind of board and model, of gaps
    by kind of board; ``guesses`` are those nobody measured."""
    apart = together = 0.0
    for (gpu, told), kernels in own.items():
        each = np.array([both[side] for both in kernels.values()])
        if gpu in guesses and told != "code":
            together += sqrt(SHARED[told]) * float(each.sum())
            apart += (1.0 - SHARED[told]) * float((each**2).sum())
        else:
            apart += joined(each, SHARED[told]) ** 2
    for gpu, both in idle.items():
        if gpu in guesses:
            together += float(both[side])
        else:
            apart += float(both[side]) ** 2
    return hypot(together, sqrt(apart))
