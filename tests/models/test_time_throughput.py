"""Volkov's throughput model: its limits by hand, how it moves, the published comparison."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

import pytest
from hypothesis import given

from tests.models.time_works import K20, MATMUL, VECTOR_ADD, body, code_of, gpus, works
from wattcast.features.errors import ModelError
from wattcast.features.gpus import load_gpu
from wattcast.features.gpus.profile import GpuProfile
from wattcast.features.launch import Launch
from wattcast.models.clocks import ClockPair, default_clocks
from wattcast.models.papers.thesis.work import KernelWork, known_trips
from wattcast.models.papers.volkov import Throughput, VolkovTimeModel, throughput

MODEL = VolkovTimeModel()

SMALL = KernelWork(
    body("ld.global.f32 %f1, [%rd1];\nadd.f32 %f2, %f1, %f1;\nst.global.f32 [%rd2], %f2;\nret;"),
    Launch.of(13, 256),
)


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
    assert MODEL.predict_work(SMALL, K20).regime == "latency"


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
    assert MODEL.predict_work(full, K20).regime == "memory"


def test_nothing_to_do_is_no_launch_of_0_seconds() -> None:
    with pytest.raises(ModelError, match="volkov cannot predict the time"):
        MODEL.predict_work(replace(VECTOR_ADD, code=code_of("empty.ptx")), K20)


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
    prediction = MODEL.predict_work(MATMUL, load_gpu("tesla-m60"))
    estimate = prediction.estimate
    assert estimate.basis == "uncalibrated"
    assert (estimate.low, estimate.high) == pytest.approx((estimate.value / 4, estimate.value * 4))
    assert {d.code for d in prediction.diagnostics} == {"latency_assumed", "throughput_assumed"}
    wide = MODEL.predict_work(replace(MATMUL, trip_ranges=((1.0, 1000.0),)), K20).estimate
    assert wide.high > 20 * 4 * wide.value


# --- thesis Table 4.10 ---------------------------------------------------------------------------
