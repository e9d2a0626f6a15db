"""What reaches L2 and device memory of patterns whose traffic follows from the cache sizes.

Both analyses answer: by blocks that were run, and by the forms of addresses alone.
"""

from __future__ import annotations

from typing import Any, Literal

import pytest

from tests.fixtures.tables import table
from wattcast.features.activity import Activity
from wattcast.features.analysis import analyse
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch, PointerHint
from wattcast.features.ptx import read_module

GPU = load_gpu("tesla-v100")
Mode = Literal["executed", "symbolic"]
both = pytest.mark.parametrize("mode", ["executed", "symbolic"])

HEAD = table("bodies", "traffic")["head"]
PASSES = table("bodies", "traffic")["passes"]
CONVOLUTION = table("bodies", "traffic")["convolution"]
TRANSPOSE = table("bodies", "traffic")["transpose"]
ROWS = table("bodies", "traffic")["rows"]
STENCIL = table("bodies", "traffic")["stencil"]


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
@pytest.mark.parametrize(
    ("body", "n", "m", "near", "stores", "at_l2"),
    [
        # A tile of 32 x 8 with its halo: 14 rows of 5 sectors or 6 for 8 rows of 4.
        (CONVOLUTION, 8192 + 8, 7, (0.15, 0.02), 1, (1.5, 3.5)),
        # Rows end amid sectors: a block of 32 touches five of them for its four.
        (STENCIL, 8192 + 2, 0, (0.15, 0.15), 1.25, (1.0, 2.5)),
        # Columns of 8 elements fill a sector: L2 gathers them before it writes.
        (TRANSPOSE, 8192, 0, (0.05, 0.05), 8, (1.0, 9.0)),
    ],
)
def test_a_plane_without_shared_memory_is_read_and_written_about_once(
    mode: Mode, body: str, n: int, m: int, near: tuple[float, float], stores: float,
    at_l2: tuple[float, float],
) -> None:  # fmt: skip
    found = traffic(body, (8192 // 32, 8192 // 8), (32, 8), n, m, mode)
    plane = 8192 * 8192 / 8
    assert found.dram_read_sectors == pytest.approx(plane, rel=near[0])
    assert found.dram_write_sectors == pytest.approx(plane, rel=near[1])
    assert found.global_store_sectors == pytest.approx(stores * plane, rel=near[1])
    assert at_l2[0] * plane <= found.l2_sectors - plane <= at_l2[1] * plane


@both
def test_rows_walked_by_threads_are_read_from_memory_once_if_lines_stay(mode: Mode) -> None:
    """2,560 threads with a line each in L1 and L2: sectors are fetched once for eight elements."""
    rows, length = 80 * 32, 8192
    found = traffic(ROWS, 80, 32, length, 0, mode)
    once = rows * length / 8
    assert found.global_load_sectors == pytest.approx(8 * once, rel=0.02)
    assert found.l2_sectors == pytest.approx(once, rel=0.05)
    assert found.dram_read_sectors == pytest.approx(once, rel=0.05)
