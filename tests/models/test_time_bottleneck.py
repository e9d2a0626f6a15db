"""The default time model on numbers worked out by hand, and what must hold for any launch."""

from __future__ import annotations

from dataclasses import fields, replace
from math import log
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.ptx_text import stored_ptx
from wattcast.features.activity import Activity, Extras
from wattcast.features.activity.extras import TensorKind, TensorWork
from wattcast.features.activity.waiting import Waiting
from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.counts import Atomics, AtomicUse
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.features.gpus.sections import BlockStart, TimeInterval
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.models.clocks import (
    ClockPair,
    default_clocks,
    streaming_bytes_per_second,
    streaming_shares,
)
from wattcast.models.intervals import EXTRAPOLATED_WIDENING
from wattcast.models.time.beside import BOUNDS, Beside, beside
from wattcast.models.time.bottleneck import (
    CONSTANTS,
    BottleneckTimeModel,
    Constants,
    combined_seconds,
    dram_bytes,
    launch_seconds,
    predicted_seconds,
    regime,
    resource_seconds,
)
from wattcast.models.time.calibration import interval_of

V100 = load_gpu("tesla-v100")
T4 = load_gpu("t4")
GTX_980 = load_gpu("gtx-980")
TITAN_X = load_gpu("gtx-titan-x")
NOTHING = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n"
AT_1000 = ClockPair(1000.0, V100.memory_mhz)


def activity(**counts: float) -> Activity:
    """A launch of 80 full blocks that does nothing but ``counts``."""
    nothing = dict.fromkeys((field.name for field in fields(Activity)), 0.0)
    known = {"kernel_launches": 1.0, "blocks": 80.0, "sm_imbalance": 1.0, "waves": 1.0}
    known["threads_per_block"] = 1024.0
    return Activity(**{**nothing, **known, **counts})


def alone(gpu: str, resource: str, clocks: ClockPair, **counts: float) -> float:
    return resource_seconds(activity(**counts), load_gpu(gpu), clocks)[resource]


def test_each_resource_by_hand_on_a_v100_at_1000_mhz() -> None:
    # 80 SMs x 1e9 cycles a second; a pipe of 64 lanes takes a warp every half cycle.
    def v100(resource: str, **counts: float) -> float:
        return alone("tesla-v100", resource, AT_1000, **counts)

    assert v100("fma", fma_pipe_instructions=160e9, fp32_instructions=160e9) == pytest.approx(1.0)
    assert v100("issue", warp_instructions_sass=320e9) == pytest.approx(1.0)
    assert v100("alu", alu_pipe_instructions=160e9) == pytest.approx(1.0)
    assert v100("fp64", fp64_instructions=80e9) == pytest.approx(1.1)
    assert v100("sfu", sfu_instructions=40e9) == pytest.approx(1.0)
    assert v100("fp16", fp16_instructions=160e9) == pytest.approx(1.0)
    assert v100("texture", texture_requests=10e9) == pytest.approx(1.1)
    assert v100("latency", latency_cycles=1e9) == pytest.approx(1.0)
    # One conflict-free shared request a cycle and SM, 1.02 as long as at the peak.
    one = v100("shared", lsu_requests=80e9, shared_requests=80e9, shared_transactions=80e9)
    assert one == pytest.approx(1.02)
    # Two passes each: every second one is a conflict.
    two = v100("shared", lsu_requests=80e9, shared_requests=80e9, shared_transactions=160e9)
    assert two == pytest.approx(2.04)


def test_device_memory_runs_at_the_memory_clock() -> None:
    sectors = streaming_bytes_per_second(V100, V100.memory_mhz, 0.0) / 32
    work = {"dram_read_sectors": sectors, "footprint_bytes": sectors * 32}
    assert alone("tesla-v100", "dram", AT_1000, **work) == pytest.approx(1.0)
    slow = ClockPair(1000.0, V100.memory_mhz / 2)
    assert alone("tesla-v100", "dram", slow, **work) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("gpu_id", "read", "written", "copied", "triad"),
    [
        ("tesla-v100", 866, 895, 802, 814),
        ("a100-sxm4-40gb", 1490, 1503, 1381, 1360),
        ("a100-sxm4-80gb", 1769, 1880, 1732, 1759),
        ("a40", 679, 679, 658, 653),
        ("h100-pcie", 1942, 2016, 1704, 1832),
    ],
)
def test_memory_streams_one_way_faster_than_both(
    gpu_id: str, read: float, written: float, copied: float, triad: float
) -> None:
    """GB/s of gpu-benches (micro_stream_occupancy): with one rate for all they are up to 16 % off,
    10 of 20 by more than 4 %."""
    gpu = load_gpu(gpu_id)
    for measured, share in ((read, 0.0), (written, 1.0), (copied, 1 / 2), (triad, 1 / 3)):
        found = streaming_bytes_per_second(gpu, gpu.memory_mhz, share)
        assert found == pytest.approx(measured * 1e9, rel=0.075), share


def test_a_board_without_a_measured_stream_spans_the_shares_of_its_kind() -> None:
    least, likely, most = streaming_shares(load_gpu("rtx-3060"))
    assert least < likely < most < 1.0
    assert streaming_shares(V100) == (0.904, 0.904, 0.904)


def test_rereads_count_as_far_as_they_are_said_to() -> None:
    # 100 distinct sectors, 150 between L2 and memory: 50 are re-reads.
    once = activity(dram_read_sectors=150, footprint_bytes=3200)
    assert dram_bytes(once) == pytest.approx(150 * 32)
    partly = Constants(reread_locality=0.6)
    assert dram_bytes(once, partly) == pytest.approx((100 + 0.6 * 50) * 32)
    # Two launches may each bring the footprint once.
    twice = replace(once, kernel_launches=2.0)
    assert dram_bytes(twice, partly) == pytest.approx(150 * 32)


def test_turing_moves_half_the_shared_memory_bytes() -> None:
    work = {"lsu_requests": 1e9, "shared_requests": 1e9, "shared_transactions": 1e9}
    t4 = alone("t4", "shared", ClockPair(1000, T4.memory_mhz), **work) * T4.sm_count
    v100 = alone("tesla-v100", "shared", AT_1000, **work) * V100.sm_count
    assert t4 == pytest.approx(2 * v100)


def test_maxwell_multiplies_integers_in_three_steps() -> None:
    def fma(fp32: float) -> float:
        clocks = ClockPair(1000, GTX_980.memory_mhz)
        work = {"fma_pipe_instructions": 1e9, "fp32_instructions": fp32}
        return alone("gtx-980", "fma", clocks, **work)

    assert fma(0.0) == pytest.approx(3 * fma(1e9))


def test_a_pipe_the_gpu_lacks_takes_no_time() -> None:
    clocks = default_clocks(GTX_980)
    assert alone("gtx-980", "fp16", clocks, fp16_instructions=1e9) == 0.0


def test_blocks_wait_for_the_dispatcher_and_for_their_sm() -> None:
    # 114 cycles an SM: with 80 SMs the dispatcher's 1.7 cycles are the slower, with 40 the SM's.
    many = {"blocks": 1e6}
    assert alone("tesla-v100", "blocks", AT_1000, **many) == pytest.approx(1.7e6 / 1e9)
    clocks = ClockPair(1000, T4.memory_mhz)
    assert alone("t4", "blocks", clocks, **many) == pytest.approx(114 / 40 * 1e6 / 1e9)


@pytest.mark.parametrize(("warps", "share"), [(1, 4), (2, 2), (3, 4 / 3), (4, 1), (8, 1)])
def test_a_warp_has_a_quarter_of_an_sm(warps: int, share: float) -> None:
    """One scheduler and its pipes; what the SM has once, shared memory, is all its own."""
    work = {"warp_instructions_sass": 1e9, "fma_pipe_instructions": 1e9, "lsu_requests": 1e9}
    full, few = (
        resource_seconds(activity(threads_per_block=threads, **work), V100, AT_1000)
        for threads in (1024.0, 32.0 * warps)
    )
    for name, times in (("issue", share), ("fma", share), ("shared", 1)):
        assert few[name] == pytest.approx(times * full[name]), name


def test_what_an_sm_does_overlaps_better_from_volta_on() -> None:
    two = {"fma": 3.0, "l1": 4.0}
    assert combined_seconds({**two, "shared": 0.0}) == pytest.approx(5.0)
    before = combined_seconds({**two, "load_store": 0.0})
    assert before == pytest.approx((3.0**1.5 + 4.0**1.5) ** (1 / 1.5))


def test_the_last_wave_of_busy_blocks_leaves_sms_partly_idle() -> None:
    """Of 80 SMs with two blocks each: 240 blocks are a wave and a half, a million come out even,
    and those that leave at once are none."""

    def issue(blocks: float, busy: float | None) -> float:
        work = activity(blocks=blocks, resident_blocks_per_sm=2, warp_instructions_sass=320e9)
        return resource_seconds(work, V100, AT_1000, more=Beside(busy_blocks=busy))["issue"]

    assert issue(240, 240) == pytest.approx((2 / 1.5) ** 0.5)
    assert issue(1e6, 1e6) == pytest.approx(1.0, rel=1e-3)
    assert issue(1e6, 240) == issue(240, 240)
    assert issue(240, None) == issue(240, 1) == pytest.approx(1.0)


def test_blocks_that_wait_together_leave_gaps() -> None:
    """With barriers a block waits and is worked for in turns; more blocks fill each other's gaps,
    and warps without barriers fill nearly all."""

    def seconds(blocks: float, barriers: float, *chain: float) -> tuple[float, float]:
        found = resource_seconds(
            activity(
                blocks=80e6, threads_per_block=256, resident_blocks_per_sm=blocks,
                warp_instructions_sass=320e9, instructions_per_warp=100, waves=1e6,
                barriers=barriers, load_requests_per_warp=1200 / V100.l1_latency_cycles,
            ),
            V100, AT_1000, more=Beside(waiting=Waiting(*(chain or (0.0, 0.0, 0.5, 0.0)))),
        )  # fmt: skip
        assert (found["issue"], found["latency"]) == (pytest.approx(1.0), pytest.approx(1.0))
        return found["gaps"], combined_seconds({**found, "blocks": 0.0})

    gaps, total = seconds(1, 640e6)
    assert (gaps, total) == (pytest.approx(1.0), pytest.approx(2.0))
    # Two customers of a queue that waits as long as it serves: one waits for the other 1 time in 3.
    assert seconds(2, 640e6)[1] == pytest.approx((2 + 4 / 3) / 2)
    assert 1.0 < seconds(8, 0.0)[1] < seconds(8, 640e6)[1] < 1.4
    # While the slowest warp of a block does arithmetic that the others do not, they work.
    assert seconds(1, 640e6, 1.5, 0.0, 0.0, 0.0)[1] == pytest.approx(2.0)
    assert seconds(1, 640e6, 1.5, 0.0, 0.0, 0.0, 0.0, 0.5)[1] == pytest.approx(2.0 - 0.3)


def test_resources_are_combined_by_a_norm_but_a_chain_by_the_longer() -> None:
    assert combined_seconds({}) == 0.0
    assert combined_seconds({"dram": 2.0}) == pytest.approx(2.0)
    two = combined_seconds({"dram": 3.0, "fma": 4.0}, Constants(overlap_norm=2.0))
    assert two == pytest.approx(5.0)
    with_chain = {"dram": 3.0, "fma": 4.0, "latency": 4.9}
    assert combined_seconds(with_chain, Constants(overlap_norm=2.0)) == pytest.approx(5.0)
    assert combined_seconds({**with_chain, "latency": 6.0}) == 6.0


def test_tensor_work_by_kind() -> None:
    def extras(kind: TensorKind, *, sparse: bool = False) -> Extras:
        work = TensorWork(kind, sparse, 512 * 80 * 1e9)
        return Extras((work,), Atomics((), 0.0, 0.0))

    def seconds(kind: TensorKind, *, sparse: bool = False) -> float:
        more = beside(extras(kind, sparse=sparse))
        return resource_seconds(activity(), V100, AT_1000, more=more)["tensor"]

    # A V100 does 512 FP16 multiply-adds a cycle and SM.
    assert seconds("f16") == pytest.approx(1.0)
    assert seconds("f16", sparse=True) == pytest.approx(0.5)
    assert seconds("tf32") == pytest.approx(2.0)
    assert seconds("s8") == pytest.approx(0.5)


def test_atomics_on_one_word_go_one_after_the_other() -> None:
    # 80e9 requests of 32 lanes: 31 passes more each, and every operation on one word.
    use = AtomicUse(
        "k", 0, 1, None, "red.add.f32", "global", 80e9, 2560e9, 2560e9, 2560e9, 80e9, uniform=True
    )  # fmt: skip

    def seconds(gpu: str, opcode: str) -> dict[str, float]:
        each = replace(use, opcode=opcode)
        more = beside(Extras((), Atomics((each,), 2560e9, 80e9)))
        return resource_seconds(activity(), load_gpu(gpu), AT_1000, more=more)

    kepler = seconds("tesla-k20", "red.global.add.f32")
    assert kepler["atomics"] == pytest.approx(2560.0)
    volta = seconds("tesla-v100", "red.global.add.f32")
    assert volta["atomics"] == pytest.approx(2560.0)
    assert volta["shared"] == pytest.approx(1.02 * 31)
    # ptxas lets one lane add up the integers of its warp.
    whole = seconds("tesla-v100", "red.global.add.u32")
    assert whole["atomics"] == pytest.approx(80.0)
    assert whole["shared"] == 0.0
    # Not where only the data say that the lanes share a word.
    use = replace(use, uniform=False)
    assert seconds("tesla-v100", "red.global.add.u32")["atomics"] == pytest.approx(2560.0)
    unknown = replace(use, passes=None, hottest_operations=None)
    extras = Extras((), Atomics((unknown,), None, None))
    assert beside(extras) == Beside()


@pytest.mark.parametrize(
    ("gpu", "measured_ms"),
    [("geforce-rtx-2060", 23.97), ("geforce-rtx-3060", 22.99), ("geforce-rtx-3080", 22.61)],
)
def test_atomics_on_many_words_wait_for_their_lines(gpu: str, measured_ms: float) -> None:
    """2^21 blocks add 512 words each to 512 words (LANES_OF_A_LINE has the source): 1.2 ms by the
    busiest word alone."""
    use = AtomicUse("k", 0, 1, None, "red.add.u32", "global", 2**25, 2**30, 2**25, 2**21, 2**21)
    more = beside(Extras((), Atomics((use,), 2.0**21, 2.0**21, 2.0**26)))
    profile = load_gpu(gpu)
    found = resource_seconds(activity(), profile, default_clocks(profile), more=more)["atomics"]
    assert found * 1e3 == pytest.approx(measured_ms, rel=0.1)


def test_a_request_of_global_memory_takes_l1_and_its_lanes_once() -> None:
    """On an A40 a load of 4 bytes a lane takes two cycles, whatever its stride up to 7 (Ernst,
    gpu-benches, gpu-strides): its load/store unit has 16 lanes; on an A100 one."""
    gpus = {name: load_gpu(name) for name in ("a40", "a100-sxm4-80gb", "gtx-1080-ti")}

    def cycles(name: str) -> tuple[float, float]:
        gpu = gpus[name]
        found = resource_seconds(
            activity(global_load_requests=1e9, global_load_sectors=4e9, lsu_requests=1e9),
            gpu,
            ClockPair(1000.0, gpu.memory_mhz),
            more=Beside(l1_cycles_per_sector=0.25),
        )
        passes = found.get("load_store", found.get("shared", 0.0))
        return found["l1"] * gpu.sm_count, passes * gpu.sm_count

    assert cycles("a40") == (pytest.approx(2.0), 0.0)
    assert cycles("a100-sxm4-80gb") == (pytest.approx(1.0), 0.0)
    # Pascal's L1 and its shared memory are two memories.
    assert cycles("gtx-1080-ti") == (pytest.approx(1.0), pytest.approx(1.02))


def test_double_precision_of_a_consumer_chip_shares_a_queue_before_volta() -> None:
    work = activity(fp64_instructions=1e9, lsu_requests=1e9, shared_requests=1e9,
                    shared_transactions=4e9)  # fmt: skip

    def seconds(name: str) -> tuple[dict[str, float], float]:
        gpu = load_gpu(name)
        found = resource_seconds(work, gpu, default_clocks(gpu))
        alone = dict.fromkeys(("blocks", "latency", "gaps"), 0.0)
        return found, combined_seconds({**found, **alone})

    pascal, total = seconds("gtx-1080-ti")
    assert "fp64" not in pascal
    assert total == pytest.approx(pascal["shared_fp64"] + pascal["load_store"])
    for name in ("tesla-p100", "quadro-rtx-8000"):
        found, total = seconds(name)
        assert total < found["fp64"] + found.get("load_store", found.get("shared", 0.0))


def test_half_of_l2_is_far_on_an_a100() -> None:
    chain = Waiting(0.0, 0.0, 1.0, 0.0)
    a100 = load_gpu("a100-sxm4-80gb")

    def cycles(footprint_bytes: float, gpu: GpuProfile = a100) -> float:
        launch = activity(
            load_requests_per_warp=1e6, instructions_per_warp=1e6, global_load_requests=1e6,
            global_load_sectors=1e6, l2_sectors=1e6, footprint_bytes=footprint_bytes,
        )  # fmt: skip
        found = resource_seconds(launch, gpu, default_clocks(gpu), more=Beside(waiting=chain))
        return found["latency"] * default_clocks(gpu).core_hz / 1e6

    assert cycles(19e6) == pytest.approx(211, rel=0.01)
    assert cycles(22e6) == pytest.approx(422, rel=0.01)
    assert cycles(5e6, V100) == pytest.approx(215, rel=0.01)


def test_boards_that_add_up_at_half_rate_multiply_integers_at_full_rate() -> None:
    """GeForce RTX 3090: 71 TFLOP/s of FP16 with sums in FP32, 284 TOP/s of INT8, both dense."""
    gpu = load_gpu("rtx-3090")
    printed: list[tuple[TensorKind, float]] = [("f16", 71e12), ("s8", 284e12), ("tf32", 35.5e12)]
    for kind, peak in printed:
        work = TensorWork(kind, False, peak / 2)
        extras = Extras((work,), Atomics((), 0.0, 0.0))
        found = resource_seconds(activity(), gpu, default_clocks(gpu), more=beside(extras))
        assert found["tensor"] == pytest.approx(1.0, rel=0.01), kind


def test_a_launch_is_paid_for_each() -> None:
    assert launch_seconds(activity(kernel_launches=3.0), V100) == pytest.approx(7.5e-6)
    # Tesla K20 has a measured one (thesis section 3.4).
    k20 = load_gpu("tesla-k20")
    assert k20.kernel_launch is not None
    assert launch_seconds(activity(), k20) == pytest.approx(k20.kernel_launch.microseconds * 1e-6)


def test_measured_block_starts_count_by_their_warps() -> None:
    starts = BlockStart(unit="cycle", source="truth", cycles=3.0, cycles_per_warp=0.5)
    gpu = V100.model_copy(update={"block_start": starts})
    seconds = {
        threads: resource_seconds(
            activity(blocks=1e6, threads_per_block=float(threads)), gpu, AT_1000
        )["blocks"]
        for threads in (1, 32, 33, 1024)
    }
    assert seconds == pytest.approx({1: 3.5e-3, 32: 3.5e-3, 33: 4e-3, 1024: 19e-3})
    # Not measured: 1.7 cycles of the GPU on 80 SMs, whatever the block's size.
    assert resource_seconds(activity(blocks=1e6), V100, AT_1000)["blocks"] == pytest.approx(1.7e-3)


def test_a_measured_interval_holds_with_its_own_probability() -> None:
    own = TimeInterval(source="truth", level=0.8, low_factor=0.9, high_factor=1.2, kernels=9)
    launch = Launch.of((80,), (256,))
    analysis = analyse(read_module(NOTHING), None, launch, V100)
    found = (
        BottleneckTimeModel()
        .predict(analysis, V100.model_copy(update={"time_interval": own}))
        .estimate
    )
    assert (found.level, found.basis) == (0.8, "unseen_kernel")
    assert found.high == pytest.approx(1.2 * found.value)
    assert BottleneckTimeModel().predict(analysis, V100).estimate.level == 0.9


def test_what_is_cut_short_widens_the_model_and_not_the_trips_again() -> None:
    """A bisection whose trips nobody knows had a time 545,000 times as long at one end."""
    likely, most = (activity(warp_instructions_sass=count) for count in (1e9, 31e9))
    extras = analyse(read_module(NOTHING), None, Launch.of((80,), (256,)), V100).extras

    def width(*, cut_short: bool) -> float:
        analysis = SimpleNamespace(
            activity=likely, activity_cases=(most,), extras=extras, cut_short=cut_short,
            trips_assumed=False, needs=(),
            coverage=SimpleNamespace(error=0.0), activity_diagnostics=(), least=None,
        )  # fmt: skip
        found = BottleneckTimeModel().predict(cast(KernelAnalysis, analysis), V100)
        assert found.regime == "compute"
        return log(found.estimate.high / found.estimate.value)

    own = log(interval_of(V100, "compute")[0].high_factor)
    grown = width(cut_short=True) ** 2 - width(cut_short=False) ** 2
    assert grown == pytest.approx((EXTRAPOLATED_WIDENING**2 - 1) * own**2)


GUARDED = stored_ptx("guarded_loop")


def test_a_loop_that_what_is_assumed_never_enters_is_in_the_interval() -> None:
    """Asked without arguments, public programs with such a loop took up to 10,000 times as long as
    told, and every interval was twice as wide as its lower end (``studies code-alone``)."""

    def spread(blocks: int, guard: str = GUARDED, **arguments: float) -> float:
        launch = Launch.of((blocks,), (256,), 0, arguments)
        analysis = analyse(read_module(guard), None, launch, V100)
        found = BottleneckTimeModel().predict(analysis, V100).estimate
        return found.high / found.value

    own = interval_of(V100, "latency")[0].high_factor  # blocks are handed out: nothing else is done
    assert spread(80_000) > 20
    # A launch of few threads goes round its loops more often than one of many.
    entered = GUARDED.replace("@%p1 bra END;", "")
    assert spread(80, entered) > spread(80_000, entered) > 5 * own
    assert spread(80_000, n=5) == pytest.approx(own)


def test_the_regime_names_what_bounds() -> None:
    assert regime({"dram": 2.0, "fma": 1.0}, 0.1) == "memory"
    assert regime({"dram": 2.0, "fma": 3.0}, 0.1) == "compute"
    assert regime({"dram": 2.0, "latency": 3.0}, 0.1) == "latency"
    assert regime({"dram": 2.0}, 2.1) == "launch"


COUNTS = [
    field.name
    for field in fields(Activity)
    if field.name.endswith(("_instructions", "_sectors", "_requests", "_cycles"))
]
launches = st.fixed_dictionaries(
    {name: st.floats(0, 1e12) for name in COUNTS}
    | {"blocks": st.floats(1, 1e9), "sm_imbalance": st.floats(1, 80)}
)
core = st.floats(100, 3000)
memory = st.floats(100, 10000)


@settings(max_examples=60, deadline=None)
@given(launches, core, memory, st.floats(1, 3), st.sampled_from(["v100", "gtx-980", "h100-sxm5"]))
def test_a_higher_clock_never_costs_time_and_saves_no_more_than_its_ratio(
    counts: dict[str, float], core_mhz: float, memory_mhz: float, ratio: float, gpu: str
) -> None:
    profile, work = load_gpu(gpu), activity(**counts)
    slow = predicted_seconds(work, profile, ClockPair(core_mhz, memory_mhz))
    for fast in (
        ClockPair(core_mhz * ratio, memory_mhz),
        ClockPair(core_mhz, memory_mhz * ratio),
        ClockPair(core_mhz * ratio, memory_mhz * ratio),
    ):
        seconds = predicted_seconds(work, profile, fast)
        assert slow / ratio * (1 - 1e-9) <= seconds <= slow * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(launches, st.sampled_from(COUNTS), st.floats(1, 1e12))
def test_more_work_never_takes_less_time(counts: dict[str, float], name: str, more: float) -> None:
    if name in ("fp32_instructions", "shared_requests") or ("global" in name and "_req" in name):
        return  # parts of the FMA pipe's, of shared_transactions and of lsu_requests
    if name == "lsu_requests":
        counts = {**counts, "local_sectors": 0.0}  # as many sectors by more requests lie closer
    work = activity(**counts)
    larger = replace(work, **{name: getattr(work, name) + more})
    clocks = default_clocks(V100)
    before = predicted_seconds(work, V100, clocks)
    assert predicted_seconds(larger, V100, clocks) >= before * (1 - 1e-10)


@settings(max_examples=60, deadline=None)
@given(launches)
def test_no_launch_beats_its_slowest_resource(counts: dict[str, float]) -> None:
    resources = resource_seconds(activity(**counts), V100, default_clocks(V100))
    total = combined_seconds(resources)
    assert total >= max(resources.values()) * (1 - 1e-12)
    assert total <= sum(resources.values()) * (1 + 1e-12)


def test_the_constants_are_those_documented() -> None:
    assert Constants() == CONSTANTS
    assert (CONSTANTS.overlap_norm, CONSTANTS.reread_locality) == (3.0, 1.0)


AT_DEFAULT = default_clocks(V100)


def waits(**shares: float) -> Beside:
    return Beside(waiting=Waiting(**{**dict.fromkeys(Waiting._fields, 0.0), **shares}))


def latency(work: Activity, more: Beside, clocks: ClockPair = AT_DEFAULT) -> float:
    return resource_seconds(work, V100, clocks, more=more)["latency"]


def test_a_pointer_chase_takes_the_latency_of_its_level() -> None:
    # 1,000 loads of one warp, one after another. A V100's published latencies: L1 30 cycles,
    # L2 215, device memory 428 at its default clocks (profile); 400 for the start.
    chase = activity(load_requests_per_warp=1000.0, global_load_sectors=80e3)
    hz = V100.core_mhz * 1e6
    for passed, read, cycles in ((0.0, 0.0, 30), (80e3, 0.0, 215), (80e3, 80e3, 428)):
        work = replace(chase, l2_sectors=passed, dram_read_sectors=read)
        assert latency(work, waits(loads=1.0)) == pytest.approx((1000 * cycles + 400) / hz)


def test_a_chain_of_arithmetic_waits_for_each_result() -> None:
    # 1,000 dependent multiply-adds take 4 cycles each on Volta; of eight chains an eighth.
    work = activity(instructions_per_warp=1000.0)
    hz = V100.core_mhz * 1e6
    assert latency(work, waits(instructions=1.0)) == pytest.approx((4000 + 400) / hz)
    assert latency(work, waits(instructions=1 / 8)) == pytest.approx((500 + 400) / hz)
    pascal = resource_seconds(
        work, load_gpu("tesla-p100"), AT_1000, more=waits(instructions=1.0)
    )["latency"]  # fmt: skip
    assert pascal == pytest.approx(6400 / 1e9)


def test_device_memory_is_nearer_at_a_higher_memory_clock() -> None:
    work = activity(load_requests_per_warp=1000.0, global_load_sectors=1.0, l2_sectors=1.0)
    missing = replace(work, dram_read_sectors=1.0)
    slow = ClockPair(V100.core_mhz, V100.memory_mhz / 2)
    hz = V100.core_mhz * 1e6
    assert latency(work, waits(loads=1.0), slow) == latency(work, waits(loads=1.0))
    further = latency(missing, waits(loads=1.0), slow) - latency(missing, waits(loads=1.0))
    assert further == pytest.approx(0.49 * 1000 * (428 - 215) / hz)


@pytest.mark.parametrize("pair", [(1075, 3505), (600, 3505), (1075, 810), (600, 810)])
def test_a_load_from_device_memory_follows_both_clocks(pair: tuple[float, float]) -> None:
    """Wang and Chu 2018, Eq. 4: 222.78 x core / memory clock + 277.32 core cycles (GTX 980), which
    the profile of the GTX Titan X holds at its default clocks."""
    work = activity(
        load_requests_per_warp=1000.0, global_load_sectors=1.0, l2_sectors=1.0,
        dram_read_sectors=1.0,
    )  # fmt: skip
    core, memory = pair
    found = resource_seconds(work, TITAN_X, ClockPair(core, memory), more=waits(loads=1.0))
    cycles = (found["latency"] * core * 1e6 - 400) / 1000
    assert cycles == pytest.approx(222.78 * core / memory + 277.32, rel=0.005)


def test_l2_of_maxwell_takes_so_much_from_memory_a_core_clock() -> None:
    """A stream on a Titan X takes as long at 1164 as at 1050 MHz, and from 1013 MHz down longer as
    the clock falls (microbenchmark DRAM: 1.03, 1.18 and 1.73 times at 975, 861 and 595 MHz)."""
    work = {"dram_read_sectors": 1e8, "footprint_bytes": 32e8}

    def over(core_mhz: float, memory_mhz: float = 3505) -> float:
        at = alone("gtx-titan-x", "dram", ClockPair(core_mhz, memory_mhz), **work)
        return at / alone("gtx-titan-x", "dram", ClockPair(1164, 3505), **work)

    assert over(1050) == pytest.approx(1.0)
    assert [over(975), over(861), over(595)] == pytest.approx([1.035, 1.184, 1.729], rel=0.025)
    assert over(595, 810) == over(1164, 810) == pytest.approx(3505 / 810)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=4, max_size=4), st.integers(0, 3), st.floats(0, 1))
def test_a_longer_chain_never_takes_less_time(shares: list[float], at: int, more: float) -> None:
    work = activity(
        instructions_per_warp=1e3, load_requests_per_warp=50.0, global_load_sectors=1e6,
        l2_sectors=5e5, dram_read_sectors=1e5,
    )  # fmt: skip
    longer = list(shares)
    longer[at] += more
    before = latency(work, Beside(waiting=Waiting(*shares)))
    assert latency(work, Beside(waiting=Waiting(*longer))) >= before


def test_a_peak_loop_of_multiply_adds_runs_at_the_peak() -> None:
    """Issue and pipe are one thing: a loop of nothing but FFMA takes no longer than its pipe."""
    work = {"fma_pipe_instructions": 1e12, "fp32_instructions": 1e12}
    for gpu in ("tesla-v100", "gtx-1080-ti", "a40", "h100-sxm5"):
        profile = load_gpu(gpu)
        clocks = default_clocks(profile)
        resources = resource_seconds(activity(**work, warp_instructions_sass=1e12), profile, clocks)
        peak = 1e12 * 32 / (profile.fp32_lanes * profile.sm_count * clocks.core_hz)
        assert combined_seconds(resources) == pytest.approx(peak, rel=1e-3)


def test_integers_multiply_on_64_lanes_from_volta_on() -> None:
    for gpu, lanes in (("tesla-v100", 64), ("a40", 64), ("l4", 64)):
        profile = load_gpu(gpu)
        clocks = ClockPair(1000, profile.memory_mhz)
        found = alone(gpu, "fma", clocks, fma_pipe_instructions=1e9)
        assert found == pytest.approx(1e9 * 32 / (lanes * profile.sm_count * 1e9))


def test_l1_takes_the_cycles_of_its_loads_and_the_sectors_of_its_stores() -> None:
    # 32 sectors that meet in one bank: 32 cycles instead of the 8 that their bytes take.
    def l1(gpu: str, more: Beside) -> float:
        work = activity(global_load_sectors=32.0, global_store_sectors=4.0)
        profile = load_gpu(gpu)
        clocks = ClockPair(1000.0, profile.memory_mhz)
        return resource_seconds(work, profile, clocks, more=more)["l1"] * profile.sm_count * 1e9

    conflicts = Beside(l1_cycles_per_sector=1.0)
    assert l1("a100-sxm4-80gb", conflicts) == pytest.approx(33, rel=0.02)
    assert l1("a100-sxm4-80gb", Beside()) == pytest.approx(9, rel=0.02)
    # Before Volta L1 is no part of shared memory, and the law was measured on later ones.
    assert l1("gtx-1080-ti", conflicts) == l1("gtx-1080-ti", Beside())


@pytest.mark.parametrize("gpu", ["tesla-k20", "gtx-1080-ti", "tesla-v100", "h100-sxm5"])
def test_whatever_binds_has_a_name(gpu: str) -> None:
    profile = load_gpu(gpu)
    resources = resource_seconds(activity(), profile, default_clocks(profile))
    for name in resources:
        assert BOUNDS[name]
