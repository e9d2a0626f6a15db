"""Activity follows the trip counts of the answer: given, assumed, and their ends."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.features.execution_kernels import kernel
from tests.fixtures.kernels.data import ptx_path
from tests.fixtures.kernels.manifest import KERNELS
from tests.fixtures.ptx_text import stored_ptx
from wattcast.features.activity import Activity
from wattcast.features.activity.extras import Extras, TensorWork, tensor_work
from wattcast.features.activity.instructions import InstructionEvents, measure_instructions
from wattcast.features.activity.waiting import NO_COPIES
from wattcast.features.analysis import KernelAnalysis, Mode, analyse
from wattcast.features.errors import AnalysisError, LaunchError
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Argument, L2State, Launch, PointerHint
from wattcast.features.machine_code import machine_code
from wattcast.features.occupancy import occupancy
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Module
from wattcast.features.statics import RegisterEstimate
from wattcast.features.trips import assumed_trips_of
from wattcast.models.clocks import default_clocks
from wattcast.models.time.beside import beside, waiting_seconds
from wattcast.models.time.bottleneck import resource_seconds

V100 = load_gpu("tesla-v100")

# Each thread adds up n floats of its own, inner times m each; stores once.
NESTED = stored_ptx("nested_sums")

MODULE = read_module(NESTED)

WARPS = 64 * 4


def nested(
    loops: dict[str, float] | None = None, mode: str = "auto", grid: int = 64, **arguments: int
) -> KernelAnalysis:
    positions = {"n": "1", "m": "2"}
    given = {positions[name]: value for name, value in arguments.items()}
    # One warp where nothing is given: the trips that stand in are then as few as threads.
    launch = Launch.of(grid, 128 if grid > 1 else 32, 0, given)
    return analyse(
        MODULE,
        None,
        launch,
        V100,
        loops=loops,
        registers_per_thread=16,
        analysis=mode,  # type: ignore[arg-type]
    )


def fma(found: Activity) -> float:
    """FMAs of a warp."""
    return found.fp32_instructions / (found.blocks * max(1.0, found.threads_per_block / 32))


@pytest.mark.parametrize("mode", ["auto", "executed", "symbolic"])
def test_given_trips_multiply_through_the_nest(mode: str) -> None:
    # What is given wins over the arguments, as everywhere.
    found = nested({"$OUTER": 10, "$INNER": 7}, mode, n=20, m=9).activity
    assert fma(found) == pytest.approx(70, rel=1e-4)
    assert found.global_load_requests == pytest.approx(10 * WARPS, rel=1e-4)
    if mode != "symbolic":  # which cannot tell that all lanes read the same address
        assert found.global_load_sectors == pytest.approx(10 * WARPS, rel=1e-4)
    # The store stands outside.
    assert found.global_store_requests == pytest.approx(WARPS)


def test_given_trips_are_what_arguments_say_too() -> None:
    by_arguments = nested(n=10, m=7).activity
    by_loops = nested({"$OUTER": 10, "$INNER": 7}, n=20, m=9).activity
    for field in fields(Activity):
        if field.name == "active_lane_fraction":
            continue  # of the longer run, in which the few idle lanes at its end weigh less
        assert getattr(by_loops, field.name) == pytest.approx(
            getattr(by_arguments, field.name), rel=0.05
        ), field.name


def test_what_arguments_settle_is_not_scaled() -> None:
    analysis = nested(n=5, m=3)
    assert {trip.how for trip in analysis.trip_counts} <= {"inferred", "constant", "executed"}
    assert fma(analysis.activity) == pytest.approx(15)
    assert analysis.activity_cases == ()


def test_assumed_trips_are_those_of_the_answer_and_the_cases_their_ends() -> None:
    analysis = nested(grid=1)
    assert [(trip.count, trip.how) for trip in analysis.trip_counts] == [(32, "assumed")] * 2
    assert fma(analysis.activity) == pytest.approx(32 * 32, rel=1e-4)
    low, high = analysis.activity_cases
    least, most = assumed_trips_of(analysis.launch, nested=2)
    assert fma(low) == pytest.approx(least**2, rel=1e-4)
    assert fma(high) == pytest.approx(most**2, rel=1e-4)
    # Both loops together have the range that one alone has.
    alone = [32 * end for end in assumed_trips_of(analysis.launch)]
    assert [least**2, most**2] == pytest.approx(alone)
    # Of many threads each goes round less often; compared with a launch, as often as its threads.
    for blocks, reference, trips in ((1 << 20, None, 3), (1 << 20, 256, 32), (1, 1 << 40, 1)):
        launch = Launch((blocks, 1, 1), (256, 1, 1), reference_threads=reference)
        found = analyse(MODULE, None, launch, V100).trip_counts
        assert [(trip.count, trip.how) for trip in found] == [(trips, "assumed")] * 2


def test_half_given_scales_what_is_given_and_assumes_the_rest() -> None:
    analysis = nested({"$INNER": 5}, grid=1)
    assert fma(analysis.activity) == pytest.approx(32 * 5, rel=1e-4)
    low, high = analysis.activity_cases
    ends = [5 * end for end in assumed_trips_of(analysis.launch)]
    assert [fma(low), fma(high)] == pytest.approx(ends, rel=1e-4)


def test_registers_are_a_case_where_they_change_the_occupancy() -> None:
    launch = Launch.of(640, 1024, 0, {"1": 4, "2": 4})
    analysis = analyse(MODULE, None, launch, V100)
    assert analysis.registers.low < analysis.registers.high
    assert analysis.activity_cases == ()  # two blocks of 1024 threads either way
    # 65,536 registers: one block of 1024 threads at 33 or 64 each, two at 24.
    wide = RegisterEstimate(33, 24, 64, "liveness")
    resident = occupancy(V100, launch, 33, 0)
    uncertain = replace(analysis, registers=wide, occupancy=resident)
    (case,) = uncertain.activity_cases
    assert (case.registers_per_thread, case.resident_blocks_per_sm, case.waves) == (24, 2, 4)
    assert (uncertain.activity.resident_blocks_per_sm, uncertain.activity.waves) == (1, 8)


@pytest.mark.parametrize("mode", ["executed", "symbolic"])
def test_lines_and_mix_tell_of_the_same_launch(mode: str) -> None:
    analysis = nested({"$OUTER": 10, "$INNER": 7}, mode, n=20, m=9)
    total = analysis.activity.warp_instructions_ptx
    assert sum(analysis.mix.values()) == pytest.approx(total)
    assert sum(line.warp_instructions_ptx for line in analysis.lines) == pytest.approx(total)


def test_a_loop_never_entered_stays_as_it_is() -> None:
    # The guard is false for every thread: 1 times nothing, not a division by nothing.
    text = NESTED.replace("$OUTER:\n", " setp.ne.s32 %p1, %r3, 0;\n @!%p1 bra $END;\n$OUTER:\n")
    text = text.replace(" st.global", "$END:\n st.global")
    launch = Launch.of(64, 128)
    found = analyse(
        read_module(text),
        None,
        launch,
        V100,
        loops={"$OUTER": 10, "$INNER": 7},
        analysis="executed",
    ).activity
    assert fma(found) == 0


def test_division_and_barriers_take_longer_before_volta() -> None:
    """ptxas 12.9 makes 32 instructions of rem.s32 for sm_60 and 22 for sm_75, two and one of
    bar.sync; the time model takes each product before Volta for three."""
    text = NESTED.split("{")[0].replace("nested(", "divided(") + (
        "{\n .reg .b32 %r<9>;\n ld.param.u32 %r1, [n];\n ld.param.u32 %r2, [m];\n"
        " rem.s32 %r3, %r1, %r2;\n bar.sync 0;\n ret;\n}\n"
    )
    module, launch = read_module(text), Launch.of(1, 32, 0, {"n": 7, "m": 3})
    volta, pascal = (
        analyse(module, None, launch, load_gpu(gpu)).activity
        for gpu in ("tesla-v100", "tesla-p100")
    )
    issued = pascal.warp_instructions_sass + 2 * (
        pascal.fma_pipe_instructions - pascal.fp32_instructions
    )
    assert issued - volta.warp_instructions_sass == pytest.approx(32 - 22 + 1, abs=2)


def test_halves_are_converted_by_special_functions_before_volta() -> None:
    """Half arithmetic of a GTX 1080 Ti takes 32 cycles a warp, a conversion one: kernels that only
    keep halves were told to wait for it."""
    text = NESTED.split("{")[0].replace("nested(", "widened(") + (
        "{\n .reg .b16 %h;\n .reg .f32 %f<3>;\n cvt.f32.f16 %f1, %h;\n"
        " cvt.rn.f16.f32 %h, %f1;\n fma.rn.f16 %h, %h, %h, %h;\n ret;\n}\n"
    )
    module, launch = read_module(text), Launch.of(1, 32, 0, {"n": 7, "m": 3})
    for gpu, halves, special in (("tesla-v100", 3, 0), ("gtx-1080-ti", 1, 2)):
        found = analyse(module, None, launch, load_gpu(gpu)).activity
        assert (found.fp16_instructions, found.sfu_instructions) == (halves, special), gpu


def test_indices_near_their_place_keep_a_gather_together() -> None:
    text = stored_ptx("index_then_data")

    def sectors(hint: PointerHint) -> float:
        elements = PointerHint(elements=1 << 20)
        launch = Launch.of(4096, 256, 0, {"index": hint, "data": elements, "out": elements})
        found = analyse(read_module(text), None, launch, V100).activity
        return found.global_load_sectors / found.global_load_requests * 2 - 4

    count = 1 << 20
    # 32 lanes draw from 32 + 2 x 40 numbers, 14 sectors; anywhere, each has a sector of its own.
    assert 10 < sectors(PointerHint(count, "near", 40.0, float(count))) < 15
    assert sectors(PointerHint(count, "near", 0.0, float(count))) == pytest.approx(4.0)
    assert sectors(PointerHint(count, "index")) > 30


# --- Facts beside ``activity1``: tensor work, atomics and synchronisation, by hand
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


# --- Events of single instructions sum to the activity of their launch
PTX = Path(__file__).parents[1] / "fixtures" / "kernels" / "ptx"

SMALL_KERNELS = {
    "atomics": None,
    "bitonic": None,
    "black_scholes": None,
    "device_calls": "device_calls",
    "dot_fp64": None,
    "histogram": None,
    "transpose": "transpose_direct",
}


def analysed_events(name: str, mode: Mode) -> KernelAnalysis:
    module = read_module((PTX / f"{name}.sm_70.ptx").read_text(encoding="utf-8"))
    launch = Launch.of(64, 128)
    return analyse(module, SMALL_KERNELS[name], launch, load_gpu("tesla-v100"), analysis=mode)


def events_of(analysis: KernelAnalysis) -> dict[str, InstructionEvents]:
    functions = analysis.counts.functions(analysis.counts.factors())
    return measure_instructions(analysis.module, functions, analysis.activity)


@pytest.mark.parametrize(
    ("name", "mode"),
    [*((name, "executed") for name in sorted(SMALL_KERNELS)),
     *((name, "symbolic") for name in ("black_scholes", "dot_fp64", "transpose"))],
)  # fmt: skip
def test_events_sum_to_the_activity(name: str, mode: Mode) -> None:
    analysis = analysed_events(name, mode)
    activity = analysis.activity
    events = events_of(analysis)
    conflicts = max(0.0, activity.shared_transactions - activity.shared_requests)
    for event, total in (
        ("warp_executions", activity.warp_instructions_ptx),
        ("machine_instructions", activity.warp_instructions_sass),
        ("fma", activity.fma_pipe_instructions),
        ("fp32", activity.fp32_instructions),
        ("alu", activity.alu_pipe_instructions),
        ("fp64", activity.fp64_instructions),
        ("sfu", activity.sfu_instructions),
        ("load_store_passes", activity.lsu_requests + conflicts),
        ("atomic_requests", activity.atomic_requests),
        ("texture_requests", activity.texture_requests),
        ("l2_sectors", activity.l2_sectors),
        ("dram_sectors", activity.dram_read_sectors + activity.dram_write_sectors),
    ):
        summed = sum(float(getattr(each, event).sum()) for each in events.values())
        assert summed == pytest.approx(total, rel=1e-9), event


def test_only_accesses_move_sectors_and_only_stores_go_straight_to_l2() -> None:
    analysis = analysed_events("transpose", "executed")
    (events,) = events_of(analysis).values()
    for one in analysis.function.body.instructions:
        if not one.opcode.startswith(("ld.global", "st.global")):
            assert events.l2_sectors[one.position] == 0, one.opcode
        if one.opcode.startswith("st.global"):
            assert events.l2_sectors[one.position] == events.global_sectors[one.position]


def test_scaled_trip_counts_scale_the_events() -> None:
    module = read_module((PTX / "collatz.sm_70.ptx").read_text(encoding="utf-8"))
    gpu, launch = load_gpu("tesla-v100"), Launch.of(4, 128)
    few, many = (
        analyse(module, None, launch, gpu, loops={"default": trips}) for trips in (10, 1000)
    )
    (first,), (second,) = (events_of(each).values() for each in (few, many))
    growth = second.machine_instructions.sum() / first.machine_instructions.sum()
    expected = many.activity.warp_instructions_sass / few.activity.warp_instructions_sass
    assert growth == pytest.approx(expected)
    assert growth > 20


# --- Counts and times of small kernels that show one mechanism each (tests/fixtures/counts)


@cache
def module() -> Module:
    path = Path(__file__).parents[1] / "fixtures" / "counts" / "counts.ptx"
    return read_module(path.read_text(encoding="utf-8"))


def counted(
    kernel: str, grid: int | tuple[int, ...], block: int | tuple[int, ...],
    arguments: dict[str, Argument], *, l2: L2State = "cold",
) -> KernelAnalysis:  # fmt: skip
    launch = replace(Launch.of(grid, block, 0, arguments), l2=l2)
    return analyse(module(), kernel, launch, V100)


def test_a_linear_texture_is_read_through_all_levels() -> None:
    n = 1 << 22
    found = counted("texture_stream", n // 256, 256, {"2": n}).activity
    assert found.texture_requests == n / 32
    assert found.global_load_sectors == 0  # the texture units ask for them
    assert found.l2_sectors == pytest.approx(2 * n / 8)
    assert found.dram_read_sectors == pytest.approx(n / 8)
    assert found.footprint_bytes == pytest.approx(2 * 4 * n)


def test_an_image_is_read_once_however_its_rows_are_shared() -> None:
    """2048 x 2048 floats by tiles of 32 x 8, each with one row of the tile below."""
    width = 2048
    found = counted("texture_image", (64, 256), (32, 8), {"2": width}).activity
    texels = width * width / 8
    assert found.dram_read_sectors == pytest.approx(texels, rel=0.03)
    read_from_l2 = found.l2_sectors - found.global_store_sectors
    assert texels < read_from_l2 < 1.3 * texels  # sectors are two rows high


def test_what_constant_memory_holds_can_be_told_by_name() -> None:
    def turned(**given: PointerHint) -> float:
        analysis = counted("table_loop", 640, 128, {"0": PointerHint(81920), **given})
        return analysis.activity.fp32_instructions / (640 * 4)

    few = turned(turns=PointerHint(64, "uniform", 100, 101))
    many = turned(turns=PointerHint(64, "uniform", 400, 401))
    assert many == pytest.approx(4 * few, rel=0.05)
    assert few == pytest.approx(100, rel=0.1)
    assert turned() > 0  # nobody tells: pseudo-random numbers, not zeros
    with pytest.raises(LaunchError, match="variables: turns"):
        _ = counted("table_loop", 640, 128, {"0": PointerHint(81920), "other": 3}).activity


def test_addresses_of_shared_memory_are_computed_in_32_bits() -> None:
    """ptxas 12.9 makes ten machine instructions of the loop for sm_75: what widens the index and
    adds the variable's address is gone."""
    body = module().kernel("search_shared").body
    loop = next(label.target for label in body.labels if label.name == "$L__BB3_2")
    end = next(one.position for one in body.instructions[loop:] if one.base == "bra")
    assert machine_code(body).instructions[loop : end + 1].sum() == pytest.approx(10)


def test_constant_memory_takes_a_time_for_each_word_of_a_warp() -> None:
    """Eight words a warp in each of 400 turns, told apart from what is loaded once."""
    turns, warps = 400, 640 * 4
    found = counted("constant_lanes", 640, 128, {"0": PointerHint(81920), "1": turns})
    extras = found.extras
    assert extras.constant_passes == pytest.approx(8 * turns * warps, rel=0.01)
    assert extras.constant_requests == pytest.approx(turns * warps, rel=0.01)
    clocks = default_clocks(V100)
    seconds = resource_seconds(found.activity, V100, clocks, more=beside(extras))
    on_an_sm = extras.constant_passes / V100.sm_count / clocks.core_hz
    assert on_an_sm <= seconds["constant"] <= 3 * on_an_sm
    assert max(seconds, key=seconds.__getitem__) == "constant"
    t4 = load_gpu("t4")  # a word that all lanes share takes nothing there, these do
    later = resource_seconds(found.activity, t4, default_clocks(t4), more=beside(extras))
    assert later["constant"] > 0


def test_a_barrier_waits_for_the_slowest_load_of_its_block() -> None:
    """Of loads of which a fifth miss L1, a warp alone waits for L2 in a fifth of its waits, eight
    warps that meet after each in 1 - .8^8. Each waited for the mean before: 16.5 us for this
    launch, 33.0 since; searches of a B+ tree (Rodinia) .63 and .54 of what a Quadro GV100 takes,
    .91 and .80 since (``python -m studies volta``). Nothing was fitted to them."""
    nodes = {"0": PointerHint(2048000), "1": PointerHint(6400, "uniform", 0, 8000), "2": 8}
    found = counted("walk_nodes", 6400, 256, nodes)
    waiting, loads = beside(found.extras).waiting, found.activity.global_load_sectors

    def waited(share: float, threads: int) -> float:
        stored = found.activity.global_store_sectors
        did = replace(
            found.activity, threads_per_block=threads,
            l2_sectors=share * loads + stored, dram_read_sectors=0.0,
        )  # fmt: skip
        return waiting_seconds(did, V100, default_clocks(V100), waiting, NO_COPIES)

    none, all_of_them = waited(0.0, 32), waited(1.0, 32)
    assert (waited(0.0, 256), waited(1.0, 256)) == (none, all_of_them)
    for threads, share in ((32, 0.2), (256, 1 - 0.8**8)):
        part = (waited(0.2, threads) - none) / (all_of_them - none)
        assert part == pytest.approx(share, rel=0.03)


def test_a_loop_with_nounroll_waits_for_the_loads_of_one_round() -> None:
    """A loop that the compiler unrolled twice by a pragma carries ``nounroll`` and stays at two
    loads a round for ptxas 12.9 (sm_75, sm_80, sm_90): eight were gathered (171 us for 16 rows of
    4,096 loads a warp on a V100, now 647). One without it has sixteen loads in a row."""

    def waits(kernel: str) -> float:
        rows = {"0": PointerHint(1 << 24), "1": PointerHint(4096), "2": 1 << 20}
        waiting = beside(counted(kernel, 16, 256, rows).extras).waiting
        assert waiting is not None
        return waiting.loads

    assert waits("row_sum_counted") == pytest.approx(1 / 16, rel=0.01)
    assert waits("row_sum_unrolled") == pytest.approx(1 / 2, rel=0.01)
