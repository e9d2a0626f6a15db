"""Which blocks are sampled, and how a launch is estimated from them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.features.execution_kernels import kernel, of_class, run
from tests.features.test_execution_steady import UNIFORM, both
from tests.fixtures.kernels.data import ptx_path
from tests.fixtures.kernels.manifest import KERNELS
from tests.fixtures.ptx_text import stored_ptx
from wattcast.features.analysis import analyse
from wattcast.features.counts import ReuseCurve, Stream, Traffic
from wattcast.features.execution import SamplingPlan, plan_blocks, tally
from wattcast.features.execution.sharing import _runs, _stretch
from wattcast.features.execution.spaces import shuffled
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch, PointerHint
from wattcast.features.memory import KEY_BITS
from wattcast.features.ptx import read_module
from wattcast.features.symbolic import analyse_symbolically

GRIDS = st.tuples(st.integers(1, 5000), st.integers(1, 300), st.integers(1, 20))


@settings(max_examples=60)
@given(grid=GRIDS, block=st.sampled_from([32, 100, 256, 1024]), seed=st.integers(0, 9))
def test_every_plan_stands_for_the_whole_launch(
    grid: tuple[int, int, int], block: int, seed: int
) -> None:
    launch = Launch.of(grid, block)
    plan = plan_blocks(launch, seed=seed)
    assert len(set(plan.blocks)) == len(plan.blocks) <= 24
    assert all(0 <= b < launch.blocks for b in plan.blocks)
    assert sum(plan.sizes) == launch.blocks
    assert plan.weights().sum() == pytest.approx(launch.blocks)
    ones = np.ones(len(plan.blocks), dtype=np.int64)
    assert plan.total(ones) == pytest.approx(launch.blocks)
    assert plan.standard_error(ones) == 0
    assert plan == plan_blocks(launch, seed=seed)


def test_the_edges_of_a_grid_are_sampled() -> None:
    plan = plan_blocks(Launch.of((100, 50), 256))
    corners = {0, 99, 4900, 4999}
    assert corners <= set(plan.blocks)
    rows = {b // 100 for b in plan.blocks}
    columns = {b % 100 for b in plan.blocks}
    assert {0, 49} <= rows
    assert {0, 99} <= columns
    assert len(rows - {0, 49}) >= 3
    assert plan.pairs_x
    assert plan.pairs_y


def test_a_small_launch_is_run_whole() -> None:
    plan = plan_blocks(Launch.of(5, 256))
    assert plan.complete
    assert plan.blocks == (0, 1, 2, 3, 4)
    assert plan.standard_error(np.array([1, 9, 2, 7, 3])) == 0


def test_the_standard_error_of_a_stratified_sample() -> None:
    plan = SamplingPlan(blocks=(0, 4, 8, 9), strata=(0, 1, 1, 2), sizes=(1, 8, 1))
    values = np.array([5, 10, 14, 100])
    assert plan.total(values) == 5 + 8 * 12 + 100
    # One stratum of 8 with two drawn: 8^2 (1 - 2/8) s^2 / 2 with s^2 = 8.
    assert plan.standard_error(values) == pytest.approx((64 * 0.75 * 8 / 2) ** 0.5)


@pytest.mark.parametrize("grid", [(128, 64), (32, 16), (100, 7), (16, 512), (500, 1), (9, 8, 7)])
def test_what_grows_along_an_axis_is_estimated_without_error(grid: tuple[int, ...]) -> None:
    launch = Launch.of(grid, 128)
    plan = plan_blocks(launch, balanced=True)
    fewer = plan.fewer(launch)
    assert fewer is not None
    # A few blocks of a grid of three dimensions cannot be balanced along all of them.
    for some in (plan, fewer) if len(grid) < 3 else (plan,):
        blocks = np.array(some.blocks)
        along_x = 3 * (blocks % grid[0]) + 7
        assert some.total(along_x) == pytest.approx(
            (3 * (grid[0] - 1) / 2 + 7) * launch.blocks, rel=1e-12
        )
        assert some.total(np.ones_like(blocks)) == pytest.approx(launch.blocks, rel=1e-12)
        assert some.standard_error(along_x) < 1e-9 * launch.blocks
        assert (some.weights() > 0).all()
    # What does not is as uncertain as it was.
    rough = np.random.default_rng(1).integers(0, 100, len(plan.blocks))
    assert plan.standard_error(rough) > 0.3 * plan_blocks(launch).standard_error(rough)


def test_a_launch_whose_edge_differs_is_counted_exactly() -> None:
    # All threads below n go on: the last block is cut in the middle.
    body = "setp.ge.u32 %p1, %r5, %r1; @%p1 ret; st.global.u32 [%rd3], %r2; ret;"
    result, _ = run(body, grid=10_000, block=128, n=128 * 9_999 + 40, exact=False)
    stores = of_class(read_module(kernel(body)), result.functions["k"], "global_store")
    assert stores["active_lanes"] == 128 * 9_999 + 40
    assert stores["warp_executions"] == 4 * 9_999 + 2
    assert stores["sectors"] == 16 * 9_999 + 5
    assert result.memory.footprint_sectors == 16 * 9_999 + 5


def test_blocks_that_differ_leave_a_stated_error() -> None:
    body = """
        mov.u32 %r6, 0;
        $loop: add.u32 %r6, %r6, 1; setp.le.u32 %p1, %r6, %r3; @%p1 bra $loop;
        ret;"""
    result, _ = run(body, grid=2000, block=64, exact=False)
    true = 2 * sum(8 + 1 + 3 * (block + 1) + 1 for block in range(2000))
    estimate = sum(float(f.warp_executions.sum()) for f in result.functions.values())
    error = result.sampling.relative_standard_error
    assert 0 < error < 0.25
    assert abs(estimate - true) < 4 * error * true


GUARD = stored_ptx("guard_of_a_product")


def test_cuts_are_where_blocks_begin_to_behave_differently() -> None:
    module = read_module(GUARD)
    launch = Launch.of(4096, 32, 0, {"n": 3 * 32 + 5})
    sampled = analyse_symbolically(module, module.kernel(), launch).sampling
    assert sampled.exact
    assert sampled.cuts == ((2, 3, 4, 5), (), ())  # all threads, some (block 3), none; neighbours


def test_an_axis_is_cut_where_blocks_begin_to_differ() -> None:
    plan = plan_blocks(Launch.of(4096, 256), cuts=((3, 4), (), ()))
    assert {0, 3, 4095} <= set(plan.blocks)
    assert {1, 2} & set(plan.blocks)
    assert sorted(plan.sizes) == [1, 1, 1, 2, 4091]
    assert sum(plan.sizes) == 4096


def test_cuts_take_the_place_of_edges_where_both_are_too_many() -> None:
    both = ((3, 40, 70), (5, 9), ())
    plan = plan_blocks(Launch.of((100, 50), 256), cuts=both)
    assert len(plan.sizes) == 4 * 3
    assert sum(plan.sizes) == 5000


def test_few_blocks_of_a_large_grid_that_work_are_found() -> None:
    # 70 x 45 of 6,400 x 800 elements: 3 x 6 of 20,000 blocks pass the guard.
    fixture = next(k for k in KERNELS if k.name == "transpose_direct")
    module = read_module(ptx_path(fixture.source, "sm_70").read_text())
    launch = Launch.of((200, 100), (32, 8), arguments={"2": 70, "3": 45})
    gpu = load_gpu("tesla-v100")
    executed = analyse(module, fixture.entry, launch, gpu, analysis="executed").executed
    exact = analyse(module, fixture.entry, launch, gpu, analysis="symbolic").symbolic
    assert exact.sampling.exact
    for name in ("global_load", "global_store"):
        ours, theirs = (
            of_class(module, result.functions[fixture.entry], name) for result in (executed, exact)
        )
        assert theirs["active_lanes"] == 70 * 45
        assert ours["active_lanes"] == theirs["active_lanes"]
        assert ours["requests"] == theirs["requests"]
        assert ours["sectors"] == pytest.approx(theirs["sectors"], rel=0.05)


@pytest.mark.parametrize(
    ("grid", "block"), [((4096,), 256), ((64, 64), 64), ((7, 9, 11), 32), ((25, 25), 512)]
)
def test_a_few_blocks_stand_for_the_whole_launch(grid: tuple[int, ...], block: int) -> None:
    launch = Launch.of(grid, block)
    plan = plan_blocks(launch)
    few = plan.fewer(launch)
    assert few is not None
    assert set(few.blocks) < set(plan.blocks)
    assert 2 * len(few.blocks) <= len(plan.blocks)
    assert few.weights().sum() == pytest.approx(launch.blocks)
    assert few.pairs_x
    assert few.fewer(launch) is None


def test_classes_too_many_for_the_budget_join_those_beside_them() -> None:
    # Of 3 x 4 classes the least along its axis, x = 30, joins the smaller one beside it.
    plan = plan_blocks(Launch.of((100, 50), 1024), cuts=((30, 31), (5, 6, 20), ()))
    assert len(plan.sizes) <= 9
    assert max(plan.sizes) == 69 * 30
    assert sum(plan.sizes) == 5000


TILES = stored_ptx("few_tiles")


def test_blocks_that_work_are_found_where_addresses_are_no_sums() -> None:
    """Launched without regard to the four rows of each thread, three in four blocks leave at once;
    the addresses come from a square root."""
    wide, high = 3200, 1001
    module = read_module(TILES)
    launch = Launch.of((200, high), 32, arguments={"2": wide, "3": high})
    gpu = load_gpu("tesla-v100")
    found = analyse(module, "tiles", launch, gpu, analysis="executed")
    counts = found.counts.functions(None)["tiles"]
    (load,) = (at for at, one in enumerate(module.kernel("tiles").body.instructions)
               if one.opcode == "ld.global.f32")  # fmt: skip
    assert counts.requests[load] == pytest.approx(wide / 32 * high, rel=0.01)


# --- Reuse distances and sharing as the executed analysis measures them, worked out by hand


def memory_of(body: str, **options: object) -> Traffic:
    options = {"exact": False, "grid": 100, "block": 32} | options
    result, _ = run(body, **options)  # type: ignore[arg-type]
    return result.memory


def stream_of(body: str, **options: object) -> Stream:
    (stream,) = memory_of(body, **options).streams
    return stream


def at(curve: ReuseCurve, values: tuple[float, ...], window: float) -> float:
    return float(np.interp(window, curve.windows, values))


# Every turn reads the warp's own line, then the next line of a walk: 16 KB from warp to warp.
WALK = """
    mul.wide.u32 %rd6, %r3, 16384; add.u64 %rd7, %rd1, %rd6; mul.wide.u32 %rd5, %r2, 4;
    add.u64 %rd7, %rd7, %rd5; mov.u32 %r6, 0; add.u64 %rd8, %rd7, 128;
    $loop: ld.global.f32 %f1, [%rd7]; ld.global.f32 %f2, [%rd8]; add.u64 %rd8, %rd8, 128;
    add.u32 %r6, %r6, 1; setp.lt.u32 %p1, %r6, %r1; @%p1 bra $loop; ret;"""


def test_a_line_read_in_every_turn_comes_back_after_two_requests() -> None:
    memory = memory_of(WALK, n=60)
    assert memory.requests_per_block == 120
    (stream,) = memory.streams
    assert stream.kept_load_sectors == pytest.approx(100 * 120 * 4)
    assert stream.unique_kept_sectors == pytest.approx(100 * 61 * 4)
    curve = stream.kept
    # The line read again, and one new line for every two requests.
    assert at(curve, curve.lines, 8) == pytest.approx(1 + 4, rel=0.05)
    assert at(curve, curve.lines, 120) == pytest.approx(61, rel=0.06)
    assert at(curve, curve.loads_beyond, 1) == 1
    assert at(curve, curve.loads_beyond, 2) == 0
    assert stream.distinct_sectors == pytest.approx(100 * 61 * 4)


@pytest.mark.parametrize("name", ["tested at the top", "walking by one element",
                                  "some threads load inside", "predicated store"])  # fmt: skip
def test_skipped_iterations_count_like_those_run(name: str) -> None:
    quick, full = (result.memory for result in both(UNIFORM[name], 1200))
    assert quick.requests_per_block == pytest.approx(full.requests_per_block, rel=0.01)
    (ours,), (theirs,) = quick.streams, full.streams
    for window in (4, 30, 200, 1000):
        for mine, other in ((ours.kept, theirs.kept), (ours.all, theirs.all)):
            for values in ("lines", "loads_beyond", "stores_beyond"):
                assert at(mine, getattr(mine, values), window) == pytest.approx(
                    at(other, getattr(other, values), window), rel=0.1, abs=0.05
                ), (window, values)


def test_a_sector_is_gone_with_its_line_however_soon_a_neighbour_comes() -> None:
    # Sector 0 of a line, 20 other lines, sector 1 of the line, at once sector 0 again.
    others = "".join(f"ld.global.u32 %r8, [%rd7+{128 * k}];" for k in range(1, 21))
    body = f"""
        mul.wide.u32 %rd6, %r3, 16384; add.u64 %rd7, %rd1, %rd6; ld.global.u32 %r8, [%rd7];
        {others} ld.global.u32 %r8, [%rd7+32]; ld.global.u32 %r8, [%rd7]; ret;"""
    curve = stream_of(body).kept
    assert at(curve, curve.loads_beyond, 16) == 1
    assert at(curve, curve.loads_beyond, 24) == 0


def test_longer_traces_are_thinned_by_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = stream_of(WALK, n=60, extrapolate=False).kept
    monkeypatch.setattr(tally, "MOST_TOUCHES", 500)  # of 4 blocks with 480 each
    thinned = stream_of(WALK, n=60, extrapolate=False).kept
    assert thinned != whole
    for window in (20, 100):
        assert at(thinned, thinned.lines, window) == pytest.approx(
            at(whole, whole.lines, window), rel=0.4
        )


def test_loads_that_pass_l1_and_atomics_are_told_apart() -> None:
    body = """
        ld.global.u32 %r8, [%rd3]; ld.global.cg.u32 %r9, [%rd3]; ld.volatile.global.u32 %r9, [%rd3];
        red.global.add.u32 [%rd3], 1; st.global.u32 [%rd3], %r8; ret;"""
    stream = stream_of(body)
    assert stream.kept_load_sectors == 400
    assert stream.direct_load_sectors == 800
    assert stream.atomic_sectors == 400
    assert stream.store_sectors == 400
    assert stream.unique_kept_sectors == stream.unique_load_sectors == 400
    assert stream.unique_read_sectors == stream.unique_store_sectors == 400
    assert stream.distinct_sectors == 400


def test_what_is_stored_first_need_not_be_read_from_memory() -> None:
    stream = stream_of("st.global.u32 [%rd3], %r5; ld.global.u32 %r8, [%rd3]; ret;")
    assert stream.unique_load_sectors == 400
    assert stream.unique_read_sectors == 0


def test_what_every_block_reads_is_everyones() -> None:
    body = """
        mul.wide.u32 %rd4, %r2, 4; add.u64 %rd5, %rd1, %rd4; ld.global.u32 %r8, [%rd5];
        ret;"""
    stream = stream_of(body, grid=1000)
    assert stream.sharing.everyone == 1
    assert stream.distinct_sectors == 4


def test_neighbours_share_a_halo() -> None:
    # Each block of 64 reads its own 8 sectors and the first of the next block.
    body = """
        ld.global.u32 %r8, [%rd3]; ld.global.u32 %r9, [%rd3+4]; ret;"""
    stream = stream_of(body, grid=1000, block=64)
    assert stream.sharing.everyone == 0
    assert stream.sharing.beside == pytest.approx(1 / 9)
    assert stream.distinct_sectors == pytest.approx(8001)


def test_random_reads_tell_from_how_many_they_draw() -> None:
    # 64 of 2048 lines of a table, wherever a hash of the thread's number leads.
    body = """
        mul.lo.u32 %r8, %r5, 0x9E3779B1; shr.u32 %r9, %r8, 15; xor.b32 %r8, %r8, %r9;
        mul.lo.u32 %r8, %r8, 0x85EBCA77; shr.u32 %r9, %r8, 13; xor.b32 %r8, %r8, %r9;
        mul.lo.u32 %r8, %r8, 0xC2B2AE3D; shr.u32 %r8, %r8, 21; mul.wide.u32 %rd4, %r8, 128;
        add.u64 %rd5, %rd1, %rd4; ld.global.u32 %r9, [%rd5]; ret;"""
    stream = stream_of(body, grid=5000, block=64)
    assert stream.sharing.everyone < 0.1
    assert stream.sharing.population == pytest.approx(2048, rel=0.35)
    assert stream.distinct_sectors == pytest.approx(2048, rel=0.35)


@pytest.mark.parametrize("blocks", [6_000, 8_000, 10_000, 12_000, 24_000, 48_000])
def test_records_read_at_random_are_as_many_as_lie_there(blocks: int) -> None:
    """Each block reads 1,032 of the 2,064 bytes of two records of 7,874, wherever a hash leads:
    260,000 sectors whether or not sampled blocks met (before: 30,000 and 485,000)."""
    hashed = """
        mul.lo.u32 %r8, %r3, 0x9E3779B1; shr.u32 %r9, %r8, 15; xor.b32 %r8, %r8, %r9;
        mul.lo.u32 %r8, %r8, 0x85EBCA77; shr.u32 %r9, %r8, 13; xor.b32 %r8, %r8, %r9;
        mul.lo.u32 %r8, %r8, 0xC2B2AE3D; shr.u32 %r9, %r8, 16; xor.b32 %r8, %r8, %r9;"""
    read = """
        mul.wide.u32 %rd4, %r10, 2064; add.u64 %rd5, %rd1, %rd4; mul.wide.u32 %rd4, %r2, 4;
        add.u64 %rd5, %rd5, %rd4; ld.global.u32 %r9, [%rd5+1032]; ld.global.u32 %r9, [%rd5+1036];
        """
    again = "add.u32 %r3, %r3, 900001;"
    body = f"{hashed} rem.u32 %r10, %r8, 7874;{read}{again}{hashed} rem.u32 %r10, %r8, 7874;{read}"
    stream = stream_of(body + "ret;", grid=blocks, block=256)
    touched = 2 * 33 * blocks
    there = 7874 * 33
    expected = there * (1 - np.exp(-touched / there))
    assert stream.distinct_sectors == pytest.approx(expected, rel=0.45)
    if blocks > 10_000:
        assert stream.sharing.population == pytest.approx(there, rel=0.2)


def test_blocks_narrower_than_a_line_share_it_by_fours() -> None:
    # Eight threads read a sector: 1,000 blocks read 250 lines, whichever pairs are sampled.
    stream = stream_of("ld.global.u32 %r8, [%rd3]; ret;", grid=1000, block=8)
    assert stream.sharing.beside == 0
    assert stream.line_sharing.beside == 0.75
    assert stream.distinct_sectors == 1000
    assert stream.distinct_lines == pytest.approx(250, rel=0.01)


def test_blocks_narrower_than_a_sector_share_it() -> None:
    # Four threads read half a sector: 1,000 blocks read 500 of them.
    stream = stream_of("ld.global.u32 %r8, [%rd3]; ret;", grid=1000, block=4)
    assert stream.sharing.beside == pytest.approx(0.5, abs=0.002)
    assert stream.distinct_sectors == pytest.approx(500, rel=0.02)
    assert stream.distinct_lines == pytest.approx(125, rel=0.02)


def test_a_matrix_walked_by_columns_is_read_whole() -> None:
    # Block b reads element b of 32 rows: eight blocks touch the same sectors, the ninth does not.
    body = """
        mul.wide.u32 %rd4, %r2, 32768; mul.wide.u32 %rd5, %r3, 4; add.u64 %rd6, %rd1, %rd4;
        add.u64 %rd6, %rd6, %rd5; ld.global.u32 %r8, [%rd6]; ret;"""
    stream = stream_of(body, grid=4096)
    assert stream.distinct_sectors == pytest.approx(32 * 4096 * 4 / 32, rel=0.01)
    assert stream.distinct_lines == pytest.approx(32 * 4096 * 4 / 128, rel=0.01)


def test_what_is_not_listed_one_by_one_weighs_as_much_as_it_is() -> None:
    # All blocks walk through the same 60,000 lines; each reads a line of its own as well.
    body = """
        add.u64 %rd4, %rd3, 0x10000000; ld.global.u32 %r8, [%rd4]; mul.wide.u32 %rd5, %r2, 4;
        add.u64 %rd8, %rd1, %rd5; mov.u32 %r6, 0; $loop: ld.global.f32 %f2, [%rd8];
        add.u64 %rd8, %rd8, 128; add.u32 %r6, %r6, 1; setp.lt.u32 %p1, %r6, %r1;
        @%p1 bra $loop; ret;"""
    stream = stream_of(body, grid=1000, n=60_000)
    assert stream.unique_load_sectors == pytest.approx(1000 * 4 * 60_001, rel=1e-3)
    assert stream.sharing.everyone == pytest.approx(60_000 / 60_001, abs=1e-3)


def test_a_stride_given_as_an_argument_is_no_pointer() -> None:
    # An address is computed from it by adding, as from a pointer: 64 elements, 64 KB apart.
    ptx = """.version 7.0\n.target sm_50\n.address_size 64
        .visible .entry k(.param .u64 a, .param .u64 step) {
        .reg .b64 %rd<6>; .reg .f32 %f<2>; .reg .b32 %r<2>; .reg .pred %p<2>;
        ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [step]; mov.u32 %r1, 0;
        loop: add.s64 %rd1, %rd1, %rd2; ld.global.f32 %f1, [%rd1];
        add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 64; @%p1 bra loop; ret; }"""
    for step, sectors in ((65536, 64), (4, 9)):
        launch = Launch((1, 1, 1), (1, 1, 1), arguments={"0": PointerHint(), "1": step})
        analysis = analyse(
            read_module(ptx), "k", launch, load_gpu("tesla-v100"), analysis="executed"
        )
        assert analysis.executed is not None
        found = sum(stream.distinct_sectors for stream in analysis.executed.memory.streams)
        assert found == sectors, step


def test_sites_that_share_sectors_share_those_not_listed() -> None:
    """Rows of a triangle, one per thread, two of their elements a turn: threads end one by one."""
    body = """
        mul.lo.u32 %r10, %r5, 4; add.u32 %r10, %r10, 64; mul.wide.u32 %rd6, %r5, 65536;
        add.u64 %rd7, %rd1, %rd6; mov.u32 %r6, 0;
        $loop: ld.global.f32 %f1, [%rd7]; ld.global.f32 %f2, [%rd7+4]; add.u64 %rd7, %rd7, 8;
        add.u32 %r6, %r6, 2; setp.lt.u32 %p1, %r6, %r10; @%p1 bra $loop; ret;"""
    stream = stream_of(body, grid=24)
    rows = 24 * 32
    elements = sum(4 * row + 64 for row in range(rows))
    assert stream.unique_kept_sectors == pytest.approx(elements / 8, rel=0.05)
    assert stream.kept_load_sectors == pytest.approx(elements, rel=0.05)


def test_a_gather_reads_anywhere_in_its_buffer() -> None:
    """256 MB of 4-byte elements in the order of an index that nobody described."""
    module = read_module(ptx_path("gather", "sm_70").read_text())
    n = 1 << 26
    hints = {str(number): PointerHint(n) for number in range(3)}
    launch = Launch.of(n // 256, 256, 0, {**hints, "3": n})
    found = analyse(module, None, launch, load_gpu("tesla-v100"), analysis="executed").activity
    # The index and the result once, and a sector for nearly every element gathered.
    assert found.dram_read_sectors == pytest.approx(n / 8 + n, rel=0.03)
    assert found.dram_write_sectors == pytest.approx(n / 8, rel=0.01)


@given(st.integers(1 << 16, 1 << 18), st.integers(0, 1 << 40))
@settings(max_examples=10)
def test_numbers_are_shuffled_without_loss(below: int, seed: int) -> None:
    found = shuffled(np.arange(below), below, seed)
    assert np.array_equal(np.sort(found), np.arange(below))


def test_records_are_looked_for_above_address_zero_alone() -> None:
    """A fetch left of its texture, say, has an address below: such keys come before all blocks'."""
    above = np.arange(400) * 7
    keys = np.concatenate([above - 7 * 400, above])
    runs = _runs(above, KEY_BITS, 1)
    assert _stretch(keys, 1, 1.0, runs) == _stretch(above, 1, 1.0, runs)
