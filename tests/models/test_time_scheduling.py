"""The scheduling model of time: what it charges, that it is monotone, how near it comes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.papers.thesis.published import GPUS, published_pairs
from tests.fixtures.tables import rows
from tests.models.time_works import ALL_GPUS, K20, MATMUL, VECTOR_ADD, body
from wattcast.features.errors import DataError, ModelError
from wattcast.features.gpus import load_gpu
from wattcast.features.gpus.profile import GpuProfile
from wattcast.features.gpus.sections import LatencyPiece
from wattcast.features.launch import Launch
from wattcast.models.clocks import default_clocks
from wattcast.models.papers.thesis.code import charge
from wattcast.models.papers.thesis.scheduling import Costs, KernelWork, SchedulingTimeModel
from wattcast.models.papers.thesis.work import (
    MemoryCounts,
    known_trips,
    latencies,
    nondecreasing,
    shared_penalty_seconds,
)
from wattcast.models.time.calibration import spread

MODEL = SchedulingTimeModel()


def costs_of(work: KernelWork) -> Costs:
    machine = MODEL.machine(work, K20, default_clocks(K20))
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
    result, costs = MODEL.predict_work(work, K20), costs_of(work)
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
    result = MODEL.predict_work(replace(MATMUL, trip_counts=()), K20)
    assert [d.code for d in result.diagnostics].count("trip_count_assumed") == 1
    code = body("frobnicate.f32 %f1, %f2;\ncall.uni helper;\nret;")
    found = MODEL.predict_work(KernelWork(code, Launch.of(1, 32)), K20).diagnostics
    unknown = next(d for d in found if d.code == "latency_assumed")
    assert "frobnicate.f32" in unknown.detail
    assert next(d for d in found if d.code == "call_not_timed").line == 11


def test_uncertain_trips_and_registers_widen_the_interval() -> None:
    sure = MODEL.predict_work(MATMUL, K20).estimate
    trips = MODEL.predict_work(replace(MATMUL, trip_ranges=((1.0, 1000.0),)), K20).estimate
    assert trips.value == sure.value
    assert trips.low < sure.low
    assert trips.high > 20 * sure.high
    # 65 registers x 1024 threads do not fit: such a kernel would not start, so it is no case
    registers = MODEL.predict_work(replace(MATMUL, register_range=(24, 65)), K20).estimate
    assert registers.high == sure.high
    fewer_blocks = MODEL.predict_work(replace(MATMUL, register_range=(24, 64)), K20).estimate
    assert fewer_blocks.high > sure.high


def test_a_gpu_whose_global_latency_nobody_published_is_refused() -> None:
    unknown = K20.model_copy(update={"global_memory_latency": None, "id": "unknown"})
    with pytest.raises(ModelError, match="unknown"):
        MODEL.predict_work(VECTOR_ADD, unknown)


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
