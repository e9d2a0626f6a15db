"""Executed instructions by pipe, requests and sectors, latency: per launch and per source line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.activity.memory import local_levels, memory_levels
from wattcast.features.attached import attached
from wattcast.features.counts import Counts, Traffic
from wattcast.features.dataflow import closure, flow, loaded_argument, writers_of, writes
from wattcast.features.gpus import GpuProfile
from wattcast.features.isa import TILES, OpcodeFacts, classify, kind_of, tile_lines
from wattcast.features.launch import WARP_SIZE, Launch
from wattcast.features.machine_code import MachineCode, Pipes, machine_code
from wattcast.features.memory import SECTOR_BYTES, tile_passes
from wattcast.features.occupancy import Occupancy
from wattcast.features.ptx.ir import (
    Address,
    Body,
    Immediate,
    Instruction,
    Module,
    Register,
)
from wattcast.features.wide_loads import joined_loads

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.intp]

WORD_BYTES = 4
"""Local memory is interleaved by words of the lanes (CUDA C++ Programming Guide)."""

LATENCY_PER_INSTRUCTION = 5.0
LATENCY_PER_LOAD = 80.0
LATENCY_PER_BARRIER = 25.0
LATENCY_PER_WAVE = 400.0
"""Cycles of one warp that nothing hides: issue, load, barrier, start (docs/activity.md)."""


LONGER_BEFORE_7: Mapping[tuple[str, int], float] = {
    ("div", 32): 0.8, ("rem", 32): 0.8, ("div", 64): 1.4, ("rem", 64): 1.4,
    ("bar", 0): 2.0, ("barrier", 0): 2.0,
}  # fmt: skip
"""Machine instructions on compute capability 5.x and 6.x over those of later ones: integer division
by entry and bits, of which each product takes two more there besides, and barriers (machine code of
ptxas 12.9 for sm_60 and sm_75: div.u32 29 and 18, div.s32 34 and 24, rem.s32 32 and 22, rem.s64 181
and 83, bar.sync 2 and 1)."""


@dataclass(frozen=True, slots=True)
class Activity:
    """The quantities of ``activity1``: totals of one launch. docs/activity.md defines each.

    Instructions are warp instructions after expansion to machine code, but for
    ``warp_instructions_ptx``. Sectors are 32 bytes. ``latency_cycles`` are core cycles,
    ``footprint_bytes`` distinct bytes touched.
    """

    kernel_launches: float
    blocks: float
    threads_per_block: float
    registers_per_thread: float
    resident_blocks_per_sm: float
    occupancy: float
    resident_warps_per_sm: float
    waves: float
    sm_imbalance: float
    sm_active_fraction: float
    active_lane_fraction: float
    warp_instructions_ptx: float
    warp_instructions_sass: float
    instructions_per_warp: float
    load_requests_per_warp: float
    fma_pipe_instructions: float
    fp32_instructions: float
    alu_pipe_instructions: float
    fp64_instructions: float
    sfu_instructions: float
    fp16_instructions: float
    tensor_instructions: float
    branches: float
    barriers: float
    atomic_requests: float
    lsu_requests: float
    global_load_requests: float
    global_store_requests: float
    global_load_sectors: float
    global_store_sectors: float
    local_sectors: float
    shared_requests: float
    shared_transactions: float
    constant_transactions: float
    texture_requests: float
    l2_sectors: float
    dram_read_sectors: float
    dram_write_sectors: float
    latency_cycles: float
    footprint_bytes: float

    def values(self) -> dict[str, float]:
        """Name to value, in the order of the schema."""
        return dict(zip(QUANTITIES, map(float, _quantities(self)), strict=True))


QUANTITIES = tuple(field.name for field in fields(Activity))
_quantities = attrgetter(*QUANTITIES)


@dataclass(frozen=True, slots=True)
class Access:
    """One memory instruction of a launch.

    ``requests`` are warp requests; ``sectors_per_request`` counts 32-byte sectors,
    ``transactions_per_request`` shared memory passes (1: no bank conflict); ``None`` where it
    is none of that kind. ``stride_bytes`` lies between neighbouring lanes and ``address`` is
    for people, both ``None`` where the symbolic analysis cannot tell; ``affine`` says whether
    it can (``None``: it did not look).
    """

    function: str
    position: int
    line: int
    source_line: int | None
    opcode: str
    space: str
    is_load: bool
    is_store: bool
    requests: float
    sectors_per_request: float | None
    transactions_per_request: float | None
    stride_bytes: int | None
    affine: bool | None
    address: str | None


@dataclass(frozen=True, slots=True)
class LineActivity:
    """What one source line (``.loc``) or, without line information, PTX line executes."""

    file: str | None
    line: int
    warp_instructions_ptx: float
    warp_instructions_sass: float
    active_lane_fraction: float
    global_sectors: float
    global_requests: float
    shared_transactions: float
    shared_requests: float


def measure_activity(
    module: Module, functions: Mapping[str, Counts], traffic: Traffic, launch: Launch,
    gpu: GpuProfile, resident: Occupancy, registers_per_thread: int, shared_bytes_per_block: int,
    waves: float,
) -> Activity:  # fmt: skip
    """Sum what the analysis counted; ``functions`` maps names to counts by position."""
    total = _Totals()
    for name, counts in functions.items():
        total.add(body_of(module, name), counts, int(gpu.compute_capability.split(".")[0]))
    warps = launch.blocks * launch.warps_per_block
    read_only = total.read_only / max(traffic.load_sectors + total.texture_sectors, 1.0)
    levels = memory_levels(traffic, gpu, launch, resident, shared_bytes_per_block, read_only)
    l2_sectors, read, written = local_levels(
        total.local_sectors - total.local_stores, total.local_stores,
        total.stack_bytes if total.indexed else 0, gpu, launch, resident.resident_blocks_per_sm,
        shared_bytes_per_block,
    )  # fmt: skip
    per_warp = total.sass / warps
    loads = total.loads / warps
    imbalance = -(-launch.blocks // gpu.sm_count) * gpu.sm_count / launch.blocks
    latency = waves * (
        LATENCY_PER_INSTRUCTION * per_warp
        + LATENCY_PER_LOAD * loads
        + LATENCY_PER_BARRIER * total.barriers / warps
        + LATENCY_PER_WAVE
    )
    pipes = total.pipes
    return Activity(
        kernel_launches=1.0,
        blocks=launch.blocks,
        threads_per_block=launch.threads_per_block,
        registers_per_thread=registers_per_thread,
        resident_blocks_per_sm=resident.resident_blocks_per_sm,
        occupancy=resident.occupancy,
        resident_warps_per_sm=resident.resident_warps_per_sm,
        waves=waves,
        sm_imbalance=imbalance,
        sm_active_fraction=1.0 / imbalance,
        active_lane_fraction=total.lanes / (WARP_SIZE * total.ptx) if total.ptx else 0.0,
        warp_instructions_ptx=total.ptx,
        warp_instructions_sass=total.sass,
        instructions_per_warp=per_warp,
        load_requests_per_warp=loads,
        fma_pipe_instructions=pipes.fma,
        fp32_instructions=pipes.fp32,
        alu_pipe_instructions=pipes.alu + total.longer,
        fp64_instructions=pipes.fp64,
        sfu_instructions=pipes.sfu,
        fp16_instructions=pipes.fp16,
        tensor_instructions=pipes.tensor,
        branches=total.branches,
        barriers=total.barriers,
        atomic_requests=total.atomics,
        lsu_requests=total.lsu,
        global_load_requests=total.load_requests,
        global_store_requests=total.store_requests,
        global_load_sectors=traffic.load_sectors,
        global_store_sectors=traffic.store_sectors,
        local_sectors=total.local_sectors,
        shared_requests=total.shared_requests,
        shared_transactions=total.shared_transactions,
        constant_transactions=total.constants,
        texture_requests=total.textures,
        l2_sectors=levels.l2_sectors + l2_sectors,
        dram_read_sectors=levels.dram_read_sectors + read,
        dram_write_sectors=levels.dram_write_sectors + written,
        latency_cycles=latency,
        footprint_bytes=levels.footprint_bytes,
    )


class _Totals:
    """Running sums over the instructions of a kernel and the functions it calls."""

    def __init__(self) -> None:
        self.ptx = self.sass = self.lanes = self.loads = 0.0
        self.branches = self.barriers = self.atomics = self.lsu = 0.0
        self.load_requests = self.store_requests = self.local_sectors = 0.0
        self.shared_requests = self.shared_transactions = 0.0
        self.constants = self.textures = self.longer = 0.0
        self.read_only = self.texture_sectors = self.local_stores = 0.0
        self.stack_bytes, self.indexed = 0, False
        self.pipes = Pipes()

    def add(self, body: Body, counts: Counts, generation: int) -> None:
        """``generation``: the compute capability before its point."""
        facts, executed = _facts_of(body), counts.warp_executions
        before_7 = generation < 7
        self.ptx += float(executed.sum())
        self.lanes += float(counts.active_lanes.sum())
        requests = counts.requests
        shared, transactions = shared_use(body, counts)
        shared *= facts.tile_parts[int(generation >= LDMATRIX_OF_FOUR)]
        self.shared_requests += float(shared.sum())
        self.shared_transactions += float(transactions.sum())
        constants = counts.constant_transactions
        self.constants += float(constants.sum() - constants[facts.code.divisions].sum())
        instructions, pipes = facts.code.issued(counts)
        self.sass = _added(self.sass, instructions)
        self.read_only += float((counts.sectors * facts.read_only).sum())
        self.texture_sectors += float((counts.sectors * facts.textures).sum())
        if before_7:
            longer = float((executed * facts.longer_before_7).sum())
            self.sass, self.longer = self.sass + longer, self.longer + longer
        self.branches = _added(self.branches, executed[facts.branches])
        self.barriers = _added(self.barriers, executed[facts.barriers])
        if executed.size:
            sums = np.add.accumulate(pipes)[-1]
            found = Pipes(*(np.array(self.pipes) + sums).tolist())
            # Halves and floats are converted as fast as special functions go, not half arithmetic
            # (CUDA C++ Programming Guide 12, throughput: 32 on 5.x and 6.1, 16 on 6.0).
            if before_7:
                halves = float(pipes[facts.conversions, Pipes._fields.index("fp16")].sum())
                found = found._replace(fp16=found.fp16 - halves, sfu=found.sfu + halves)
            self.pipes = found
        self.stack_bytes += facts.stack_bytes
        self.indexed |= facts.indexed
        if facts.memory:
            at = facts.memory_positions
            local = counts.local_sectors
            each = requests if local is None else local
            table = np.stack([executed[at], requests[at], shared[at], each[at]], axis=1).tolist()
            for one, (times, asked, asked_shared, moved) in zip(facts.memory, table, strict=True):
                if times:
                    self._memory(one, asked, asked_shared, None if local is None else moved)

    def _memory(
        self, facts: OpcodeFacts, requests: float, shared: float, local: float | None
    ) -> None:
        if facts.category in ("texture", "surface"):
            self.textures += requests
            self.loads += requests
            return
        # A copy from global to shared memory is one request of the load/store unit.
        self.lsu += max(requests, shared)
        stores = facts.category == "copy" and facts.space == "global"  # from shared memory
        loads = (facts.category in ("load", "copy") and not stores) or facts.entry == "atom"
        if facts.category == "atomic":
            self.atomics += max(requests, shared)
        if facts.space == "local" or local:
            self.indexed |= facts.space != "local"
            words = max(1, facts.bytes_per_lane // WORD_BYTES)
            # Who has not looked takes every lane to use the same variable, as spills do: its
            # words of 32 lanes lie side by side.
            whole = requests * words * (WARP_SIZE * WORD_BYTES // SECTOR_BYTES)
            moved = whole if local is None else local
            self.local_sectors += moved
            self.local_stores += moved if facts.category == "store" else 0.0
        elif requests:
            if loads:
                self.load_requests += requests
            if stores or facts.category in ("store", "atomic"):
                self.store_requests += requests
        if loads and requests:
            self.loads += requests


def shared_use(body: Body, counts: Counts) -> tuple[Floats, Floats]:
    """Requests and transactions of shared memory by position, after loads were joined: each of
    them was counted as the wide load that it is part of. A factor of ``wmma`` was counted as one
    request with the conflicts of all of it, and takes those of the loads that ptxas makes of it."""
    loads = joined_loads(body).loads
    requests = np.asarray(counts.shared_requests, dtype=np.float64)
    passes = np.asarray(counts.shared_transactions, dtype=np.float64) / loads
    for one, lead in wmma_factors(body):
        if isinstance(lead, int) and lead:
            passes[one.position] = requests[one.position] * factor_passes(one, lead)
    return requests / loads, passes


@attached
def wmma_factors(body: Body) -> tuple[tuple[Instruction, int | str], ...]:
    """Loads of factors of ``wmma``, with the elements between their lines: a number, the parameter
    that holds it, or 0 where the code does not tell."""
    told: dict[str, int | str] = {}
    found: list[tuple[Instruction, int | str]] = []
    for one in body.instructions:
        last = one.operands[-1] if one.operands else None
        if one.opcode.startswith("ld.param"):
            names = ((register, loaded_argument(one, register)) for register in writes(one))
            told |= {register: name for register, name in names if name is not None}
        elif one.base == "mov" and isinstance(last, Immediate) and isinstance(last.value, int):
            told |= dict.fromkeys(writes(one), last.value)
        elif one.opcode.startswith(("wmma.load.a", "wmma.load.b")):
            lead: int | str = 0
            if len(one.operands) < 3:
                lead = tile_lines(classify(one.opcode))[1]
            elif isinstance(last, Register):
                lead = told.get(last.name, 0)
            elif isinstance(last, Immediate) and isinstance(last.value, int):
                lead = last.value
            found.append((one, lead))
    return tuple(found)


def factor_passes(one: Instruction, lead: int) -> int:
    """Passes of banks of one of ``wmma_factors``; lines by unknown numbers of elements apart are
    taken to meet in the same banks."""
    facts = classify(one.opcode)
    return tile_passes(facts.bytes_per_lane * WARP_SIZE, lead * facts.bits // 8)


def _added(start: float, terms: Floats) -> float:
    """``start`` and the terms added one after another, in their order."""
    if terms.size:
        terms[0] += start
        return float(np.add.accumulate(terms)[-1])
    return start


class _BodyFacts(NamedTuple):
    """What the opcodes of a body tell, by position: the same in every launch."""

    code: MachineCode
    longer_before_7: Floats
    read_only: Floats
    textures: Floats
    tile_parts: Floats
    branches: Integers
    barriers: Integers
    conversions: Integers
    memory: tuple[OpcodeFacts, ...]
    memory_positions: Integers
    stack_bytes: int
    indexed: bool


@attached
def _facts_of(body: Body) -> _BodyFacts:
    facts = [classify(instruction.opcode) for instruction in body.instructions]

    def where(category: str, entries: Sequence[str]) -> Integers:
        found = [n for n, f in enumerate(facts) if f.category == category and f.entry in entries]
        return np.array(found, dtype=np.intp)

    memory = [
        number
        for number, one in enumerate(facts)
        if one.category in ("texture", "surface")
        or (one.accesses_memory and one.space not in ("param", "const"))
    ]
    code = machine_code(body)
    textures = np.array([float(one.category in ("texture", "surface")) for one in facts])
    return _BodyFacts(
        code,
        code.instructions * np.array([_longer_before_7(one) for one in facts]),
        np.array([1.0 if ".nc" in one.opcode else textures[n] for n, one in enumerate(facts)]),
        textures,
        np.array([_tile_parts(one) for one in facts]).reshape(-1, 2).T,
        where("control", ("bra", "brx", "brx.idx")),
        where("barrier", ("bar", "barrier")),
        where("convert", ("cvt",)),
        tuple(facts[number] for number in memory),
        np.array(memory, dtype=np.intp),
        sum(variable.bytes for variable in body.variables if variable.space == "local"),
        indexed_arrays(body),
    )


def indexed_arrays(body: Body) -> bool:
    """Whether an address in local memory is computed: ptxas keeps arrays in registers of which
    every index is a constant."""
    writers, read = writers_of(body), flow(body).reads
    found = closure(
        {
            operand.base.name
            for one in body.instructions if one.base in ("ld", "st") and ".local" in one.opcode
            for operand in one.operands
            if isinstance(operand, Address) and isinstance(operand.base, Register)
        },
        lambda name: (source for at in writers.get(name, ()) for source in read[at]),
    )  # fmt: skip
    return any(
        len(writers.get(name, ())) > 1
        or body.instructions[at].base not in ("mov", "cvta", "add", "or")
        or len(read[at]) > 1
        for name in found
        for at in writers.get(name, ())
    )


LDMATRIX_OF_FOUR = 8
"""From which generation on a factor of ``wmma`` is one ldmatrix.x4: two of x2 on 7.5 and, by the
counters of cudaTensorCoreGemm_k1 (``python -m studies volta``), two loads of 16 bytes on 7.0."""


def _tile_parts(facts: OpcodeFacts) -> tuple[float, float]:
    """Accesses that ptxas makes of one, before ``LDMATRIX_OF_FOUR`` and from then on: of 32-bit
    accumulators two elements of a row at a time, one of a column (ptxas 12.9, sm_75 to sm_90)."""
    if facts.entry not in TILES:
        return 1.0, 1.0
    if ".load.a." in facts.opcode or ".load.b." in facts.opcode:
        return 2.0, 1.0
    parts = max(1.0, facts.bytes_per_lane / (8 if ".row." in facts.opcode else WORD_BYTES))
    return parts, parts


def _longer_before_7(facts: OpcodeFacts) -> float:
    barrier = facts.category == "barrier"
    if not barrier and kind_of(facts.type) != "int":
        return 0.0
    return LONGER_BEFORE_7.get((facts.entry, 0 if barrier else facts.bits), 1.0) - 1.0


def measure_mix(module: Module, functions: Mapping[str, Counts]) -> dict[str, float]:
    """Executed warp instructions by opcode class, of classes that were executed."""
    mix: dict[str, float] = {}
    for name, counts in functions.items():
        for instruction in body_of(module, name).instructions:
            executed = float(counts.warp_executions[instruction.position])
            if executed:
                kind = classify(instruction.opcode).opcode_class
                mix[kind] = mix.get(kind, 0.0) + executed
    return mix


def measure_lines(module: Module, functions: Mapping[str, Counts]) -> tuple[LineActivity, ...]:
    """Activity by source line, the most machine instructions first."""
    rows: dict[tuple[str | None, int], Floats] = {}
    for name, counts in functions.items():
        body = body_of(module, name)
        machine, _ = machine_code(body).issued(counts)
        table = np.stack(
            [
                counts.warp_executions, machine, counts.active_lanes, counts.sectors,
                counts.requests, counts.shared_transactions, counts.shared_requests,
            ], axis=1,
        )  # fmt: skip
        for one in body.instructions:
            place = one.location
            key = (module.files.get(place.file), place.line) if place else (None, one.line)
            rows[key] = rows.get(key, 0.0) + table[one.position]
    found = []
    for (file, line), row in rows.items():
        ptx, sass, lanes, *rest = row.tolist()
        if ptx:
            found.append(LineActivity(file, line, ptx, sass, lanes / (WARP_SIZE * ptx), *rest))
    return tuple(
        sorted(found, key=lambda one: (-one.warp_instructions_sass, one.file or "", one.line))
    )


def body_of(module: Module, name: str) -> Body:
    """The body of a function that was counted."""
    function = module.function(name)
    if function is None:
        raise KeyError(name)
    return function.body
