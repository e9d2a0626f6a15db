"""What reaches L2 and device memory of patterns whose traffic follows from the cache sizes.

Both analyses answer: by blocks that were run, and by the forms of addresses alone.
"""

from __future__ import annotations

from typing import Any, Literal

import pytest

from wattcast.features.activity import Activity
from wattcast.features.analysis import analyse
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch, PointerHint
from wattcast.features.ptx import read_module

GPU = load_gpu("tesla-v100")
Mode = Literal["executed", "symbolic"]
both = pytest.mark.parametrize("mode", ["executed", "symbolic"])

HEAD = """
.version 7.8
.target sm_70
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 in, .param .u32 n, .param .u32 m) {
    .reg .pred %p<8>; .reg .b32 %r<32>; .reg .b64 %rd<24>; .reg .f32 %f<8>;
    ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [in];
    ld.param.u32 %r1, [n]; ld.param.u32 %r2, [m];
    cvta.to.global.u64 %rd1, %rd1; cvta.to.global.u64 %rd2, %rd2;
    mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x; mov.u32 %r6, %ctaid.y;
    mov.u32 %r7, %ntid.y; mov.u32 %r8, %tid.y; mov.f32 %f1, 0f00000000;
    mad.lo.u32 %r9, %r3, %r4, %r5; mad.lo.u32 %r10, %r6, %r7, %r8;
"""
# n passes over m elements of each thread, a whole grid apart.
PASSES = """
    mov.u32 %r11, %nctaid.x; mul.lo.u32 %r11, %r11, %r4; mul.wide.u32 %rd3, %r11, 4;
    mul.wide.u32 %rd4, %r9, 4; add.u64 %rd5, %rd2, %rd4; mov.u32 %r12, 0;
$pass: mov.u64 %rd6, %rd5; mov.u32 %r13, 0;
$walk: ld.global.f32 %f2, [%rd6]; add.f32 %f1, %f1, %f2; add.u64 %rd6, %rd6, %rd3;
    add.u32 %r13, %r13, 1; setp.lt.u32 %p1, %r13, %r2; @%p1 bra $walk;
    add.u32 %r12, %r12, 1; setp.lt.u32 %p2, %r12, %r1; @%p2 bra $pass;
    add.u64 %rd7, %rd1, %rd4; st.global.f32 [%rd7], %f1; ret;
"""
# 2D convolution without shared memory: m x m weights over rows of n elements.
CONVOLUTION = """
    mad.lo.u32 %r11, %r10, %r1, %r9; mul.wide.u32 %rd3, %r11, 4; add.u64 %rd4, %rd2, %rd3;
    mul.wide.u32 %rd5, %r1, 4; mov.u32 %r12, 0;
$row: mov.u64 %rd6, %rd4; mov.u32 %r13, 0;
$column: ld.global.f32 %f2, [%rd6]; add.f32 %f1, %f1, %f2; add.u64 %rd6, %rd6, 4;
    add.u32 %r13, %r13, 1; setp.lt.u32 %p1, %r13, %r2; @%p1 bra $column;
    add.u64 %rd4, %rd4, %rd5; add.u32 %r12, %r12, 1; setp.lt.u32 %p2, %r12, %r2; @%p2 bra $row;
    add.u64 %rd7, %rd1, %rd3; st.global.f32 [%rd7], %f1; ret;
"""
# out[x][y] = in[y][x] of n x n elements.
TRANSPOSE = """
    mad.lo.u32 %r11, %r10, %r1, %r9; mul.wide.u32 %rd3, %r11, 4; add.u64 %rd4, %rd2, %rd3;
    ld.global.f32 %f2, [%rd4]; mad.lo.u32 %r12, %r9, %r1, %r10; mul.wide.u32 %rd5, %r12, 4;
    add.u64 %rd6, %rd1, %rd5; st.global.f32 [%rd6], %f2; ret;
"""
# A row of n elements for each thread.
ROWS = """
    mul.lo.u32 %r11, %r9, %r1; mul.wide.u32 %rd3, %r11, 4; add.u64 %rd4, %rd2, %rd3;
    mov.u32 %r12, 0;
$walk: ld.global.f32 %f2, [%rd4]; add.f32 %f1, %f1, %f2; add.u64 %rd4, %rd4, 4;
    add.u32 %r12, %r12, 1; setp.lt.u32 %p1, %r12, %r1; @%p1 bra $walk;
    mul.wide.u32 %rd5, %r9, 4; add.u64 %rd6, %rd1, %rd5; st.global.f32 [%rd6], %f1; ret;
"""
# Five points of a grid whose rows have n elements.
STENCIL = """
    mad.lo.u32 %r11, %r10, %r1, %r9; add.u32 %r11, %r11, %r1; add.u32 %r11, %r11, 1;
    mul.wide.u32 %rd3, %r11, 4; add.u64 %rd4, %rd2, %rd3; mul.wide.u32 %rd5, %r1, 4;
    sub.u64 %rd6, %rd4, %rd5; add.u64 %rd7, %rd4, %rd5; ld.global.f32 %f2, [%rd6];
    ld.global.f32 %f3, [%rd4+-4]; ld.global.f32 %f4, [%rd4]; ld.global.f32 %f5, [%rd4+4];
    ld.global.f32 %f6, [%rd7]; add.f32 %f2, %f2, %f3; add.f32 %f4, %f4, %f5;
    add.f32 %f2, %f2, %f4; add.f32 %f2, %f2, %f6;
    add.u64 %rd8, %rd1, %rd3; st.global.f32 [%rd8], %f2; ret;
"""


def traffic(body: str, grid: Any, block: Any, n: int, m: int, mode: Mode) -> Activity:
    launch = Launch.of(grid, block, 0, {"0": PointerHint(), "1": PointerHint(), "2": n, "3": m})
    found = analyse(read_module(HEAD + body + "}"), None, launch, GPU, analysis=mode)
    assert found.activity_how == mode
    return found.activity


@both
@pytest.mark.parametrize(("share", "read"), [(0.5, 0), (2, 3), (4, 3)])
def test_a_buffer_walked_in_passes_stays_in_l2_whole_or_not_at_all(
    mode: Mode, share: float, read: int
) -> None:
    """Least recently used: what exceeds the cache is gone whenever it is wanted again."""
    threads = 80 * 2 * 256
    whole = share * GPU.l2_bytes
    past_l1 = PASSES.replace("ld.global", "ld.global.cg")
    found = traffic(past_l1, 160, 256, 3, round(whole / 4 / threads), mode)
    assert found.l2_sectors == pytest.approx(3 * whole / 32, rel=0.05)
    assert found.dram_read_sectors == pytest.approx(read * whole / 32, rel=0.05)


@both
def test_passes_within_l1_reach_l2_once(mode: Mode) -> None:
    """16 KB of each SM, read thirty times."""
    found = traffic(PASSES, 80, 256, 30, 16, mode)
    once = 80 * 16 * 1024 / 32
    assert found.global_load_sectors == pytest.approx(30 * once, rel=0.01)
    assert found.l2_sectors == pytest.approx(once + 80 * 256 / 8, rel=0.05)


@both
@pytest.mark.parametrize(
    ("kilobytes", "at_l2", "at_memory"), [(64, 1, 0), (2048, 10, 0), (65536, 10, 10)]
)
def test_one_warp_that_walks_misses_the_levels_that_cannot_hold_its_walk(
    mode: Mode, kilobytes: int, at_l2: int, at_memory: int
) -> None:
    """Ten times round; L1 starts empty, L2 with what the launch before left."""
    found = traffic(PASSES, 1, 32, 10, kilobytes * 1024 // 128, mode)
    once = kilobytes * 1024 / 32
    assert found.l2_sectors == pytest.approx(at_l2 * once, rel=0.02)
    assert found.dram_read_sectors == pytest.approx(at_memory * once, rel=0.02)


@both
def test_a_convolution_without_shared_memory_reads_its_image_about_once(mode: Mode) -> None:
    side = 8192
    found = traffic(CONVOLUTION, (side // 32, side // 8), (32, 8), side + 8, 7, mode)
    image = side * side / 8
    assert found.dram_read_sectors == pytest.approx(image, rel=0.15)
    assert found.dram_write_sectors == pytest.approx(image, rel=0.02)
    # A tile of 32 x 8 with its halo: 14 rows of 5 sectors or 6 for 8 rows of 4.
    assert 1.5 * image < found.l2_sectors - image < 3.5 * image


@both
def test_a_naive_transpose_moves_each_matrix_about_once(mode: Mode) -> None:
    """Columns of 8 elements fill a sector: L2 gathers them before it writes."""
    side = 4096
    found = traffic(TRANSPOSE, (side // 32, side // 8), (32, 8), side, 0, mode)
    matrix = side * side / 8
    assert found.dram_read_sectors == pytest.approx(matrix, rel=0.05)
    assert found.dram_write_sectors == pytest.approx(matrix, rel=0.05)
    assert found.global_store_sectors == pytest.approx(8 * matrix, rel=0.01)


@both
def test_rows_walked_by_threads_are_read_from_memory_once_if_lines_stay(mode: Mode) -> None:
    """2,560 threads with a line each in L1 and L2: sectors are fetched once for eight elements."""
    rows, length = 80 * 32, 8192
    found = traffic(ROWS, 80, 32, length, 0, mode)
    once = rows * length / 8
    assert found.global_load_sectors == pytest.approx(8 * once, rel=0.02)
    assert found.l2_sectors == pytest.approx(once, rel=0.05)
    assert found.dram_read_sectors == pytest.approx(once, rel=0.05)


@both
def test_a_stencil_step_reads_its_grid_about_once(mode: Mode) -> None:
    side = 8192
    found = traffic(STENCIL, (side // 32, side // 8), (32, 8), side + 2, 0, mode)
    grid = side * side / 8
    # Rows end amid sectors: a block of 32 touches five of them for its four.
    assert found.dram_read_sectors == pytest.approx(grid, rel=0.15)
    assert found.dram_write_sectors == pytest.approx(grid, rel=0.15)
