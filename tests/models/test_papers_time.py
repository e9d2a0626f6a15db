"""What every time model of a paper promises: that it is monotone, and what it says and refuses."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from studies.papers.thesis.published import GPUS, published_delay_pairs, published_pairs, spread_of
from tests.fixtures.tables import rows
from tests.models.time_works import (
    ALL_GPUS,
    K20,
    KERNELS,
    MATMUL,
    VECTOR_ADD,
    body,
    code_of,
    gpus,
    works,
)
from wattcast.features.analysis import analyse
from wattcast.features.errors import DataError, LaunchError, ModelError
from wattcast.features.gpus import load_gpu
from wattcast.features.gpus.profile import GpuProfile
from wattcast.features.gpus.sections import LatencyPiece
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.models.clocks import ClockPair, default_clocks
from wattcast.models.papers.thesis.code import charge
from wattcast.models.papers.thesis.delay import DelayTerms, DelayTimeModel, issue_rate
from wattcast.models.papers.thesis.scheduling import Costs, SchedulingTimeModel
from wattcast.models.papers.thesis.work import (
    KernelWork,
    MemoryCounts,
    known_trips,
    latencies,
    nondecreasing,
    shared_penalty_seconds,
    work_of,
)
from wattcast.models.papers.volkov import Throughput, VolkovTimeModel, throughput
from wattcast.models.time.calibration import spread

SCHEDULING, DELAY, VOLKOV = SchedulingTimeModel(), DelayTimeModel(), VolkovTimeModel()

THESIS = [SCHEDULING, DELAY]

MODELS = [*THESIS, VOLKOV]

every_model = pytest.mark.parametrize("model", MODELS, ids=lambda one: type(one).__name__)

both_of_the_thesis = pytest.mark.parametrize("model", THESIS, ids=lambda one: type(one).__name__)

ROUNDING = 1 - 1e-12


def predicted(model: Any, *asked: Any) -> Any:
    """A prediction; Volkov's model, which has no launch overhead, refuses work of 0 s."""
    try:
        return model.predict_work(*asked)
    except ModelError:
        if model is not VOLKOV:
            raise
        reject()


def seconds(
    model: Any, work: KernelWork, gpu: GpuProfile, clocks: ClockPair | None = None
) -> float:
    found: float = predicted(model, work, gpu, clocks).estimate.value
    return found


@every_model
@given(works, gpus, st.integers(1, 40_000))
def test_more_blocks_never_shorten_it(
    model: Any, work: KernelWork, gpu: GpuProfile, more: int
) -> None:
    blocks, threads = work.launch.blocks, work.launch.threads_per_block
    larger = replace(work, launch=Launch.of(blocks + more, threads))
    assert seconds(model, larger, gpu) >= seconds(model, work, gpu) * ROUNDING


@every_model
@given(works, gpus, st.integers(0, 1), st.floats(0, 500))
def test_more_trips_never_shorten_it(
    model: Any, work: KernelWork, gpu: GpuProfile, loop: int, more: float
) -> None:
    trips = list(work.trip_counts)
    trips[loop] += more
    longer = replace(work, trip_counts=tuple(trips))
    assert seconds(model, longer, gpu) >= seconds(model, work, gpu) * ROUNDING


@every_model
@given(works, gpus, st.floats(0.1, 3), st.floats(0.05, 1), st.floats(0.05, 1))
def test_lower_clocks_never_shorten_it(
    model: Any, work: KernelWork, gpu: GpuProfile, fast: float, core: float, memory: float
) -> None:
    quick = ClockPair(gpu.core_mhz * fast, gpu.memory_mhz * fast)
    slow = ClockPair(quick.core_mhz * core, quick.memory_mhz * memory)
    assert seconds(model, work, gpu, slow) >= seconds(model, work, gpu, quick) * ROUNDING


@every_model
@given(works, gpus)
def test_a_prediction_is_finite_inside_its_interval_and_made_of_its_parts(
    model: Any, work: KernelWork, gpu: GpuProfile
) -> None:
    found = predicted(model, work, gpu)
    assert 0 < found.estimate.low < found.estimate.value < found.estimate.high
    assert isfinite(found.estimate.high)
    assert all(part >= 0 for part in found.parts.values())
    whole = max(found.parts.values()) if model is VOLKOV else sum(found.parts.values())
    assert whole == pytest.approx(found.estimate.value, rel=1e-9)


@both_of_the_thesis
@pytest.mark.parametrize("gpu_id", ALL_GPUS)
def test_zero_work_leaves_the_launch_overhead(model: Any, gpu_id: str) -> None:
    """196 x 256 threads: 0.00002 x 50176 + 1.4489 us, the line printed for Tesla K20."""
    empty = replace(VECTOR_ADD, code=code_of("empty.ptx"))
    overhead = (0.00002 * 50176 + 1.4489) * 1e-6
    assert seconds(model, empty, load_gpu(gpu_id)) == pytest.approx(overhead, rel=1e-9)


@pytest.mark.parametrize(
    ("model", "gpu_id", "codes"),
    [
        (SCHEDULING, "tesla-k20", {"latency_assumed": 1}),  # shl: no measured latency
        (SCHEDULING, "tesla-m60", {"launch_overhead_assumed": 1}),
        (SCHEDULING, "gtx-1050", {"latency_assumed": 2}),  # and the global latency
        (SCHEDULING, "tesla-v100", {"throughput_assumed": 2}),  # global and shared
        (DELAY, "tesla-k20", {"latency_assumed": 1}),
        (DELAY, "tesla-m60", {"launch_overhead_assumed": 1, "peak_warps_assumed": 1}),
        (DELAY, "gtx-1050", {"latency_assumed": 2}),
        (VOLKOV, "tesla-m60", {"latency_assumed": 1, "throughput_assumed": 1}),
    ],
)
def test_every_stand_in_is_reported(model: Any, gpu_id: str, codes: dict[str, int]) -> None:
    told = Counter(d.code for d in model.predict_work(MATMUL, load_gpu(gpu_id)).diagnostics)
    assert told >= Counter(codes)
    if gpu_id == "tesla-k20":
        assert told == Counter(codes)
    missing = model.predict_work(replace(MATMUL, trip_counts=()), K20).diagnostics
    assert "trip_count_assumed" in [d.code for d in missing]


@both_of_the_thesis
def test_an_analysed_launch_is_taken_with_its_guesses(model: Any) -> None:
    module = read_module((KERNELS / "tiled_matmul.ptx").read_text(encoding="utf-8"))
    launch = Launch.of((32, 32), (32, 32))
    given = analyse(
        module, module.kernel(), launch, K20, loops={"default": 32}, registers_per_thread=32
    )
    work = work_of(given)
    assert work.shared_bytes_per_block == 2 * 32 * 32 * 4
    assert work.trip_counts == (32.0,)
    assert work_of(given).code is work.code  # the text is worked out once
    sure = model.predict(given, K20).estimate
    assert sure == model.predict_work(work, K20).estimate
    assert sure == model.predict_work(MATMUL, K20).estimate
    guessed = analyse(module, module.kernel(), launch, K20)
    assert guessed.trips_assumed
    wide = model.predict(guessed, K20).estimate
    assert wide.high / wide.low > 10 * sure.high / sure.low


@every_model
def test_what_cannot_be_is_refused(model: Any) -> None:
    bare = K20.model_copy(update={"latencies": {}, "id": "bare"})
    bare.__dict__.pop("latency_cycles", None)
    with pytest.raises(ModelError, match="bare"):
        model.predict_work(VECTOR_ADD, bare)
    with pytest.raises(LaunchError, match="fits on an SM"):
        model.predict_work(replace(MATMUL, registers_per_thread=65), K20)
    for clocks in (ClockPair(0, 2600), ClockPair(-5, 2600), ClockPair(0, 0)):
        with pytest.raises(LaunchError, match="_mhz"):
            model.predict_work(MATMUL, K20, clocks)
    with pytest.raises(LaunchError, match="trip count"):
        model.predict_work(replace(MATMUL, trip_counts=(-1,)), K20)


# --- The delay model of time (thesis section 4.3): what it charges, how it moves, how near it is

SMALL = KernelWork(
    body("ld.global.f32 %f1, [%rd1];\nadd.f32 %f2, %f1, %f1;\nst.global.f32 [%rd2], %f2;\nret;"),
    Launch.of(13, 256),
)


def terms_of(
    work: KernelWork, gpu: GpuProfile = K20, clocks: ClockPair | None = None
) -> DelayTerms:
    machine = DELAY.machine(work, gpu, clocks or default_clocks(gpu))
    return machine.terms(known_trips(work)[0], work.registers_per_thread)


# --- golden values -------------------------------------------------------------------------
def test_every_term_of_a_small_launch_by_hand() -> None:
    """Load, add, store in a chain (ILP 1); 13 blocks of 256 on Tesla K20 (13 SMs, 706 MHz).

    T = 3328: L = 291. One block on each SM: TLP 8, below every peakWarps.
    d(ld) = d(st) = 291 / 8 = 36.375, d(add) = 9 / 8 = 1.125: d_k = 73.875 cycles.
    n_ic = ceil(8 / 6) = 2, one block after the other: 147.75 / 706 MHz = 0.209278 us.
    b_penalty: MPD = 208e9 x (321 / 706e6) / 128 = 738.8 warps, 104 are in flight: none.
    l_overhead = 0.00002 x 3328 + 1.4489 = 1.51546 us.
    """
    terms = terms_of(SMALL, K20)
    assert (terms.active_warps, terms.rounds, terms.blocks) == (8, 2, 1)
    assert terms.thread_cycles == pytest.approx(73.875, abs=1e-12)
    assert terms.schedule_seconds == pytest.approx(147.75 / 706e6, rel=1e-12)
    assert terms.bottleneck_seconds == 0
    assert terms.overhead_seconds == pytest.approx(1.51546e-6, rel=1e-12)
    assert terms.seconds == pytest.approx(0.209278e-6 + 1.51546e-6, rel=1e-6)


def test_every_term_of_a_full_gpu_by_hand() -> None:
    """The same, 104 blocks: 8 on each SM, TLP 64; T = 26624: L = 321.

    A warp's load is 128 / 208e9 s = 0.434462 cycles of bandwidth, 5.648 for the SM's share:
    peakWarps 321 / 5.648 = 56.8. d(ld) = d(st) = 321 / 64 + 0.434462 = 5.450087;
    d(add) = 9 / (64 x 36) + 32 / 122 = 0.266201. d_k = 11.166374.
    n_ic 2, 8 blocks after one another: 16 x 11.166374 / 706 = 0.253062 us.
    832 warps in flight against MPD 738.8: each access waits 832 x 128 / 208e9 - 321 / 706e6
    = 512.000 - 454.674 = 57.326 ns; two accesses, one wave: 0.114652 us.
    """
    terms = terms_of(replace(SMALL, launch=Launch.of(104, 256)), K20)
    assert (terms.active_warps, terms.rounds, terms.blocks) == (64, 2, 8)
    assert terms.thread_cycles == pytest.approx(11.166374, abs=1e-6)
    assert terms.schedule_seconds == pytest.approx(0.253062e-6, rel=1e-5)
    assert terms.bottleneck_seconds == pytest.approx(0.114652e-6, rel=1e-5)
    half_a_wave_more = terms_of(replace(SMALL, launch=Launch.of(156, 256)), K20)
    assert half_a_wave_more.bottleneck_seconds == terms.bottleneck_seconds  # 416 warps: no wait


# --- how it moves ------------------------------------------------------------------------------
def test_more_resident_blocks_can_lengthen_it() -> None:
    """A property the printed equation 4.3 lacks, since its cases do not meet at peakWarps.

    One multiplication (L = 9, TP = 28, peakWarps 8), 26 blocks of 256 on Tesla K20. With 255
    registers one block fits an SM: d = 9 / 8 = 1.125. With 128 two do:
    d = 9 / (16 x 8) + 32 / 28 = 1.213170, and n_serial stays 2.
    """
    code = body("mul.lo.s32 %r1, %r2, %r3;\nret;")
    crowded, alone = (
        terms_of(KernelWork(code, Launch.of(26, 256), (), registers), K20)
        for registers in (128, 255)
    )
    assert (alone.active_warps, crowded.active_warps) == (8, 16)
    assert alone.thread_cycles == pytest.approx(1.125)
    assert crowded.thread_cycles == pytest.approx(1.213170, abs=1e-6)
    assert alone.blocks == crowded.blocks == 2


def test_the_clocks_scale_what_they_drive() -> None:
    """Half the core clock doubles what is cycles; half the memory clock doubles p^m and makes the
    wait 2 x 512 - 454.674 = 569.326 ns an access. The overhead stays."""
    work = replace(SMALL, launch=Launch.of(104, 256))
    at_default = terms_of(work, K20)
    slow_core = terms_of(work, K20, default_clocks(K20)._replace(core_mhz=353))
    penalty = 16 * 2 * 128 / 208e9  # p^m of two accesses, 16 times: no cycles in it
    assert slow_core.schedule_seconds - penalty == pytest.approx(
        2 * (at_default.schedule_seconds - penalty), rel=1e-9
    )
    assert slow_core.bottleneck_seconds == at_default.bottleneck_seconds
    slow_memory = terms_of(work, K20, default_clocks(K20)._replace(memory_mhz=1300))
    assert slow_memory.bottleneck_seconds == pytest.approx(2 * 569.326e-9, rel=1e-5)
    assert slow_memory.schedule_seconds == pytest.approx(
        at_default.schedule_seconds + penalty, rel=1e-9
    )
    assert slow_memory.overhead_seconds == slow_core.overhead_seconds == at_default.overhead_seconds


# --- rates -------------------------------------------------------------------------------------
def rate_of(gpu: GpuProfile, opcode: str) -> tuple[tuple[float, ...], float]:
    cost = charge(opcode)
    assert cost is not None
    lanes = {**gpu.resources, "WS": 32 * gpu.warp_schedulers}[cost.resource]
    return issue_rate(gpu, cost, latencies(gpu, 4096).cycles[cost.latency], lanes)


def test_measured_rates_and_what_stands_in() -> None:
    """K20: add.f32 as measured; add.f64 has 64 lanes: peakWarps 9 x 64 / 32 = 18; a shift is in no
    table: 10 cycles on 192 lanes, 60 warps. M60, where nothing is measured: add.f32 15 cycles on
    128 lanes, 60 warps; division 1278 cycles with K20's 32 warps: 32 x 32 / 1278 = 0.8013."""
    assert rate_of(K20, "add.f32") == ((122, 128, 167), 36)
    assert rate_of(K20, "add.f64") == ((64,), 18)
    assert rate_of(K20, "shl.b32") == ((192,), 60)
    m60 = load_gpu("tesla-m60")
    assert rate_of(m60, "add.f32") == ((128,), 60)
    throughput, peak = rate_of(m60, "div.rn.f32")
    assert throughput[0] == pytest.approx(0.8013, abs=1e-4)
    assert peak == pytest.approx(32)


# --- the published spread ----------------------------------------------------------------------
def test_the_spread_holds_nine_in_ten_and_widens_elsewhere() -> None:
    width, basis = spread("delay", "tesla-k20")
    assert basis == "extrapolated"  # the errors are those of the authors' tool
    ratios = [pair.actual_us / pair.predicted_us for pair in published_delay_pairs()]
    inside = [width.low_factor * 0.999 <= r <= width.high_factor * 1.001 for r in ratios]
    assert sum(inside) >= 0.9 * len(inside)
    assert (width.low_factor, width.high_factor) == pytest.approx((0.38, 5.14), abs=0.01)
    assert (width, basis) == spread_of(published_delay_pairs(), "tesla-k20")
    assert spread("delay", "tesla-m60") == spread_of(published_delay_pairs(), "tesla-m60")
    for gpu_id in ("tesla-m60", "tesla-v100"):
        wider, weaker = spread("delay", gpu_id)
        assert weaker == "extrapolated"
        assert wider == width


# --- The scheduling model of time: what it charges, that it is monotone, how near it comes


def costs_of(work: KernelWork) -> Costs:
    machine = SCHEDULING.machine(work, K20, default_clocks(K20))
    return machine.costs(known_trips(work)[0], work.registers_per_thread)


def core_cycles(costs: Costs, gpu: GpuProfile = K20) -> dict[str, float]:
    """At the default core clock."""
    return costs.cycles(gpu.core_mhz)


# --- golden values -------------------------------------------------------------------------
def test_every_term_of_a_small_kernel_by_hand() -> None:
    """One load, one use of it, one store; 13 blocks of 256 on Tesla K20 (706 MHz).

    T = 3328: 1 wave of 256 threads. L(ld) = 291: the nondecreasing latency there is 290.1,
    where Table 3.3 jumps down. d(ld) = d(st) = 291 + 7 = 298, d(add) = 9 + 1 = 10;
    the return is free. schedule = 298 + 10 + 298 = 606.
    n = T/32 x 2 = 208; TP = 76363.8 (1.04 - exp(-0.00021342 x 208)) MB/s
    gm_penalty = 104 x 8 bytes / TP us; cm_penalty = 3328 x 8 / 1310720 x 291 cycles.
    """
    work = KernelWork(
        body(
            "ld.global.f32 %f1, [%rd1];\nadd.f32 %f2, %f1, %f1;\nst.global.f32 [%rd2], %f2;\nret;"
        ),
        Launch.of(13, 256),
    )
    result, costs = SCHEDULING.predict_work(work, K20), costs_of(work)
    cycles = core_cycles(costs)
    throughput = 76363.8 * (1.04 - 2.718281828459045 ** (-0.00021342 * 208))
    assert cycles["schedule"] == pytest.approx(606, abs=1e-9)
    assert cycles["global_penalty"] == pytest.approx(104 * 8 / throughput * 706, rel=1e-12)
    assert cycles["cache_penalty"] == pytest.approx(3328 * 8 / 1310720 * 291, rel=1e-12)
    assert cycles["launch_overhead"] == pytest.approx((0.00002 * 3328 + 1.4489) * 706)
    assert cycles["shared_penalty"] == 0
    assert result.estimate.value == pytest.approx(sum(cycles.values()) / 706e6, rel=1e-12)
    assert costs.plan.waves == 1
    assert result.diagnostics == ()


def test_loops_multiply_schedule_and_counts() -> None:
    result = costs_of(MATMUL)
    # 32 tiles: 2 global loads each and one store; 2 shared stores and 64 shared loads each
    assert result.counts.global_accesses == 2 * 32 + 1
    assert result.counts.shared_accesses == 66 * 32
    assert result.counts.global_bytes == 4 * result.counts.global_accesses
    once = costs_of(replace(MATMUL, trip_counts=(1,)))
    twice = costs_of(replace(MATMUL, trip_counts=(2,)))
    per_trip = twice.schedule_cycles - once.schedule_cycles
    assert result.schedule_cycles == pytest.approx(once.schedule_cycles + 31 * per_trip)
    # 1024 x 1024 / 13 = 80659.7 threads per SM, 2048 at once
    assert result.plan.waves == 40


# --- latencies, units, penalties -------------------------------------------------------------
@given(st.integers(1, 5_000_000), st.integers(1, 100_000))
def test_load_latency_never_falls_with_threads(threads: int, more: int) -> None:
    for gpu_id in ALL_GPUS:
        gpu = load_gpu(gpu_id)
        before, after = latencies(gpu, threads), latencies(gpu, threads + more)
        assert after.cycles["global_load"] >= before.cycles["global_load"]


def test_a_latency_that_falls_for_ever_is_refused() -> None:
    with pytest.raises(ModelError, match="nondecreasing"):
        nondecreasing((LatencyPiece(slope=-1.0, constant=5.0),))


@pytest.mark.parametrize(
    ("opcode", "resource", "latency"),
    rows("scheduling", "unit_and_latency"),
)
def test_unit_and_latency_of_an_opcode(opcode: str, resource: str, latency: str) -> None:
    cost = charge(opcode)
    assert cost is not None
    assert (cost.resource, cost.latency) == (resource, latency)


def test_shared_penalty_by_hand() -> None:
    """Tesla K20, 4160 threads, 10 accesses of 4 bytes: 4160 / (32 x 13) = 10 batches per SM;
    TP = 823761.8 (1 - exp(-0.00001383 x 100)) = 1138.476 MB/s; 10 x 40 / TP = 0.351 us."""
    seconds, diagnostics = shared_penalty_seconds(K20, 4160, MemoryCounts(0, 0, 10, 40))
    assert seconds == pytest.approx(0.3513469e-6, rel=1e-5)
    assert diagnostics == ()


# --- what is guessed is said -----------------------------------------------------------------
def test_missing_trips_unknown_opcodes_and_calls_are_reported() -> None:
    result = SCHEDULING.predict_work(replace(MATMUL, trip_counts=()), K20)
    assert [d.code for d in result.diagnostics].count("trip_count_assumed") == 1
    code = body("frobnicate.f32 %f1, %f2;\ncall.uni helper;\nret;")
    found = SCHEDULING.predict_work(KernelWork(code, Launch.of(1, 32)), K20).diagnostics
    unknown = next(d for d in found if d.code == "latency_assumed")
    assert "frobnicate.f32" in unknown.detail
    assert next(d for d in found if d.code == "call_not_timed").line == 11


def test_uncertain_trips_and_registers_widen_the_interval() -> None:
    sure = SCHEDULING.predict_work(MATMUL, K20).estimate
    trips = SCHEDULING.predict_work(replace(MATMUL, trip_ranges=((1.0, 1000.0),)), K20).estimate
    assert trips.value == sure.value
    assert trips.low < sure.low
    assert trips.high > 20 * sure.high
    # 65 registers x 1024 threads do not fit: such a kernel would not start, so it is no case
    registers = SCHEDULING.predict_work(replace(MATMUL, register_range=(24, 65)), K20).estimate
    assert registers.high == sure.high
    fewer_blocks = SCHEDULING.predict_work(replace(MATMUL, register_range=(24, 64)), K20).estimate
    assert fewer_blocks.high > sure.high


def test_a_gpu_whose_global_latency_nobody_published_is_refused() -> None:
    unknown = K20.model_copy(update={"global_memory_latency": None, "id": "unknown"})
    with pytest.raises(ModelError, match="unknown"):
        SCHEDULING.predict_work(VECTOR_ADD, unknown)


# --- the published spread ----------------------------------------------------------------------
@pytest.mark.parametrize("gpu_id", GPUS)
def test_the_spread_of_a_gpu_holds_nine_in_ten_of_its_pairs(gpu_id: str) -> None:
    width, basis = spread("scheduling", gpu_id)
    pairs = [pair for pair in published_pairs() if pair.gpu == gpu_id]
    inside = [
        width.low_factor <= pair.actual_us / pair.predicted_us * (1 + 1e-12)
        and pair.actual_us / pair.predicted_us * (1 - 1e-12) <= width.high_factor
        for pair in pairs
    ]
    assert sum(inside) >= 0.9 * len(pairs)
    assert basis == "extrapolated"  # the errors are those of the authors' tool


def test_a_gpu_without_times_gets_the_spread_of_all() -> None:
    width, basis = spread("scheduling", "tesla-v100")
    assert basis == "extrapolated"
    own = [spread("scheduling", gpu_id)[0] for gpu_id in GPUS]
    low, high = [one.low_factor for one in own], [one.high_factor for one in own]
    assert min(low) < width.low_factor < max(low)
    assert min(high) < width.high_factor < max(high)


def test_a_broken_table_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "table.csv"
    header = ",".join(
        ["benchmark", "kernel", *(f"{g}_{k}_us" for g in GPUS for k in ("actual", "predicted"))]
    )
    broken.write_text(f"{header}\nb,k,1,2,3,4,5,x,7,8\n", encoding="utf-8")
    with pytest.raises(DataError) as caught:
        published_pairs(broken)
    assert caught.value.context["row"] == 2
    assert caught.value.context["column"] == "tesla-m60_predicted_us"


# --- Volkov's throughput model: its limits by hand, how it moves, the published comparison


def of(work: KernelWork, gpu: GpuProfile = K20, clocks: ClockPair | None = None) -> Throughput:
    trips, _ = known_trips(work)
    return throughput(work, gpu, clocks or default_clocks(gpu), trips, work.registers_per_thread)


# --- of a launch, by hand --------------------------------------------------------------------
def test_few_warps_wait_for_each_latency() -> None:
    """13 blocks of 256 on Tesla K20: 8 warps on each SM, each waiting 291 + 9 + 291 = 591 cycles:
    591 / 706 MHz = 0.83711 us. IPC = 8 x 3 / 591."""
    found = of(SMALL)
    assert found.warps == 8
    assert found.seconds == pytest.approx(591 / 706e6)
    assert found.memory + found.arithmetic == pytest.approx(24 / 591)
    assert VOLKOV.predict_work(SMALL, K20).regime == "latency"


def test_many_warps_meet_the_bandwidth() -> None:
    """104 blocks: 64 warps an SM, L = 321. By latency 651 / 64 = 10.17 cycles a warp; by bandwidth
    256 bytes / (208e9 / 13 / 706e6) = 11.296; by the adder 32 / 122; by issue 3 / 4.
    832 x 256 / 208e9 = 1.024 us."""
    full = replace(SMALL, launch=Launch.of(104, 256))
    found = of(full)
    assert found.warps == 64
    assert found.seconds == pytest.approx(1.024e-6)
    assert found.parts["latency"] == pytest.approx(651 / 706e6)
    assert found.parts["arithmetic"] == pytest.approx(64 * 32 / 122 / 706e6)
    assert found.parts["issue"] == pytest.approx(64 * 0.75 / 706e6)
    assert (found.memory, found.arithmetic) == pytest.approx((2 / 11.296, 1 / 11.296), rel=1e-4)
    assert VOLKOV.predict_work(full, K20).regime == "memory"


def test_nothing_to_do_is_no_launch_of_0_seconds() -> None:
    with pytest.raises(ModelError, match="volkov cannot predict the time"):
        VOLKOV.predict_work(replace(VECTOR_ADD, code=code_of("empty.ptx")), K20)


# --- how it moves ------------------------------------------------------------------------------
@given(works, gpus)
def test_the_time_is_that_of_the_tightest_limit(work: KernelWork, gpu: GpuProfile) -> None:
    """The throughput formula and the four limits in seconds are two ways to say the same."""
    found = of(work, gpu)
    assert found.seconds == pytest.approx(max(found.parts.values()), rel=1e-9)
    assert found.memory + found.arithmetic <= gpu.warp_schedulers * (1 + 1e-12)
    assert isfinite(found.seconds)


# --- what is guessed, what is refused -----------------------------------------------------------
def test_the_answer_says_how_little_it_claims() -> None:
    prediction = VOLKOV.predict_work(MATMUL, load_gpu("tesla-m60"))
    estimate = prediction.estimate
    assert estimate.basis == "uncalibrated"
    assert (estimate.low, estimate.high) == pytest.approx((estimate.value / 4, estimate.value * 4))
    assert {d.code for d in prediction.diagnostics} == {"latency_assumed", "throughput_assumed"}
    wide = VOLKOV.predict_work(replace(MATMUL, trip_ranges=((1.0, 1000.0),)), K20).estimate
    assert wide.high > 20 * 4 * wide.value
