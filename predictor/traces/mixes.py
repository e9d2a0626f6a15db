"""The best core clock for all kernels of a device, launched as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from wattcast.features.errors import ClockError
from wattcast.models.clocks import checked_limit
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
        limit = checked_limit(highest, device.gpu)
    return points, points[best], limit
