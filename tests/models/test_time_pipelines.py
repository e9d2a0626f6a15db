"""Kernels of tensor cores and staged copies: the work of their formulas, and what binds them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from benchmarks.ptx_text import tensor_kernel
from tests.features.execution_kernels import kernel
from tests.fixtures.kernels.data import ptx_path, targets
from tests.fixtures.kernels.manifest import KERNELS, TENSOR_KERNELS
from wattcast.features.activity.extras import TensorKind
from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.gpus import gpu_ids, load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.models.clocks import default_clocks
from wattcast.models.time.beside import Beside, beside, tensor_rate
from wattcast.models.time.bottleneck import BottleneckTimeModel, resource_seconds

A100, H100 = "a100-sxm4-40gb", "h100-sxm5"


@cache
def answer(name: str, gpu: str, grid: tuple[int, ...] = (), arguments: str = "") -> KernelAnalysis:
    """A fixture's large launch, or another: ``arguments`` as ``3=64 4=0.1``."""
    (found,) = (each for each in (*KERNELS, *TENSOR_KERNELS) if each.name == name)
    shape = found.large
    given: dict[str, object] = {
        str(index): value.item()
        for index, value in enumerate(shape.arguments.values())
        if isinstance(value, np.generic)
    }
    given.update(
        (part.partition("=")[0], int(part.partition("=")[2])) for part in arguments.split()
    )
    target = next(
        (each for each in targets(found.source) if each.startswith(("sm_80", "sm_9"))), "sm_70"
    )
    module = read_module(ptx_path(found.source, target).read_text())
    launch = Launch.of(grid or shape.grid, shape.block, shape.dynamic_shared_bytes, given)
    return analyse(module, found.entry, launch, load_gpu(gpu))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "tiles"), [(1, 1), (3, 4), (16, 17), (2, 100), (32, 64)])
def test_attention_has_the_work_and_the_bytes_of_its_formula_at_every_shape(
    heads: int, tiles: int, causal: bool
) -> None:
    found = answer(
        "attention_causal" if causal else "attention", A100, (tiles, heads), f"4={tiles}"
    )
    turns, depth = 64 * tiles, 64
    pairs = heads * (turns * (turns + 64) // 2 if causal else turns**2)
    (work,) = found.extras.tensor
    assert work.multiply_adds == pytest.approx(2 * pairs * depth, rel=0.01)
    if causal and tiles >= 100:  # half, but for the tiles on the diagonal
        assert work.multiply_adds == pytest.approx(heads * turns**2 * depth, rel=0.011)
    # Queries, keys and values of 2 bytes once, results of 4.
    whole = heads * turns * depth
    assert found.activity.footprint_bytes == pytest.approx((3 * 2 + 4) * whole, rel=0.01)
    loads = (2 * pairs / 64 + whole / depth) * depth * 2 / 32
    assert found.activity.global_load_sectors == pytest.approx(loads, rel=0.01)


def products(form: str, count: int) -> str:
    """``count`` products of a warp that need nothing of each other."""
    lines = [
        f"mma.sync.aligned.{form} {{%f0, %f1, %f2, %f3}}, {{%r6, %r7, %r8, %r9}}, {{%r6, %r7}}, "
        "{%f0, %f1, %f2, %f3};"
        for _ in range(count)
    ]
    start = "mov.u32 %r6, 0; mov.u32 %r7, 0; mov.u32 %r8, 0; mov.u32 %r9, 0; mov.u32 %r10, 0;"
    clear = "mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;"
    body = "\n".join(lines)
    return kernel(f"""{start} {clear}
        $round: {body}
        add.u32 %r10, %r10, 1; setp.lt.u32 %p1, %r10, 4096; @%p1 bra $round;
        st.global.f32 [%rd3], %f0; ret;""")


def test_products_alone_are_bound_by_tensor_cores_and_reach_their_peak() -> None:
    gpu = load_gpu(A100)
    text = products("m16n8k16.row.col.f32.f16.f16.f32", 8)
    found = analyse(read_module(text), "k", Launch.of(108 * 2, 1024, 0, {"n": 1}), gpu)
    told = BottleneckTimeModel().predict(found, gpu)
    assert told.bound == "tensor throughput"
    adds = 108 * 2 * 32 * 4096 * 8 * 16 * 8 * 16
    rate = 2 * adds / told.estimate.value
    peak = 2 * 108 * 1024 * default_clocks(gpu).core_hz
    assert 0.8 * peak < rate < peak


def test_a_naive_product_of_matrices_is_far_below_the_peak() -> None:
    found = answer("matmul_naive", A100)
    seconds = BottleneckTimeModel().predict(found, found.gpu).estimate.value
    clocks = default_clocks(found.gpu)
    tensor = 2 * 1024 * found.gpu.sm_count * clocks.core_hz
    flops = 2 * found.activity.fp32_instructions * 32  # at least its multiply-adds
    assert flops / seconds < 0.15 * tensor


@pytest.mark.parametrize("name", sorted(gpu_ids()))
def test_no_type_multiplies_faster_than_the_gpu_has_rates_for(name: str) -> None:
    gpu = load_gpu(name)
    sm = gpu.capability
    rows: dict[TensorKind, int] = {
        "f16": sm.tensor_fma_per_clock, "tf32": sm.tensor_tf32_fma_per_clock,
        "f64": sm.tensor_fp64_fma_per_clock, "f8": sm.tensor_fp8_fma_per_clock,
        "f4": sm.tensor_fp4_fma_per_clock, "s8": sm.tensor_int8_fma_per_clock,
    }  # fmt: skip
    for kind, rate in rows.items():
        if rate and sm.tensor_fma_per_clock:
            assert tensor_rate(sm, kind) == rate
    found = answer("copy", A100)
    clocks = default_clocks(gpu)
    for kind, rate in rows.items():
        if not (rate and sm.tensor_fma_per_clock):
            continue
        more = Beside(tensor_fmas=1.0, tensor_by_kind=((kind, 1e15, 0.0),))
        seconds = resource_seconds(found.activity, gpu, clocks, more=more)["tensor"]
        assert 1e15 / seconds <= rate * gpu.sm_count * clocks.core_hz * (1 + 1e-9)


# Luo et al., arXiv:2501.12084, Table 9: cycles of wgmma.m64nNk16 on an H800, both factors in
# shared memory.
@pytest.mark.parametrize(
    ("columns", "cycles"), [(256, 128), (128, 64), (64, 32), (32, 24), (16, 20), (8, 18)]
)
def test_wgmma_of_few_columns_waits_for_shared_memory_as_measured(
    columns: int, cycles: float
) -> None:
    outs = ", ".join(f"%g{i}" for i in range(columns // 2))
    one = f"""wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.f16.f16 {{{outs}}},
        %rd5, %rd6, 1, 1, 1, 0, 0;"""
    text = kernel(f"""mov.u64 %rd5, 0x4000004000010000; mov.u64 %rd6, %rd5; mov.u32 %r6, 0;
        $round: {one * 4}
        add.u32 %r6, %r6, 1; setp.lt.u32 %p1, %r6, 4096; @%p1 bra $round;
        st.global.f32 [%rd3], %g0; ret;""",
        declarations=f".reg .f32 %g<{columns // 2}>; .shared .align 1024 .b8 tile[16384];",
    )  # fmt: skip
    gpu = load_gpu(H100)
    found = analyse(read_module(text), "k", Launch.of(132, 128, 0, {"n": 1}), gpu)
    clocks = default_clocks(gpu)
    seconds = resource_seconds(found.activity, gpu, clocks, more=beside(found.extras))["tensor"]
    assert seconds * clocks.core_hz / (4 * 4096) == pytest.approx(cycles, rel=0.02)


def test_the_same_kernel_gets_the_same_answer_to_the_last_bit() -> None:
    text = tensor_kernel(600)
    gpu = load_gpu(A100)
    made = [analyse(read_module(text), None, Launch.of((24, 3), 128), gpu) for _ in range(2)]
    first, second = ((each.activity, each.extras) for each in made)
    assert first == second
    assert BottleneckTimeModel().predict(made[0], gpu) == BottleneckTimeModel().predict(
        made[1], gpu
    )
    (work,) = made[0].extras.tensor
    rounds = 3 * sum(range(1, 25))
    assert work.multiply_adds == rounds * 4 * 600 // 20 * 8 * 16 * 8 * 16
