"""Which blocks are sampled, and how a launch is estimated from them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.features.execution_kernels import kernel, of_class, run
from tests.fixtures.kernels.data import ptx_path
from tests.fixtures.kernels.manifest import KERNELS
from tests.fixtures.ptx_text import stored_ptx
from wattcast.features.analysis import analyse
from wattcast.features.execution import SamplingPlan, plan_blocks
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
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
