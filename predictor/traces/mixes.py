"""The best core clock for all kernels of a device, launched as they were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wattcast.features.analysis import KernelAnalysis
from wattcast.features.errors import AnalysisError, ClockError
from wattcast.features.gpus import GpuProfile
from wattcast.models.clocks import ClockPair
from wattcast.models.power.limit import checked_limit
from wattcast.predictor import parts
from wattcast.predictor.parts.limits import Chosen, cost_at
from wattcast.predictor.traces.powers import BoardPowers, Device, KindPower
from wattcast.predictor.traces.trace import Trace

if TYPE_CHECKING:
    from wattcast.predictor.messages.application import ApplicationRequest

Floats = NDArray[np.float64]

MOST_CLOCKS = 12
MOST_MIXED = 40
MOST_STEPS = 20
"""Core clocks tried for the mix of kernels, kernels in it (those of the most time), and steps that
get a clock of their own."""


def mixes(device: Device, trace: Trace, request: ApplicationRequest) -> Iterator[dict[str, Any]]:
    """The best clock for all launches that have code, and for those of each step."""
    lasts = (trace.end[device.at] - trace.start[device.at]).astype(np.float64) * 1e-9
    kinds, steps = trace.kind[device.at], trace.step[device.at]
    each = np.bincount(kinds, lasts, minlength=len(trace.kinds))
    known = [kind for kind, power in device.kinds.items() if power.request is not None]
    known = sorted(known, key=lambda kind: (-float(each[kind]), kind))[:MOST_MIXED]
    powers, gpu = device.powers, device.gpu
    cores = [core for core in gpu.supported_core_mhz if core <= powers.clocks.core_mhz]
    if not known or not cores:
        return
    every = max(1, -(-len(cores) // MOST_CLOCKS))
    tried = sorted({*cores[::-1][::every], powers.clocks.core_mhz})
    pairs = [ClockPair(core, powers.clocks.memory_mhz) for core in tried]
    at = {kind: AtClocks(powers, device.kinds[kind]) for kind in known}
    try:
        ratios = {(kind, pair): at[kind].at(pair) for pair in pairs for kind in known}
    except AnalysisError:
        return
    size = len(trace.kinds)
    groups: list[tuple[str | None, Floats]] = [(None, each.astype(np.float64))]
    for number, name in enumerate(trace.steps[:MOST_STEPS]):
        mine = steps == number
        own = np.bincount(kinds[mine], lasts[mine], minlength=size).astype(np.float64)
        groups.append((name, own))
    for step, seconds in groups:
        if sum(seconds[kind] for kind in known) > 0:
            mix = _mix(device, seconds, known, pairs, ratios, request.most_slowdown)
            yield {"device": trace.devices[device.number].id, "step": step, **mix}


def _mix(
    device: Device,
    seconds: Floats,
    known: Sequence[int],
    pairs: Sequence[ClockPair],
    ratios: Mapping[tuple[int, ClockPair], tuple[float, float]],
    most_slowdown: float,
) -> dict[str, Any]:
    """Kinds with these seconds at each pair of clocks, and the best of them."""
    watts = {kind: device.kinds[kind].estimate.value for kind in known}
    whole = sum(float(seconds[kind]) for kind in known)
    usual = sum(float(seconds[kind]) * watts[kind] for kind in known)
    points, highest = [], []
    for pair in pairs:
        time = energy = 0.0
        for kind in known:
            longer, less = ratios[kind, pair]
            time += float(seconds[kind]) * longer
            energy += float(seconds[kind]) * longer * watts[kind] * less
        points.append({**pair._asdict(), "time": time / whole, "energy": energy / usual})
        highest.append(max(watts[k] * ratios[k, pair][1] for k in known if seconds[k] > 0))
    allowed = [n for n, point in enumerate(points) if point["time"] <= most_slowdown]
    best = min(allowed, key=lambda n: (points[n]["energy"], -n), default=None)
    saves = best is not None and points[best]["energy"] < 1.0 - 1e-9
    return {
        "covers": whole / float(seconds.sum()),
        "points": points,
        "best": points[best] if best is not None and saves else None,
        "power_limit_watts": _possible(highest[best], device.gpu)
        if best is not None and saves
        else None,
    }


def _possible(watts: float, gpu: GpuProfile) -> float | None:
    """A power limit, where the board can be set to it."""
    try:
        return checked_limit(watts, gpu)
    except ClockError:
        return None


class AtClocks:
    """Ratios of time and power of launches with code between two pairs of clocks."""

    def __init__(self, board: BoardPowers, power: KindPower) -> None:
        assert power.request is not None
        self._board, self._request = board, power.request
        self._models = Chosen("auto", "physical")
        self._known: dict[ClockPair, tuple[float, float]] = {}

    @cached_property
    def _analysis(self) -> KernelAnalysis:
        board = self._board
        source = board.predictor.sources.read(self._request, board.gpu)
        return parts.analysed(board.predictor, self._request, source, board.gpu)

    @cached_property
    def _here(self) -> tuple[float, float]:
        return self._costs(self._board.clocks)

    def _costs(self, pair: ClockPair) -> tuple[float, float]:
        board = self._board
        found = cost_at(board.predictor, self._models, self._analysis, board.gpu, pair)
        time, watts, _ = found.told()
        return time.estimate.value, watts.value

    def at(self, pair: ClockPair) -> tuple[float, float]:
        """Time and power at a pair over those at the trace's clocks. Raises AnalysisError."""
        if pair not in self._known:
            time, watts = self._costs(pair)
            self._known[pair] = time / self._here[0], watts / self._here[1]
        return self._known[pair]
