"""From the counters of machines to an ``ExecutionResult``."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.attached import Attached
from wattcast.features.counts import Atomics, AtomicUse, Counts, Traffic
from wattcast.features.counts import Counts as Instructions
from wattcast.features.errors import Diagnostic, checkpoint
from wattcast.features.execution.context import Linked
from wattcast.features.execution.footprints import memory_facts
from wattcast.features.execution.machine import Machine
from wattcast.features.execution.program import Program
from wattcast.features.execution.sampling import SamplingPlan
from wattcast.features.execution.tally import COUNTED, Hits
from wattcast.features.launch import Launch
from wattcast.features.loops import tested_first
from wattcast.features.memory import LINE_BYTES, per_slot

# What executing a kernel tells.

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LoopTrips:
    """How often a loop's header was executed per entry, over the sampled threads.

    ``count`` is that of the loop's body as the programmer sees it, one less where the test comes
    first. ``entries`` are thread entries of the whole launch. ``extrapolated``: iterations were
    skipped because they repeat, or cut off where the budget ended. ``rough``: what they touched of
    memory is a guess, as accesses do not move by whole sectors, or not evenly.
    """

    function: str
    loop: int
    label: str | None
    line: int
    count: float
    mean: float
    lowest: int
    highest: int
    entries: float
    extrapolated: bool
    rough: bool


@dataclass(frozen=True, slots=True)
class SamplingInfo:
    """What was run. ``relative_standard_error`` is that of the launch's warp executions.

    ``completed`` tells that every sampled block ran to its end. ``effort`` is the work it took, in
    instructions times lanes (``features.errors.Effort``). ``uneven``: blocks do more or less by
    their place, and those that were run stand for others there.
    """

    plan: SamplingPlan
    launch_blocks: int
    relative_standard_error: float
    uneven: bool
    completed: bool
    steps: int
    effort: int


@dataclass(frozen=True)
class ExecutionResult:
    """The executed analysis of one launch. ``functions`` is keyed by function name."""

    functions: Mapping[str, Counts]
    loops: tuple[LoopTrips, ...]
    memory: Traffic
    atomics: Atomics
    sampling: SamplingInfo
    diagnostics: tuple[Diagnostic, ...]
    shared_bytes: int
    lower_bounds: bool = False
    """Cut short outside any loop whose counts could be scaled: what lies behind is missing."""
    carried_out: Mapping[str, Floats] = field(default_factory=dict)
    """By function: executions of each instruction by warps that were really carried out."""

    def trips(self, function: str) -> dict[int, float]:
        """Executions of each loop's body per entry, by loop, as far as the execution came."""
        return {info.loop: info.count for info in self.loops if info.function == function}


Integers = npt.NDArray[np.int64]


def _by_block(told: Iterable[Integers], machine: Machine) -> Integers:
    """``int64[blocks, sites]``: what each site tells of each block."""
    return np.array(list(told), dtype=np.int64).reshape(-1, machine.slots).T


def summarise(
    program: Program, launch: Launch, plan: SamplingPlan, machine: Machine,
    diagnostics: list[Diagnostic], effort: int,
) -> ExecutionResult:  # fmt: skip
    """Put together what the sampled blocks did and what it means for the launch."""
    runs = machine.run_stats.transpose(2, 0, 1)
    counted = machine.counted.transpose(2, 1, 0)
    sites = {name: counted[:, number] for number, name in enumerate(COUNTED)}
    del sites["extra"]
    extra = _by_block((tally.unlisted for tally in machine.tallies), machine)
    listed = (per_slot(tally.log.keys, machine.slots) for tally in machine.tallies)
    sites["unique_sectors"] = _by_block(listed, machine) + extra
    functions = {
        linked.function.name: _function(program, linked, runs, machine.guarded.T, sites, plan)
        for linked in program.functions
    }
    executed = runs[:, :, 0] @ np.array(_run_lengths(program))
    estimate = plan.total(executed)
    error = plan.standard_error(executed) / estimate if estimate else 0.0
    return ExecutionResult(
        functions=functions,
        loops=_loops(program, machine, plan),
        memory=memory_facts(program, launch, plan, machine, sites, extra),
        atomics=atomic_facts(program, plan, machine),
        sampling=SamplingInfo(
            plan,
            launch.blocks,
            error,
            plan.balanced is not None and not plan.complete and _differ(executed),
            machine.finished,
            machine.steps,
            effort,
        ),
        diagnostics=(*diagnostics, *machine.diagnostics.values()),
        shared_bytes=machine.shared_bytes,
        carried_out=_carried_out(program, machine),
    )


def _differ(executed: npt.NDArray[np.int64]) -> bool:
    """Whether blocks execute more than a tenth more than others."""
    return bool(executed.max() > 1.1 * executed.min())


def _carried_out(program: Program, machine: Machine) -> dict[str, Floats]:
    found = {
        linked.function.name: np.zeros(len(linked.body.instructions))
        for linked in program.functions
    }
    real = machine.run_stats[:, 0].sum(axis=1) - machine.skipped.sum(axis=1)
    for run in program.runs.values():
        linked = program.functions[run.function]
        where = slice(run.start - linked.base, run.end - linked.base)
        found[linked.function.name][where] += real[run.index]
    return found


def _run_lengths(program: Program) -> list[int]:
    lengths = [0] * len(program.runs)
    for run in program.runs.values():
        lengths[run.index] = run.end - run.start
    return lengths


def _function(
    program: Program, linked: Linked, runs: Integers, guarded: Integers, sites: dict[str, Integers],
    plan: SamplingPlan,
) -> Instructions:  # fmt: skip
    checkpoint()
    places = _places_of(program, linked)
    count = len(linked.body.instructions)
    raw = np.zeros((runs.shape[0], 2 + len(sites), count), dtype=np.int64)
    raw[:, :2, places.run_positions] = runs[:, places.runs].transpose(0, 2, 1)
    raw[:, 1, places.guarded_positions] = guarded[:, places.guarded]
    table = np.stack([*sites.values()], axis=1)
    for positions, numbers in places.sites:
        raw[:, 2:, positions] += table[:, :, numbers]
    names = ("warp_executions", "active_lanes", *sites)
    found = dict(zip(names, plan.estimate(raw), strict=True))
    return Instructions(function=linked.function.name, **found)


class _Places(NamedTuple):
    """Which runs, guards and sites tell of which instructions of a function. An instruction with
    several sites is in as many of the pairs of ``sites``."""

    run_positions: Integers
    runs: Integers
    guarded_positions: Integers
    guarded: Integers
    sites: tuple[tuple[Integers, Integers], ...]


_places: Attached[Linked, _Places] = Attached("places")


def _places_of(program: Program, linked: Linked) -> _Places:
    known = _places.get(linked)
    if known is None:
        _place_all(program)
        known = _places.get(linked)
        assert known is not None
    return known


def _place_all(program: Program) -> None:
    """One pass for all functions: there may be tens of thousands."""
    functions = program.functions
    bases = [linked.base for linked in functions]
    runs: list[list[tuple[int, int]]] = [[] for _ in functions]
    guarded: list[list[tuple[int, int]]] = [[] for _ in functions]
    layers: list[list[dict[int, int]]] = [[] for _ in functions]
    for run in program.runs.values():
        base = bases[run.function]
        runs[run.function] += [
            (position - base, run.index) for position in range(run.start, run.end)
        ]
    for position, row in program.guarded.items():
        number = bisect_right(bases, position) - 1
        guarded[number].append((position - bases[number], row))
    for site in program.sites:
        number = bisect_right(bases, site.position) - 1
        at, mine = site.position - bases[number], layers[number]
        layer = next((each for each in mine if at not in each), None)
        if layer is None:
            mine.append(layer := {})
        layer[at] = site.number
    for number, linked in enumerate(functions):
        checkpoint()
        pairs = tuple(_columns(each.items()) for each in layers[number])
        _places.set(linked, _Places(*_columns(runs[number]), *_columns(guarded[number]), pairs))


def _columns(pairs: Iterable[tuple[int, int]]) -> tuple[Integers, Integers]:
    table = np.array([*pairs], dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _loops(program: Program, machine: Machine, plan: SamplingPlan) -> tuple[LoopTrips, ...]:
    found = []
    for number, (function, index) in enumerate(program.loops):
        linked = program.functions[function]
        loop = linked.loops.loops[index]
        count = machine.trips.counts[number]
        if count is None:
            continue
        entered = plan.total(count.entries)
        if not entered:
            continue
        count.settle(None)
        mean = plan.total(count.rounds) / entered
        found.append(
            LoopTrips(
                linked.function.name, loop.index, loop.label, loop.line,
                max(mean - tested_first(linked.cfg, loop), 0.0), mean, int(count.lowest),
                count.highest, entered, count.extrapolated or not machine.finished, count.rough,
            )
        )  # fmt: skip
    return tuple(found)


# --- what the atomics of the sampled blocks say about the launch ----------------------------------

CANDIDATES = 4096
"""Addresses that the hottest one is looked for among."""


class Hottest(NamedTuple):
    """Operations and warp requests at the hottest address of a launch."""

    operations: float
    requests: float


def atomic_facts(program: Program, plan: SamplingPlan, machine: Machine) -> Atomics:
    """Every atom and red instruction that ran, and the address they hit most together."""
    found: list[AtomicUse] = []
    everywhere: list[Hits] = []
    for site in program.sites:
        tally = machine.tallies[site.number]
        counted = tally.contention
        if counted is None:
            continue
        linked = next(f for f in reversed(program.functions) if f.base <= site.position)
        hits = counted.hits()
        everywhere.append(hits)
        at = site.position - linked.base
        where = linked.body.instructions[at].location
        source_line = where.line if where else None
        place = linked.function.name, at, site.line, source_line, site.opcode
        requests, operations, passes, shared, shared_operations, shared_passes = map(
            plan.total,
            (tally.requests, counted.operations, counted.passes, tally.shared_requests,
             counted.shared_operations, counted.shared_passes),
        )  # fmt: skip
        if requests:
            top = hottest([hits], plan)
            found.append(AtomicUse(*place, "global", requests, operations, passes, *top))
        if shared:
            operations, passes = shared_operations, shared_passes
            found.append(AtomicUse(*place, "shared", shared, operations, passes, None, None))
    lines = [hits._replace(addresses=hits.addresses // LINE_BYTES) for hits in everywhere]
    return Atomics(
        tuple(found), *hottest(everywhere, plan), hottest(lines, plan).operations if found else None
    )


def hottest(parts: Sequence[Hits], plan: SamplingPlan) -> Hottest:
    """Operations on the hottest address of the launch, from hits in the sampled blocks.

    What several blocks hit is everyone's: a block's hits count for all blocks it stands for. The
    address is chosen without the block whose hits there are then counted, for each block in
    turn: of addresses hit at random the one hit most is no hotter elsewhere, and one that a
    block has to itself counts for that block alone. At least what was seen is counted, exactly
    that where every block was run.
    """
    if not any(part.addresses.size for part in parts):
        return Hottest(0.0, 0.0)
    addresses = np.concatenate([part.addresses for part in parts])
    units, place = np.unique(addresses, return_inverse=True)
    slots = np.concatenate([part.slots for part in parts])
    operations = np.concatenate([part.operations for part in parts])
    requests = np.concatenate([part.requests for part in parts])
    weights = plan.weights()
    seen = np.bincount(place, operations, minlength=units.size)
    top = int(seen.argmax())
    at_top = place == top
    least = Hottest(float(seen[top]), float(requests[at_top].sum()))
    if plan.complete:
        return least
    whole = np.bincount(place, operations * weights[slots], minlength=units.size)
    chosen = np.sort(np.argsort(-whole, kind="stable")[:CANDIDATES])
    number = np.full(units.size, -1, dtype=np.int64)
    number[chosen] = np.arange(chosen.size)
    kept = number[place] >= 0
    cells = number[place[kept]] * weights.size + slots[kept]
    shape = chosen.size, weights.size

    def by_block(values: Floats) -> Floats:
        found = np.bincount(cells, values[kept], minlength=shape[0] * shape[1])
        weighted: Floats = found.reshape(shape) * weights
        return weighted

    acted, asked = by_block(operations), by_block(requests)
    best = (acted.sum(axis=1)[:, None] - acted).argmax(axis=0)
    blocks = np.arange(weights.size)
    found = Hottest(float(acted[best, blocks].sum()), float(asked[best, blocks].sum()))
    return found if found.operations > least.operations else least
