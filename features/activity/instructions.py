"""What each instruction contributes to the activity of a launch: events by position.

The sums over all instructions are the quantities of ``Activity``. What single instructions do is
counted, but for the caches: which of several loads found its sector in a cache is not followed,
so the sectors that pass a level are shared out (``_passing``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.activity.counts import (
    LATENCY_PER_BARRIER,
    LATENCY_PER_INSTRUCTION,
    LATENCY_PER_LOAD,
    WORD_BYTES,
    Activity,
    body_of,
    shared_use,
)
from wattcast.features.attached import attached
from wattcast.features.counts import Counts, Flags
from wattcast.features.isa import OpcodeFacts, classify, kind_of
from wattcast.features.launch import WARP_SIZE
from wattcast.features.machine_code import Pipes, machine_code
from wattcast.features.memory import SECTOR_BYTES, SECTORS_PER_LINE
from wattcast.features.ptx.ir import Body, Module
from wattcast.features.wide_loads import joined_loads

Floats = npt.NDArray[np.float64]


class InstructionEvents(NamedTuple):
    """Events of one function's instructions, ``float64[instructions]`` each, launch totals.

    ``warp_executions`` and ``active_lanes`` as counted; ``machine_instructions`` after
    expansion, then by pipe. ``load_store_passes``: requests of the load/store unit and what
    bank conflicts add; ``shared_passes``: of these, shared memory's. ``global_sectors`` after
    coalescing (an atomic's go there and back); ``l2_sectors`` and ``dram_sectors`` are as many
    of them as come that far. ``tensor_operations`` are floating-point (or integer) operations
    of matrix instructions. ``latency_cycles``: cycles of waiting summed over warps, as
    ``activity1`` weighs them.
    """

    warp_executions: Floats
    active_lanes: Floats
    machine_instructions: Floats
    fma: Floats
    fp32: Floats
    alu: Floats
    fp64: Floats
    sfu: Floats
    fp16: Floats
    tensor: Floats
    tensor_operations: Floats
    load_store_passes: Floats
    shared_passes: Floats
    atomic_requests: Floats
    texture_requests: Floats
    global_sectors: Floats
    l2_sectors: Floats
    dram_sectors: Floats
    latency_cycles: Floats


def measure_instructions(
    module: Module, functions: Mapping[str, Counts], activity: Activity
) -> dict[str, InstructionEvents]:
    """Events by function name; ``functions`` are the counts that ``activity`` sums up."""
    counted = {name: _counted(module, name, counts) for name, counts in functions.items()}
    loaded = {
        name: (each.sectors * each.loads, each.unique * each.loads)
        for name, each in counted.items()
    }
    stored = {
        name: (each.sectors * each.stores, each.unique * each.stores)
        for name, each in counted.items()
    }
    # Stores write through L1; what is left of the sectors at L2 are loads.
    stores = sum(float(every.sum()) for every, _ in stored.values())
    at_l2 = _passing(loaded, max(0.0, activity.l2_sectors - stores))
    read = _passing(loaded, activity.dram_read_sectors)
    written = _passing(stored, activity.dram_write_sectors)
    return {
        name: each.events._replace(
            l2_sectors=at_l2[name] + stored[name][0],
            dram_sectors=read[name] + written[name],
        )
        for name, each in counted.items()
    }


class _Counted(NamedTuple):
    """Events that are counted, and the sectors of global memory with who loads and stores."""

    events: InstructionEvents
    sectors: Floats
    unique: Floats
    loads: Floats
    stores: Floats


def _counted(module: Module, name: str, counts: Counts) -> _Counted:
    body = body_of(module, name)
    size = len(body.instructions)
    columns = {field: np.zeros(size) for field in InstructionEvents._fields}
    loads, stores = np.zeros(size), np.zeros(size)
    executed = np.asarray(counts.warp_executions, dtype=np.float64)
    columns["warp_executions"] = executed
    columns["active_lanes"] = np.asarray(counts.active_lanes, dtype=np.float64)
    machine, pipes = machine_code(body).issued(counts)
    in_shared = shared_use(body, counts)
    columns["machine_instructions"] = machine
    for number, pipe in enumerate(Pipes._fields):
        columns[pipe] = pipes[:, number]
    for instruction in body.instructions:
        at = instruction.position
        times = float(executed[at])
        if not times and not machine[at]:
            continue
        facts = classify(instruction.opcode)
        if columns["tensor"][at]:
            columns["tensor_operations"][at] = times * facts.flops_per_lane
        asked, passes = (float(each[at]) for each in in_shared)
        waits = _memory(facts, float(counts.requests[at]), asked, passes, at, columns)
        in_global = facts.space in ("global", "generic") or facts.source_space == "global"
        loads[at] = in_global and facts.category in ("load", "copy", "atomic")
        stores[at] = in_global and facts.category in ("store", "atomic")
        barrier = facts.category == "barrier" and facts.entry in ("bar", "barrier")
        columns["latency_cycles"][at] = (
            LATENCY_PER_INSTRUCTION * columns["machine_instructions"][at]
            + LATENCY_PER_LOAD * waits
            + LATENCY_PER_BARRIER * times * barrier
        )
    sectors = np.asarray(counts.sectors, dtype=np.float64)
    columns["global_sectors"] = sectors * (loads + stores)
    # Only an execution knows which sectors a block touches anew.
    unique = sectors if counts.unique_sectors is None else counts.unique_sectors
    return _Counted(
        InstructionEvents(**columns), sectors, np.minimum(unique, sectors), loads, stores
    )


def _memory(
    facts: OpcodeFacts,
    requests: float,
    shared: float,
    passes: float,
    at: int,
    columns: dict[str, Floats],
) -> float:
    """Note what an access asks of load/store and texture units; returns loads to wait for."""
    if facts.category in ("texture", "surface"):
        columns["texture_requests"][at] = requests
        return requests
    if facts.space in ("param", "const") or not facts.accesses_memory:
        return 0.0
    conflicts = max(0.0, passes - shared)
    columns["load_store_passes"][at] = max(requests, shared) + conflicts
    columns["shared_passes"][at] = shared + conflicts
    if facts.category == "atomic":
        columns["atomic_requests"][at] = max(requests, shared)
    return requests if facts.category in ("load", "copy") or facts.entry == "atom" else 0.0


def _passing(sectors: Mapping[str, tuple[Floats, Floats]], passing: float) -> dict[str, Floats]:
    """Share ``passing`` sectors out among instructions, by function.

    ``sectors`` holds those asked for and, of these, those new to their block. New ones pass
    before what a block asked for again, and within each kind all alike.
    """
    asked = sum(float(every.sum()) for every, _ in sectors.values())
    new = sum(float(first.sum()) for _, first in sectors.values())
    again = asked - new
    share_new = min(1.0, passing / new) if new else 0.0
    share_again = min(1.0, max(0.0, passing - new) / again) if again > 0 else 0.0
    return {
        name: share_new * first + share_again * (every - first)
        for name, (every, first) in sectors.items()
    }


# What the lanes of a launch ask for: operations and bytes, and the fewest passes and sectors that
# these could take. What units do for it is ``Activity``.

PASS_BYTES = WARP_SIZE * WORD_BYTES
"""What a pass of shared memory hands over: a word of each bank (CUDA C++ Programming Guide)."""


class Least(NamedTuple):
    """What the accesses of a launch would take with neither bank conflicts nor uncoalesced lanes.

    ``shared_passes`` of shared memory, each lane's words one after another; ``sectors`` of global
    memory, the data of 32 lanes side by side: how many of them are active rests on guards that may
    be guessed. Atomics, copies and matrices count as they are.
    """

    shared_passes: float
    sectors: float


class Operations(NamedTuple):
    """Operations of active lanes, over the whole launch, and bytes they read or write.

    Floating-point operations by precision, but for those of matrix units; a multiply-add is two.
    ``int_operations`` and ``sfu_operations`` are machine instructions of the integer and
    special-function pipes, by lanes. ``shared_bytes``: what lanes ask of shared memory.
    """

    fp32_flops: float
    fp64_flops: float
    fp16_flops: float
    int_operations: float
    sfu_operations: float
    shared_bytes: float


def measure_least(module: Module, functions: Mapping[str, Counts]) -> Least:
    """Add up over all functions; they map names to counts by position."""
    passes = sectors = 0.0
    for name, counts in functions.items():
        body = body_of(module, name)
        facts = _facts_of(body)
        requests, taken = shared_use(body, counts)
        least = np.where(facts.words > 0, np.minimum(taken, requests * facts.words), taken)
        passes += float(least.sum())
        executed = np.asarray(counts.warp_executions, dtype=np.float64)
        filled = executed * np.ceil(WARP_SIZE * facts.global_bytes / SECTOR_BYTES)
        touched = np.asarray(counts.sectors, dtype=np.float64)
        sectors += float(
            np.where(facts.global_bytes > 0, np.minimum(touched, filled), touched).sum()
        )
    return Least(passes, sectors)


def measure_store_headers(module: Module, functions: Mapping[str, Counts]) -> float:
    """What stores to global memory take on their way to L2 beyond whole lines, in sectors: each
    line that a warp's store touches has a header as long as a sector, which four sectors share
    where the line is written whole.

    So scattered sectors take 1.6 times as long as whole lines: 1.67, by the norm of L2 and DRAM,
    where lanes write eight bytes of a line each (5.676 ms instead of 4.297 on an RTX 3080 at its
    base clock of 1440 MHz, matrixT of ``time/rtx_3080_launches.csv``; that its launches ran at this
    clock is told by chains of multiply-adds, MAdd8 of maxFlops, at 1.410 a lane and ns).
    """
    extra = 0.0
    for name, counts in functions.items():
        body = body_of(module, name)
        stores = stores_of(body) & (_facts_of(body).global_bytes > 0)
        lines = np.asarray(counts.l1_millicycles, dtype=np.float64) / 1000
        whole = np.asarray(counts.sectors, dtype=np.float64) / SECTORS_PER_LINE
        extra += float(np.where(stores, np.maximum(0.0, lines - whole), 0.0).sum())
    return extra * SECTORS_PER_LINE / (SECTORS_PER_LINE + 1)


@attached
def stores_of(body: Body) -> Flags:
    """Which instructions store, by position."""
    stores = [classify(one.opcode).category == "store" for one in body.instructions]
    return np.array(stores, dtype=np.bool_)


def measure_operations(module: Module, functions: Mapping[str, Counts]) -> Operations:
    """Add up over all functions; they map names to counts by position."""
    total = np.zeros(len(Operations._fields))
    for name, counts in functions.items():
        body = body_of(module, name)
        facts = _facts_of(body)
        lanes = np.asarray(counts.active_lanes, dtype=np.float64)
        executed = np.asarray(counts.warp_executions, dtype=np.float64)
        _, pipes = machine_code(body).issued(counts)
        each = lanes / np.maximum(executed, 1.0)
        _, passes = shared_use(body, counts)
        full = passes * PASS_BYTES
        asked = np.where(facts.shared_bytes > 0, np.minimum(lanes * facts.shared_bytes, full), full)
        total += (
            *(lanes @ facts.flops),
            float(each @ pipes[:, Pipes._fields.index("alu")]),
            float(each @ pipes[:, Pipes._fields.index("sfu")]),
            float(asked.sum()),
        )
    return Operations(*total.tolist())


class _BodyFacts(NamedTuple):
    """By position: operations of a lane in FP32, FP64 and FP16 ``[n, 3]``; bytes of a lane in
    shared and in global memory, 0 where the text does not tell them; words of a lane that a pass
    of shared memory cannot hand over together."""

    flops: Floats
    shared_bytes: Floats
    global_bytes: Floats
    words: Floats


@attached
def _facts_of(body: Body) -> _BodyFacts:
    facts = [classify(one.opcode) for one in body.instructions]
    joined = joined_loads(body).loads
    shared = np.array([_bytes(one, "shared") for one in facts], dtype=np.float64)
    in_global = np.array([_bytes(one, "global", "generic") for one in facts], dtype=np.float64)
    return _BodyFacts(
        np.array([_flops(one) for one in facts], dtype=np.float64).reshape(-1, 3),
        shared,
        in_global,
        np.where(shared > 0, np.maximum(1.0, shared * joined // WORD_BYTES), 0.0),
    )


def _bytes(facts: OpcodeFacts, *spaces: str) -> int:
    """Of a load or store; generic addresses are taken to be global."""
    plain = facts.category in ("load", "store") and facts.space in spaces
    return facts.bytes_per_lane if plain else 0


def _flops(facts: OpcodeFacts) -> tuple[float, float, float]:
    if facts.pipe == "tensor":
        return 0.0, 0.0, 0.0
    kind, flops = kind_of(facts.type), facts.flops_per_lane
    return flops * (kind == "f32"), flops * (kind == "f64"), flops * (kind == "f16")
