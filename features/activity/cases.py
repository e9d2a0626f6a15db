"""Activity in other cases than the one analysed: other trip counts, other registers.

The executed analysis runs loops as often as the arguments (given or assumed) make it; a trip count
that the user gives, or that stands assumed in the answer, may be another. Counts inside a loop
follow in proportion, and so does what it reads and writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.activity.counts import Counted
from wattcast.features.activity.extras import Atomics, AtomicUse
from wattcast.features.activity.memory import Traffic
from wattcast.features.attached import attached
from wattcast.features.cfg import ControlFlowGraph
from wattcast.features.isa import classify
from wattcast.features.launch import Dim3
from wattcast.features.loops import LoopForest
from wattcast.features.ptx.ir import Body
from wattcast.features.reuse import Stream

Floats = npt.NDArray[np.float64]


def loop_factors(
    cfg: ControlFlowGraph,
    forest: LoopForest,
    counted: Mapping[int, float],
    wanted: Sequence[float | None],
) -> Floats:
    """How much more often each instruction runs, ``float64[instructions]``.

    ``counted`` are the trips of the loops (by index) behind the counts at hand, ``wanted`` those
    of the case, ``None`` where the counts are right as they are. Nested loops multiply. A loop
    that was counted with no trips cannot be scaled and stays as it is.
    """
    factors = np.ones(len(cfg.body.instructions))
    of_loop = [1.0] * len(forest.loops)
    for loop in sorted(forest.loops, key=lambda one: one.depth):
        want, have = wanted[loop.index], counted.get(loop.index, 0.0)
        around = of_loop[loop.parent] if loop.parent is not None else 1.0
        known = want is None or have <= 0 or want == have
        of_loop[loop.index] = around if known or want is None else around * (want / have)
    for block in cfg.blocks:
        if (inner := forest.innermost[block.index]) >= 0:
            factors[block.start : block.end] = of_loop[inner]
    return factors


def _times_factors(name: str) -> cached_property[Floats]:
    """Counts of that name times the factors; 0 where the analysis does not count it."""

    def scaled(self: ScaledCounts) -> Floats:
        values = getattr(self.counts, name, None)
        return np.zeros_like(self.factors) if values is None else values * self.factors

    return cached_property(scaled)


@dataclass(frozen=True)
class ScaledCounts:
    """Counts of one function times a factor for each instruction."""

    counts: Counted
    factors: Floats

    warp_executions = _times_factors("warp_executions")
    active_lanes = _times_factors("active_lanes")
    requests = _times_factors("requests")
    sectors = _times_factors("sectors")
    local_sectors = _times_factors("local_sectors")
    shared_requests = _times_factors("shared_requests")
    shared_transactions = _times_factors("shared_transactions")
    constant_transactions = _times_factors("constant_transactions")
    l1_millicycles = _times_factors("l1_millicycles")


class TrafficFactors(NamedTuple):
    """What factors for each instruction do to the sectors loaded, stored, and to all requests."""

    loads: float
    stores: float
    requests: float


@dataclass(frozen=True)
class ScaledTraffic:
    """Global memory traffic of blocks that go on for longer, or end sooner.

    Distances of reuse and shares that blocks have in common stay. Which buffer an instruction
    goes to is not followed: loads of all buffers have one factor, stores another.
    """

    traffic: Traffic
    factors: TrafficFactors

    @property
    def load_sectors(self) -> float:
        """Sectors read."""
        return self.traffic.load_sectors * self.factors.loads

    @property
    def store_sectors(self) -> float:
        """Sectors written."""
        return self.traffic.store_sectors * self.factors.stores

    @property
    def footprint_sectors(self) -> float:
        """Distinct sectors of the launch."""
        found = self.traffic
        total = found.load_sectors + found.store_sectors
        scaled = self.load_sectors + self.store_sectors
        return found.footprint_sectors * (scaled / total if total else 1.0)

    @property
    def busy_blocks(self) -> float:
        """Blocks that make requests to global memory."""
        return self.traffic.busy_blocks

    @property
    def requests_per_block(self) -> float:
        """Requests of a block to global memory."""
        return self.traffic.requests_per_block * self.factors.requests

    @property
    def grid(self) -> Dim3 | None:
        """The grid in which blocks have their places."""
        return self.traffic.grid

    @cached_property
    def streams(self) -> tuple[Stream, ...]:
        """What happens to each buffer."""
        loads, stores, _ = self.factors
        return tuple(
            replace(
                stream.times(loads),
                store_sectors=stream.store_sectors * stores,
                atomic_sectors=stream.atomic_sectors * stores,
                unique_store_sectors=stream.unique_store_sectors * stores,
            )
            for stream in self.traffic.streams
        )


@attached
def _moving(body: Body) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which instructions load, and which store."""
    kinds = [classify(instruction.opcode).category for instruction in body.instructions]
    loaded = np.array([kind in ("load", "copy", "texture") for kind in kinds])
    return loaded, np.array([kind in ("store", "atomic") for kind in kinds])


def traffic_factors(body: Body, counts: Counted, factors: Floats) -> TrafficFactors:
    """The factors of a kernel's traffic; 1 where it does nothing of a kind."""
    loaded, stored = _moving(body)

    def factor(weights: Floats) -> float:
        total = float(weights.sum())
        return float((weights * factors).sum()) / total if total else 1.0

    return TrafficFactors(
        factor(counts.sectors * loaded), factor(counts.sectors * stored), factor(counts.requests)
    )


def scaled_atomics(atomics: Atomics, function: str, factors: Floats) -> Atomics:
    """Atomics of a launch whose instructions run more often; the hottest address stays so."""
    uses = tuple(
        _scaled_use(use, float(factors[use.position])) if use.function == function else use
        for use in atomics.uses
    )
    before = sum(use.operations for use in atomics.uses if use.space == "global")
    after = sum(use.operations for use in uses if use.space == "global")
    ratio = after / before if before else 1.0
    return Atomics(
        uses, _times(atomics.hottest_operations, ratio), _times(atomics.hottest_requests, ratio)
    )


def _scaled_use(use: AtomicUse, factor: float) -> AtomicUse:
    return replace(
        use,
        requests=use.requests * factor,
        operations=use.operations * factor,
        passes=_times(use.passes, factor),
        hottest_operations=_times(use.hottest_operations, factor),
        hottest_requests=_times(use.hottest_requests, factor),
    )


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
