"""Sections of a profile with lists: clock grids, ranges, memory timing; what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattcast.features.gpus import check_profile, load_gpu
from wattcast.features.gpus.loader import FOLDER

TEMPLATE = (FOLDER / "gtx-1050.toml").read_text(encoding="utf-8")
"""A profile without supported clocks, to which the tests add."""


def profile_with(folder: Path, clocks: str = "", timing: str = "") -> Path:
    text = TEMPLATE.replace('id = "gtx-1050"', 'id = "test-gpu"').replace('"1050", ', "")
    text = text.replace('aliases = ["geforce-gtx-1050"]', 'aliases = ["test"]')
    head, _, tail = text.partition("[memory_timing]\n")
    if timing:
        text = f"{head}[memory_timing]\n{timing}\n\n[latencies]{tail.partition('[latencies]')[2]}"
        text = "\n".join(line for line in text.splitlines() if not line.startswith("jia18 ="))
    path = folder / "test-gpu.toml"
    path.write_text(text.replace("\n[memory]\n", f"{clocks}\n[memory]\n"), encoding="utf-8")
    return path


def grid(body: str) -> str:
    return f"supported_grids = [{{ {body} }}]"


ONE_GRID = grid('core_mhz = [300], memory_mhz = [3504], source = "product-page"')


def test_lists_and_ranges_may_be_mixed(tmp_path: Path) -> None:
    body = (
        "core_mhz = { from = 300, to = 900, step = 300 }, memory_mhz = [405, 3504], "
        'reference_mhz = [900, 3504], source = "product-page", note = "why"'
    )
    path = profile_with(tmp_path, grid(body))
    assert check_profile(path) == []
    gpu = load_gpu("test", overlay=tmp_path)
    expected = ((300, 405), (300, 3504), (600, 405), (600, 3504), (900, 405), (900, 3504))
    assert gpu.supported_pairs == expected
    assert gpu.supported_core_mhz == (300, 600, 900)
    assert gpu.supported_memory_mhz == (405, 3504)


def test_a_range_may_have_one_clock_and_a_fractional_step(tmp_path: Path) -> None:
    body = (
        "core_mhz = { from = 180, to = 195, step = 7.5 }, "
        "memory_mhz = { from = 405, to = 405, step = 1 }, source = 'product-page'"
    )
    profile_with(tmp_path, grid(body))
    pairs = load_gpu("test", overlay=tmp_path).supported_pairs
    assert pairs == ((180, 405), (187.5, 405), (195, 405))


def test_core_clocks_alone_make_no_pairs(tmp_path: Path) -> None:
    profile_with(
        tmp_path,
        'supported_core_mhz = { value = [300, 600], unit = "MHz", source = "product-page" }',
    )
    gpu = load_gpu("test", overlay=tmp_path)
    assert gpu.supported_core_mhz == (300, 600)
    assert gpu.supported_memory_mhz == gpu.supported_pairs == ()


@pytest.mark.parametrize(
    ("clocks", "problem"),
    [
        (
            "supported_core_mhz = { value = { from = 300, to = 1000, step = 150 }, "
            'unit = "MHz", source = "product-page" }',
            "supported_core_mhz.value: from 300 to 1000 must be at most 1000 whole steps of 150",
        ),
        (
            grid("core_mhz = { from = 900, to = 300, step = 100 }, memory_mhz = [1]"),
            "supported_grids.0.core_mhz: from 900 to 300 must be at most 1000 whole steps of 100",
        ),
        (
            grid("core_mhz = { from = 1, to = 1000, step = 0.5 }, memory_mhz = [1]"),
            "supported_grids.0.core_mhz: from 1 to 1000 must be at most 1000 whole steps of 0.5",
        ),
        (
            grid("core_mhz = [900, 300], memory_mhz = [1]"),
            "supported_grids.0.core_mhz: clocks must ascend without repeating",
        ),
        (
            grid("core_mhz = [3], memory_mhz = [1], reference_mhz = [1, 3], source = 'thesis-4-6'"),
            "supported_grids.0.reference_mhz: (1.0, 3.0) is not a pair of the grid",
        ),
        (
            ONE_GRID
            + '\nsupported_core_mhz = { value = [3], unit = "MHz", source = "thesis-4-6" }',
            "supported_grids: takes the place of supported_core_mhz and supported_memory_mhz",
        ),
    ],
)
def test_a_mistake_in_clocks_is_named_by_its_key(tmp_path: Path, clocks: str, problem: str) -> None:
    found = check_profile(profile_with(tmp_path, clocks))
    assert any(line.startswith("clocks.") and problem in line for line in found), found


def test_a_mistake_in_memory_timing_is_named_by_its_key(tmp_path: Path) -> None:
    cycles = 'latency = { value = 300, unit = "cycle", source = "product-page" }\n'
    found = check_profile(profile_with(tmp_path, timing=f"l1_{cycles}dram_{cycles}"))
    problem = "memory_timing.l1_latency: 300 is not below dram_latency 300"
    assert any(problem in line for line in found)
