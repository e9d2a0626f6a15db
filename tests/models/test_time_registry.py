"""All time models by name: one interface, one set of promises."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import isfinite, log
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.features.execution_kernels import kernel
from tests.features.test_activity_waiting import KERNEL, LOOP
from tests.fixtures.ptx_text import stored_ptx
from tests.fixtures.tables import table
from tests.models.time_works import K20, KERNELS
from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.errors import LaunchError, ModelError
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch, PointerHint
from wattcast.features.ptx import read_module
from wattcast.models.clocks import ClockPair, default_clocks
from wattcast.models.intervals import Estimate
from wattcast.models.papers.roofline import RooflineTimeModel, matrix_flops, roofline_parts
from wattcast.models.papers.thesis.scheduling import SchedulingTimeModel
from wattcast.models.time.base import TIME_MODELS, TimePrediction, get_time_model
from wattcast.models.time.bottleneck import BottleneckTimeModel
from wattcast.models.time.known import REPEAT_FACTOR, SHRINKAGE, KnownLaunch, corrected, distance


@pytest.fixture(scope="module")
def analysis() -> KernelAnalysis:
    module = read_module((KERNELS / "tiled_matmul.ptx").read_text(encoding="utf-8"))
    return analyse(
        module, None, Launch.of((32, 32), (32, 32)), K20, loops={"default": 32},
        registers_per_thread=32, analysis="symbolic",
    )  # fmt: skip


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"'oracle'.*delay, .*volkov") as caught:
        get_time_model("oracle")
    assert caught.value.context["known"] == sorted(TIME_MODELS)


@pytest.mark.parametrize("name", list(TIME_MODELS))
def test_every_model_keeps_the_interface(name: str, analysis: KernelAnalysis) -> None:
    model = get_time_model(name)
    assert model.family == name
    assert get_time_model(name) is model
    prediction = model.predict(analysis, K20)
    assert prediction.family == name
    assert prediction.clocks == default_clocks(K20)
    estimate = prediction.estimate
    assert 0 < estimate.low <= estimate.value <= estimate.high
    assert isfinite(estimate.high)
    assert prediction.parts
    assert all(isfinite(part) and part >= 0 for part in prediction.parts.values())
    half = ClockPair(K20.core_mhz / 2, K20.memory_mhz / 2)
    slower = model.predict(analysis, K20, half)
    assert slower.clocks == half
    assert slower.estimate.value >= estimate.value
    with pytest.raises(LaunchError):
        model.predict(analysis, K20, ClockPair(0, K20.memory_mhz))


def test_it_says_that_it_does_not_know_the_memory_clock(analysis: KernelAnalysis) -> None:
    other = ClockPair(640, 1300)
    prediction = SchedulingTimeModel().predict(analysis, K20, other)
    same_core = SchedulingTimeModel().predict(analysis, K20, ClockPair(640, K20.memory_mhz))
    assert prediction.estimate == same_core.estimate
    assert prediction.diagnostics[:-1] == same_core.diagnostics
    assert prediction.diagnostics[-1].code == "memory_clock_unused"
    assert "2600 MHz" in prediction.diagnostics[-1].detail


# --- Measured launches of a kernel correct the prediction of another

MODEL = Estimate(1e-3, 0.25e-3, 4e-3, 0.9, "unseen_kernel")

HERE = log(65536)


def known(ratio: float, predicted: float = 1e-3, log_threads: float = HERE) -> KnownLaunch:
    return KnownLaunch(predicted, predicted * ratio, log_threads)


def test_without_known_launches_nothing_changes() -> None:
    assert corrected(MODEL, HERE, []) is MODEL


def test_the_same_launch_again() -> None:
    found = corrected(MODEL, HERE, [known(2.0)])
    assert found.value == pytest.approx(1e-3 * 2 ** (1 / (1 + SHRINKAGE)))
    assert found.low == pytest.approx(found.value / REPEAT_FACTOR)
    assert found.high == pytest.approx(found.value * REPEAT_FACTOR)
    assert (found.level, found.basis) == (0.9, "seen_kernel")


def test_a_launch_half_an_e_fold_larger() -> None:
    weight = 0.60036  # exp(-(0.5 / 0.7)^2)
    found = corrected(MODEL, HERE, [known(2.0, log_threads=HERE + 0.5)])
    assert found.value == pytest.approx(1e-3 * 2 ** (weight / (weight + SHRINKAGE)), rel=1e-4)
    assert found.high / found.value == pytest.approx(REPEAT_FACTOR * 1.6487213)  # exp(0.5)


def test_a_launch_of_quite_another_size_tells_next_to_nothing() -> None:
    found = corrected(MODEL, HERE, [known(2.0, log_threads=HERE + 4)])
    assert found.value == pytest.approx(1e-3, rel=1e-3)
    assert (found.low, found.high) == pytest.approx((0.25e-3, 4e-3), rel=1e-3)
    assert found.basis == "seen_kernel"


def test_a_launch_beyond_all_bounds_tells_nothing() -> None:
    found = corrected(MODEL, HERE, [known(2.0, log_threads=1e200)])
    assert (found.value, found.low, found.high) == (MODEL.value, MODEL.low, MODEL.high)


def test_the_more_alike_launch_counts_more() -> None:
    near, far = known(2.0), known(0.5, log_threads=HERE + 3)
    assert corrected(MODEL, HERE, [near, far]).value > 1.5e-3
    assert corrected(MODEL, HERE + 3, [near, far]).value < 1e-3


def test_the_prediction_itself_is_a_coordinate() -> None:
    assert distance(1e-3, HERE, known(2.0)) == 0
    assert distance(1e-3, HERE, known(2.0, predicted=4e-3)) == pytest.approx(log(4))
    both = known(2.0, predicted=1e-3 * 2.718281828**3, log_threads=HERE + 4)
    assert distance(1e-3, HERE, both) == pytest.approx(5)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_times_must_be_times(value: float) -> None:
    with pytest.raises(LaunchError, match="measured_seconds") as caught:
        KnownLaunch(1e-3, value, HERE)
    assert caught.value.field == "measured_seconds"
    with pytest.raises(LaunchError, match="predicted_seconds"):
        KnownLaunch(value, 1e-3, HERE)


def test_an_estimate_of_nothing_cannot_be_corrected() -> None:
    with pytest.raises(LaunchError, match="above 0"):
        corrected(Estimate(0.0, 0.0, 1.0, 0.9, "unseen_kernel"), HERE, [known(2.0)])


ratios = st.floats(min_value=0.01, max_value=100)

places = st.floats(min_value=0, max_value=20)


@given(st.lists(st.tuples(ratios, places), min_size=1, max_size=5))
def test_the_correction_stays_within_what_was_measured(launches) -> None:
    measured = [known(ratio, log_threads=place) for ratio, place in launches]
    found = corrected(MODEL, HERE, measured)
    shift = found.value / MODEL.value
    assert min(1, *(ratio for ratio, _ in launches)) * (1 - 1e-9) <= shift
    assert shift <= max(1, *(ratio for ratio, _ in launches)) * (1 + 1e-9)
    # It never promises less than the model's own width, nor more than a repetition.
    assert found.high / found.value <= 4 * (1 + 1e-9)
    assert found.high / found.value >= REPEAT_FACTOR * (1 - 1e-9)


# --- The roofline of time: peaks as vendors print them, bounds by hand

ROOFLINE_MODEL = RooflineTimeModel()

V100 = load_gpu("tesla-v100")

PTX = Path(__file__).parents[1] / "fixtures" / "kernels" / "ptx"


@cache
def analysed(
    path: Path,
    gpu_id: str,
    grid: int | tuple[int, int],
    block: int | tuple[int, int],
    arguments: tuple[tuple[str, int], ...] = (),
    trips: int = 0,
) -> KernelAnalysis:
    """``trips`` of every loop, 0 for none given."""
    module = read_module(path.read_text(encoding="utf-8"))
    return analyse(
        module,
        module.kernel(),
        Launch.of(grid, block, arguments=dict(arguments)),
        load_gpu(gpu_id),
        loops={"default": trips} if trips else None,
    )


def vector_add(elements: int) -> KernelAnalysis:
    path = KERNELS / "vector_add.ptx"
    return analysed(path, "tesla-k20", elements // 256, 256, (("3", elements),))


def matmul(trips: int) -> KernelAnalysis:
    return analysed(KERNELS / "tiled_matmul.ptx", "tesla-k20", (32, 32), (32, 32), trips=trips)


def empty(gpu_id: str) -> KernelAnalysis:
    return analysed(KERNELS / "empty.ptx", gpu_id, 196, 256)


def matrices() -> KernelAnalysis:
    """C (256 x 256) += A B over 128 columns, FP16 in, FP32 out: 256 warps of 8 steps each."""
    sides = (("3", 256), ("4", 256), ("5", 128))
    return analysed(PTX / "wmma_matmul.sm_70.ptx", "tesla-v100", 64, 128, sides, 8)


def test_a_stream_is_bound_by_memory() -> None:
    """2**24 elements: 3 x 4 x 2**24 bytes / 208 GB/s = 0.9679 ms; the additions take
    2**24 / (192 x 13 x 706e6) = 9.521 us of the lanes."""
    prediction = ROOFLINE_MODEL.predict(vector_add(2**24), K20)
    assert prediction.parts["memory"] == pytest.approx(3 * 4 * 2**24 / 208e9, rel=1e-3)
    assert prediction.parts["fp32"] == pytest.approx(9.521e-6, rel=1e-3)
    assert prediction.estimate.value == prediction.parts["memory"]
    assert prediction.regime == "memory"


def test_what_stays_in_l2_costs_no_memory() -> None:
    """50,176 elements are 0.6 MB: between launches they stay in the 1.25 MB of L2."""
    prediction = ROOFLINE_MODEL.predict(vector_add(50_176), K20)
    assert prediction.parts["memory"] == 0
    assert prediction.regime == "compute"


def test_matrices_run_on_tensor_cores() -> None:
    """2 x 256 x 256 x 128 = 16.8 million operations at 113.05 TFLOPS: 0.1484 us."""
    analysis = matrices()
    assert matrix_flops(analysis) == pytest.approx(2 * 256 * 256 * 128, rel=1e-12)
    assert ROOFLINE_MODEL.predict(analysis, V100).parts["tensor"] == pytest.approx(
        0.1484e-6, rel=1e-3
    )
    with pytest.raises(ModelError, match="tensor cores"):
        roofline_parts(analysis.activity, matrix_flops(analysis), K20, default_clocks(K20))


def test_every_precision_has_a_bound_of_its_own() -> None:
    """A million warp instructions of each kind: 32e6 / (lanes x 80 x 1380 MHz), FP16 on 64 lanes
    of pairs."""
    nothing = empty("tesla-v100").activity
    activity = replace(nothing, fp32_instructions=1e6, fp64_instructions=1e6, fp16_instructions=1e6)
    parts = roofline_parts(activity, 0.0, V100, default_clocks(V100))
    for name, lanes in (("fp32", 64), ("fp64", 32), ("fp16", 64)):
        assert parts[name] == pytest.approx(32e6 / (lanes * 80 * 1380e6), rel=1e-9)
    assert parts["tensor"] == 0


@given(st.floats(0.1, 3), st.floats(0.1, 3))
def test_bounds_follow_the_clock_that_drives_them(core: float, memory: float) -> None:
    analysis = vector_add(2**24)
    clocks = ClockPair(K20.core_mhz * core, K20.memory_mhz * memory)
    at_default, parts = (
        ROOFLINE_MODEL.predict(analysis, K20, each).parts for each in (None, clocks)
    )
    assert parts["fp32"] == pytest.approx(at_default["fp32"] / core)
    assert parts["memory"] == pytest.approx(at_default["memory"] / memory)


def test_the_answer_says_how_little_it_claims() -> None:
    prediction = ROOFLINE_MODEL.predict(vector_add(2**24), K20)
    estimate = prediction.estimate
    assert estimate.basis == "uncalibrated"
    assert (estimate.low, estimate.high) == (estimate.value / 4, estimate.value * 4)
    assert [d.code for d in prediction.diagnostics] == ["time_is_lower_bound"]


def test_assumed_trips_widen_the_interval() -> None:
    guessed = matmul(0)
    assert guessed.trips_assumed
    estimate = ROOFLINE_MODEL.predict(guessed, K20).estimate
    assert estimate.high > 20 * 4 * estimate.value
    assert estimate.low < estimate.value / 20 / 4


def test_an_empty_kernel_is_no_launch_of_0_seconds() -> None:
    with pytest.raises(ModelError, match=r"roofline .* fp32, .* memory, .* 0 s .* bottleneck"):
        ROOFLINE_MODEL.predict(empty("tesla-k20"), K20)


# --- Kernels whose time is published or follows from it: pointer chases, chains of multiply-adds

ROUNDS = 8_000

CHASE = "mul.wide.u32 %rd5, %r3, 4;\nadd.s64 %rd6, %rd2, %rd5;\nld.global.u32 %r3, [%rd6];\n"


def predicted(
    body: str, after: str, gpu_id: str, elements: int, launch: tuple[int, int]
) -> TimePrediction:
    text = KERNEL.format(body=LOOP.replace("64", str(ROUNDS)).format(body=body) + after)
    hints = {"0": PointerHint(elements=elements, values="index")}
    gpu = load_gpu(gpu_id)
    analysis = analyse(read_module(text), None, Launch.of(*launch, 0, hints), gpu)
    return BottleneckTimeModel().predict(analysis, gpu)


@pytest.mark.parametrize(
    ("gpu_id", "kilobytes", "cycles"),
    [
        # Cycles of a load by the size of the chain (Ernst, gpu-benches, cuda-latency).
        ("tesla-v100", 32, 30), ("tesla-v100", 4096, 215), ("a100-sxm4-80gb", 32, 36),
        ("a100-sxm4-80gb", 4096, 211), ("h100-pcie", 32, 34), ("h100-pcie", 4096, 266),
    ],
)  # fmt: skip
def test_a_pointer_chase_takes_the_published_latency(
    gpu_id: str, kilobytes: int, cycles: int
) -> None:
    found = predicted(CHASE, "st.global.u32 [%rd4], %r3;", gpu_id, kilobytes * 256, (1, 1))
    published = ROUNDS * cycles / (load_gpu(gpu_id).core_mhz * 1e6)
    assert 0.95 <= found.estimate.value / published <= 1.2
    assert found.regime == "latency"


@pytest.mark.parametrize(("gpu_id", "latency"), [("tesla-v100", 4), ("gtx-1080-ti", 6), ("a40", 4)])
@pytest.mark.parametrize("chains", [1, 8])
def test_chains_of_multiply_adds_of_one_warp_a_scheduler(
    gpu_id: str, latency: int, chains: int
) -> None:
    """One chain waits for each result; eight keep the pipe busy (Jia et al. 2018, Table 4.1)."""
    body = "".join(f"fma.rn.f32 %f{n % chains}, %f{n % chains}, %f20, %f21;\n" for n in range(64))
    after = "".join(f"st.global.f32 [%rd4+{4 * n}], %f{n};\n" for n in range(chains))
    gpu = load_gpu(gpu_id)
    found = predicted(body, after, gpu_id, 65536, (gpu.sm_count, 128))
    of_pipe = 4 * 32 / gpu.fp32_lanes
    expected = ROUNDS * 64 * max(latency / chains, of_pipe) / (gpu.core_mhz * 1e6)
    assert 0.95 <= found.estimate.value / expected <= 1.1
    assert found.regime == ("latency" if chains == 1 else "compute")


STEP = table("bodies", "time_published")["step"]


def test_a_warp_that_works_between_barriers_takes_the_time_measured() -> None:
    """121 cycles a step on an RTX 3080 at 1440 MHz: ``time/rtx_3080_launches.csv`` of the data
    folder, lfib4, two kernels with one block and nine such steps a round."""
    text = KERNEL.format(
        body="mov.u32 %r12, tile;\nmad.lo.u32 %r4, %r1, 4, %r12;\n"
        + LOOP.replace("64", str(ROUNDS)).format(body=STEP)
        + "st.global.u32 [%rd4], %r11;"
    )
    gpu = load_gpu("rtx-3080")
    launch = Launch.of(1, 256, 0, {"0": PointerHint(elements=65536)})
    analysis = analyse(read_module(text), None, launch, gpu)
    found = BottleneckTimeModel().predict(analysis, gpu, ClockPair(1440, 9501))
    assert found.estimate.value * 1440e6 / ROUNDS == pytest.approx(121, rel=0.2)


STURM = """\
ld.global.nc.f32 %f3, [%rd4];
mul.f32 %f4, %f3, %f3;
div.rn.f32 %f5, %f4, %f1;
sub.f32 %f1, %f2, %f5;
"""


def test_a_chain_of_rounded_divisions_takes_the_time_measured() -> None:
    """146 cycles a step on an RTX 3080 at 1440 MHz: ``time/rtx_3080_launches.csv`` of the data
    folder, eigenvalue, 2 x 2047 steps in 415 us."""
    found = predicted(STURM, "st.global.f32 [%rd4], %f1;", "rtx-3080", 65536, (8, 256))
    gpu = load_gpu("rtx-3080")
    assert found.estimate.value * gpu.core_mhz * 1e6 / ROUNDS == pytest.approx(146, rel=0.15)


TRANSPOSED = stored_ptx("transposed_tile")

COPIED = TRANSPOSED.replace("LANES", "%r9").replace("OTHER", "%r7")

NAIVE = TRANSPOSED.replace("LANES", "%r7").replace("OTHER", "%r9")

TILES = TRANSPOSED.replace("LANES", "%r12").replace("OTHER", "%r13")
"""Tiles to where the transposed ones lie, by rows: as a transposition through shared memory."""


@pytest.mark.parametrize(
    ("text", "gpu_id", "n", "clocks", "measured_ms"),
    [
        # Copies and transpositions by tiles of 16 x 16: ``time/rtx_3080_launches.csv`` (matrixT)
        # and ``dvfs/wang_*.csv`` (transpose) of the data folder.
        (COPIED, "rtx-3080", 16384, (1440, 9501), 3.090),
        (NAIVE, "rtx-3080", 16384, (1440, 9501), 5.676),
        (TILES, "rtx-3080", 16384, (1440, 9501), 4.297),
        (TILES, "rtx-2070-super", 8192, (2080, 7300), 2.012),
        (TILES, "titan-x-pascal", 8192, (2000, 5000), 1.932),
        (TILES, "tesla-p100", 8192, (1328, 715), 1.064),
    ],
)  # fmt: skip
def test_transpositions_take_the_time_measured(
    text: str, gpu_id: str, n: int, clocks: tuple[int, int], measured_ms: float
) -> None:
    """Pieces of 64 bytes cost GDDR memory more than streams; each line of a store has a header."""
    gpu = load_gpu(gpu_id)
    hints = {"0": PointerHint(n * n), "1": PointerHint(n * n), "2": n}
    launch = Launch.of((n // 16, n // 16), (16, 16), 0, dict(hints))
    analysis = analyse(read_module(text), None, launch, gpu)
    found = BottleneckTimeModel().predict(analysis, gpu, ClockPair(*clocks))
    assert found.estimate.value * 1e3 == pytest.approx(measured_ms, rel=0.1)


def test_both_halves_of_sectors_by_two_stores_cost_l2_no_more_than_they_move() -> None:
    """55.6 us: set_ulisttot of testSNAP in ``time/rtx_3080_launches.csv`` of the data folder, zeros
    to complex numbers part by part. Each store fills half of each sector of its lines."""
    text = kernel("mul.wide.u32 %rd4, %r5, 16; add.s64 %rd5, %rd1, %rd4; mov.b64 %rd6, 0; "
                  "st.global.u64 [%rd5], %rd6; st.global.u64 [%rd5+8], %rd6; ret;")  # fmt: skip
    gpu = load_gpu("rtx-3080")
    analysis = analyse(read_module(text), None, Launch.of(9688, 256, l2="cold"), gpu)
    found = BottleneckTimeModel().predict(analysis, gpu, ClockPair(1440, 9501))
    assert analysis.extras.store_headers == 0
    assert found.regime == "memory"
    assert found.estimate.value == pytest.approx(55.6e-6, rel=0.25)  # 90 us with headers
