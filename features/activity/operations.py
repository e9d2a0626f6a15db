"""What the lanes of a launch ask for: operations and bytes, and the fewest passes and sectors that
these could take. What units do for it is ``Activity``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.activity.counts import WORD_BYTES, body_of, shared_use
from wattcast.features.attached import attached
from wattcast.features.counts import Counts
from wattcast.features.isa import OpcodeFacts, classify, kind_of
from wattcast.features.launch import WARP_SIZE
from wattcast.features.machine_code import Pipes, machine_code
from wattcast.features.memory import SECTOR_BYTES
from wattcast.features.ptx.ir import Body, Module
from wattcast.features.wide_loads import joined_loads

Floats = npt.NDArray[np.float64]

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
    return _BodyFacts(
        np.array([_flops(one) for one in facts], dtype=np.float64).reshape(-1, 3),
        shared,
        np.array([_bytes(one, "global", "generic") for one in facts], dtype=np.float64),
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
