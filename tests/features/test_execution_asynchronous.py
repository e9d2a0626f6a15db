"""Asynchronous copies, memory barriers and warpgroup products on the engine: as the scalar
reference interpreter has them, which shares no code with it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.features.test_execution_reference import run_exact
from tests.fixtures.kernels.data import FixtureKernel, materialise, ptx_path, targets
from tests.fixtures.kernels.expected import tensor
from tests.fixtures.kernels.launches.tensor import TENSOR_KERNELS
from tests.reference.fixtures import run_fixture
from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module

CASES = [
    pytest.param(kernel, target, id=f"{kernel.name}-{target}")
    for kernel in TENSOR_KERNELS
    for target in targets(kernel.source)
]


@pytest.mark.parametrize(("kernel", "target"), CASES)
def test_counts_and_memory_are_those_of_the_reference_and_of_numpy(
    kernel: FixtureKernel, target: str
) -> None:
    for number, shape in enumerate(kernel.shapes):
        wanted = run_fixture(kernel, shape, target)
        made = materialise(kernel.name, shape)
        computed = getattr(tensor, kernel.expected)(made, shape.grid, shape.block)
        for name, array in computed.items():
            np.testing.assert_allclose(
                wanted.memory[name].astype(float), array.reshape(made[name].shape).astype(float),
                kernel.rtol, kernel.atol, err_msg=f"shape {number}, buffer {name}",
            )  # fmt: skip
        result, after = run_exact(kernel, shape, target)
        assert result.sampling.completed
        assert result.diagnostics == ()
        for one in wanted.per_instruction:
            counts = result.functions[one.function]
            found = (
                counts.warp_executions[one.index],
                counts.active_lanes[one.index],
                counts.sectors[one.index],
                counts.shared_transactions[one.index],
            )
            expected = (
                one.warp_executions, one.active_lanes, one.sectors, one.shared_transactions,
            )  # fmt: skip
            assert found == expected, f"shape {number}, {one.opcode} in line {one.line}"
        for name, memory in after.items():
            np.testing.assert_array_equal(
                memory.view(np.uint8),
                np.ascontiguousarray(wanted.memory[name]).reshape(memory.shape).view(np.uint8),
                err_msg=f"shape {number}, buffer {name}",
            )


def answer(kernel: str, gpu: str = "h100-sxm5") -> KernelAnalysis:
    """The large launch of a kernel, its pointers and tensor maps not told."""
    (found,) = (each for each in TENSOR_KERNELS if each.name == kernel)
    shape = found.large
    given = {
        str(index): value.item()
        for index, value in enumerate(shape.arguments.values())
        if isinstance(value, np.generic)
    }
    module = read_module(ptx_path(found.source, targets(found.source)[-1]).read_text())
    launch = Launch.of(shape.grid, shape.block, shape.dynamic_shared_bytes, given)
    return analyse(module, found.entry, launch, load_gpu(gpu))


def test_a_gemm_of_tensor_copies_has_the_work_and_the_bytes_of_its_formula() -> None:
    found = answer("wgmma_gemm")
    m = n = k = 4096
    (work,) = found.extras.tensor
    assert (work.kind, work.sparse, work.multiply_adds) == ("f16", False, m * n * k)
    blocks, rounds = (m // 64) * (n // 64), k // 64
    assert found.activity.global_load_sectors == blocks * rounds * (64 + 64) * 64 * 2 / 32
    assert found.activity.footprint_bytes == pytest.approx(
        2 * (m * k + n * k) + 4 * m * n, rel=0.01
    )
    # Written by the copies, read by the products: A by rows, B once for all four warps.
    boxes, products = blocks * rounds * 2 * 64, blocks * rounds * 4 * (16 + 16)
    assert found.activity.shared_transactions == boxes + products
    codes = [each.code for each in found.activity_diagnostics]
    assert codes.count("tensor_map_assumed") == 2  # once for each map
    assert "unsupported_instruction" not in codes


def test_bulk_copies_to_global_memory_are_stores() -> None:
    found = answer("bulk_copy").activity
    pieces = 64 * 1024
    assert found.global_store_requests == pieces
    assert found.global_store_sectors == pieces * 256 * 4 / 32
    assert found.footprint_bytes == 2 * pieces * 256 * 4


@pytest.mark.parametrize(("kernel", "causal"), [("attention", False), ("attention_causal", True)])
def test_attention_has_the_work_and_the_bytes_of_its_formula(kernel: str, causal: bool) -> None:
    found = answer(kernel, "a100-sxm4-40gb")
    heads, tiles, edge = 64, 128, 64
    pairs = heads * (tiles * (tiles + 1) // 2 if causal else tiles * tiles)
    (work,) = found.extras.tensor
    assert work.multiply_adds == pytest.approx(pairs * 2 * edge**3, rel=1e-9)
    if causal:  # half of the square, but for the diagonal
        assert work.multiply_adds == pytest.approx(heads * (tiles * edge) ** 2 * edge, rel=0.01)
    tile = edge * edge * 2 / 32
    loads = pairs * 2 * tile + heads * tiles * tile
    assert found.activity.global_load_sectors == pytest.approx(loads, rel=0.01)
    assert found.activity.dram_write_sectors == pytest.approx(heads * tiles * tile * 2, rel=0.01)
