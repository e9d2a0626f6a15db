"""Changed PTX of the fixture kernels: it is PTX, it is analysed, and computes what it did."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.fixtures.kernels.data import FixtureKernel, Shape, path_for
from tests.fixtures.kernels.manifest import KERNELS
from tests.reference.fixtures import reference_arguments
from tests.reference.machine import run
from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.cuda import PtxasReport
from wattcast.features.findings import find
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx.reader import read_module

TARGET = "sm_80"


def analysed(text: str, entry: str, shape: Shape, grid: tuple[int, ...]) -> KernelAnalysis:
    """The launch on an A100 with the numbers among its arguments given."""
    given = {
        str(position): value.item()
        for position, value in enumerate(shape.arguments.values())
        if isinstance(value, np.number)
    }
    launch = Launch.of(grid, shape.block, shape.dynamic_shared_bytes, given)
    return analyse(read_module(text), entry, launch, load_gpu("a100-sxm4-80gb"))


def results(kernel: FixtureKernel, text: str, shape: Shape, grid: tuple[int, ...]) -> list[Any]:
    """The outputs on the reference interpreter."""
    given = reference_arguments(kernel.name, shape)
    found = run(text, kernel.entry, grid, shape.block, given, shape.dynamic_shared_bytes)
    return [found.memory[name] for name in kernel.outputs]


CHANGED = {
    "atomics": {"warp_aggregation"},
    "geometric": {"constant_division"},
    "last_block": {"shared_reduction"},
    "local_array": {"constant_division"},
    "matmul_naive": {"reread_tiles"},
    "reduce_shared": {"shared_reduction"},
    "votes": {"constant_division"},
    "wide_index": {"constant_division"},
}
"""What is rewritten of the first two shapes of a fixture; of the others nothing (a scan is no
reduction)."""


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_what_is_rewritten_is_analysed_and_computes_the_same(kernel: FixtureKernel) -> None:
    text, told = path_for(kernel.source, TARGET).read_text(), set()
    for shape in kernel.shapes[:2]:
        for each in find(analysed(text, kernel.entry, shape, shape.grid)):
            if each.ptx is None:
                continue
            told.add(each.code)
            grid = shape.grid if each.grid is None else (each.grid,)
            changed = analysed(each.ptx, kernel.entry, shape, grid)
            assert changed.activity.warp_instructions_ptx > 0
            if each.code == "reread_tiles":  # the last tile here reaches beyond the matrix
                continue
            before = results(kernel, text, shape, shape.grid)
            for one, other in zip(before, results(kernel, each.ptx, shape, grid), strict=True):
                assert other == pytest.approx(one, rel=1e-5)
    assert told == CHANGED.get(kernel.name, set())


def test_spills_are_a_finding_that_takes_them_away() -> None:
    kernel = next(each for each in KERNELS if each.name == "saxpy")
    text = path_for(kernel.source, TARGET).read_text()
    shape = kernel.shapes[0]
    plain = analysed(text, kernel.entry, shape, shape.grid)
    spilled = replace(plain, spilled=PtxasReport(24, 64, 32, 48, 0, 80))
    assert not [each for each in find(plain) if each.code == "register_spills"]
    (found,) = [each for each in find(spilled) if each.code == "register_spills"]
    assert "32 bytes stored, 48 bytes loaded" in found.detail
    assert spilled.activity.local_sectors > 0
    assert found.mended == plain.activity
