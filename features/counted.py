"""What was counted of a launch, scaled to the trip counts of the answer.

An analysis runs (or works out) loops as often as the arguments make it; a trip count that the user
gives, or that stands assumed in the answer, may be another. Everything that is told of the
launch has to tell of the same one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from wattcast.features.activity.counts import body_of
from wattcast.features.activity.waiting import waits_for_memory
from wattcast.features.attached import attached
from wattcast.features.cfg import ControlFlowGraph
from wattcast.features.counts import Atomics, AtomicUse, Counts, Traffic
from wattcast.features.dataflow import flow, writers_of
from wattcast.features.errors import WattcastError
from wattcast.features.isa import classify
from wattcast.features.launch import Launch
from wattcast.features.loops import LoopForest, calls_in
from wattcast.features.memory import LINE_BYTES
from wattcast.features.ptx.ir import Address, Body, Function, Instruction, Module, Register, Special
from wattcast.features.runs import Runs
from wattcast.features.trips import How, TripCount

if TYPE_CHECKING:
    from wattcast.features.symbolic import SymbolicResult
    from wattcast.features.values import Node


# Activity in other cases than the one analysed: other trip counts, other registers.
#
# The executed analysis runs loops as often as the arguments (given or assumed) make it; a trip
# count that the user gives, or that stands assumed in the answer, may be another. Counts inside a
# loop follow in proportion, and so does what it reads and writes.

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
        around = of_loop[loop.parent] if loop.parent >= 0 else 1.0
        known = want is None or have <= 0 or want == have
        of_loop[loop.index] = around if known or want is None else around * (want / have)
    for block in cfg.blocks:
        if (inner := forest.innermost[block.index]) >= 0:
            factors[block.start : block.end] = of_loop[inner]
    return factors


@attached
def _moving(body: Body) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which instructions load, and which store."""
    kinds = [classify(instruction.opcode).category for instruction in body.instructions]
    loaded = np.array([kind in ("load", "copy", "texture") for kind in kinds])
    return loaded, np.array([kind in ("store", "atomic") for kind in kinds])


def traffic_factors(body: Body, counts: Counts, factors: Floats) -> tuple[float, float, float]:
    """What factors for each instruction do to the sectors that a kernel loads and stores, and to
    all its requests; 1 where it does nothing of a kind."""
    loaded, stored = _moving(body)

    def factor(weights: Floats) -> float:
        total = float(weights.sum())
        return float((weights * factors).sum()) / total if total else 1.0

    sectors = counts.sectors
    return factor(sectors * loaded), factor(sectors * stored), factor(counts.requests)


REPEATED_ERROR = 0.02
"""Relative error of counts where iterations were taken from others: nine in ten of the 189 counts
(instructions, shared passes, sectors at L1, L2 and DRAM) of 52 launches lie within 1.4 % of those
of a run to completion (``python -m studies budget``)."""

ROUGH_ERROR = 0.2
"""The same where accesses of skipped iterations move by no whole sectors, or each time further:
sectors at L2 and DRAM lie up to 16 % off (the same study)."""

UNEVEN_ERROR = 0.03
"""The same where blocks do more or less by their place: their instructions are balanced exactly,
sectors at L2 lie up to 2.4 % off (the same study)."""

CUT_SHORT_ERROR = 0.9
"""The same where the budget ended in the few blocks that had it to themselves: four in five of 144
counts of 38 launches lie within a factor of 1.9 (``--budget 4e6``); what follows no law, as a cache
or the data of a thread, may lie beyond."""

SAME = 0.01
"""Relative difference up to which symbols confirm what was counted."""


def _ratio(known: Floats, counted: Floats, where: npt.NDArray[np.bool_]) -> Floats:
    """How much more there is than was counted; 1 elsewhere."""
    return np.divide(known, counted, out=np.ones(known.size), where=where)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How the work of a launch (executed warp instructions) is known; shares that sum to 1.

    ``executed`` was carried out, ``worked_out`` follows exactly from the text, ``extrapolated``
    from other blocks or iterations, ``assumed`` from trip counts or branches that nobody knows.
    ``error`` is the half width, relative, of a 90 % interval for what is extrapolated.
    """

    executed: float
    extrapolated: float
    worked_out: float
    assumed: float
    error: float = 0.0


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
            if trip.how in ("given", "assumed"):
                wanted[index] = trip.if_assumed(assumed)
        beyond = self._beyond_the_budget()
        if all(count is None for count in wanted):
            return beyond
        factors = loop_factors(self.cfg, self.loops, self._counted, wanted)
        if beyond is not None:
            factors = np.where(factors == 1.0, beyond, factors)
        return None if (factors == 1.0).all() else factors

    @property
    def _counted(self) -> Mapping[int, float]:
        """The trips of the loops, by index, behind the counts."""
        if self.executed:
            return self.runs.executed.trips(self.function.name)
        return {info.loop: info.count for info in self.runs.proven.loops}

    @property
    def never_entered(self) -> bool:
        """Whether a loop whose trips are assumed was never gone round, so that what it does is in
        no count: an argument that was assumed, too, kept every thread out of it."""
        counted = self._counted
        assumed = [trip for trip in self.trip_counts if trip.how == "assumed" and trip.count > 0]
        return any(counted.get(trip.loop, 0.0) <= 0 for trip in assumed)

    def _beyond_the_budget(self) -> Floats | None:
        """What an execution that its budget ended left out, where symbols know it exactly."""
        if not self.executed or self.runs.executed.sampling.completed:
            return None
        try:
            known = self.runs.flow.functions[self.function.name]
        except WattcastError:
            return None
        ran = self.runs.executed.functions[self.function.name].warp_executions
        exact = known.counts_known & (ran > 0) & (known.warp_executions > 0)
        factors = _ratio(known.warp_executions, ran, exact)
        return None if (factors == 1.0).all() else factors

    def coverage(self, factors: Floats | None) -> Coverage:
        """How the launch's executed warp instructions are known, as shares of them all."""
        shares = np.zeros(4)
        symbolic = self._symbolic()
        for name, counts in self.functions(factors).items():
            work = np.asarray(counts.warp_executions, dtype=np.float64)
            assumed = self._inside(name, "assumed", work.size)
            worked_out = self._inside(name, "given", work.size)
            known = symbolic.functions.get(name) if symbolic is not None else None
            if symbolic is not None and known is not None:
                near = np.abs(known.warp_executions - work) <= SAME * work
                # Blocks drawn as an execution draws them say nothing of the others.
                worked_out |= known.counts_known & near & (not symbolic.sampling.drawn)
            done = np.zeros(work.size)
            if self.executed:
                done = np.minimum(self.runs.executed.carried_out[name], work)
            left = work - done
            shares += (
                done.sum(),
                left[~assumed & ~worked_out].sum(),
                left[~assumed & worked_out].sum(),
                left[assumed].sum(),
            )
        total = shares.sum()
        parts = shares / total if total else np.array([0.0, 0.0, 1.0, 0.0])
        one, two, three, four = (float(part) for part in parts)
        return Coverage(one, two, three, four, self._error(two + four > 0))

    def _inside(self, name: str, how: How, size: int) -> npt.NDArray[np.bool_]:
        """Instructions of a function in loops whose trips are known in one way."""
        found = np.zeros(size, dtype=np.bool_)
        for trip in self.trip_counts if name == self.function.name else ():
            for block in self.loops.loops[trip.loop].blocks if trip.how == how else ():
                found[self.cfg.blocks[block].start : self.cfg.blocks[block].end] = True
        return found

    def _error(self, sampled: bool) -> float:
        """Half width, relative: between blocks if others count as the ``sampled`` ones do, of
        iterations taken from others, and of what a budget left out."""
        if not self.executed:
            return 0.0
        found = self.runs.executed
        error = 1.645 * found.sampling.relative_standard_error * sampled
        error += UNEVEN_ERROR * found.sampling.uneven
        if not found.sampling.completed:
            return error + CUT_SHORT_ERROR
        if any(info.rough for info in found.loops):
            return error + ROUGH_ERROR
        return error + REPEATED_ERROR * any(info.extrapolated for info in found.loops)

    def _symbolic(self) -> SymbolicResult | None:
        try:
            return self.runs.flow if self.executed else self.runs.proven
        except WattcastError:
            return None

    def functions(self, factors: Floats | None) -> Mapping[str, Counts]:
        """Counts by function name."""
        found: Mapping[str, Counts] = (
            self.runs.executed.functions if self.executed else self.runs.proven.functions
        )
        if factors is None:
            return found
        name = self.function.name
        scaled = {name: found[name].times(factors)}
        waiting = [(self.function, factors)]
        while waiting:  # a function does as much more as it is called more often
            caller, own = waiting.pop()
            times = found[caller.name].warp_executions
            for name, places in calls_in(caller).items():
                called, before = self.module.function(name), float(times[places].sum())
                if called is None or name in scaled or name not in found or not before:
                    continue
                factor = float((times * own)[places].sum()) / before
                factors = np.full(found[name].warp_executions.size, factor)
                scaled[name] = found[name].times(factors)
                waiting.append((called, factors))
        return {**found, **scaled}

    def traffic(self, factors: Floats | None) -> Traffic:
        """Traffic of global memory."""
        found: Traffic = self.runs.executed.memory if self.executed else self.runs.traffic
        if factors is None:
            return found
        own = self.functions(None)[self.function.name]
        return found.times(*traffic_factors(self.function.body, own, factors))

    def atomics(self, factors: Floats | None) -> Atomics:
        """Atomic operations."""
        found = (
            _told_uniform(self.module, self.runs.executed.atomics)
            if self.executed
            else symbolic_atomics(self.module, self.function, self.runs.proven)
        )
        return found if factors is None else found.times(self.function.name, factors)


# --- the atomics of a launch, from either analysis: ``wattcast.features.counts.Atomics


_CHANGING = frozenset({"special", "unknown", "phi", "join", "exit"})
"""Values that are not the same in all threads and all iterations, or may not be."""


def _told_uniform(module: Module, found: Atomics) -> Atomics:
    """The atomics that sampled blocks ran, and of which the code tells that lanes meet."""
    uses = (
        replace(use, uniform=_uniform(body_of(module, use.function), use.position))
        for use in found.uses
    )
    return replace(found, uses=tuple(uses))


def symbolic_atomics(module: Module, function: Function, result: SymbolicResult) -> Atomics:
    """Atomics whose addresses are known: one for all lanes of a warp, or one for each lane.

    Where every thread of the launch acts on one address, as on a counter, that is the hottest.
    """
    if not any(_atomics_of(body_of(module, name)) for name in result.functions):
        return Atomics((), 0.0, 0.0)
    strides = {info.position: info.stride_bytes for info in result.accesses if info.affine}
    fixed = _fixed_addresses(module, function)
    uses: list[AtomicUse] = []
    hottest: dict[tuple[Node, int], tuple[float, float]] = {}
    unknown = False
    for name, counts in result.functions.items():
        for one in _atomics_of(body_of(module, name)):
            at, own = one.position, name == function.name
            lanes = float(counts.active_lanes[at])
            stride = strides.get(at) if own else None
            requests = float(counts.requests[at])
            if requests:
                address = fixed.get(at) if own else None
                uses.append(_use(name, one, "global", requests, lanes, stride, address is not None))
                if address is None:
                    unknown = True
                else:
                    before = hottest.get(address, (0.0, 0.0))
                    hottest[address] = before[0] + lanes, before[1] + requests
            shared = float(counts.shared_requests[at])
            if shared:
                uses.append(_use(name, one, "shared", shared, lanes, stride, False))
    if unknown:
        return Atomics(tuple(uses), None, None)
    lines: dict[tuple[Node, int], float] = {}
    for (base, offset), (operations, _) in hottest.items():
        line = base, offset // LINE_BYTES
        lines[line] = lines.get(line, 0.0) + operations
    top = max(hottest.values(), default=(0.0, 0.0))
    return Atomics(tuple(uses), *top, max(lines.values(), default=None))


@attached
def _atomics_of(body: Body) -> tuple[Instruction, ...]:
    return tuple(one for one in body.instructions if classify(one.opcode).category == "atomic")


def _use(
    function: str, one: Instruction, space: Literal["global", "shared"], requests: float,
    lanes: float, stride: int | None, fixed: bool,
) -> AtomicUse:  # fmt: skip
    passes: float | None = None
    if fixed or stride == 0:
        passes = lanes
    elif stride is not None or lanes == requests:  # an address for each lane, or one lane only
        passes = requests
    return AtomicUse(
        function, one.position, one.line, one.location.line if one.location else None,
        one.opcode, space, requests, lanes, passes,
        lanes if fixed else None, requests if fixed else None, fixed or stride == 0,
    )  # fmt: skip


def _uniform(body: Body, position: int) -> bool:
    """Whether the address of an atomic follows from parameters and the block alone."""
    writers = writers_of(body)
    reads = flow(body).reads
    base = next((o.base for o in body.instructions[position].operands if isinstance(o, Address)), 0)
    waiting = [base.name] if isinstance(base, Register) else []
    seen = set(waiting)
    while waiting:
        for at in writers.get(waiting.pop(), ()):
            one = body.instructions[at]
            facts = classify(one.opcode)
            of_lane = any(
                isinstance(each, Special) and each.name.startswith(("%tid", "%lane"))
                for each in one.operands
            )
            if of_lane or facts.category == "atomic" or waits_for_memory(facts):
                return False
            waiting += [name for name in reads[at] if name not in seen]
            seen.update(reads[at])
    return True


def _fixed_addresses(module: Module, function: Function) -> dict[int, tuple[Node, int]]:
    """Address (node and offset) of every access that goes to one place in the whole launch."""
    from wattcast.features.symbolic.build import scheme

    found = {}
    for access in (access for block in scheme(module, function).accesses for access in block):
        waiting, seen = [access.address], {access.address}
        while waiting and waiting[-1].op not in _CHANGING:
            for node in waiting.pop().args:
                if node not in seen:
                    seen.add(node)
                    waiting.append(node)
        if not waiting:
            found[access.position] = access.address, access.offset
    return found
