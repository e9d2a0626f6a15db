"""The corrected case distinction: worked examples, continuity, and where it is not monotone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.models.test_time_queueing import GTX_980, W1
from wattcast.models.clocks import ClockPair
from wattcast.models.papers.wang_chu.model import case_form
from wattcast.models.papers.wang_chu.network import QueueingLaunch

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
