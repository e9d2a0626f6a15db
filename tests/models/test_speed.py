"""What binds a launch in words, and how near its units come to their peaks."""

from __future__ import annotations

from functools import cache

import pytest

from benchmarks.execution import launch_of
from tests.features.execution_kernels import kernel
from tests.fixtures.kernels.data import FixtureKernel, ptx_path, targets
from tests.fixtures.kernels.manifest import KERNELS, TENSOR_KERNELS
from tests.fixtures.tables import rows
from wattcast.features.activity.instructions import measure_instructions
from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.models.clocks import ClockPair, default_clocks
from wattcast.models.speed import SpeedOfLight, speed_of_light, unit_cycles, unit_seconds
from wattcast.models.time.beside import beside
from wattcast.models.time.bottleneck import BottleneckTimeModel

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
