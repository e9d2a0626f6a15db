"""Asynchronous copies, memory barriers and matrix units: counts as the scalar reference interpreter
has them, which shares no code with the engine."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from unittest.mock import patch

import numpy as np
import pytest

from tests.features.execution_kernels import BASE, kernel, run
from tests.features.whole_runs import run_whole
from tests.fixtures.kernels.data import ptx_path, targets
from tests.fixtures.kernels.manifest import TENSOR_KERNELS
from tests.fixtures.ptx_text import stored_ptx
from tests.fixtures.tables import table
from tests.reference.machine import run as interpret
from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.execution import bulk
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.models.clocks import default_clocks
from wattcast.models.time.beside import beside
from wattcast.models.time.bottleneck import combined_seconds, resource_seconds


@cache
def answer(name: str, gpu: str = "h100-sxm5") -> KernelAnalysis:
    """The large launch of a kernel, its pointers and tensor maps not told."""
    (found,) = (each for each in TENSOR_KERNELS if each.name == name)
    shape = found.large
    given = {
        str(index): value.item()
        for index, value in enumerate(shape.arguments.values())
        if isinstance(value, np.generic)
    }
    module = read_module(ptx_path(found.source, targets(found.source)[-1]).read_text())
    launch = Launch.of(shape.grid, shape.block, shape.dynamic_shared_bytes, given)
    return analyse(module, found.entry, launch, load_gpu(gpu))


def test_a_gemm_of_tensor_copies_has_the_work_and_the_bytes_of_its_formula() -> None:
    found = answer("wgmma_gemm")
    m = n = k = 4096
    (work,) = found.extras.tensor
    assert (work.kind, work.sparse, work.multiply_adds) == ("f16", False, m * n * k)
    blocks, rounds = (m // 64) * (n // 64), k // 64
    assert found.activity.global_load_sectors == blocks * rounds * (64 + 64) * 64 * 2 / 32
    assert found.activity.footprint_bytes == pytest.approx(
        2 * (m * k + n * k) + 4 * m * n, rel=0.01
    )
    # Written by the copies, read by the products: A by rows, B once for all four warps.
    boxes, products = blocks * rounds * 2 * 64, blocks * rounds * 4 * (16 + 16)
    assert found.activity.shared_transactions == boxes + products
    codes = [each.code for each in found.activity_diagnostics]
    assert codes.count("tensor_map_assumed") == 2  # once for each map
    assert "unsupported_instruction" not in codes


def test_bulk_copies_to_global_memory_are_stores() -> None:
    found = answer("bulk_copy").activity
    pieces = 64 * 1024
    assert found.global_store_requests == pieces
    assert found.global_store_sectors == pieces * 256 * 4 / 32
    assert found.footprint_bytes == 2 * pieces * 256 * 4


FIFTH = stored_ptx("tcgen05_pair")
"""A block of 128 x 128 of a product, two steps of k = 16 a round, B copied to both blocks of a
cluster; assembled by ptxas 12.9."""


def test_products_of_the_fifth_generation_count_their_work_and_operands() -> None:
    blocks, rounds = 64, 10
    launch = Launch.of(blocks, 128, 0, {"rounds": rounds})
    found = analyse(read_module(FIFTH), "k", launch, load_gpu("b200"))
    (work,) = found.extras.tensor
    m, n, k = 128, 256, 16
    assert work.multiply_adds == blocks * rounds * 2 * m * n * k
    assert work.kind == "f16"
    boxes = 40960 / 2 / 32  # two copies share what is announced
    assert found.activity.global_load_sectors == blocks * rounds * 2 * boxes
    # A and B from shared memory, then A from tensor memory; the second copy comes to two blocks.
    products = (m + n) * 32 / 128 + n * 32 / 128
    copies = (1 + 2) * 40960 / 2 / 128
    reads = blocks * 4  # of the address in tensor memory, by four warps
    assert found.activity.shared_transactions == blocks * rounds * (products + copies) + reads
    assert [trip.count for trip in found.trip_counts] == [rounds, 1, 1]  # of the waits: one
    codes = {each.code for each in found.activity_diagnostics}
    assert codes == {"argument_assumed", "tensor_map_assumed"}
    inside = found.executed.functions["k"]
    commit = next(i for i in found.function.body.instructions if "commit" in i.opcode)
    assert inside.warp_executions[commit.position] == blocks * rounds


def test_blocks_of_a_cluster_know_their_rank() -> None:
    body = """mov.u32 %r6, %cluster_ctarank; mov.u32 %r7, %cluster_nctarank;
        mad.lo.u32 %r6, %r6, 16, %r7; mov.u32 %r7, %clusterid.x; mad.lo.u32 %r6, %r7, 256, %r6;
        st.global.u32 [%rd3], %r6; ret;"""
    _, alone = run(body, grid=6)
    assert alone[::32].tolist() == [256 * block + 1 for block in range(6)]
    text = kernel(body).replace(")\n{", ")\n.reqnctapercluster 3\n{")
    module, out = read_module(text), np.zeros(6 * 32, dtype=np.uint32)
    launch = Launch.of(6, 32, 0, {"out": BASE, "n": 0})
    _, contents = run_whole(module.kernel("k"), module, launch, {BASE: out})
    after = contents[BASE].view(np.uint32)[::32].tolist()
    assert after == [256 * (block // 3) + 16 * (block % 3) + 3 for block in range(6)]


@pytest.mark.parametrize(
    ("name", "exposed", "pipelined", "between"),
    [
        # Each round waits for what the one before has asked for, behind two thirds of its text.
        ("gemm_mma_2", 0, 128, 0.68),
        ("gemm_mma_4", 0, 128 / 3, 0.68 / 3),
        ("staged_sum_2", 0, 1024, 0.69),
        ("staged_sum_4", 0, 1024 / 3, 0.65 / 3),
        # Queries, then keys and values in the round that asks for them, after all of the last.
        ("attention", 1, 128, 0.94),
        ("wgmma_gemm", 0, 64 / 2, 0),  # of three stages one is in use
        ("bulk_copy", 0, 64 / 3, 0),  # shared memory holds four pieces, two of them results
    ],
)
def test_a_wait_for_a_copy_knows_how_many_rounds_ahead_it_was_asked_for(
    name: str, exposed: float, pipelined: float, between: float
) -> None:
    found = answer(name, "h100-sxm5" if name in ("wgmma_gemm", "bulk_copy") else "a100-sxm4-40gb")
    copies = found.extras.copies
    assert (copies.exposed, copies.pipelined) == pytest.approx((exposed, pipelined), rel=0.01)
    assert copies.between == pytest.approx(between, abs=0.01)


def seconds(name: str) -> dict[str, float]:
    """What each resource needs, and ``all`` of them together."""
    found = answer(name, "a100-sxm4-40gb")
    more, clocks = beside(found.extras), default_clocks(found.gpu)
    parts = resource_seconds(found.activity, found.gpu, clocks, more=more)
    return {**parts, "all": combined_seconds(parts)}


def test_more_stages_shorten_a_pipeline_that_waits_and_no_other() -> None:
    waits = [seconds(f"staged_sum_{stages}") for stages in (2, 4)]
    assert waits[0]["latency"] == pytest.approx(waits[0]["all"], rel=0.03)
    assert waits[1]["all"] < 0.6 * waits[0]["all"]
    # What little the second waits is time in which both blocks of an SM wait at once.
    full = [seconds(f"gemm_mma_{stages}") for stages in (2, 4)]
    assert full[1]["all"] == pytest.approx(full[0]["all"], rel=0.1)
    assert full[0]["latency"] < 0.5 * full[0]["all"]


def test_hopper_multiplies_from_registers_at_less_than_its_peak() -> None:
    for name, share in (("gemm_mma_4", 0.629), ("wgmma_gemm", 1.0)):
        found = answer(name)
        more, clocks = beside(found.extras), default_clocks(found.gpu)
        fed = replace(more, feed_passes=0.0)
        parts = resource_seconds(found.activity, found.gpu, clocks, more=fed)
        rate = found.gpu.capability.tensor_fma_per_clock * found.gpu.sm_count * clocks.core_hz
        peak = 4096**3 / rate * found.activity.sm_imbalance
        assert parts["tensor"] == pytest.approx(peak / share)
    # The 64 x 64 tiles of wgmma_gemm read so much of shared memory that this takes longer.
    parts = resource_seconds(found.activity, found.gpu, clocks, more=more)
    assert parts["tensor"] > 1.5 * peak
    assert parts["shared"] < 0.1 * parts["tensor"]


@pytest.mark.parametrize("name", ["bulk_copy", "wgmma_gemm"])
def test_symbols_know_that_a_wait_ends_and_who_is_elected(name: str) -> None:
    executed = answer(name)
    worked_out = analyse(
        executed.module, executed.function, executed.launch, executed.gpu, analysis="symbolic"
    )
    ran = executed.executed.functions[name].warp_executions
    np.testing.assert_allclose(worked_out.symbolic.functions[name].warp_executions, ran, rtol=1e-9)
    assert not worked_out.trips_assumed
    assert executed.activity_how == "executed"  # what copies move is not worked out


def test_products_and_matrices_not_followed_are_counted_where_nothing_rests_on_them() -> None:
    body = """mov.u32 %r6, 0; mov.f32 %f1, 0f00000000; and.b32 %r7, %r2, 31; shl.b32 %r7, %r7, 4;
        mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32
            {%f1, %f2, %f3, %f4}, {%r6, %r6, %r6, %r6}, {%r6, %r6, %r6, %r6},
            {%f1, %f2, %f3, %f4}, %r6, 0x0;
        mma.sync.aligned.kind::mxf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0
            {%f1, %f2, %f3, %f4}, {%r6, %r6, %r6, %r6}, {%r6, %r6}, {%f1, %f2, %f3, %f4},
            {%r6}, {0, 0}, {%r6}, {0, 0};
        ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8 {%r8, %r9, %r10, %r11}, [%r7];
        st.global.f32 [%rd3], %f1; ret;"""
    text = kernel(body, declarations=".shared .align 16 .b8 tile[512];")
    found = analyse(
        read_module(text), "k", Launch.of(4, 64, 0, {"n": 1}), load_gpu("b200"), analysis="executed"
    )
    warps = 4 * 2
    assert [(work.kind, work.sparse, work.multiply_adds) for work in found.extras.tensor] == [
        ("f16", True, warps * 16 * 8 * 32), ("f4", False, warps * 16 * 8 * 64),
    ]  # fmt: skip
    assert found.activity.shared_transactions == warps * 4  # 32 rows of 16 bytes, eight at a time
    assert "unsupported_instruction" not in {each.code for each in found.activity_diagnostics}
    # Where the value is wanted, the warning says that it is not followed; it is still counted.
    wanted = body.replace("st.global.f32 [%rd3], %f1;", "setp.gt.u32 %p1, %r8, 0; "
                          "@%p1 bra $end; st.global.f32 [%rd3], %f1; $end:")  # fmt: skip
    result, _ = run(wanted, exact=False, declarations=".shared .align 16 .b8 tile[512];")
    told = [each.detail for each in result.diagnostics if each.code == "unsupported_instruction"]
    assert len(told) == 1
    assert told[0].startswith("ldmatrix.sync.aligned.m16n16")
    assert result.functions["k"].shared_transactions.sum() == 4


PHASES = table("bodies", "phases")
STARTS = "mov.u32 %r6, phases; mov.u32 %r10, words; shl.b32 %r7, %r2, 2; add.u32 %r7, %r7, %r10;\n"
SHARED = ".shared .align 8 .b8 phases[16]; .shared .align 256 .b8 words[256];"


@pytest.mark.parametrize("name", PHASES)
def test_waits_at_memory_barriers_are_counted_as_by_the_reference(name: str) -> None:
    body = STARTS + PHASES[name]
    result, _ = run(body, grid=2, block=64, declarations=SHARED)
    text = kernel(body, declarations=SHARED)
    wanted = interpret(text, "k", (2,), (64,), {"out": np.zeros(128, "u4"), "n": np.uint32(0)})
    assert result.diagnostics == ()
    found = result.functions["k"]
    for one in wanted.per_instruction:
        counts = found.warp_executions[one.index], found.active_lanes[one.index]
        assert counts == (one.warp_executions, one.active_lanes), one.opcode


def test_copies_larger_than_shared_memory_end() -> None:
    body = STARTS + """mov.u32 %r8, -16; mad.wide.u32 %rd4, %r5, 65536, %rd1;
        mbarrier.init.shared.b64 [%r6], 1;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
            [%r10], [%rd4], %r8, [%r6];
        ret;"""  # fmt: skip
    with patch.object(bulk, "MOST_LISTED", 1 << 10):
        result, _ = run(body, grid=9, block=64, exact=False, declarations=SHARED)
    held = 512 // 32  # of what is copied shared memory holds no more than it has
    assert result.memory.load_sectors == 9 * 64 * held
    (stream,) = result.memory.streams
    assert stream.unique_load_sectors == pytest.approx(9 * 64 * held, rel=0.05)
