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
    Activity,
    body_of,
    shared_use,
)
from wattcast.features.counts import Counts
from wattcast.features.isa import OpcodeFacts, classify
from wattcast.features.machine_code import Pipes, machine_code
from wattcast.features.ptx.ir import Module

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
