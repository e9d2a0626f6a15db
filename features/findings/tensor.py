"""Findings about matrix units: pipelines too shallow, tiles too small, sums wider than needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from wattcast.features.activity.extras import TensorWork, is_product, tensor_work
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.findings.finding import Difference, Evidence, Finding, Place, place
from wattcast.features.gpus.loader import capabilities
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
