"""Facts beside ``activity1``: tensor work, atomics and synchronisation, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.features.execution_kernels import kernel
from tests.fixtures.kernels.data import ptx_path
from tests.fixtures.kernels.manifest import KERNELS
from wattcast.features.activity.extras import Extras, TensorWork, tensor_work
from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.errors import AnalysisError
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module


@pytest.mark.parametrize(
    ("opcode", "kind", "sparse", "multiply_adds"),
    [
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "f16", False, 2048),
        ("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32", "f16", False, 1024),
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", "tf32", False, 1024),
        ("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64", "f64", False, 256),
        # Volta's: the warp's four quad pairs make a product each.
        ("mma.sync.aligned.m8n8k4.col.row.f32.f16.f16.f32", "f16", False, 4 * 256),
        ("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32", "s8", False, 4096),
        ("mma.sync.aligned.m8n8k32.row.col.s32.s4.u4.s32", "s4", False, 2048),
        ("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.xor.popc", "b1", False, 32768),
        ("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32", "f8", False, 4096),
        ("mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e2m1.e4m3.f32", "f8", False, 4096),
        (
            "mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1"
            ".f32.ue8m0",
            "f4", False, 8192,
        ),
        ("mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32", "f16", True, 4096),
        ("mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.s32.s8.s8.s32", "s8", True, 8192),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32", "f16", False, 4096),
        ("wmma.mma.sync.aligned.row.col.m32n8k16.f32.bf16.bf16.f32", "f16", False, 4096),
        ("wmma.mma.xor.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32", "b1", False, 8192),
        # Four warps make one product.
        ("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16", "f16", False, 64 * 128 * 16 / 4),
        ("wgmma.mma_async.sp.sync.aligned.m64n8k64.f32.e4m3.e4m3", "f8", True, 64 * 8 * 64 / 4),
        ("wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.u8", "s8", False, 64 * 8 * 32 / 4),
    ],
)  # fmt: skip
def test_multiply_adds_of_a_warp_follow_from_the_shape(
    opcode: str, kind: str, sparse: bool, multiply_adds: float
) -> None:
    assert tensor_work(opcode) == TensorWork(kind, sparse, multiply_adds)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "opcode",
    ["tcgen05.mma.cta_group::1.kind::f16", "wmma.load.a.sync.aligned.row.m16n16k16.global.f16",
     "fma.rn.f32", "mma.sync.aligned.m16n8k16.row.col"],
)  # fmt: skip
def test_what_names_no_product_tells_none(opcode: str) -> None:
    assert tensor_work(opcode) is None


def passes(extras: Extras, space: str) -> float | None:
    """Passes of all atomics in a memory; ``None`` where one of them is not known."""
    each = [use.passes for use in extras.atomics.uses if use.space == space]
    return None if None in each else sum(one or 0.0 for one in each)


def analysed(body: str, mode: Any = "executed", **launch: Any) -> KernelAnalysis:
    module = read_module(kernel(body + "\nret;", declarations=launch.pop("declarations", "")))
    shape = Launch.of(launch.pop("grid", 100), launch.pop("block", 128), 0, {"n": 0, **launch})
    return analyse(module, None, shape, load_gpu("tesla-v100"), analysis=mode, effort=None)


def test_a_matrix_product_multiplies_as_often_as_it_should() -> None:
    fixture = next(k for k in KERNELS if k.name == "wmma_matmul")
    module = read_module(ptx_path(fixture.source, "sm_70").read_text())
    n = 256
    launch = Launch.of(32, 256, arguments={"3": n, "4": n, "5": n})
    gpu = load_gpu("tesla-v100")
    extras = analyse(module, fixture.entry, launch, gpu, analysis="executed").extras
    (work,) = extras.tensor
    assert (work.kind, work.sparse) == ("f16", False)
    assert work.multiply_adds == pytest.approx(n**3, rel=1e-12)


@pytest.mark.parametrize("bits", ["FF800000", "7F800000", "7FFFFFFF"])
def test_a_number_that_is_none_tells_no_stride_of_a_tile(bits: str) -> None:
    """The maximum that softmax begins with: attention was answered with an OverflowError."""
    module = read_module(kernel(f"\tmov.f32 %f1, 0f{bits};\n\tst.global.f32 [%rd3], %f1;\n\tret;"))
    found = analyse(module, "k", Launch.of(32, 256), load_gpu("a100-sxm4-80gb"))
    assert found.activity.warp_instructions_ptx > 0


@pytest.mark.parametrize(("gpu", "factor"), [("tesla-v100", 2), ("t4", 2), ("a100-sxm4-80gb", 1)])
@pytest.mark.parametrize(("layout", "sums"), [("row", 4), ("col", 8)])
def test_tiles_in_shared_memory_are_moved_by_as_many_accesses_as_ptxas_makes(
    gpu: str, factor: int, layout: str, sums: int
) -> None:
    """One load of each factor, one load and one store of 32-bit sums, by one warp."""
    halves, floats = (", ".join(f"%{kind}{n}" for n in range(1, 9)) for kind in "rf")
    shape = "sync.aligned.m16n16k16"
    text = kernel(
        f"""
        mov.u32 %r20, tile;
        wmma.load.a.{shape}.row.shared.f16 {{{halves}}}, [%r20], 24;
        wmma.load.b.{shape}.col.shared.f16 {{{halves}}}, [%r20], 24;
        wmma.load.c.{shape}.{layout}.shared.f32 {{{floats}}}, [%r20], 24;
        wmma.store.d.{shape}.{layout}.shared.f32 [%r20], {{{floats}}}, 24;
        ret;
        """,
        declarations=".shared .align 16 .b8 tile[4096];",
    )
    found = analyse(read_module(text), "k", Launch.of(1, 32), load_gpu(gpu), analysis="executed")
    assert found.activity.shared_requests == 2 * factor + 2 * sums


@pytest.mark.parametrize(("n", "passes"), [(256, 32), (264, 4), (272, 8)])
def test_lines_of_a_matrix_tile_meet_in_banks_of_l1(n: int, passes: int) -> None:
    """Four loads a tile, each of eight lines: of 512, 528 and 544 bytes."""
    fixture = next(k for k in KERNELS if k.name == "wmma_matmul")
    module = read_module(ptx_path(fixture.source, "sm_70").read_text())
    launch = Launch.of(32, 256, arguments={"3": 256, "4": 256, "5": n})
    found = analyse(module, fixture.entry, launch, load_gpu("tesla-v100"), analysis="executed")
    loads = [one.position for one in found.function.body.instructions if "wmma.load" in one.opcode]
    counts = found.counts.functions(found.counts.factors())[fixture.entry]
    cycles = passes * counts.requests[loads].sum()
    per_sector = found.extras.l1_cycles_per_sector
    assert per_sector == pytest.approx(cycles / counts.sectors[loads].sum())


@pytest.mark.parametrize("mode", ["executed", "symbolic"])
def test_a_warpgroup_shares_its_products(mode: Any) -> None:
    body = """
        wgmma.fence.sync.aligned;
        wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1,%f2,%f3,%f4}, %rd1, %rd1, 1, 1, 1, 0, 0;
        wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16
            {%f1,%f2,%f3,%f4}, %rd1, %rd1, %r1, 0, 1, 1, 1, 0, 0;
        tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd1, %r1, %p1;
        wgmma.wait_group.sync.aligned 0;"""  # noqa: E501
    extras = analysed(body, mode).extras
    assert extras.tensor == (
        TensorWork("f16", False, 100.0 * 64 * 8 * 16),
        TensorWork("f16", True, 100.0 * 64 * 8 * 32),
    )


def both(body: str, **launch: Any) -> tuple[Extras, Extras]:
    executed = analysed(body, "executed", **launch)
    symbolic = analysed(body, "symbolic", **launch)
    return executed.extras, symbolic.extras


def test_both_analyses_agree_on_a_counter() -> None:
    executed, symbolic = both("red.global.add.u32 [%rd1], 1; red.global.add.u32 [%rd1+4], 1;")
    assert executed.atomics == symbolic.atomics
    assert passes(symbolic, "global") == 2 * 12800
    assert symbolic.atomics.hottest_operations == 12800
    assert symbolic.atomics.hottest_requests == 400


def test_both_analyses_agree_on_words_apart_but_for_the_hottest() -> None:
    executed, symbolic = both("red.global.add.u32 [%rd3], 1;")
    (ours,), (theirs,) = executed.atomics.uses, symbolic.atomics.uses
    assert (ours.passes, ours.hottest_operations) == (400, 1)
    assert (theirs.passes, theirs.hottest_operations) == (400, None)
    assert symbolic.atomics.hottest_operations is None


def test_the_symbolic_analysis_refuses_passes_that_it_would_guess() -> None:
    body = """
        ld.global.u32 %r8, [%rd3]; mul.wide.u32 %rd5, %r8, 4; add.u64 %rd6, %rd1, %rd5;
        red.global.add.u32 [%rd6], 1;"""
    with pytest.raises(AnalysisError, match=r"^the address in line \d+ of the PTX is not proven"):
        _ = analysed(body, "symbolic").extras


def test_shared_and_global_passes_are_apart() -> None:
    body = """
        mov.u32 %r6, 0; red.shared.add.u32 [%r6], 1; red.global.add.u32 [%rd3], 1;"""
    executed, symbolic = both(body, declarations=".shared .align 4 .b8 s[16];")
    for extras in (executed, symbolic):
        assert (passes(extras, "shared"), passes(extras, "global")) == (12800, 400)


@pytest.mark.parametrize("mode", ["executed", "symbolic"])
def test_spills_are_sectors_of_local_memory(mode: Any) -> None:
    # Eight bytes of 32 lanes: two words, each in 128 adjacent bytes.
    body = """
        mov.u64 %rd5, stack; st.local.u64 [%rd5], %rd1; ld.local.u32 %r8, [%rd5+4];"""
    analysis = analysed(body, mode, declarations=".local .align 8 .b8 stack[8];")
    assert analysis.activity.local_sectors == 400 * (8 + 4)


def test_arrays_indexed_by_data_pass_the_caches_that_do_not_hold_them() -> None:
    """Eight blocks of 256 threads fill 512 KB of an SM's 128 KB of L1 with arrays of 64 words. Of a
    constant index ptxas keeps them in registers."""
    body = """
        mov.u64 %rd5, stack; and.b32 %r8, %r5, 63; mul.wide.u32 %rd6, %r8, 4;
        add.u64 %rd7, %rd5, %rd6; st.local.u32 [INDEX], %r8; ld.local.u32 %r9, [INDEX];"""
    depot = ".local .align 4 .b8 stack[256];"
    gpu = load_gpu("tesla-v100")
    for index, l1, l2 in (("%rd7", 0.75, 1.0), ("%rd5+8", 0.0, 0.0)):
        ptx = kernel(body.replace("INDEX", index) + "ret;", declarations=depot)
        launch = Launch.of(8000, 256, 0, {"n": 1})
        done = analyse(read_module(ptx), None, launch, gpu, registers_per_thread=32).activity
        each = 32 if l2 else 4
        assert done.local_sectors == 8000 * 8 * 2 * each
        assert done.l2_sectors == pytest.approx(8000 * 8 * each * (l2 + l1))
        beyond = 1 - gpu.l2_bytes / (80 * 8 * 256 * 256)
        assert done.dram_read_sectors == pytest.approx(8000 * 8 * each * l1 * beyond)
        assert done.dram_write_sectors == pytest.approx(8000 * 8 * each * l2 * beyond)
