"""Findings about matrix units: products by lanes, pipelines too shallow, tiles too small, sums
wider than needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from wattcast.features.activity.extras import TensorKind, TensorWork, is_product, tensor_work
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.dataflow import reads, writes
from wattcast.features.findings.finding import (
    Difference,
    Evidence,
    Finding,
    Place,
    inside_of,
    place,
)
from wattcast.features.findings.rules import oftener_used
from wattcast.features.gpus.loader import capabilities
from wattcast.features.isa import classify, kind_of
from wattcast.features.launch import WARP_SIZE
from wattcast.features.memory import SECTOR_BYTES
from wattcast.features.ptx.ir import Instruction

ROUNDS_AHEAD = 2
"""Rounds between asking for data and using them with three stages, Triton's default."""

WORTH_HIDING = 8.0
"""Waits of a block from which they are told: what comes before and after a loop needs a few."""

LESS_LOADED = 0.75
"""Of the bytes that a tile of m by n loads for each product, (m + n) / (m n), what is left with the
shorter side twice as long: (2 m + n) / (2 m n), 3/4 of it for a square and less for all others."""

HALVED = 2.0
"""What boards that add up in FP32 at half rate gain by FP16 sums (GeForce; the whitepapers print
both rates)."""


def _matrix_places(evidence: Evidence, wanted: str = "") -> tuple[Place, ...]:
    """Matrix instructions that run, with ``wanted`` in their names."""
    return tuple(
        place(function, one)
        for function, events in evidence.functions()
        for one in function.body.instructions
        if is_product(one) and wanted in one.opcode and events.warp_executions[one.position]
    )


def shallow_pipeline(evidence: Evidence) -> Iterator[Finding]:
    """Loops that wait for a whole latency of memory, or more, in each round.

    Mended, data are asked for two rounds ahead (three stages): a latency passes in two rounds.
    Copies are counted as the analysis counts them; loads through registers, which a kernel without
    asynchronous copies has, by their dependent chains.
    """
    extras, activity = evidence.analysis.extras, evidence.activity
    copies, waiting = extras.copies, extras.waiting
    if not extras.tensor or waiting is None:
        return
    waits = dict(_executed(evidence, ("cp.async.wait", "mbarrier.try_wait", "mbarrier.test_wait")))
    rounds, outside = max(waits.values(), default=0.0), copies.exposed
    if waits and max(copies.pipelined, copies.exposed) < rounds:
        return
    if not waits:
        rounds = waiting.loads * activity.load_requests_per_warp
        waits = dict(_executed(evidence, ("ld.global",)))
        waiting = waiting._replace(loads=0.0)
    elif copies.exposed >= rounds:
        outside = 0.0
    if rounds < WORTH_HIDING:
        return
    latencies = rounds / ROUNDS_AHEAD
    share = latencies / copies.pipelined if copies.pipelined else 0.0
    mended = copies._replace(
        exposed=outside, pipelined=latencies, between=copies.between * min(1.0, share)
    )
    yield Finding(
        "shallow_pipeline",
        tuple(waits),
        f"each of {rounds:.4g} rounds waits for data from memory that it or the one before it "
        "asked for",
        f"ask for data {ROUNDS_AHEAD} rounds ahead (Triton: num_stages=3); each stage takes the "
        "shared memory of a tile",
        activity,
        replace(extras, copies=mended, waiting=waiting),
    )


def _executed(evidence: Evidence, begins: tuple[str, ...]) -> Iterator[tuple[Place, float]]:
    """Instructions by the beginning of their names, and how often a warp executes each."""
    launch = evidence.analysis.launch
    warps = launch.blocks * launch.warps_per_block
    for function, events in evidence.functions():
        for one in function.body.instructions:
            if one.opcode.startswith(begins) and events.warp_executions[one.position]:
                yield place(function, one), float(events.warp_executions[one.position]) / warps


def small_tile(evidence: Evidence) -> Iterator[Finding]:
    """Tiles whose products need more bytes than L2 brings while matrix units multiply.

    Mended, the shorter side is twice as long, in a block of twice the warps: three quarters of the
    loads. What device memory brings again is left as it is: the blocks that run at once cover the
    same part of the product, in larger pieces. Told only where such a block fits on an SM and as
    many blocks as SMs are left.
    """
    analysis, activity = evidence.analysis, evidence.activity
    work = sum(each.multiply_adds for each in analysis.extras.tensor)
    loaded = activity.global_load_sectors * SECTOR_BYTES
    if not work or not loaded or not _grows(analysis):
        return
    gpu = analysis.gpu
    brought = gpu.l2_bytes_per_clock or SECTOR_BYTES * gpu.sm_count  # a sector a clock and SM
    needed = gpu.capability.tensor_fma_per_clock * gpu.sm_count / brought
    if work / loaded >= needed:
        return
    difference = Difference()
    spared = (1 - LESS_LOADED) * activity.global_load_sectors
    difference.add("global_load_sectors", -spared)
    difference.add("l2_sectors", -min(spared, (1 - LESS_LOADED) * activity.l2_sectors))
    yield Finding(
        "small_tile",
        _matrix_places(evidence),
        f"{work / loaded:.1f} multiply-adds for each byte that is loaded; the matrix units could "
        f"do {needed:.0f} while L2 brings one",
        "make the tile of a block twice as long on its shorter side, with twice the warps (Triton: "
        "BLOCK_M or BLOCK_N, num_warps)",
        difference.applied(activity),
        at_least=True,
    )


def _grows(analysis: KernelAnalysis) -> bool:
    """Whether a block of twice the warps and the shared memory fits, with enough blocks."""
    launch, gpu = analysis.launch, analysis.gpu
    threads = 2 * launch.threads_per_block
    registers = threads * analysis.registers.registers_per_thread
    return (
        threads <= gpu.capability.max_threads_per_block
        and registers <= gpu.registers_per_sm
        and 2 * analysis.shared_bytes_per_block <= gpu.shared_bytes_per_sm
        and launch.blocks >= 2 * gpu.sm_count
    )


def wide_sums(evidence: Evidence) -> Iterator[Finding]:
    """FP16 products added up in FP32 on boards whose matrix units do that at half rate."""
    analysis = evidence.analysis
    gpu = analysis.gpu
    usual = capabilities()[gpu.compute_capability].tensor_fma_per_clock
    if usual < HALVED * gpu.capability.tensor_fma_per_clock:
        return
    wide = 0.0
    for function, events in evidence.functions():
        for one in function.body.instructions:
            work = tensor_work(one.opcode) if _sums_wide(one) else None
            if work is not None:
                share = float(events.active_lanes[one.position]) / WARP_SIZE
                wide += work.multiply_adds * share * (not work.sparse)
    if not wide:
        return
    less = wide * (1 - 1 / HALVED)
    extras = analysis.extras

    def faster(works: tuple[TensorWork, ...]) -> tuple[TensorWork, ...]:
        return tuple(
            replace(each, multiply_adds=max(0.0, each.multiply_adds - less))
            if each.kind == "f16" and not each.sparse
            else each
            for each in works
        )

    yield Finding(
        "wide_sums",
        _matrix_places(evidence, ".f32.f16.f16"),
        f"{wide:.4g} FP16 multiply-adds are added up in FP32, at half the rate of this board's "
        "matrix units",
        "add up in FP16 where the range and ten bits of the sums suffice (Triton: "
        "out_dtype=tl.float16), or in FP16 over parts of the depth and in FP32 over these",
        evidence.activity,
        replace(extras, tensor=faster(extras.tensor), from_registers=faster(extras.from_registers)),
    )


def _sums_wide(one: Instruction) -> bool:
    return one.opcode.startswith("mma") and ".f32.f16.f16.f32" in one.opcode


WARP_TILE = 64
"""Results of a warp along each side, as fast products on matrix units have them (CUTLASS, Efficient
GEMM in CUDA: 64 x 64 in a warp)."""

LEAST_REUSE = 64
"""Multiply-adds for each element that a launch touches, from which it is taken for a product of
matrices: one of 192 x 192 x 192 has 64, a convolution by 11 x 11 no more than 60."""

_TO_SINGLE = ("cvt.f32.f16", "cvt.f32.bf16", "mov.b32", "shl.b32")
"""What makes single precision of a loaded half (of a bfloat16 by a shift)."""

_MATRIX_KINDS: Mapping[str, tuple[TensorKind, str, int, str]] = {
    "f16": ("f16", "tensor_fma_per_clock", 2, ""),
    "f32": ("tf32", "tensor_tf32_fma_per_clock", 4, ", where ten bits of the factors suffice"),
    "f64": ("f64", "tensor_fp64_fma_per_clock", 8, ""),
}
"""By kind of arithmetic: what matrix units take, their rate, bytes of a factor, what it costs."""


def tensor_cores(evidence: Evidence) -> Iterator[Finding]:
    """Products of matrices by lanes where the board has matrix units for their factors: halves, and
    wider ones of which each serves several results already (``register_tiling`` and
    ``reread_tiles`` come first there)."""
    analysis, extras = evidence.analysis, evidence.analysis.extras
    function, events = analysis.function, evidence.events[analysis.function.name]
    footprint = evidence.activity.footprint_bytes
    for loop in () if extras.tensor else analysis.loops.loops:
        inside = inside_of(analysis, loop.blocks)
        loads = [one for one in inside if classify(one.opcode).category == "load"]
        words = {name for one in loads for name in writes(one)}
        halves = {
            name for one in inside
            if one.opcode.startswith(_TO_SINGLE) and words.intersection(reads(one))
            for name in writes(one)
        }  # fmt: skip
        fused = [
            one for one in inside
            if one.base in ("fma", "mul") and len((words | halves) & set(reads(one)[:2])) > 1
        ]  # fmt: skip
        arithmetic = kind_of(classify(fused[0].opcode).types[0]) if fused else "int"
        if loop.children or arithmetic == "int":
            continue
        narrow = arithmetic == "f32" and halves.issuperset(reads(fused[0])[:2])
        kind, rate, size, costs = _MATRIX_KINDS["f16" if narrow else arithmetic]
        work = sum(
            float(events.active_lanes[one.position]) * classify(one.opcode).flops_per_lane
            / (2 if one.base == "fma" else 1) for one in fused
        )  # fmt: skip
        once = kind != "f16" and len(words) >= len(fused)
        reuse = work * size / max(footprint, 1.0)
        if once or reuse < LEAST_REUSE or not getattr(analysis.gpu.capability, rate):
            continue
        difference = oftener_used(evidence, inside, WARP_TILE)
        for one in fused:
            done = float(events.warp_executions[one.position])
            difference.fewer(function.body, one, done if one.base == "fma" else done / WARP_TILE)
        units = (TensorWork(kind, False, work),)
        yield Finding(
            "tensor_cores",
            tuple(place(function, one) for one in fused),
            f"{work:.4g} multiply-adds of a product of matrices are done by lanes, each element "
            f"in {reuse:.0f} of them; this board's matrix units multiply such factors",
            "load tiles of both matrices as fragments (nvcuda::wmma, mma.sync, CUTLASS) and "
            f"multiply these{costs}; sides that are no multiple of 16 want padding",
            difference.applied(evidence.activity),
            replace(extras, tensor=units, from_registers=units),
        )
