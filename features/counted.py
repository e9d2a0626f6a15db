"""What was counted of a launch, scaled to the trip counts of the answer.

An analysis runs (or works out) loops as often as the arguments make it; a trip count that the user
gives, or that stands assumed in the answer, may be another. Everything that is told of the
launch has to tell of the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wattcast.features.activity.cases import (
    Floats,
    ScaledCounts,
    ScaledTraffic,
    loop_factors,
    scaled_atomics,
    traffic_factors,
)
from wattcast.features.activity.counts import Counted
from wattcast.features.activity.extras import Atomics
from wattcast.features.activity.memory import Traffic
from wattcast.features.atomics import executed_atomics, symbolic_atomics
from wattcast.features.cfg import ControlFlowGraph
from wattcast.features.launch import Launch
from wattcast.features.loops import LoopForest
from wattcast.features.ptx.ir import Function, Module
from wattcast.features.runs import Runs, executed_trips, symbolic_traffic
from wattcast.features.trips import TripCount


@dataclass(frozen=True, eq=False)
class LaunchCounts:
    """Counts of a launch from execution, or from symbols where ``executed`` is false.

    ``trip_counts`` are those of the answer, one for each loop of the kernel.
    """

    module: Module
    function: Function
    launch: Launch
    cfg: ControlFlowGraph
    loops: LoopForest
    trip_counts: tuple[TripCount, ...]
    runs: Runs
    executed: bool

    def factors(self, assumed: float | None = None) -> Floats | None:
        """How much more often each instruction of the kernel runs than was counted.

        ``None``: no more often. ``assumed`` stands in for trip counts that are guessed. What
        execution or symbols found out is what was counted.
        """
        wanted: list[float | None] = [None] * len(self.trip_counts)
        for index, trip in enumerate(self.trip_counts):
            if trip.how == "given":
                wanted[index] = trip.count
            elif trip.how == "assumed":
                wanted[index] = trip.count if assumed is None else assumed
        if all(count is None for count in wanted):
            return None
        if self.executed:
            counted = executed_trips(self.runs.executed, self.function, self.cfg, self.loops)
        else:
            counted = {info.loop: info.count for info in self.runs.symbolic.loops}
        factors = loop_factors(self.cfg, self.loops, counted, wanted)
        return None if (factors == 1.0).all() else factors

    def functions(self, factors: Floats | None) -> Mapping[str, Counted]:
        """Counts by function name."""
        found: Mapping[str, Counted] = (
            self.runs.executed.functions if self.executed else self.runs.symbolic.functions
        )
        if factors is None:
            return found
        name = self.function.name
        return {**found, name: ScaledCounts(found[name], factors)}

    def traffic(self, factors: Floats | None) -> Traffic:
        """Traffic of global memory."""
        found: Traffic = (
            self.runs.executed.memory
            if self.executed
            else symbolic_traffic(self.function, self.launch, self.runs.symbolic)
        )
        if factors is None:
            return found
        own = self.functions(None)[self.function.name]
        return ScaledTraffic(found, traffic_factors(self.function.body, own, factors))

    def atomics(self, factors: Floats | None) -> Atomics:
        """Atomic operations."""
        found = (
            executed_atomics(self.module, self.runs.executed)
            if self.executed
            else symbolic_atomics(self.module, self.function, self.runs.symbolic)
        )
        return found if factors is None else scaled_atomics(found, self.function.name, factors)
