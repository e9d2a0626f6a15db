"""Wang and Chu's model: the paper's tables, worked examples, and what must hold for any launch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from studies.papers.wang_chu.forms import counters_to_inputs
from tests.fixtures.tables import table
from tests.models.time_works import KERNELS
from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.errors import DataError, LaunchError, ModelError
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.features.gpus.sections import MemoryTiming
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.models.clocks import ClockPair, default_clocks
from wattcast.models.papers.wang_chu.inputs import chain_of, gpu_parameters, launch_of
from wattcast.models.papers.wang_chu.model import (
    QueueingCasesTimeModel,
    QueueingTimeModel,
    case_form,
)
from wattcast.models.papers.wang_chu.network import (
    QueueingLaunch,
    closed_network_cycles,
    delays,
    network_form,
    rounds_of,
    smooth_service_cycles,
)
from wattcast.models.time.base import get_time_model
from wattcast.models.time.calibration import spread

GTX_980 = gpu_parameters(load_gpu("gtx-980"))

W1 = QueueingLaunch(
    instructions=60,
    transactions=6,
    hit_rate=0.25,
    resident_warps=64,
    warps_per_block=8,
    blocks=1024,
)

# Table II: measured minimum latencies; the core clock is 400 MHz throughout (docs/frequency.md).
TABLE_II = {400: 500, 500: 455.5, 600: 425.8, 700: 404.6, 800: 388.7, 900: 376.3, 1000: 366.4}

# Table III: cycles and bandwidth efficiency at equal clocks.
TABLE_III = {
    400: (10.06, 0.76),
    500: (9.76, 0.7813),
    600: (9.54, 0.798),
    700: (9.31, 0.8183),
    800: (9.19, 0.8342),
    900: (9.06, 0.8451),
    1000: (9.0, 0.85),
}


# --- memory ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("memory_mhz", "cycles"), TABLE_II.items())
def test_eq_4_gives_table_ii_at_a_core_clock_of_400_mhz(memory_mhz: float, cycles: float) -> None:
    found = delays(GTX_980, ClockPair(400, memory_mhz), 0.0).dram_latency
    assert found == pytest.approx(cycles, abs=0.11)  # the print rounds 500.1 to 500


@pytest.mark.parametrize(("mhz", "row"), TABLE_III.items())
def test_table_iii_is_used_as_printed_and_hides_one_constant(
    mhz: float, row: tuple[float, float]
) -> None:
    cycles, efficiency = row
    assert GTX_980.service.at(mhz) == cycles
    assert delays(GTX_980, ClockPair(mhz, mhz), 0.0).dram_service == pytest.approx(cycles)
    # 8 cycles at the full bandwidth, divided by 1.048576
    assert cycles * efficiency == pytest.approx(7.63, abs=0.05)
    assert smooth_service_cycles(726.1, 8.281, mhz) == pytest.approx(cycles, abs=0.05)


# --- rounds ------------------------------------------------------------------------------------
def test_rounds_where_the_sms_divide_the_blocks_are_those_of_eq_6() -> None:
    assert rounds_of(W1, 16) == (512, 64, 8)


@pytest.mark.parametrize(
    ("blocks", "warps", "resident", "rounds"),
    [
        (1, 8, 8, 1),  # one SM has the block, the other 15 idle: not a sixteenth of a round
        (16, 8, 8, 1),
        (17, 16, 16, 1),  # one SM has two: whole blocks
        (128, 64, 64, 1),
        (192, 96, 64, 1.5),
    ],
)
def test_only_sms_with_a_block_work_and_blocks_are_whole(
    blocks: float, warps: float, resident: float, rounds: float
) -> None:
    assert rounds_of(replace(W1, blocks=blocks), 16) == (warps, resident, rounds)


# --- network form -------------------------------------------------------------------------------
def test_few_warps_take_no_less_than_their_own_chain() -> None:
    """One block: 6 transactions in two waits of three, and 1000 cycles of arithmetic."""
    launch = replace(W1, blocks=1, mlp=3.0, chain_cycles=1000)
    found = network_form(launch, GTX_980, ClockPair(700, 700))
    assert found.cycles == pytest.approx(2 * 430.575 + 1000)


def test_a_launch_without_global_memory_meets_no_latency() -> None:
    launch = replace(W1, transactions=0, hit_rate=0)
    assert network_form(launch, GTX_980, ClockPair(700, 700)).cycles == 8 * 64 * 15


def test_equal_servers_lose_one_part_in_as_many_as_there_are_customers() -> None:
    assert closed_network_cycles((10.0, 10.0), 4) == pytest.approx(10 * 5 / 4)


demands = st.lists(st.floats(0, 1e12), min_size=1, max_size=5)


@given(demands, st.floats(0.1, 64))
def test_a_network_lies_between_its_largest_server_and_the_sum(
    servers: list[float], customers: float
) -> None:
    found = closed_network_cycles(servers, customers)
    assert max(servers) * (1 - 1e-9) <= found <= sum(servers) * (1 + 1e-9)


def test_one_block_more_than_sms_does_not_make_a_memory_bound_launch_faster() -> None:
    """The 17th block shares an SM, but memory is everyone's: no 16 idle SMs overlap with it."""
    launch = replace(W1, hit_rate=0, transactions=60)
    times = [
        network_form(replace(launch, blocks=blocks), GTX_980, ClockPair(700, 700)).cycles
        for blocks in (15, 16, 17, 18, 31, 32, 33)
    ]
    assert times == sorted(times)


def test_network_form_of_the_first_worked_example() -> None:
    """SM 512 x 15, L2 512 x 6, memory 512 x 9.31 x 4.5; 8 blocks of an SM; 8 latencies."""
    found = network_form(W1, GTX_980, ClockPair(700, 700))
    servers = (7680, 3072, 512 * 9.31 * 4.5)
    assert (found.parts["sm"], found.parts["l2"], found.parts["dram"]) == pytest.approx(servers)
    busy = closed_network_cycles(servers, 8)
    assert found.parts["overlap"] == pytest.approx(busy - servers[2])
    assert found.cycles == pytest.approx(busy + 8 * 500.1)


# --- what holds for every launch -------------------------------------------------------------
clocks = st.builds(ClockPair, st.floats(100, 3000), st.floats(100, 8000))

launches = st.builds(
    QueueingLaunch,
    instructions=st.floats(0, 1e5),
    transactions=st.floats(0, 1e4),
    hit_rate=st.floats(0, 1),
    resident_warps=st.floats(1, 64),
    warps_per_block=st.integers(1, 32),
    blocks=st.integers(1, 300) | st.integers(1, 100_000),
    shared_transactions=st.floats(0, 1e4),
    extra_cycles=st.floats(0, 1e4),
    texture_cycles=st.floats(0, 1e4),
    mlp=st.none() | st.floats(0.1, 64),
    chain_cycles=st.floats(0, 1e5),
)

rise = st.floats(1, 10)

SLACK = 1 + 1e-9


@given(launches, clocks, rise, rise)
def test_no_clock_that_rises_costs_time(
    launch: QueueingLaunch, pair: ClockPair, core: float, memory: float
) -> None:
    faster = ClockPair(pair.core_mhz * core, pair.memory_mhz * memory)
    slower = network_form(launch, GTX_980, pair).seconds
    assert network_form(launch, GTX_980, faster).seconds <= slower * SLACK


# --- bad input -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("resident_warps", 0),
        ("blocks", float("inf")),
        ("instructions", -1),
        ("hit_rate", 1.5),
        ("inner_iterations", -1),
    ],
)
def test_numbers_that_cannot_be_are_named(name: str, value: float) -> None:
    with pytest.raises(LaunchError) as caught:
        replace(W1, **{name: value})
    assert caught.value.field == name


# --- The corrected case distinction: worked examples, continuity, and where it is not monotone

# One shared access per transfer, six transactions in all.
W4 = replace(W1, shared_transactions=1, outer_iterations=1, inner_iterations=1)

# 32 transfers of two transactions, 32 shared accesses after each; avr_comp 2 cycles.
W5 = replace(
    W1,
    instructions=512,
    transactions=64,
    shared_transactions=1024,
    outer_iterations=32,
    inner_iterations=32,
)


@pytest.mark.parametrize(
    ("clocks", "dram_latency", "dram_service", "latency", "service", "case", "active", "us"),
    [
        ((700, 700), 500.1, 9.31, 430.575, 7.2325, "memory (11)", 3210.355, 36.6898),
        ((400, 1000), 366.432, 3.6, 330.324, 2.95, "few warps, short (13)", 2185.744, 43.7149),
        ((1000, 400), 834.27, 25.15, 681.2025, 19.1125, "memory (11)", 8022.9025, 64.1832),
        ((1000, 1000), 500.1, 9.0, 430.575, 7.0, "memory (11)", 3121.075, 24.9686),
    ],
)
def test_first_worked_example(
    clocks: tuple[float, float],
    dram_latency: float,
    dram_service: float,
    latency: float,
    service: float,
    case: str,
    active: float,
    us: float,
) -> None:
    found = case_form(W1, GTX_980, ClockPair(*clocks))
    assert found.delays == pytest.approx((dram_latency, dram_service, latency, service))
    assert found.compute_cycles == 2.5
    assert found.case == case
    assert found.active_cycles == pytest.approx(active)
    assert found.rounds.rounds == 8
    assert found.cycles == pytest.approx(8 * active)
    assert found.seconds * 1e6 == pytest.approx(us, abs=5e-5)


def test_fourth_worked_example() -> None:
    found = case_form(W4, GTX_980, ClockPair(700, 700))
    assert found.case == "shared, infrequent (17)"
    assert found.active_cycles == pytest.approx(3210.355)


def test_fifth_worked_example() -> None:
    """P1 = 4 + 7.2325 x 128 + 430.575 + 28, P2 = 2 x 7 + 30 x 32, P3 = 4 + 7.2325 x 16 + ..."""
    found = case_form(W5, GTX_980, ClockPair(700, 700))
    assert found.case == "shared, intensive (21)"
    assert found.compute_cycles == 2
    phases = (1388.335, 974.0, 578.295)
    assert found.active_cycles == pytest.approx(phases[0] + (phases[1] + phases[2]) * 32)
    assert found.active_cycles == pytest.approx(51061.775)


def test_without_loop_counts_shared_memory_is_left_out() -> None:
    unknown = replace(W5, outer_iterations=None, inner_iterations=None)
    plain = replace(W5, shared_transactions=0)
    pair = ClockPair(700, 700)
    assert case_form(unknown, GTX_980, pair) == case_form(plain, GTX_980, pair)


def test_a_launch_without_global_memory_only_issues() -> None:
    found = case_form(replace(W1, transactions=0), GTX_980, ClockPair(700, 700))
    assert found.case == "no global memory"
    assert found.cycles == 8 * 64 * 15


# --- what each correction does ---------------------------------------------------------------


# --- continuity ------------------------------------------------------------------------------


# --- clocks ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("work", "slow", "fast", "cases", "ratio"),
    [
        # Eq. 11 lies (g - 1) agl_del above Eq. 13 where they meet.
        (W1, (969, 1000), (970, 1000), ("few warps, short (13)", "memory (11)"), 1.011),
        # So does Eq. 9, by (g - 1) avr_comp.
        # Eq. 21 charges each block for all it waits, Eq. 17 for none of it.
        (
            replace(W1, shared_transactions=48, outer_iterations=6, inner_iterations=8),
            (700, 1150),
            (700, 1151),
            ("shared, infrequent (17)", "shared, intensive (21)"),
            2.373,
        ),
    ],
)
def test_where_one_case_gives_way_to_another_a_higher_clock_can_cost_time(
    work: QueueingLaunch,
    slow: tuple[float, float],
    fast: tuple[float, float],
    cases: tuple[str, str],
    ratio: float,
) -> None:
    """docs/frequency.md: the case form is not monotone in the clocks; the other two are."""
    below, above = (case_form(work, GTX_980, ClockPair(*pair)) for pair in (slow, fast))
    assert (below.case, above.case) == cases
    assert above.seconds / below.seconds == pytest.approx(ratio, abs=1e-3)


@given(
    st.builds(
        QueueingLaunch,
        instructions=st.floats(0, 2000),
        transactions=st.floats(0.01, 60),
        hit_rate=st.floats(0, 1),
        resident_warps=st.floats(1, 64),
        warps_per_block=st.integers(1, 32),
        blocks=st.integers(1, 4096),
        shared_transactions=st.floats(0, 100),
        outer_iterations=st.floats(1, 60),
        inner_iterations=st.floats(0, 100),
    ),
    st.floats(300, 1500),
    st.floats(300, 1500),
    st.floats(1, 3),
    st.floats(1, 3),
)
def test_within_a_case_no_clock_that_rises_costs_time(
    work: QueueingLaunch, core: float, memory: float, core_rise: float, memory_rise: float
) -> None:
    slow = case_form(work, GTX_980, ClockPair(core, memory))
    fast = case_form(work, GTX_980, ClockPair(core * core_rise, memory * memory_rise))
    assume(slow.case == fast.case)
    assert fast.seconds <= slow.seconds * (1 + 1e-9)


# --- What a launch is to Wang and Chu's model: by hand from PTX, from counters, and parameters

BOARD = load_gpu("gtx-980")

V100 = load_gpu("tesla-v100")


def analysed(name: str, launch: Launch, gpu: GpuProfile = BOARD, **options: Any) -> KernelAnalysis:
    module = read_module((KERNELS / name).read_text(encoding="utf-8"))
    return analyse(module, None, launch, gpu, analysis="symbolic", **options)


def kernel(body: str, launch: Launch, gpu: GpuProfile, target: str = "sm_52") -> KernelAnalysis:
    text = (
        f".version 7.0\n.target {target}\n.address_size 64\n"
        ".visible .entry k(.param .u64 p, .param .u32 n)\n{\n"
        ".reg .pred %p<9>;\n.reg .f32 %f<99>;\n.reg .f64 %fd<9>;\n.reg .b32 %r<99>;\n"
        f".reg .b64 %rd<99>;\n.shared .align 4 .b8 s[4096];\n{body}\nret;\n}}\n"
    )
    return analyse(read_module(text), None, launch, gpu, analysis="symbolic")


ADDRESS = (
    "ld.param.u64 %rd1, [p];\ncvta.to.global.u64 %rd2, %rd1;\nmov.u32 %r1, %tid.x;\n"
    "mul.wide.u32 %rd3, %r1, 4;\nadd.s64 %rd4, %rd2, %rd3;\n"
)


# --- from an analysis ------------------------------------------------------------------------
def test_a_vector_addition_by_hand() -> None:
    """Two loads and a store of 4 sectors each; both loads wait together; all data stay in L2."""
    found = launch_of(analysed("vector_add.ptx", Launch.of(196, 256)), BOARD, 28)
    assert found.transactions == 12
    assert found.hit_rate == 1
    assert (found.blocks, found.warps_per_block) == (196, 8)
    assert found.resident_warps == pytest.approx(0.9 * 64)
    # 13.55 machine instructions of a warp (ptxas makes 15), three of them accesses
    assert found.instructions == pytest.approx(10.55)
    assert found.mlp == 12
    assert found.shared_transactions == found.extra_cycles == found.texture_cycles == 0
    assert found.outer_iterations == 1


def test_a_tiled_multiplication_works_through_shared_memory() -> None:
    analysis = analysed(
        "tiled_matmul.ptx", Launch.of((32, 32), (32, 32)), loops={"default": 32},
        registers_per_thread=32,
    )  # fmt: skip
    found = launch_of(analysis, BOARD, 28)
    # 32 tiles, each of two transfers, two shared stores and 64 shared loads, of which 32 are read
    # four at a time by lanes that read alike: two passes for each four
    assert found.outer_iterations == pytest.approx(32)
    assert found.inner_iterations == pytest.approx(50)
    assert found.shared_transactions == pytest.approx(32 * 50)
    # Each tile: one wait for both loads; then a shared load and 32 dependent multiply-adds.
    chain = chain_of(analysis, BOARD, 28)
    assert chain.waits == pytest.approx(32)
    assert chain.cycles >= 32 * (28 + 32 * 6)
    assert found.mlp == pytest.approx(found.transactions / 32)


def test_arithmetic_on_64_lanes_takes_longer_than_its_issue() -> None:
    body = ADDRESS + "ld.global.f32 %f1, [%rd4];\n" + "fma.rn.f32 %f1, %f1, %f1, %f1;\n" * 1000
    body += "st.global.f32 [%rd4], %f1;"
    on_980 = launch_of(kernel(body, Launch.of(64, 256), BOARD), BOARD, 28)
    on_v100 = launch_of(kernel(body, Launch.of(64, 256), V100), V100, 19)
    assert on_980.extra_cycles == 0
    assert on_v100.instructions == on_980.instructions
    # Two cycles a schedule of four: half a cycle each of 1000 on top of a quarter's issue
    assert on_v100.extra_cycles == pytest.approx(1000 / 2 - on_v100.instructions / 4, rel=0.01)


def test_matrices_without_tensor_cores_are_refused() -> None:
    body = ADDRESS + (
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r2, %r3}, "
        "{%r4}, {%f1, %f2, %f3, %f4};\nst.global.f32 [%rd4], %f1;"
    )
    with pytest.raises(ModelError, match="no tensor cores"):
        launch_of(kernel(body, Launch.of(1, 32), BOARD, "sm_80"), BOARD, 28)
    found = launch_of(kernel(body, Launch.of(1, 32), V100, "sm_80"), V100, 19)
    # 16 x 8 x 8 multiply-adds at 512 a cycle and SM
    assert found.extra_cycles == pytest.approx(1024 / 512)


# --- from counters ---------------------------------------------------------------------------
COUNTERS: dict[str, object] = table("queueing", "counters")


def test_counters_by_hand() -> None:
    """200 blocks of 96 threads: 600 warps."""
    found = counters_to_inputs(COUNTERS, BOARD)
    assert (found.blocks, found.warps_per_block) == (200, 3)
    assert found.transactions == 15
    assert found.hit_rate == pytest.approx(2 / 3)
    assert found.resident_warps == 32
    assert found.shared_transactions == 21
    # requests of a warp: 1 and 1 of global memory, 10 and 1 of shared
    assert found.instructions == 187
    # threads' instructions, of which half a warp's lanes are on: 4 FP64 and 32 SFU lanes
    assert found.extra_cycles == pytest.approx((12800 / 4 + 19200 / 32) / 0.5 / 600)
    assert found.texture_cycles == pytest.approx(1200 * 4 / 8 / 600)
    assert found.mlp is None
    assert found.outer_iterations is None


def test_double_precision_from_operations_where_instructions_are_not_counted() -> None:
    counters = {name: value for name, value in COUNTERS.items() if name != "inst_fp_64"}
    operations = {"flop_count_dp": 16000, "flop_count_dp_fma": 3200}
    assert counters_to_inputs({**counters, **operations}, BOARD) == counters_to_inputs(
        COUNTERS, BOARD
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("inst_per_warp", None, "missing"),
        ("achieved_occupancy", "", "missing"),
        ("l2_read_transactions", "many", "no number"),
        ("dram_write_transactions", -1, "not negative"),
        ("blocks", "(100 2 1)", "grid and block"),
        ("blocks", "(100 2 1) (0 1 1)", "grid and block"),
    ],
)
def test_counters_that_do_not_do_are_named(name: str, value: object, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        counters_to_inputs({**COUNTERS, name: value}, BOARD)
    assert caught.value.context["column"] == name


# --- parameters of GPUs ------------------------------------------------------------------------
def test_the_gtx_980_has_the_papers_parameters_and_no_stand_in_but_the_start() -> None:
    gpu = gpu_parameters(BOARD)
    assert (gpu.sm_count, gpu.issue_cycles) == (16, 0.25)
    assert (gpu.latency_core_cycles, gpu.latency_memory_cycles) == (277.32, 222.78)
    assert (gpu.l2_latency, gpu.l2_service, gpu.shared_latency, gpu.shared_service) == (
        222,
        1,
        28,
        1,
    )
    assert gpu.launch_seconds == pytest.approx(1.4489e-6)  # thesis section 3.4, Tesla K20
    assert [each.code for each in gpu.diagnostics] == ["launch_overhead_assumed"]


def test_another_gpu_has_its_own_latency_at_its_default_clocks() -> None:
    gpu = gpu_parameters(V100)
    default = ClockPair(V100.core_mhz, V100.memory_mhz)
    assert delays(gpu, default, 0).dram_latency == pytest.approx(V100.dram_latency_cycles)
    # The share of the memory clock is that of the GTX 980 at its own default clocks.
    halved = delays(gpu, ClockPair(V100.core_mhz, V100.memory_mhz / 2), 0).dram_latency
    share = 222.78 * 1216 / 3505 / (277.32 + 222.78 * 1216 / 3505)
    assert halved == pytest.approx(V100.dram_latency_cycles * (1 + share))


def test_another_gpu_serves_at_the_bandwidth_its_streams_reach() -> None:
    gpu = gpu_parameters(V100)
    assert V100.streaming_share is not None
    peak = 80 * 32 / (4096 / 8 * 2)
    assert gpu.service.at(V100.memory_mhz) == pytest.approx(peak / V100.streaming_share)
    # Table III: 9.0 cycles at the top, a little more at two fifths of it
    assert gpu.service.at(V100.memory_mhz * 0.4) / gpu.service.at(V100.memory_mhz) == pytest.approx(
        10.06 / 9.0, rel=0.01
    )


def test_a_gpu_without_a_published_latency_says_whose_it_uses() -> None:
    nothing_timed = load_gpu("gtx-1080-ti").model_copy(update={"memory_timing": MemoryTiming()})
    found = gpu_parameters(nothing_timed)
    assert (found.l2_latency, found.shared_latency) == (222, 28)
    default = ClockPair(nothing_timed.core_mhz, nothing_timed.memory_mhz)
    assert delays(found, default, 0).dram_latency == pytest.approx(277.32 + 222.78 * 1216 / 3505)
    assert "latency_assumed" in [each.code for each in found.diagnostics]
    assert any("gtx-980" in each.detail for each in found.diagnostics)


# --- Wang and Chu's model as two families of time models

SERVERS = ("sm", "texture", "l2", "dram")


def launched(name: str, launch: Launch, gpu: GpuProfile, trips: float = 32) -> KernelAnalysis:
    module = read_module((KERNELS / name).read_text(encoding="utf-8"))
    return analyse(
        module, None, launch, gpu, loops={"default": trips}, registers_per_thread=32,
        analysis="symbolic",
    )  # fmt: skip


MATMUL = launched("tiled_matmul.ptx", Launch.of((32, 32), (32, 32)), BOARD)

SMALL = launched("vector_add.ptx", Launch.of(1, 256), BOARD)

LARGE = launched("vector_add.ptx", Launch.of(200_000, 256), BOARD)


def test_queueing_is_the_network_form_and_the_start_of_the_kernel() -> None:
    found = QueueingTimeModel().predict(MATMUL, BOARD)
    gpu = gpu_parameters(BOARD)
    form = network_form(launch_of(MATMUL, BOARD, 28), gpu, default_clocks(BOARD))
    assert found.estimate.value == pytest.approx(form.seconds + gpu.launch_seconds)
    assert found.clocks == default_clocks(BOARD)
    assert found.family == "queueing"


@pytest.mark.parametrize("analysis", [MATMUL, SMALL, LARGE])
def test_parts_of_queueing_add_up_as_it_says(analysis: KernelAnalysis) -> None:
    found = QueueingTimeModel().predict(analysis, BOARD)
    parts = found.parts
    busy = max(parts[name] for name in SERVERS) + parts["overlap"] + parts["latency"]
    assert found.estimate.value == pytest.approx(max(busy, parts["chain"]) + parts["launch"])


def test_parts_of_queueing_cases_add_up_and_name_the_case() -> None:
    found = QueueingCasesTimeModel().predict(MATMUL, BOARD)
    assert set(found.parts) == {"shared, intensive (21)", "launch"}
    assert found.estimate.value == pytest.approx(sum(found.parts.values()))
    assert found.regime == "compute"


def test_regimes() -> None:
    model = QueueingTimeModel()
    assert model.predict(SMALL, BOARD).regime == "launch"
    assert model.predict(LARGE, BOARD).regime == "memory"
    assert model.predict(MATMUL, BOARD, ClockPair(100, 3505)).regime == "compute"


def test_a_stream_takes_its_bytes_over_the_bandwidth() -> None:
    """200,000 blocks of 256 floats, twice read and once written, at 8 / 9 of 224 GB/s."""
    found = QueueingTimeModel().predict(LARGE, BOARD)
    bytes_moved = 200_000 * 256 * 12
    assert found.parts["dram"] == pytest.approx(bytes_moved / (3505e6 * 64 * 8 / 9), rel=0.01)
    assert found.estimate.value == pytest.approx(found.parts["dram"], rel=0.2)


def test_the_interval_is_that_of_programs_left_out() -> None:
    for family in ("queueing", "queueing-cases"):
        found = get_time_model(family).predict(MATMUL, BOARD).estimate
        width, basis = spread(family, "gtx-980")
        assert found.basis == basis == "unseen_kernel"
        assert found.low == pytest.approx(found.value * width.low_factor)
        assert found.high == pytest.approx(found.value * width.high_factor)
        assert found.level == 0.9
