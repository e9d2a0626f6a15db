"""What binds a launch in words, and how near its units come to their peaks."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from benchmarks.execution import launch_of
from benchmarks.ptx_text import tensor_kernel
from tests.features.execution_kernels import kernel
from tests.fixtures.kernels.data import FixtureKernel, ptx_path, targets
from tests.fixtures.kernels.manifest import KERNELS, TENSOR_KERNELS
from tests.fixtures.tables import rows
from wattcast.features.activity.extras import TensorKind
from wattcast.features.activity.instructions import measure_instructions
from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.gpus import gpu_ids, load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.models.clocks import ClockPair, default_clocks
from wattcast.models.speed import SpeedOfLight, speed_of_light, unit_cycles, unit_seconds
from wattcast.models.time.beside import Beside, beside, tensor_rate
from wattcast.models.time.bottleneck import BottleneckTimeModel, resource_seconds

V100 = load_gpu("tesla-v100")


@cache
def fixture(name: str, gpu: str = "tesla-v100") -> KernelAnalysis:
    (found,) = (each for each in (*KERNELS, *TENSOR_KERNELS) if each.name == name)
    module = read_module(ptx_path(found.source, targets(found.source)[0]).read_text())
    launch = launch_of(found.large)
    return analyse(module, found.entry, launch, load_gpu(gpu))


def written(body: str, grid: int = 4096, block: int = 256) -> KernelAnalysis:
    module = read_module(kernel(body, ".shared .align 4 .b8 tile[16384];"))
    return analyse(module, "k", Launch.of(grid, block, 0, {"n": 1 << 30}), V100)


def speed(analysis: KernelAnalysis, clocks: ClockPair | None = None) -> SpeedOfLight:
    pair = clocks or default_clocks(analysis.gpu)
    seconds = BottleneckTimeModel().predict(analysis, analysis.gpu, pair).estimate.value
    return speed_of_light(
        analysis.activity, analysis.operations, analysis.gpu, pair, seconds, beside(analysis.extras)
    )


def bound(analysis: KernelAnalysis) -> str | None:
    return BottleneckTimeModel().predict(analysis, analysis.gpu).bound


SHARED = """
    mov.u32 %r6, %tid.x; mul.lo.u32 %r7, %r6, {stride}; and.b32 %r7, %r7, 16380;
    mov.u32 %r8, tile; add.u32 %r7, %r7, %r8; mov.u32 %r10, 0;
    $round: ld.volatile.shared.u32 %r9, [%r7];
    add.u32 %r10, %r10, 1; setp.lt.u32 %p1, %r10, 64; @%p1 bra $round;
    st.global.u32 [%rd3], %r9; ret;"""


@pytest.mark.parametrize(
    ("stride", "word"),
    [(4, None), (8, "shared-memory bank conflicts"), (128, "shared-memory bank conflicts")],
)
def test_lanes_in_one_bank_are_called_bank_conflicts(stride: int, word: str | None) -> None:
    """A kernel that was "bound by compute" (issue 22)."""
    found = bound(written(SHARED.format(stride=stride)))
    assert found == word if word else found != "shared-memory bank conflicts"


@pytest.mark.parametrize(
    ("name", "gpu", "word"),
    rows("speed", "what_binds"),
)
def test_what_binds_is_said_in_the_words_of_the_field(name: str, gpu: str, word: str) -> None:
    assert bound(fixture(name, gpu)) == word


CHASE = """
    mov.u64 %rd6, %rd3; mov.u32 %r10, 0;
    $round: ld.global.u64 %rd6, [%rd6];
    add.u32 %r10, %r10, 1; setp.lt.u32 %p1, %r10, 512; @%p1 bra $round;
    st.global.u64 [%rd3], %rd6; ret;"""

DEPENDENT = """
    mov.f32 %f1, 0f3F800000; mov.u32 %r10, 0;
    $round: fma.rn.f32 %f1, %f1, %f1, %f1; fma.rn.f32 %f1, %f1, %f1, %f1;
    fma.rn.f32 %f1, %f1, %f1, %f1; fma.rn.f32 %f1, %f1, %f1, %f1;
    add.u32 %r10, %r10, 1; setp.lt.u32 %p1, %r10, 4096; @%p1 bra $round;
    st.global.f32 [%rd3], %f1; ret;"""

MEETING = """
    mov.u32 %r10, 0;
    $round: bar.sync 0;
    add.u32 %r10, %r10, 1; setp.lt.u32 %p1, %r10, 4096; @%p1 bra $round;
    st.global.u32 [%rd3], %r10; ret;"""


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (CHASE, "memory latency"),
        (DEPENDENT, "latency of dependent instructions"),
        (MEETING, "barriers"),
    ],
)
def test_what_one_warp_waits_for_is_named(body: str, word: str) -> None:
    assert bound(written(body, grid=1, block=32)) == word


def test_a_stream_has_the_share_and_the_bytes_a_second_of_its_formula() -> None:
    found = fixture("saxpy")
    told = speed(found)
    dram = next(each for each in told.units if each.unit == "dram")
    assert dram.peak == V100.bandwidth_bytes_per_second
    assert dram.achieved == pytest.approx(found.activity.footprint_bytes * 1.5 / told.seconds)
    assert dram.share == pytest.approx(dram.achieved / dram.peak)
    (point,) = told.points
    assert (point.precision, point.peak) == ("fp32", V100.peak("fp32", V100.core_mhz))
    # Two operations for 12 bytes.
    assert point.intensity == pytest.approx(2 / 12, rel=1e-3)
    assert point.achieved <= point.intensity * told.dram_peak


def test_dependent_multiply_adds_fill_no_more_slots_than_they_take() -> None:
    """One warp on one of 80 SMs: a result every 4 cycles on 1 of 4 schedulers."""
    told = speed(written(DEPENDENT, grid=1, block=32))
    fp32 = next(each for each in told.units if each.unit == "fp32")
    # Which takes 2 cycles of its 16 lanes: half of a 320th of the GPU's slots.
    assert 0.5 < 2 * 320 * fp32.share < 1.0
    assert fp32.achieved == pytest.approx(fp32.share * fp32.peak, rel=1e-3)


def test_conflicts_take_slots_and_hand_over_nothing() -> None:
    free, eight = (speed(written(SHARED.format(stride=stride))).units for stride in (4, 128))
    for before, after in zip(free, eight, strict=True):
        if before.unit == "shared":
            assert before.achieved == pytest.approx(before.share * before.peak)
            assert after.achieved == pytest.approx(after.share * after.peak / 32)


@pytest.mark.parametrize(
    ("found", "gpu"),
    [
        pytest.param(each, gpu, id=f"{each.name}-{gpu}")
        for each in TENSOR_KERNELS
        for gpu in ("a100-sxm4-40gb", "h100-sxm5")
        if gpu.startswith("h100") or not targets(each.source)[0].endswith("a")
    ],
)
def test_tensor_units_reach_no_more_than_their_peak(found: FixtureKernel, gpu: str) -> None:
    analysis = fixture(found.name, gpu)
    told = speed(analysis)
    seconds = BottleneckTimeModel().predict(analysis, analysis.gpu).estimate.value
    assert told.seconds == seconds
    assert all(each.share <= 1 for each in told.units)


def test_peaks_follow_the_clocks_asked() -> None:
    found = fixture("nbody")
    slow, fast = (speed(found, ClockPair(mhz, V100.memory_mhz)) for mhz in (700.0, 1400.0))
    peaks = {each.unit: each.peak for each in fast.units}
    for each in slow.units:
        assert each.peak * (1 if each.unit == "dram" else 2) == pytest.approx(peaks[each.unit])


def test_integers_stand_in_where_there_is_no_floating_point_work() -> None:
    (point,) = speed(fixture("transpose_padded")).points
    assert point.precision == "int"
    assert point.operations > 0


@pytest.mark.parametrize("name", ["transpose_shared", "nbody", "wmma_matmul", "scan", "dot_fp64"])
def test_the_resource_table_sums_to_the_units(name: str) -> None:
    found = fixture(name)
    pair, more = default_clocks(V100), beside(found.extras)
    functions = found.counts.functions(found.counts.factors())
    events = measure_instructions(found.module, functions, found.activity)
    table = unit_cycles(events, found.activity, V100, pair, more)
    for unit, seconds in unit_seconds(found.activity, V100, pair, more).items():
        cycles = sum(float(each[unit].sum()) for each in table.values() if unit in each)
        assert cycles == pytest.approx(seconds * pair.core_hz, rel=1e-9), unit
        assert all((each[unit] >= 0).all() for each in table.values() if unit in each)


# --- Kernels of tensor cores and staged copies: the work of their formulas, and what binds them

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
