"""From the analysis of a launch to what the scheduler takes."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from features.analysis import ASSUMED_TRIP_RANGE, KernelAnalysis
from features.ptx.ir import Function
from models.time.code import KernelCode
from models.time.scheduling import KernelWork

_codes: WeakKeyDictionary[Function, KernelCode] = WeakKeyDictionary()


def work_of(analysis: KernelAnalysis) -> KernelWork:
    """An analysed launch as the scheduler takes it, with what was guessed as ranges."""
    function = analysis.function
    code = _codes.get(function)
    if code is None:
        code = KernelCode.of(function.body, analysis.cfg, analysis.loops)
        _codes[function] = code
    trips = analysis.trip_counts
    registers = analysis.registers
    return KernelWork(
        code=code,
        launch=analysis.launch,
        trip_counts=tuple(trip.count for trip in trips),
        registers_per_thread=registers.registers_per_thread,
        shared_bytes_per_block=analysis.static_shared_bytes + analysis.launch.dynamic_shared_bytes,
        trip_ranges=tuple(
            ASSUMED_TRIP_RANGE if trip.how == "assumed" else (trip.count, trip.count)
            for trip in trips
        ),
        register_range=(registers.low, registers.high),
    )
