"""Counts and times of small kernels that show one mechanism each (tests/fixtures/counts)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from wattcast.features.activity.waiting import NO_COPIES
from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.errors import LaunchError
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Argument, L2State, Launch, PointerHint
from wattcast.features.machine_code import machine_code
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Module
from wattcast.models.clocks import default_clocks
from wattcast.models.time.beside import beside, waiting_seconds
from wattcast.models.time.bottleneck import resource_seconds

V100 = load_gpu("tesla-v100")


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
