"""What to warn of in an answer about a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from wattcast.features.diagnostics import Diagnostic
from wattcast.predictor.traces.code import Library
from wattcast.predictor.traces.powers import Device
from wattcast.predictor.traces.trace import Integers, Trace

if TYPE_CHECKING:
    from wattcast.predictor.messages.application import ApplicationRequest


def notes_of(
    trace: Trace, request: ApplicationRequest, found: Sequence[Device], code: Library | None
) -> list[Diagnostic]:
    """Launches without a time, clocks that were assumed, boards, and files that were not read."""
    notes = []
    if trace.untimed:
        detail = f"{trace.untimed:,} launches have no time in the trace: they are not in the sums"
        notes.append(Diagnostic("launches_untimed", detail))
    if request.clocks is None:
        told = ", ".join(
            f"{device.gpu.id} {device.powers.clocks.core_mhz:g}/{device.powers.clocks.memory_mhz:g}"
            for device in found
        )
        detail = f"traces tell no clocks; {told} MHz are assumed: give them if they were others"
        notes.append(Diagnostic("clocks_assumed", detail))
    for device in found:
        notes += _board_notes(trace, device)
    for line in (code.skipped if code is not None else [])[:20]:
        notes.append(Diagnostic("code_not_read", line))
    return notes


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
    order = np.lexsort((trace.end[at], trace.start[at], trace.stream[at]))
    ordered = at[order]
    same = trace.stream[ordered][1:] == trace.stream[ordered][:-1]
    early = trace.start[ordered][1:] < trace.end[ordered][:-1]
    return int((same & early).sum())
