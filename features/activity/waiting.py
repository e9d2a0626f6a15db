"""What a warp waits for one after another: dependent chains of its code, times their executions.

A warp issues in order and stalls where it needs a result that is not there. Within a basic block
results that do not depend on each other are waited for together (instruction- and memory-level
parallelism); blocks follow one after another. ptxas unrolls loops of one block and moves their
loads together, unless a load needs what a round before has loaded (a pointer chase).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from wattcast.features.activity.counts import Counted, Floats, Integers, body_of
from wattcast.features.attached import attached
from wattcast.features.cfg import BasicBlock, build_cfg
from wattcast.features.dataflow import block_sources, flow
from wattcast.features.isa import OpcodeFacts, classify
from wattcast.features.loops import natural_loops
from wattcast.features.machine_code import machine_code
from wattcast.features.memory import SECTOR_BYTES
from wattcast.features.ptx.ir import Body, Immediate, Instruction, Module
from wattcast.features.registers import UNROLL

INSTRUCTION, SHARED, LOAD = 4.0, 25.0, 400.0
"""Cycles by which the longest of several chains is chosen: arithmetic, shared memory and device
memory of a V100 (Jia et al. 2018, Tables 4.1 and 3.1). Only their order of size matters."""


class Waiting(NamedTuple):
    """What a warp waits for one after another: arithmetic ``instructions`` (machine instructions),
    accesses of ``shared`` memory and of other lanes, ``loads`` from global or local memory and
    textures, ``barriers`` of its block.

    Of a launch as shares of what a warp executes on average: ``loads`` of its loads (1: each
    waits for the one before), the others of its machine instructions.
    """

    instructions: float
    shared: float
    loads: float
    barriers: float


def measure_waiting(module: Module, functions: Mapping[str, Counted]) -> Waiting:
    """Sum the chains of all blocks; ``functions`` maps names to counts by position."""
    total = np.zeros(len(Waiting._fields))
    instructions = loads = 0.0
    for name, counts in functions.items():
        body = body_of(module, name)
        starts, chains, waits = _chains(body)
        executed = counts.warp_executions
        total += executed[starts] @ chains
        instructions += float(executed @ machine_code(body).instructions)
        loads += float(executed @ waits)
    shares = total / max(instructions, 1.0)
    found = Waiting(*shares.tolist())
    return found._replace(loads=float(total[Waiting._fields.index("loads")]) / max(loads, 1.0))


@attached
def _chains(body: Body) -> tuple[Integers, Floats, Floats]:
    """First instruction and longest chain of every block that holds any, ``[n]`` and ``[n, 4]``;
    which instructions are loads."""
    cfg = build_cfg(body)
    blocks = [block for block in cfg.blocks if block.start < block.end]
    chains = [block_chain(body, block) for block in blocks]
    table = np.array(chains, dtype=np.float64).reshape(-1, len(Waiting._fields))
    waits = np.array([waits_for_memory(classify(one.opcode)) for one in body.instructions])
    return np.array([block.start for block in blocks], dtype=np.intp), table, waits * 1.0


def block_chain(body: Body, block: BasicBlock) -> Waiting:
    """The longest chain of one block, run once.

    A barrier waits for all before it, and all accesses of memory after it wait for the barrier.
    """
    machine = machine_code(body).instructions[block.start : block.end].tolist()
    longest = fence = [0.0] * (1 + len(Waiting._fields))  # of a chain: cycles, then ``Waiting``
    ends: dict[int, list[float]] = {}
    for one, sources in block_sources(body, block):
        field, cycles, accesses = _part(one.opcode)
        reached = [ends[writer] for writer in sources]
        if field == _BARRIERS:
            reached.append(longest)
        elif accesses:
            reached.append(fence)
        times = machine[one.position - block.start] if field == _INSTRUCTIONS else 1.0
        end = list(max(reached)) if reached else [0.0] * len(longest)
        end[0] += cycles * times
        end[1 + field] += times
        ends[one.position] = end
        longest = max(longest, end)
        if field == _BARRIERS:
            fence = end
    chain = Waiting(*longest[1:])
    if chain.loads and block.index in block.successors and not chain.barriers:
        gathered = 1 if _chases(body, block) else UNROLL
        chain = chain._replace(loads=chain.loads / gathered)
    return chain


_INSTRUCTIONS, _SHARED, _LOADS, _BARRIERS = range(4)
"""The fields of ``Waiting``."""


@lru_cache(maxsize=4096)
def _part(opcode: str) -> tuple[int, float, bool]:
    """What an instruction adds to in a chain, its cycles each time, whether it accesses memory."""
    facts = classify(opcode)
    if facts.category == "barrier" and facts.entry in ("bar", "barrier"):
        return _BARRIERS, SHARED, False
    if waits_for_memory(facts):
        return _LOADS, LOAD, facts.accesses_memory
    read = facts.category == "load" or facts.entry in ("atom", "shfl")
    if read and (facts.space == "shared" or facts.entry == "shfl"):
        return _SHARED, SHARED, facts.accesses_memory
    return _INSTRUCTIONS, INSTRUCTION, facts.accesses_memory


def waits_for_memory(facts: OpcodeFacts) -> bool:
    """Whether an instruction's result comes from behind L1."""
    if facts.category == "texture":
        return True
    reads_memory = facts.category == "load" or facts.entry == "atom"
    return reads_memory and facts.space in ("global", "generic", "local")


def _chases(body: Body, block: BasicBlock) -> bool:
    """Whether a load's address needs what a load of an earlier round of the block returned."""
    inside = body.instructions[block.start : block.end]
    loaded: set[str] = set()
    known = flow(body)
    for _ in range(2):  # the second time with what the first round left
        carried = set(loaded)
        for one in inside:
            used, written = known.reads[one.position], known.writes[one.position]
            if waits_for_memory(classify(one.opcode)):
                if carried.intersection(used):
                    return True
                loaded.update(written)
                carried.difference_update(written)
            else:
                for kept in (loaded, carried):
                    change = kept.update if kept.intersection(used) else kept.difference_update
                    change(written)
    return False


# --- asynchronous copies: what a block waits for that it asked for some rounds before ------------


class Copies(NamedTuple):
    """Waits for copies from global to shared memory, one after another, of a block on average.

    ``exposed``: for what was asked for in the same round of a loop, or outside of loops.
    ``pipelined``: for what was asked for rounds ahead, each divided by their number: so many
    copies' latencies pass one after another, whatever else goes on meanwhile.
    """

    exposed: float
    pipelined: float


NO_COPIES = Copies(0.0, 0.0)


def measure_copies(
    module: Module, functions: Mapping[str, Counted], blocks: int, warps: int, shared_bytes: int
) -> Copies:
    """What all functions wait for; ``warps`` and ``shared_bytes`` are those of a block.

    Of cp.async the text tells how many rounds lie between a commit and its wait. Bulk copies come
    in stages: shared memory holds so many times what is announced at once, and one is in use.
    """
    exposed = pipelined = 0.0
    for name, counts in functions.items():
        body = body_of(module, name)
        for position, rounds in _waits_ahead(body):
            times = float(counts.warp_executions[position]) / (blocks * warps)
            exposed += times * (rounds == 0)
            pipelined += times / rounds if rounds else 0.0
        announced, brought = _bulk(body)
        times = sum(float(counts.active_lanes[position]) for position in announced) / blocks
        if times:
            sectors = sum(float(counts.sectors[position]) for position in brought) / blocks
            stages = int(shared_bytes // max(sectors * SECTOR_BYTES / times, 1.0))
            exposed += times * (stages < 2)
            pipelined += times / (stages - 1) if stages > 1 else 0.0
    return Copies(exposed, pipelined)


_WAITS = ("cp.async.wait_group", "cp.async.wait_all")
_COMMIT = "cp.async.commit_group"
AT_ONCE = 0.1
"""Of the instructions of a loop for each of its waits: so few from a commit to it hide nothing."""


@attached
def _waits_ahead(body: Body) -> tuple[tuple[int, float], ...]:
    """Waits for cp.async that count: position, and rounds of their loop between the commit and the
    wait (0: at once).

    A wait leaves the last n groups in flight and needs the one before them, so many of the loop's
    commits ago; of several that are waited for in a round the last asked for counts. A wait with no
    commit since the one before it needs what was on its way meanwhile.
    """
    marks = [one for one in body.instructions if one.opcode.startswith((*_WAITS, _COMMIT))]
    if not any(one.opcode.startswith(_WAITS) for one in marks):
        return ()
    cfg = build_cfg(body)
    forest = natural_loops(cfg)
    by_loop: dict[int, list[Instruction]] = {}
    for one in marks:
        by_loop.setdefault(forest.innermost[cfg.block_of[one.position]], []).append(one)
    found: list[tuple[int, float]] = []
    for loop, mine in by_loop.items():
        commits = [one.position for one in mine if one.opcode.startswith(_COMMIT)]
        inside = forest.loops[loop].blocks if loop >= 0 else ()
        length = sum(cfg.blocks[block].end - cfg.blocks[block].start for block in inside)
        ahead: list[tuple[float, int]] = []
        waits = [
            one
            for before, one in zip([None, *mine], mine, strict=False)
            if one.opcode.startswith(_WAITS)
            and (before is None or before.opcode.startswith(_COMMIT))
        ]
        for one in waits if commits else ():
            kept = one.operands[0] if one.operands else None
            needed = 1 + (int(kept.value) if isinstance(kept, Immediate) else 0)
            earlier = [position for position in commits if position < one.position]
            same = one.position - earlier[-needed] if len(earlier) >= needed else length + 1
            if loop < 0 or same < AT_ONCE * length / len(waits):
                if len(earlier) >= needed:
                    found.append((one.position, 0.0))
            else:
                ahead.append((needed / len(commits), one.position))
        if ahead:
            rounds, position = min(ahead)
            found.append((position, rounds))
    return tuple(found)


@attached
def _bulk(body: Body) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Positions of announcements of bytes, and of bulk copies to shared memory."""
    announced, brought = [], []
    for one in body.instructions:
        if one.base == "mbarrier" and "expect_tx" in one.opcode:
            announced.append(one.position)
        facts = classify(one.opcode)
        if facts.entry.startswith("cp.async.bulk") and facts.space == "shared":
            brought.append(one.position)
    return tuple(announced), tuple(brought)
