"""Reuse worked out from the forms of addresses: against counting by hand, and against execution."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.features.execution_kernels import kernel
from tests.fixtures.kernels.data import Buffer, FixtureKernel, ptx_path, targets
from tests.fixtures.kernels.manifest import KERNELS
from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.errors import AnalysisError
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch, PointerHint
from wattcast.features.ptx import read_module
from wattcast.features.symbolic.forms import Box

GPU = load_gpu("tesla-v100")
WITHIN = 1.3


def touched(start: int, width: int, dims: list[tuple[int, int]]) -> np.ndarray[Any, Any]:
    """Every byte that a box touches."""
    places = np.arange(width)
    for stride, count in dims:
        places = (places[:, None] + stride * np.arange(count)).ravel()
    return np.unique(places + start)


DIMS = st.lists(
    st.tuples(st.sampled_from([4, 8, 16, 32, 64, 128, 512, 4096]), st.integers(1, 12)),
    max_size=3, unique_by=lambda dim: dim[0],
)  # fmt: skip


@given(DIMS, st.sampled_from([4, 8, 16]), st.sampled_from([32, 128]))
def test_units_of_a_box_are_those_of_its_bytes(
    dims: list[tuple[int, int]], width: int, unit: int
) -> None:
    box = Box(0, width, dims)
    true = np.unique(touched(0, width, dims) // unit).size
    # Strides that fall between those before them are told in closed form to some part.
    assert 0.5 * true <= box.units(unit) <= 2.0 * true
    if len(dims) < 2:
        assert box.units(unit) == true


@given(st.integers(1, 64), st.integers(1, 16), st.integers(-8, 8), st.integers(-3, 3))
def test_what_a_moved_tile_has_in_common(wide: int, high: int, right: int, down: int) -> None:
    row = 4096
    box = Box(1 << 20, 4, [(32, wide), (row, high)])
    here = touched(1 << 20, 4, [(32, wide), (row, high)]) // 32
    there = here + right + down * row // 32
    true = np.intersect1d(here, there).size / np.unique(here).size
    assert box.common(32 * right + row * down, 32) == pytest.approx(true, abs=0.01)


def analysed(kernel: FixtureKernel, mode: Any) -> KernelAnalysis:
    target = "sm_70" if "sm_70" in targets(kernel.source) else targets(kernel.source)[0]
    arguments: dict[str, Any] = {}
    for index, value in enumerate(kernel.large.arguments.values()):
        if isinstance(value, Buffer):
            arguments[str(index)] = PointerHint(int(np.prod(value.shape)))
        elif isinstance(value, np.generic):
            arguments[str(index)] = value.item()
    shape = kernel.large
    launch = Launch.of(shape.grid, shape.block, shape.dynamic_shared_bytes, arguments)
    module = read_module(ptx_path(kernel.source, target).read_text())
    return analyse(module, kernel.entry, launch, GPU, analysis=mode)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_traffic_worked_out_is_that_executed(kernel: FixtureKernel) -> None:
    """Within 1.3 where symbols prove every address, trip and branch; else they refuse."""
    worked_out, executed = analysed(kernel, "symbolic"), analysed(kernel, "executed")
    try:
        ours = worked_out.activity.values()
    except AnalysisError as error:
        refusal = error.detail
    else:
        refusal = ""
    if refusal:
        assert re.fullmatch(r".* not proven.*: analysis auto or executed answers", refusal)
        return
    theirs = executed.activity.values()
    for name in ("l2_sectors", "dram_read_sectors", "dram_write_sectors"):
        assert ours[name] <= WITHIN * theirs[name] + 1e-3 * theirs["l2_sectors"], name
        assert theirs[name] <= WITHIN * ours[name] + 1e-3 * ours["l2_sectors"], name


BLOCKS = [(2, 32, 1), (4, 16, 1), (1, 64, 1), (2, 2, 32), (1, 1, 64), (32, 8, 1), (3, 50, 1)]


@pytest.mark.parametrize("size", [(8192, 8192, 1), (512, 512, 256)], ids=str)
@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("mode", ["symbolic", "executed"])
def test_an_array_beyond_l2_passes_memory_once_by_blocks_of_any_shape(
    mode: Any, block: tuple[int, int, int], size: tuple[int, int, int]
) -> None:
    """256 MB read and 256 MB written. Blocks narrower than a sector share it with the next ones;
    those of 3 elements leave parts of lines behind."""
    elements = int(np.prod(size))
    values = dict(enumerate([PointerHint(elements), PointerHint(elements), *size]))
    grid = tuple(-(-long // threads) for long, threads in zip(size, block, strict=True))
    launch = Launch.of(grid, block, 0, {str(index): value for index, value in values.items()})
    module = read_module(ptx_path("grid3d", "sm_70").read_text())
    found = analyse(module, "grid3d", launch, GPU, analysis=mode).activity
    whole = elements * 4 / 32
    assert found.footprint_bytes == pytest.approx(2 * 4 * elements, rel=0.06)
    assert 0.99 * whole <= found.dram_read_sectors <= 1.1 * whole
    assert 0.99 * whole <= found.dram_write_sectors <= 1.1 * whole


def test_a_word_for_each_warp_moves_with_its_block() -> None:
    """``best[8 * blockIdx + threadIdx / 32]``: eight words a block."""
    body = """shr.u32 %r8, %r2, 5; mad.lo.u32 %r8, %r3, 8, %r8; mul.wide.u32 %rd5, %r8, 4;
        add.u64 %rd6, %rd1, %rd5; ld.global.u32 %r9, [%rd6]; st.global.u32 [%rd3], %r9; ret;"""
    launch = Launch.of(400, 256, 0, {"out": PointerHint(400 * 256)})
    ours, theirs = (
        analyse(read_module(kernel(body)), None, launch, GPU, analysis=mode).counts.traffic(None)
        for mode in ("symbolic", "executed")
    )
    assert ours.footprint_sectors == pytest.approx(theirs.footprint_sectors)


@pytest.mark.parametrize("name", ["wmma_matmul", "wmma_shared"])
def test_tiles_of_matrices_touch_the_sectors_of_their_lines(name: str) -> None:
    """16 lines of 16 half numbers are 16 sectors, whichever lanes hold them."""
    (kernel,) = (kernel for kernel in KERNELS if kernel.name == name)
    said, executed = analysed(kernel, "symbolic").symbolic, analysed(kernel, "executed")
    assert all(access.affine for access in said.accesses)
    ours, theirs = said.functions[kernel.entry], executed.executed.functions[kernel.entry]
    for each in ("sectors", "shared_transactions"):
        assert getattr(ours, each).sum() == pytest.approx(getattr(theirs, each).sum()), each


def test_blocks_in_a_line_that_make_rows_of_tiles_share_them() -> None:
    """``row = warp / tiles; column = warp % tiles``, N = 4096: 32 blocks make a row of tiles. A
    wave of blocks goes through K in step: all of B once a wave, of A the rows it works on."""
    (kernel,) = (kernel for kernel in KERNELS if kernel.name == "wmma_matmul")
    size = 4096
    given: dict[str, Any] = {str(each): PointerHint(size * size) for each in range(3)}
    given |= {str(each): size for each in range(3, 6)}
    launch = Launch.of((size // 16) ** 2 // 8, 256, 0, given)
    module = read_module(ptx_path(kernel.source, "sm_70").read_text())
    found = analyse(module, kernel.entry, launch, GPU, analysis="executed").activity
    matrix = size * size * 2 / 32
    wave = GPU.sm_count * found.resident_blocks_per_sm
    assert found.dram_read_sectors == pytest.approx(matrix * (launch.blocks / wave + 1), rel=0.2)


def test_a_matrix_product_reads_its_factors_about_once() -> None:
    """N = 1024: three matrices of 4 MB, of which L2 holds what a wave of blocks works on."""
    (naive,) = (kernel for kernel in KERNELS if kernel.name == "matmul_naive")
    size = naive.large.grid[0] * naive.large.block[0]
    for mode in ("symbolic", "executed"):
        found = analysed(naive, mode).activity
        compulsory = 2 * size * size * 4 / 32
        assert compulsory <= found.dram_read_sectors <= 4 * compulsory, mode
        assert found.dram_write_sectors == pytest.approx(compulsory / 2, rel=0.01)


@pytest.mark.parametrize("mode", ["symbolic", "executed"])
@pytest.mark.parametrize(("entry", "extra"), [("transpose_direct", 0.6), ("transpose_padded", 0)])
def test_a_transposition_writes_pieces_of_a_tile(mode: Any, entry: str, extra: float) -> None:
    """Blocks beside each other read on from each other, and write tiles of 32 far apart: of two
    ways one goes by pieces of 128 bytes. Lanes down a column have a header for each sector, as long
    as one, where whole lines have one for four."""
    n = 32768
    hints = {"0": PointerHint(n * n), "1": PointerHint(n * n), "2": n, "3": n}
    launch = Launch.of((n // 32, n // 32), (32, 8), 0, dict(hints))
    module = read_module(ptx_path("transpose", "sm_70").read_text())
    found = analyse(module, entry, launch, GPU, analysis=mode)
    assert found.extras.pieces == pytest.approx(0.5 / 4, rel=0.1)
    stored = found.activity.global_store_sectors
    assert found.extras.store_headers == pytest.approx(extra * stored)


def test_a_launch_of_too_many_values_is_not_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A public kernel of nested loops (vol2col) filled 24 GB with values of its contexts."""
    launch = Launch.of((32, 32), (32, 8), 0, {"2": 1024, "3": 1024})
    text = ptx_path("transpose", "sm_70").read_text()
    usual = analyse(read_module(text), "transpose_direct", launch, GPU, analysis="symbolic")
    assert usual.activity.global_store_sectors == 1024 * 1024
    monkeypatch.setattr("wattcast.features.symbolic.evaluate.MOST_WORKED_OUT", 10_000)
    few = analyse(read_module(text), "transpose_direct", launch, GPU, analysis="symbolic")
    with pytest.raises(AnalysisError, match="too many values"):
        _ = few.activity


def test_blocks_that_go_on_where_others_end_write_all_of_a_buffer() -> None:
    """Rows of 100,000 numbers, each by 512 blocks of 64 that take three or four turns: whoever
    meets few of them must not take their runs for parts of records with gaps in between."""
    body = """
    mov.u32 %r6, %ctaid.y; mul.lo.u32 %r6, %r6, 100000;
    LOOP: setp.ge.u32 %p1, %r5, 100000; @%p1 bra DONE;
    add.u32 %r7, %r6, %r5; mul.wide.u32 %rd4, %r7, 4; add.u64 %rd5, %rd1, %rd4;
    st.global.u32 [%rd5], %r5; add.u32 %r5, %r5, 32768; bra LOOP;
    DONE: ret;
    """
    hints = {"0": PointerHint(10_000_000), "1": 0}
    launch = Launch.of((512, 100), 64, 0, dict(hints))
    found = analyse(read_module(kernel(body)), "k", launch, GPU, analysis="executed").activity
    assert found.footprint_bytes == pytest.approx(4e7, rel=0.01)
