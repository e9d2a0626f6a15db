"""Wang and Chu's model: the paper's tables, worked examples, and what must hold for any launch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattcast.features.errors import LaunchError
from wattcast.features.gpus import load_gpu
from wattcast.models.clocks import ClockPair
from wattcast.models.papers.wang_chu.inputs import gpu_parameters
from wattcast.models.papers.wang_chu.network import (
    QueueingLaunch,
    closed_network_cycles,
    delays,
    network_form,
    rounds_of,
    smooth_service_cycles,
)

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
