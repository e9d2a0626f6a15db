"""The delay model of time (thesis section 4.3): what it charges, how it moves, how near it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from studies.papers.thesis.published import published_delay_pairs, spread_of
from tests.models.time_works import K20, body
from wattcast.features.gpus import load_gpu
from wattcast.features.gpus.profile import GpuProfile
from wattcast.features.launch import Launch
from wattcast.models.clocks import ClockPair, default_clocks
from wattcast.models.papers.thesis.code import charge
from wattcast.models.papers.thesis.delay import DelayTerms, DelayTimeModel, issue_rate
from wattcast.models.papers.thesis.work import KernelWork, known_trips, latencies
from wattcast.models.time.calibration import spread

MODEL = DelayTimeModel()

SMALL = KernelWork(
    body("ld.global.f32 %f1, [%rd1];\nadd.f32 %f2, %f1, %f1;\nst.global.f32 [%rd2], %f2;\nret;"),
    Launch.of(13, 256),
)


def terms_of(
    work: KernelWork, gpu: GpuProfile = K20, clocks: ClockPair | None = None
) -> DelayTerms:
    machine = MODEL.machine(work, gpu, clocks or default_clocks(gpu))
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
