"""A kernel as the scheduler sees it: blocks of operations, each with its unit and latency key.

What is independent of launch and GPU is worked out once per kernel (``KernelCode``); a GPU then
only fills in numbers. ``code.toml`` says which unit (section 4.1 of the thesis: SP, SFU, DPU, LSU,
WS) and which row of its Table 3.2 an opcode is charged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattcast.features.cfg import ControlFlowGraph
from wattcast.features.checked import Strict, checked, read_toml
from wattcast.features.dataflow import block_edges
from wattcast.features.errors import LaunchError, checkpoint
from wattcast.features.gpus import GpuProfile
from wattcast.features.isa import OpcodeFacts, classify, kind_of
from wattcast.features.launch import Launch
from wattcast.features.loops import LoopForest
from wattcast.features.ptx.ir import Body

# Algorithms 6, 7 and 8 of the thesis: list scheduling under resource reservation.
#
#     schedule_block   Algorithm 6: a block's data-flow graph on the units of one SM
#     schedule_cfg     Algorithm 7: longest path over the blocks, loops multiplied
#     wave_plan        Algorithm 8, lines 2 to 9 and 12: threads of a wave and number of waves
#
# Source: G. Alavani, Prediction of Performance and Power Consumption of GPGPU Applications
# (PhD thesis, BITS Pilani, 2023), section 4.4.4. All times are core clock cycles of one SM.
# Where the print is ambiguous or cannot be meant, the choice and its reason stand at the place;
# docs/time.md lists them together.

PIPELINE_LATENCY = 1
"""L_pipeline: every further batch adds one cycle (section 4.4.4.2: "perfectly pipelined")."""


class Operation(NamedTuple):
    """One node of a block's data-flow graph.

    ``latency`` in cycles (the thesis' L, above 0), ``resource`` the unit it occupies (R_map),
    ``predecessors`` the nodes it depends on, each before it in the block.
    """

    latency: float
    resource: str
    predecessors: tuple[int, ...] = ()


class BlockSchedule(NamedTuple):
    """``starts[v]`` is Sch[v] in cycles from the block's start; ``delay`` its length."""

    starts: tuple[float, ...]
    delay: float


def duration(operation: Operation, threads: int, units: Mapping[str, int]) -> float:
    """Algorithm 6, line 8: d = L + L_pipeline (ceil(threads / units) - 1), in cycles."""
    batches = -(-threads // units[operation.resource])
    return operation.latency + PIPELINE_LATENCY * (batches - 1)


class Reservations:
    """One resource's row of the table Rsv: the busy intervals, ascending and disjoint.

    The printed table has a cell per cycle; delays reach millions of cycles, so only the ends
    of the busy stretches are kept, touching ones joined. Gaps too short for a length stay too
    short, so for each length the stretch last found without room is remembered and skipped:
    long blocks stay near-linear.
    """

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._without_room: dict[float, tuple[float, float]] = {}

    def reserve(self, earliest: float, length: float) -> float:
        """Take the first gap of ``length`` at or after ``earliest`` (line 9); returns its start."""
        starts, ends = self._starts, self._ends
        low, high = self._without_room.get(length, (earliest, earliest))
        within = low <= earliest <= high
        start = high if within else earliest
        # The only stretch beginning before `start` that can reach past it is the last such.
        at = bisect_right(starts, start)
        if at and ends[at - 1] > start:
            start = ends[at - 1]
        while at < len(starts) and starts[at] < start + length:
            start = ends[at]
            at += 1
        if within:
            self._without_room[length] = (low, start)
        elif start - earliest >= high - low:
            self._without_room[length] = (earliest, start)
        joins_left = at > 0 and ends[at - 1] == start
        joins_right = at < len(starts) and starts[at] == start + length
        if joins_left and joins_right:
            ends[at - 1] = ends[at]
            del starts[at], ends[at]
        elif joins_left:
            ends[at - 1] = start + length
        elif joins_right:
            starts[at] = start
        else:
            starts.insert(at, start)
            ends.insert(at, start + length)
        return start


def schedule_block(
    operations: Sequence[Operation], threads: int, units: Mapping[str, int]
) -> BlockSchedule:
    """Algorithm 6 as printed: schedule a block for ``threads`` threads of one SM.

    ``units`` holds R, the units of each resource per SM. The topological order is that of the
    text. The delay is the finish of the node that ends last: the print returns that of the
    node visited last, which in its figure is the dummy end node every path leads to.
    """
    reserved: dict[str, Reservations] = {}
    starts: list[float] = []
    ends: list[float] = []
    for operation in operations:
        ready = max((ends[u] for u in operation.predecessors), default=0.0)
        length = duration(operation, threads, units)
        row = reserved.setdefault(operation.resource, Reservations())
        starts.append(row.reserve(ready, length))
        ends.append(starts[-1] + length)
    return BlockSchedule(tuple(starts), max(ends, default=0.0))


def schedule_in_order(
    operations: Sequence[Operation],
    order: Sequence[int],
    threads: int,
    units: Mapping[str, int],
) -> float:
    """Delay of a block whose operations take their resources in a fixed order, in cycles.

    ``order`` is a topological order. No operation moves into a gap before an earlier one of
    its resource, so the delay is built from sums and maxima of durations alone: longer
    latencies or more threads can only lengthen it. Algorithm 6 has no such guarantee: a longer
    operation may open a gap that shortens the whole (a scheduling anomaly; R. L. Graham,
    "Bounds on multiprocessing timing anomalies", 1969).
    With the order of the starts of a schedule of Algorithm 6, and its durations, the delay is
    that schedule's.
    """
    free: dict[str, float] = {}
    ends = [0.0] * len(operations)
    delay = 0.0
    for at in order:
        operation = operations[at]
        start = free.get(operation.resource, 0.0)
        for u in operation.predecessors:
            if ends[u] > start:
                start = ends[u]
        batches = -(-threads // units[operation.resource])
        end = start + operation.latency + PIPELINE_LATENCY * (batches - 1)
        ends[at] = free[operation.resource] = end
        if end > delay:
            delay = end
    return delay


def start_order(schedule: BlockSchedule) -> tuple[int, ...]:
    """Operations by start time, ties in text order: a topological order of the block.

    Durations are positive, so a predecessor always starts before its successor.
    """
    return tuple(sorted(range(len(schedule.starts)), key=lambda v: (schedule.starts[v], v)))


def schedule_cfg(
    successors: Sequence[Sequence[int]],
    multipliers: Sequence[float],
    order: Sequence[int],
    block_delay: Callable[[int], float],
) -> float:
    """Algorithm 7: longest path from the entry, each block multiplied by its trips, in cycles.

    ``multipliers[b]`` is the product of the trip counts of all loops that hold block b, ``order``
    the reachable blocks, each before its ``successors`` but for back edges: those count as left
    out (the print says so for its topological sort); of an irreducible graph every retreating
    edge does. The print multiplies the block that has the back edge; a loop of several blocks
    repeats all of them, and nested loops multiply. The print returns the delay of the block
    visited last; with several exits that is the largest of all.
    """
    position = {block: at for at, block in enumerate(order)}
    arrival = dict.fromkeys(order, 0.0)
    longest = 0.0
    for block in order:
        finish = arrival[block] + block_delay(block) * multipliers[block]
        longest = max(longest, finish)
        for successor in successors[block]:
            if position[successor] > position[block] and arrival[successor] < finish:
                arrival[successor] = finish
    return longest


class WavePlan(NamedTuple):
    """``threads_scheduled`` per SM (nTh_sched), ``threads_per_wave`` (nTh_sm) and ``waves``."""

    threads_scheduled: int
    threads_per_wave: int
    waves: int


def wave_plan(
    gpu: GpuProfile, launch: Launch, registers_per_thread: int, shared_bytes_per_block: int
) -> WavePlan:
    """Algorithm 8, lines 2 to 9 and 12: how many threads of an SM run at once, how many waves.

    Choices against the print:

    * line 2 spreads the blocks evenly; an SM that works runs at least one whole block, so
      nTh_sched is never below nT_b (matters for fewer blocks than SMs only);
    * every limit, also that of threads, admits whole blocks;
    * line 7 repeats line 6's condition; the block limit compares resident blocks with nB^M;
    * lines 9 and 12: ``while nTh_sched >= 0`` runs once too often at exact multiples, and
      subtracting nTh_sm^M counts fewer waves than a register or shared memory limit causes:
      the waves are ceil(nTh_sched / nTh_sm).

    Raises LaunchError where not even one block fits; ``field`` names what is short.
    """
    threads_per_block = launch.threads_per_block
    scheduled = max(threads_per_block, -(-launch.blocks * threads_per_block // gpu.sm_count))
    capacities = {
        "block": gpu.max_threads_per_sm // threads_per_block,
        "grid": gpu.max_blocks_per_sm,
        "registers_per_thread": gpu.registers_per_sm
        // max(1, registers_per_thread * threads_per_block),
        "shared_bytes": gpu.shared_bytes_per_sm // max(1, shared_bytes_per_block),
    }
    field = min(capacities, key=lambda name: capacities[name])
    if capacities[field] < 1:
        raise LaunchError(
            f"not one block of {threads_per_block} threads, {registers_per_thread} registers per "
            f"thread and {shared_bytes_per_block} bytes of shared memory fits on an SM",
            field=field,
        )
    per_wave = min(scheduled, capacities[field] * threads_per_block)
    return WavePlan(scheduled, per_wave, -(-scheduled // per_wave))


MISC = "misc"
GLOBAL_LOAD = "global_load"
GLOBAL_STORE = "global_store"

DEFAULT_ACCESS_BYTES = 4
"""access_sz where the opcode does not tell the bytes (cp.async and bulk copies): the size the
authors' tool uses for every access (docs/schemas.md)."""


MOST_EXECUTIONS = 1e18
"""Executions of a block beyond which more make no difference: at one cycle each they take 30
years. It keeps the times of deep nests finite."""


class Charge(NamedTuple):
    """What one opcode costs: the unit it occupies and the latency it is charged.

    ``latency`` is a key of ``GpuProfile.latency_cycles``, or MISC, GLOBAL_LOAD, GLOBAL_STORE;
    ``measured`` is False where no table holds a latency for the opcode (it is MISC then).
    The counts are per execution and thread.
    """

    resource: str
    latency: str
    measured: bool
    global_accesses: int = 0
    global_bytes: int = 0
    shared_accesses: int = 0
    shared_bytes: int = 0


class _Tables(Strict):
    free: frozenset[str]
    known_misc: frozenset[str]
    units: Mapping[str, str]
    rows: Mapping[Literal["float", "int", "any"], Mapping[str, str]]


_FILE = Path(__file__).with_suffix(".toml")


@cache
def _tables() -> _Tables:
    return checked(_Tables, read_toml(_FILE), _FILE.name)


@lru_cache(maxsize=65536)
def charge(opcode: str) -> Charge | None:
    """Unit, latency key and memory accesses of an opcode; ``None`` if it costs nothing."""
    facts = classify(opcode)
    if facts.entry in _tables().free:
        return None
    if facts.category in ("load", "store", "atomic", "copy"):
        return _memory_charge(facts)
    resource = _tables().units[facts.pipe]
    if facts.category == "texture":
        return Charge(resource, GLOBAL_LOAD, measured=False)
    if facts.category == "surface":
        stores = facts.entry != "suld"
        return Charge(resource, GLOBAL_STORE if stores else GLOBAL_LOAD, measured=False)
    rows = _tables().rows["int" if kind_of(facts.type) == "int" else "float"]
    key = rows.get(facts.entry) or _tables().rows["any"].get(facts.entry)
    if key is None:
        return Charge(resource, MISC, measured=facts.entry in _tables().known_misc)
    return Charge(resource, key, measured=True)


def _memory_charge(facts: OpcodeFacts) -> Charge:
    size = facts.bytes_per_lane or DEFAULT_ACCESS_BYTES
    if facts.space in ("param", "const") and facts.category == "load":
        # The machine reads both from the constant bank as an operand: a move, not a load
        # (docs/activity.md weights a parameter load 0.15 instructions).
        return Charge("SP", "mov", measured=facts.space == "param")
    if facts.space == "param":
        return Charge("SP", "mov", measured=True)
    on_global = facts.space in ("global", "generic") or facts.source_space == "global"
    on_shared = facts.space == "shared" or facts.source_space == "shared"
    stores = facts.category == "store" or facts.entry == "red"
    if on_global or facts.space == "local":
        # Local memory lies in global memory; it is no access of the kernel's data, so it is
        # not counted in nGM.
        latency = GLOBAL_STORE if stores else GLOBAL_LOAD
    elif on_shared:
        latency = "st.shared" if stores else "ld.shared"
    else:
        latency = MISC
    return Charge(
        "LSU",
        latency,
        measured=latency != MISC and facts.category in ("load", "store"),
        global_accesses=int(on_global),
        global_bytes=size * on_global,
        shared_accesses=int(on_shared),
        shared_bytes=size * on_shared,
    )


@dataclass(frozen=True)
class BlockCode:
    """One basic block: a charge and the predecessors (indices into ``charges``) per operation."""

    charges: tuple[Charge, ...] = ()
    predecessors: tuple[tuple[int, ...], ...] = ()

    @cached_property
    def memory(self) -> NDArray[np.float64]:
        """Global accesses and bytes, shared accesses and bytes of all charges, ``[4]``."""
        counts = [charge[3:] for charge in self.charges]
        return np.asarray(np.array(counts, dtype=np.float64).reshape(-1, 4).sum(axis=0))


@dataclass(frozen=True, eq=False)
class KernelCode:
    """A kernel without launch and GPU.

    ``loop_of[b]`` is the innermost loop that holds block b (index in the LoopForest) or -1,
    ``loop_parents`` the loop around each loop or -1, ``loop_lines`` their PTX lines; ``order``
    the blocks reachable, topologically without back edges. ``unmeasured`` are opcodes no table
    holds a latency for, ``calls`` the lines of calls.
    """

    blocks: tuple[BlockCode, ...]
    successors: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    loop_of: tuple[int, ...]
    loop_parents: tuple[int, ...]
    loop_lines: tuple[int, ...]
    unmeasured: tuple[str, ...]
    calls: tuple[int, ...]
    # By GPU constants, filled by models/papers/thesis/scheduling.py.
    operations: dict[object, tuple[tuple[Operation, ...], ...]] = field(
        default_factory=dict, init=False, repr=False
    )
    delays: dict[object, tuple[float, ...]] = field(default_factory=dict, init=False, repr=False)
    orders: dict[object, tuple[tuple[int, ...], ...]] = field(
        default_factory=dict, init=False, repr=False
    )

    @classmethod
    def of(cls, body: Body, cfg: ControlFlowGraph, loops: LoopForest) -> KernelCode:
        """Work out a kernel's code from its body, control flow graph and natural loops."""
        successors = tuple(tuple(block.successors) for block in cfg.blocks)
        loop_of = [-1] * len(cfg.blocks)
        for loop in loops.loops:
            for member in loop.own_blocks:
                loop_of[member] = loop.index
        unmeasured: dict[str, None] = {}
        calls: list[int] = []
        blocks = []
        for number, block in enumerate(cfg.blocks):
            if number not in cfg.reachable:
                blocks.append(BlockCode())
                continue
            checkpoint()
            charges: list[Charge] = []
            at: dict[int, int] = {}
            before: list[list[int]] = []
            for position in range(block.start, block.end):
                instruction = body.instructions[position]
                cost = charge(instruction.opcode)
                if cost is None:
                    continue
                if not cost.measured:
                    unmeasured[instruction.opcode] = None
                if instruction.base == "call":
                    calls.append(instruction.line)
                at[position] = len(charges)
                charges.append(cost)
                before.append([])
            for source, target in block_edges(body, block):
                if source in at and target in at:
                    before[at[target]].append(at[source])
            blocks.append(BlockCode(tuple(charges), tuple(tuple(part) for part in before)))
        return cls(
            blocks=tuple(blocks),
            successors=successors,
            order=cfg.reverse_post_order,
            loop_of=tuple(loop_of),
            loop_parents=tuple(loop.parent for loop in loops.loops),
            loop_lines=tuple(loop.line for loop in loops.loops),
            unmeasured=tuple(unmeasured),
            calls=tuple(calls),
        )

    def multipliers(self, trips: Sequence[float]) -> tuple[float, ...]:
        """How often each block runs: the product of the trips of the loops that hold it.

        At most MOST_EXECUTIONS. ``trips`` has one count per loop of the LoopForest.
        """
        known = tuple(float(count) for count in trips)
        parents = self.loop_parents
        if len(known) != len(parents):
            raise ValueError(f"{len(known)} trip counts for {len(parents)} loops")
        of_loop: list[float | None] = [None] * len(parents)
        for loop in range(len(parents)):
            # Down from the outermost loop not yet worked out; no order of the loops is relied on.
            inside = []
            at = loop
            while at >= 0 and of_loop[at] is None:
                inside.append(at)
                at = parents[at]
            around = (of_loop[at] or 0.0) if at >= 0 else 1.0
            for at in reversed(inside):
                around = of_loop[at] = min(known[at] * around, MOST_EXECUTIONS)
        return tuple((of_loop[loop] or 0.0) if loop >= 0 else 1.0 for loop in self.loop_of)
