"""The sum over all launches with its interval: what errors share stays, what is a kernel's own
averages out.

Of the squared half width of a kernel's power a share is an error that all kernels of the model have
on that board alike; the rest is the kernel's own. So many kernels are surer than one, and not
without end:

    half(sum)^2 = SHARED (sum of half widths)^2 + (1 - SHARED) sum of (half width of a kernel)^2

Launches of one kernel err alike, whatever their grids and on whichever board of the kind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import hypot, sqrt
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from wattcast.features.errors import Diagnostic
from wattcast.models.intervals import BASIS_ORDER, Basis
from wattcast.predictor.messages import Energy
from wattcast.predictor.messages import application as messages
from wattcast.predictor.traces.code import Library
from wattcast.predictor.traces.powers import Device, KindPower
from wattcast.predictor.traces.trace import Integers, Trace

Floats = NDArray[np.float64]

Told = Literal["code", "code, board never measured", "no code"]
Source = TypeVar("Source", bound=str)

SHARED: Mapping[Told, float] = {"code": 0.05, "code, board never measured": 1.0, "no code": 1.0}
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


class Launches(NamedTuple):
    """What each launch of a trace takes, and the ends of its power over its value, ``[n]`` each."""

    trace: Trace
    joules: Floats
    seconds: Floats
    below: Floats
    above: Floats

    @classmethod
    def of(cls, trace: Trace, found: Sequence[Device]) -> Launches:
        """Those of a trace's devices."""
        joules, below, above = np.zeros(len(trace)), np.ones(len(trace)), np.ones(len(trace))
        for device in found:
            low, high = np.ones(len(trace.kinds)), np.ones(len(trace.kinds))
            for kind, power in device.kinds.items():
                value = power.estimate.value
                low[kind], high[kind] = power.estimate.low / value, power.estimate.high / value
            joules[device.at] = device.board.joules
            below[device.at] = low[trace.kind[device.at]]
            above[device.at] = high[trace.kind[device.at]]
        return cls(trace, joules, (trace.end - trace.start).astype(np.float64) * 1e-9, below, above)

    def by_kind(self, device: Device, weights: Floats | None = None) -> NDArray[Any]:
        """Sums over a device's launches of each kind; of ones without ``weights``."""
        own = None if weights is None else weights[device.at]
        size = len(self.trace.kinds)
        return np.bincount(self.trace.kind[device.at], own, minlength=size)

    def total(self, found: Sequence[Device]) -> Energy:
        """The energy of all launches and gaps of some devices, with its interval.

        Models and gaps err for different reasons, and so do kinds of boards. Where a board is
        itself a guess, what is shared adds up.
        """
        value, level, bases = 0.0, 0.9, set[Basis]()
        own: dict[tuple[str, Told], dict[str, Floats]] = {}
        idle: dict[str, Floats] = {}
        guesses = {device.gpu.id for device in found if device.powers.estimated}
        for device in found:
            gap = gaps_of(device)
            value += float(self.joules[device.at].sum()) + gap["joules"]
            ends = np.array([gap["joules"] - gap["low"], gap["high"] - gap["joules"]])
            idle[device.gpu.id] = idle.get(device.gpu.id, np.zeros(2)) + ends
            lower = self.by_kind(device, self.joules * (1.0 - self.below))
            upper = self.by_kind(device, self.joules * (self.above - 1.0))
            for kind, power in device.kinds.items():
                kernels = own.setdefault((device.gpu.id, told_by(power)), {})
                name = self.trace.kinds[kind].name
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
    own: Mapping[tuple[str, Source], Mapping[str, Floats]],
    idle: Mapping[str, Floats],
    guesses: Collection[str],
    side: int,
    share: Mapping[Any, float] = SHARED,
) -> float:
    """Half width below (0) or above (1) the total: of kernels by kind of board and model, of gaps
    by kind of board; ``guesses`` are those nobody measured, ``share`` is what errors of a source
    have in common."""
    apart = together = 0.0
    for (gpu, told), kernels in own.items():
        each = np.array([both[side] for both in kernels.values()])
        if gpu in guesses and told != "code":
            together += sqrt(share[told]) * float(each.sum())
            apart += (1.0 - share[told]) * float((each**2).sum())
        else:
            apart += joined(each, share[told]) ** 2
    for gpu, both in idle.items():
        if gpu in guesses:
            together += float(both[side])
        else:
            apart += float(both[side]) ** 2
    return hypot(together, sqrt(apart))


# What to warn of in an answer about a trace.


def notes_of(
    trace: Trace,
    request: messages.ApplicationRequest,
    found: Sequence[Device],
    code: Library | None,
) -> Iterator[Diagnostic]:
    """Launches without a time, clocks that were assumed, boards, and files that were not read."""
    if trace.untimed:
        detail = f"{trace.untimed:,} launches have no time in the trace: they are not in the sums"
        yield Diagnostic("launches_untimed", detail)
    if request.clocks is None:
        told = ", ".join(
            f"{device.gpu.id} {device.powers.clocks.core_mhz:g}/{device.powers.clocks.memory_mhz:g}"
            for device in found
        )
        detail = f"traces tell no clocks; {told} MHz are assumed: give them if they were others"
        yield Diagnostic("clocks_assumed", detail)
    for device in found:
        yield from _board_notes(trace, device)
    for line in (code.skipped if code is not None else [])[:20]:
        yield Diagnostic("code_not_read", line)


def _board_notes(trace: Trace, device: Device) -> Iterator[Diagnostic]:
    told, board = trace.devices[device.number], device.board
    sms = told.sm_count
    if "MIG " in told.name or (sms is not None and sms < device.gpu.sm_count):
        size = f"{sms} of {device.gpu.sm_count}" if sms else "some"
        yield Diagnostic(
            "part_of_a_board",
            f"GPU {told.id} is a part of a board ({size} multiprocessors; MIG): what the other "
            "parts draw is not in the sums, and idle power is that of the whole board",
        )
    elif sms is not None and sms > device.gpu.sm_count:
        yield Diagnostic(
            "another_board",
            f"GPU {told.id} has {sms} multiprocessors in the trace, {device.gpu.id} has "
            f"{device.gpu.sm_count}: another kind of board?",
        )
    if board.shared_seconds:
        yield Diagnostic(
            "launches_overlap",
            f"on GPU {told.id} launches overlap for {board.shared_seconds:.3g} s: they share the "
            f"board, which reaches its limit for {board.limited_seconds:.3g} s of it",
        )
    early = _overlaps_in_a_stream(trace, device.at)
    if early:
        yield Diagnostic(
            "negative_gaps",
            f"on GPU {told.id} {early:,} launches begin before the one ahead of them in their "
            "stream has ended: taken as overlapping (timer resolution, or dependent launches)",
        )
    if device.powers.estimated:
        yield Diagnostic(
            "gpu_uncalibrated",
            f"power was never measured on {device.gpu.id}; weights of other GPUs and datasheet "
            "facts were used",
        )


def _overlaps_in_a_stream(trace: Trace, at: Integers) -> int:
    ordered = at[np.lexsort((trace.end[at], trace.start[at], trace.stream[at]))]
    same = trace.stream[ordered][1:] == trace.stream[ordered][:-1]
    early = trace.start[ordered][1:] < trace.end[ordered][:-1]
    return int((same & early).sum())


# Two answers about traces, beside each other: what uses more energy now, and what less.

MOST_CHANGES = 50


def changes(
    old: messages.ApplicationAnswer, new: messages.ApplicationAnswer
) -> messages.ApplicationChanges:
    """Sums, and kernels and operators by how much their joules changed.

    Kernels are the same where their names are. Errors of the models largely cancel in a
    difference: the same kernel is mistaken in the same way twice.
    """
    return messages.ApplicationChanges(
        old=_sums(old),
        new=_sums(new),
        joules=new.energy.joules - old.energy.joules,
        seconds=new.span_seconds - old.span_seconds,
        kernels=_by_name(old.kernels, new.kernels),
        operators=_by_name(old.operators, new.operators),
    )


def _sums(answer: messages.ApplicationAnswer) -> messages.ChangeSums:
    return messages.ChangeSums(
        joules=answer.energy.joules,
        seconds=answer.span_seconds,
        launches=answer.launches,
        gap_joules=sum(device.gaps.joules for device in answer.devices),
    )


def _by_name(
    old: Sequence[messages.KernelRow | messages.Row],
    new: Sequence[messages.KernelRow | messages.Row],
) -> list[messages.ChangeRow]:
    sums: dict[str | None, dict[str, list[Any]]] = {}
    for side, rows in enumerate((old, new)):
        for row in rows:
            mine = sums.setdefault(
                row.name, {"launches": [0, 0], "seconds": [0.0, 0.0], "joules": [0.0, 0.0]}
            )
            for name, pair in mine.items():
                pair[side] += getattr(row, name)
    changed = [
        messages.ChangeRow(
            name=name,
            **{f"old_{key}": pair[0] for key, pair in mine.items()},
            **{f"new_{key}": pair[1] for key, pair in mine.items()},
            joules=mine["joules"][1] - mine["joules"][0],
        )
        for name, mine in sums.items()
    ]
    changed.sort(key=lambda row: -abs(row.joules))
    return changed[:MOST_CHANGES]
