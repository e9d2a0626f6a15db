"""Algorithms 6, 7 and 8 of the thesis: list scheduling under resource reservation.

    schedule_block   Algorithm 6: a block's data-flow graph on the units of one SM
    schedule_cfg     Algorithm 7: longest path over the blocks, loops multiplied
    wave_plan        Algorithm 8, lines 2 to 9 and 12: threads of a wave and number of waves

Source: G. Alavani, Prediction of Performance and Power Consumption of GPGPU Applications
(PhD thesis, BITS Pilani, 2023), section 4.4.4. All times are core clock cycles of one SM.
Where the print is ambiguous or cannot be meant, the choice and its reason stand at the place;
docs/time.md lists them together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from wattcast.features.errors import LaunchError
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import Launch

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
