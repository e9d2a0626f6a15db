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
from wattcast.features.machine_code import machine_code
from wattcast.features.ptx.ir import Body, Module
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
