"""All kernels of a device at other core clocks and under power limits, launched as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from wattcast.features.errors import ClockError
from wattcast.models import clocks, operators
from wattcast.predictor.messages.application import ApplicationRequest, ClockPoint, MixClock
from wattcast.predictor.traces.powers import Device
from wattcast.predictor.traces.trace import Trace

Floats = NDArray[np.float64]

MOST_STEPS = 100
"""Steps that get a clock of their own: those of the most time."""


def mixes(device: Device, trace: Trace, request: ApplicationRequest) -> Iterator[MixClock]:
    """The best clock and power limit for all launches that have code, and for those of each step.

    Kinds of launches whose code has no answer at some clock are left out; ``covers`` is the share
    of the time that is not.
    """
    pairs = device.powers.tried
    known = [kind for kind, power in device.kinds.items() if power.scales is not None]
    if not known or not pairs:
        return
    lasts = (trace.end[device.at] - trace.start[device.at]).astype(np.float64) * 1e-9
    kinds, steps = trace.kind[device.at], trace.step[device.at]
    scales = np.array([device.kinds[kind].scales for kind in known])
    watts = np.array([device.kinds[kind].estimate.value for kind in known])
    size = len(trace.kinds)
    shares = np.bincount(np.maximum(steps, 0), lasts * (steps >= 0), minlength=len(trace.steps))
    longest = np.argsort(-shares[: len(trace.steps)], kind="stable")[:MOST_STEPS]
    order = np.argsort(steps, kind="stable")
    begins = np.searchsorted(steps[order], [*range(len(trace.steps) + 1)])
    everything = np.bincount(kinds, lasts, minlength=size).astype(np.float64)
    groups: list[tuple[str | None, Floats]] = [(None, everything)]
    for number in sorted(longest.tolist()):
        mine = order[begins[number] : begins[number + 1]]
        own = np.bincount(kinds[mine], lasts[mine], minlength=size).astype(np.float64)
        groups.append((trace.steps[number], own))
    for step, seconds in groups:
        if seconds[known].sum() > 0:
            points, best, limit = _mix(device, seconds[known], watts, scales, request.most_slowdown)
            yield MixClock(
                device=trace.devices[device.number].id,
                step=step,
                covers=float(seconds[known].sum() / seconds.sum()),
                points=points,
                best=best,
                power_limit_watts=limit,
            )


def _mix(
    device: Device, seconds: Floats, watts: Floats, scales: Floats, most_slowdown: float
) -> tuple[list[ClockPoint], ClockPoint | None, float | None]:
    """Kinds ``[n]`` with these seconds and watts at each pair of clocks, the best of them, and a
    power limit that comes to the same.

    ``scales`` ``[n, pairs, 2]``: time and power over those at the last pair.
    """
    longer, less = scales[:, :, 0], scales[:, :, 1]
    times = seconds @ longer / seconds.sum()
    energies = (seconds * watts) @ (longer * less) / (seconds @ watts)
    points = [
        ClockPoint(**pair._asdict(), time=float(time), energy=float(energy))
        for pair, time, energy in zip(device.powers.tried, times, energies, strict=True)
    ]
    allowed = np.flatnonzero(times <= most_slowdown)
    best = min(allowed.tolist(), key=lambda n: (energies[n], -n), default=None)
    if best is None or energies[best] >= 1.0 - 1e-9:
        return points, None, None
    highest = float((watts * less[:, best])[seconds > 0].max())
    limit = None
    with suppress(ClockError):  # a limit that the board cannot be set to
        limit = clocks.checked_limit(highest, device.gpu)
    return points, points[best], limit


# Everything that a device ran, with code or without.

UNLISTED = np.linspace(0.5, 1.0, 12)
"""Shares of the trace's clock that are tried where the profile lists no clocks: what lies between
is interpolated, and below the half limits hold a board back (``held``)."""


class Followed:
    """How each kind of launch of a device follows the core clock."""

    def __init__(self, device: Device, trace: Trace) -> None:
        """Kinds with code as it tells, operators by their share of compute, others in full.

        ``scales`` ``[n, clocks, 3]``: time, power, and the longest time, over those at the last of
        ``core_mhz`` ``[clocks]``, the clock of the trace.
        """
        powers, kinds = device.powers, [*device.kinds.values()]
        self.listed = len(powers.tried) > 1
        tried = [pair.core_mhz for pair in powers.tried]
        self.core_mhz = np.array(tried) if self.listed else powers.clocks.core_mhz * UNLISTED
        self.idle, size = powers.idle_watts, len(trace.kinds)
        self.hows = [each.how for each in kinds]
        self.watts = np.array([each.estimate.value for each in kinds])
        clock = self.core_mhz / self.core_mhz[-1]
        shares = np.array([each.core_share for each in kinds])[:, None]
        longer = shares / clock + 1.0 - shares
        squared = np.array([operators.VOLTAGE.at(each) ** 2 for each in clock])
        moving = (self.watts - self.idle)[:, None] * squared / longer
        less = (self.idle + moving) / self.watts[:, None]
        self.scales = np.stack([longer, less, np.broadcast_to(1.0 / clock, less.shape)], axis=2)
        for row, each in enumerate(kinds):
            if each.scales is not None and self.listed:
                self.scales[row, :, :2] = each.scales
        lasts = (trace.end[device.at] - trace.start[device.at]).astype(np.float64) * 1e-9
        known = [*device.kinds]
        of = trace.kind[device.at]
        self.seconds = np.bincount(of, lasts, minlength=size)[known]
        self.joules = np.bincount(of, device.board.joules, minlength=size)[known]

    def at(self, core_mhz: float) -> tuple[float, float, float]:
        """Mean time, energy, and longest time at one of the clocks, over the trace's."""
        return self._mean(self.scales[:, int(np.searchsorted(self.core_mhz, core_mhz))])

    def under(self, limit_watts: float) -> tuple[float, float, float]:
        """The same where each kind runs at the highest clock at which it keeps to the limit.

        Raises ClockError for a limit that idling alone exceeds.
        """
        clocks.held_back(limit_watts, self.idle + 1.0, self.idle)
        drawn = np.maximum.accumulate(self.watts[:, None] * self.scales[:, :, 1], axis=1)
        fits, last = (drawn <= limit_watts).sum(axis=1), len(self.core_mhz) - 1
        below, rows = np.clip(fits - 1, 0, last), np.arange(len(drawn))
        above = np.minimum(below + 1, last)
        low, high = drawn[rows, below], drawn[rows, above]
        step = np.clip((limit_watts - low) / np.maximum(high - low, 1e-9), 0.0, 1.0)[:, None]
        mean = (1.0 - step) * self.scales[rows, below] + step * self.scales[rows, above]
        # Not even the lowest clock fits: the board holds it back for part of the time.
        held = np.maximum((low - self.idle) / (limit_watts - self.idle), 1.0)
        mean[:, [0, 2]] *= held[:, None]
        mean[:, 1] = np.minimum(mean[:, 1], limit_watts / self.watts)
        return self._mean(mean)

    def _mean(self, scales: Floats) -> tuple[float, float, float]:
        whole = max(float(self.seconds.sum()), 1e-30)
        longer, most = (float(self.seconds @ scales[:, n]) / whole for n in (0, 2))
        return longer, float(self.joules @ (scales[:, 0] * scales[:, 1])), max(longer, most)
