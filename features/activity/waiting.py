"""What a warp waits for one after another: dependent chains of its code, times their executions.

A warp issues in order and stalls where it needs a result that is not there. Within a basic block
results that do not depend on each other are waited for together (instruction- and memory-level
parallelism); blocks follow one after another. ptxas unrolls loops of one block and moves
their loads together, unless a load needs what a round before has loaded (a pointer chase) or
follows a store that may be to the same place.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from wattcast.features.activity.counts import Floats, Integers, body_of, shared_use
from wattcast.features.attached import attached
from wattcast.features.cfg import BasicBlock, build_cfg
from wattcast.features.counts import Counts
from wattcast.features.dataflow import block_sources, flow
from wattcast.features.isa import OpcodeFacts, classify
from wattcast.features.loops import UNROLL, natural_loops
from wattcast.features.machine_code import Pipes, machine_code, varying
from wattcast.features.memory import SECTOR_BYTES
from wattcast.features.ptx.ir import Address, Body, Immediate, Instruction, Module, Operand

INSTRUCTION, SHARED, LOAD = 4.0, 25.0, 400.0
"""Cycles by which the longest of several chains is chosen: arithmetic, shared memory and device
memory of a V100 (Jia et al. 2018, Tables 4.1 and 3.1). Only their order of size matters."""


SLOW_INSTRUCTIONS = 2.5
"""Further instructions' time of one that the special function unit does (a conversion, a reciprocal
seed): 14 cycles where others take 4 (Jia et al. 2018, Table 4.1)."""
DOUBLE_INSTRUCTIONS = 1.0
"""The same of double precision: 8 cycles where others take 4 (Jia et al. 2018, Table 4.1)."""
GUARD_INSTRUCTIONS = 2.0
"""Further instructions' time of one behind a guard, and of a branch that guards replace: 12 cycles
from comparison to guard, not 4 (the stalls that ptxas 12.9 writes into machine code for sm_75)."""
BRANCH_INSTRUCTIONS = 2.25
"""The same of a branch: it waits 12 cycles for its predicate, not 4, and what follows 5 for it (the
stalls that ptxas 12.9 writes into machine code for sm_75)."""
_SCALED = frozenset({"ex2", "lg2", "rcp", "rsqrt", "sqrt"})
"""Approximations whose argument is scaled behind a guard where it is subnormal: 37 cycles (the
same), 34 with this."""
REJOIN_INSTRUCTIONS = 11.0
"""The same of a division or root rounded to nearest, whose lanes branch and meet again. A step of
Sturm's sequence, each with a division by the one before, takes 146 cycles of an RTX 3080 at 1440
MHz (eigenvalue, calNumEigenValueInterval of ``time/rtx_3080_launches.csv`` of the data folder): 94
without. Two of its instructions, BSSY and BSYNC, are counted: the rest is the taken branch and the
way back."""


class Waiting(NamedTuple):
    """What a warp waits for one after another: arithmetic ``instructions`` (machine instructions),
    accesses of ``shared`` memory and of other lanes, ``loads`` from global or local memory and
    textures, ``barriers`` of its block, ``passes`` of its shared accesses beyond the first of each;
    ``uneven``: share of what is not loads that the slowest warp of a block does beyond the mean.

    Of a launch as shares of what a warp executes on average: ``loads`` of its loads (1: each
    waits for the one before), the others of its machine instructions.
    """

    instructions: float
    shared: float
    loads: float
    barriers: float
    passes: float = 0.0
    uneven: float = 0.0


def measure_waiting(
    module: Module, functions: Mapping[str, Counts], warps_per_block: int = 1
) -> Waiting:
    """Sum the chains of all basic blocks; ``functions`` maps names to counts by position.

    A warp's shared accesses come in order, each after all passes of those before. Where
    warps of a block wait for each other the slowest counts (``_slowest_warps``).
    """
    total, mean = np.zeros((2, len(Waiting._fields)))
    instructions = loads = 0.0
    for name, counts in functions.items():
        body = body_of(module, name)
        starts, chains, waits, barriers = _chains(body)
        executed = np.asarray(counts.warp_executions, dtype=np.float64)
        often = executed
        if executed @ barriers:
            often = _slowest_warps(body, executed, warps_per_block)
        code = machine_code(body)
        issued = code.issued_with[starts]  # guards do not spare a warp the time of what they skip
        for sums, times in ((total, often), (mean, executed)):
            sums += times[starts] @ chains
            sums[_INSTRUCTIONS] += (times[issued] - times[starts]) @ chains[:, _INSTRUCTIONS]
        requests, passes = shared_use(body, counts)
        extra = np.maximum(passes - requests, 0.0)
        total[_PASSES] += (extra * often / np.maximum(executed, 1e-9))[executed > 0].sum()
        instructions += float(code.issued(counts)[0].sum())
        loads += float(executed @ waits)
    shares = total / max(instructions, 1.0)
    found = Waiting(*shares.tolist())
    slow, usual = (float(each @ _SHORT_CYCLES) for each in (total, mean))
    found = found._replace(uneven=1.0 - usual / slow if slow else 0.0)
    return found._replace(loads=float(total[Waiting._fields.index("loads")]) / max(loads, 1.0))


def _slowest_warps(body: Body, executed: Floats, warps_per_block: int) -> Floats:
    """Executions by position as if all warps did what the slowest of their block does.

    Between barriers a block takes as long as the slowest of its warps. What a branch on the number
    of a thread skips is done by some warp whenever one gets there: of a reduction's steps the first
    warp does all, though on average a warp does few.
    """
    often = executed.copy()
    for branch, first, last in _skipped(body):
        if 0.0 < often[first] < often[branch]:
            rounds = min(often[branch], executed[first] * warps_per_block)
            often[first:last] *= max(1.0, rounds / often[first])
    return often


@attached
def _skipped(body: Body) -> tuple[tuple[int, int, int], ...]:
    """Branches on what lanes have apart, each with the instructions that it skips."""
    targets = {label.name: label.target for label in body.labels}
    skips = []
    for one in body.instructions:
        to = targets.get(getattr(one.operands[0], "name", ""), 0) if one.operands else 0
        if one.base == "bra" and one.predicate in varying(body) and to > one.position + 1:
            skips.append((one.position, one.position + 1, to))
    return tuple(skips)


@attached
def _chains(body: Body) -> tuple[Integers, Floats, Floats, Floats]:
    """First instruction and longest chain of every block that holds any, ``[n]`` and ``[n, 6]``;
    which instructions are loads, and which barriers."""
    cfg = build_cfg(body)
    blocks = [block for block in cfg.blocks if block.start < block.end]
    chains = [block_chain(body, block) for block in blocks]
    table = np.array(chains, dtype=np.float64).reshape(-1, len(Waiting._fields))
    waits = np.array([waits_for_memory(classify(one.opcode)) for one in body.instructions])
    barriers = np.array([_part(one.opcode)[0] == _BARRIERS for one in body.instructions])
    starts = np.array([block.start for block in blocks], dtype=np.intp)
    return starts, table, waits * 1.0, barriers * 1.0


def block_chain(body: Body, block: BasicBlock) -> Waiting:
    """The longest chain of one block, run once.

    A barrier waits for all before it, and all accesses of memory after it wait for the barrier.
    What follows a rounded division or root stays behind it (``_rejoins``), and it behind what waits
    before it: a store between two of them waits for the loads that its value takes.
    A load of global memory stays behind a store that may be to the same place, and the warp stops
    at the store until its value is there.
    """
    machine = _latencies(body)[block.start : block.end].tolist()
    nothing = [0.0] * (1 + len(Waiting._fields))  # of a chain: cycles, then ``Waiting``
    longest = fence = apart = issued = nothing
    ends: dict[int, list[float]] = {}
    stores: dict[Operand, list[float]] = {}  # by base address: the chain that a store waits for
    for one, sources in block_sources(body, block):
        field, cycles, accesses = _part(one.opcode)
        reached = [ends[writer] for writer in sources]
        if field == _BARRIERS:
            reached.append(longest)
        elif accesses:
            reached.append(fence)
        if apart is not nothing:
            reached.append(apart)
        if _rejoins(one):
            reached.append(issued)
        base = _global_base(one, "load")
        reached += [waited for stored, waited in stores.items() if base not in (None, stored)]
        times = machine[one.position - block.start] if field == _INSTRUCTIONS else 1.0
        ready = max(reached, default=nothing)
        issued, end = max(issued, ready), list(ready)
        end[0] += cycles * times
        end[1 + field] += times
        ends[one.position] = end
        longest = max(longest, end)
        if field == _BARRIERS:
            fence = end
        if _rejoins(one):
            apart = end
        base = _global_base(one, "store")
        if base is not None and reached:
            stores[base] = ready
    chain = Waiting(*longest[1:])
    if chain.loads and block.index in block.successors and not chain.barriers:
        gathers = block.start not in body.not_unrolled and apart is nothing
        if gathers and not (_chases(body, block) or _stores_between(body, block)):
            chain = chain._replace(loads=chain.loads / UNROLL)
    return chain


@attached
def _latencies(body: Body) -> Floats:
    """Machine instructions of each PTX instruction as the time that one after another take."""
    code = machine_code(body)
    found = code.instructions + SLOW_INSTRUCTIONS * code.pipes[:, Pipes._fields.index("sfu")]
    found += DOUBLE_INSTRUCTIONS * code.pipes[:, Pipes._fields.index("fp64")]
    for one in body.instructions:
        if one.predicate is not None:
            branches = one.base == "bra" and code.instructions[one.position] > 0
            found[one.position] += BRANCH_INSTRUCTIONS if branches else GUARD_INSTRUCTIONS
        words = set(one.opcode.split("."))
        if _rejoins(one):
            found[one.position] += REJOIN_INSTRUCTIONS
        elif {"approx", "f32"} <= words and "ftz" not in words and one.base in _SCALED:
            found[one.position] += GUARD_INSTRUCTIONS
    return found


def _rejoins(one: Instruction) -> bool:
    """Whether lanes branch and meet again in it: a division or root rounded to nearest, whose rare
    cases are a function. ptxas moves nothing across, not even loads of what nothing writes."""
    rounded = not {"rn", "rz", "rm", "rp"}.isdisjoint(one.modifiers)
    return rounded and one.base in ("div", "rcp", "sqrt")


_INSTRUCTIONS, _SHARED, _LOADS, _BARRIERS, _PASSES = range(5)
"""The fields of ``Waiting``."""
_SHORT_CYCLES = np.array([INSTRUCTION, SHARED, 0.0, SHARED, 1.0, 0.0])
"""Cycles of each that is no load, by their order of size."""


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


def _global_base(one: Instruction, category: str) -> Operand | None:
    """What the address of a ``load`` or ``store`` of global memory starts from; ``None`` of other
    instructions, and of loads of what nothing writes (``.nc``)."""
    facts = classify(one.opcode)
    if facts.category != category or facts.space not in ("global", "generic"):
        return None
    found = next((each for each in one.operands if isinstance(each, Address)), None)
    return None if found is None or ".nc" in one.opcode else found.base


def _stores_between(body: Body, block: BasicBlock) -> bool:
    """Whether a block stores where, for all ptxas knows, its next round loads: no loads of
    different rounds are moved together then."""
    inside = body.instructions[block.start : block.end]
    loads = {_global_base(one, "load") for one in inside} - {None}
    stores = {_global_base(one, "store") for one in inside} - {None}
    return any(stored != loaded for stored in stores for loaded in loads)


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

    ``exposed``: outside of loops, and of a pipeline with one stage. ``pipelined``: in loops, each
    divided by the waits that pass from asking to it: so many copies' latencies pass one after
    another. ``between``: how much of the loops' own time passes between a wait and what is asked
    for next, so many times over: it comes on top of those latencies.
    """

    exposed: float
    pipelined: float
    between: float = 0.0


NO_COPIES = Copies(0.0, 0.0)


def measure_copies(
    module: Module, functions: Mapping[str, Counts], blocks: int, warps: int, shared_bytes: int
) -> Copies:
    """What all functions wait for; ``warps`` and ``shared_bytes`` are those of a block.

    Of cp.async the text tells how many rounds lie between a commit and its wait. Bulk copies come
    in stages: shared memory holds so many times what is announced at once, and one is in use.
    """
    exposed = pipelined = between = rounds = 0.0
    for name, counts in functions.items():
        body = body_of(module, name)
        for position, repeated, apart in _waits(body):
            times = float(counts.warp_executions[position]) / (blocks * warps)
            exposed += times * (repeated == 0)
            pipelined += times * repeated
            between += times * repeated * apart
            rounds += times * (repeated > 0)
        announced, brought = _bulk(body)
        times = sum(float(counts.active_lanes[position]) for position in announced) / blocks
        if times:
            sectors = sum(float(counts.sectors[position]) for position in brought) / blocks
            stages = int(shared_bytes // max(sectors * SECTOR_BYTES / times, 1.0))
            exposed += times * (stages < 2)
            pipelined += times / (stages - 1) if stages > 1 else 0.0
    return Copies(exposed, pipelined, between / rounds if rounds else 0.0)


_WAIT = ("cp.async.wait_group", "cp.async.wait_all")
_COMMIT = "cp.async.commit_group"


@attached
def _waits(body: Body) -> tuple[tuple[int, float, float], ...]:
    """Waits for cp.async that count: position, copies' latencies that pass one after another for
    each of its executions (0: outside of loops, where all of it is waited for), and the part of
    the loop between a wait and what is asked for next.

    A wait leaves the last n groups in flight and needs the one before them. If that was asked for g
    of a round (whose own code takes C) behind another wait, s waits before, then s waits take
    g C + latency where the copy is waited for, and C s / W where it is not, of W waits a round: a
    round takes max(C, (latency + g C) W / s). The wait for which that is longest counts. A wait
    with no commit since the one before it needs what was on its way meanwhile.
    """
    marks = [one for one in body.instructions if one.opcode.startswith((*_WAIT, _COMMIT))]
    if not any(one.opcode.startswith(_WAIT) for one in marks):
        return ()
    cfg = build_cfg(body)
    forest = natural_loops(cfg)
    by_loop: dict[int, list[Instruction]] = {}
    for one in marks:
        by_loop.setdefault(forest.innermost[cfg.block_of[one.position]], []).append(one)
    found: list[tuple[int, float, float]] = []
    for loop, mine in by_loop.items():
        commits = [one.position for one in mine if one.opcode.startswith(_COMMIT)]
        waits = [
            one
            for before, one in zip([None, *mine], mine, strict=False)
            if one.opcode.startswith(_WAIT)
            and (before is None or before.opcode.startswith(_COMMIT))
        ]
        if not commits or not waits:
            continue
        if loop < 0:
            found += [
                (one.position, 0.0, 0.0)
                for one in waits
                if sum(at < one.position for at in commits) >= _needed(one)
            ]
            continue
        inside = forest.loops[loop].blocks
        length = sum(cfg.blocks[block].end - cfg.blocks[block].start for block in inside)
        places = [one.position for one in waits]
        each = [_repeated(one, places, commits, length) for one in waits]
        found.append((places[0], *max(each)))
    return tuple(found)


def _needed(wait: Instruction) -> int:
    """Which of the last groups a wait needs, 1 the last."""
    kept = wait.operands[0] if wait.operands else None
    return 1 + (int(kept.value) if isinstance(kept, Immediate) else 0)


def _repeated(
    wait: Instruction, waits: list[int], commits: list[int], length: int
) -> tuple[float, float]:
    """W / s and g of ``_waits``."""
    earlier = [at for at in commits if at < wait.position]
    missing = _needed(wait) - len(earlier)
    back = max(0, -(-missing // len(commits)))
    asked = earlier[-_needed(wait)] if not back else commits[-1 - (missing - 1) % len(commits)]
    passed = sum(at <= wait.position for at in waits) - sum(at < asked for at in waits)
    passed += back * len(waits)
    before = max((at for at in waits if at < asked), default=waits[-1] - length)
    return len(waits) / max(1, passed), min(1.0, max(0.0, (asked - before) / length))


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
