"""Algorithms 4 and 5 of the thesis on plain numbers; every expected value worked by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattcast.models.papers.thesis.delay import (
    at_parallelism,
    bottleneck,
    compute_delay,
    global_penalty,
    instruction_level_parallelism,
    issue_cycles,
    issue_rounds,
    kernel_delay,
    memory_delay,
    parallel_degree,
    serial_blocks,
    shared_penalty,
)

K20_BANDWIDTH = 208e9

# --- parallelism ---------------------------------------------------------------------------


def test_dispatch_units_are_filled_in_text_order() -> None:
    """Two units: {0, 1}, {2}, {3, 4}, {5}: 3 needs 2 and 5 needs 3 of the same cycle.

    6 instructions in 4 cycles: ILP 1.5. One unit takes one a cycle: ILP 1.
    """
    block = [(), (), (0, 1), (2,), (), (3,)]
    assert issue_cycles(block, 2) == 4
    assert instruction_level_parallelism(block, 2) == 1.5
    assert issue_cycles(block, 1) == 6
    assert instruction_level_parallelism(block, 1) == 1.0


def test_a_dependent_instruction_ends_the_cycle_for_those_behind_it() -> None:
    """In order: 2 is independent but stands behind 1, which waits for 0. {0}, {1, 2}."""
    assert issue_cycles([(), (0,), ()], 2) == 2


def test_a_chain_has_no_parallelism_and_an_empty_block_none_to_lose() -> None:
    assert instruction_level_parallelism([(), (0,), (1,)], 2) == 1.0
    assert issue_cycles([], 2) == 0
    assert instruction_level_parallelism([], 2) == 1.0


blocks_of = st.integers(0, 20).flatmap(
    lambda n: st.tuples(
        *(st.lists(st.integers(0, max(0, i - 1)), max_size=3 if i else 0) for i in range(n))
    )
)


@given(blocks_of, st.integers(1, 4))
def test_parallelism_lies_between_one_and_the_units(block: tuple[list[int]], units: int) -> None:
    assert 1 <= instruction_level_parallelism(block, units) <= units


def test_a_row_of_table_3_1_between_its_columns() -> None:
    """fma: 119, 95, 143 threads a cycle at ILP 1, 2, 3. At 1.5: 119 + (95 - 119) / 2 = 107."""
    row = (119.0, 95.0, 143.0)
    assert [at_parallelism(row, ilp) for ilp in (1, 1.5, 2, 2.25, 3, 7)] == [
        119, 107, 95, 107, 143, 143,
    ]  # fmt: skip
    assert at_parallelism((150.0,), 2.5) == 150


# --- equations 4.3, 4.4, 4.5 -----------------------------------------------------------------


def test_compute_delay_below_and_above_peak_warps() -> None:
    """add.f32 on Tesla K20: L = 9, peakWarps = 36, TP = 122.

    8 warps: 9 / 8 = 1.125. 36 still: 9 / 36 = 0.25. 64: 9 / (64 x 36) + 32 / 122
    = 0.00390625 + 0.26229508 = 0.26620133.
    """
    assert compute_delay(9, 8, 36, 122) == 1.125
    assert compute_delay(9, 36, 36, 122) == 0.25
    assert compute_delay(9, 64, 36, 122) == pytest.approx(0.26620133, abs=1e-8)


def test_one_warp_above_peak_warps_costs_more_than_one_below() -> None:
    """The printed cases do not meet. mul.s32: L = 9, peakWarps = 8, TP = 28:
    8 warps 9 / 8 = 1.125; 9 warps 9 / 72 + 32 / 28 = 0.125 + 1.142857 = 1.267857.
    A load of 321 cycles, penalty 0.4345, peakWarps 56.8: 56 warps 5.732, 57 warps 6.066.
    """
    assert compute_delay(9, 8, 8, 28) == 1.125
    assert compute_delay(9, 9, 8, 28) == pytest.approx(1.267857, abs=1e-6)
    assert memory_delay(321, 56, 56.8, 0.4345) == pytest.approx(5.732, abs=1e-3)
    assert memory_delay(321, 57, 56.8, 0.4345) == pytest.approx(6.066, abs=1e-3)


@given(
    st.floats(1, 2000), st.floats(1, 128), st.floats(1, 128), st.floats(1, 200), st.floats(1, 128)
)
def test_within_a_case_more_parallelism_never_costs(
    latency: float, one: float, more: float, throughput: float, peak: float
) -> None:
    low, high = sorted((one, more))
    if (low <= peak) == (high <= peak):
        for delay in (compute_delay, memory_delay):
            assert delay(latency, high, peak, throughput) <= delay(latency, low, peak, throughput)


def test_global_penalty_is_transactions_over_bandwidth() -> None:
    """4 bytes a thread: one transaction, 128 / 208e9 s = 0.6154 ns; 16 bytes: four; one byte
    fills a quarter of one and costs it whole."""
    assert global_penalty(4, K20_BANDWIDTH) == pytest.approx(0.61538e-9, rel=1e-5)
    assert global_penalty(16, K20_BANDWIDTH) == pytest.approx(2.46154e-9, rel=1e-5)
    assert global_penalty(1, K20_BANDWIDTH) == global_penalty(4, K20_BANDWIDTH)


def test_shared_penalty_is_words_of_a_bank() -> None:
    """32 words in 32 banks: 1 cycle; 8 bytes a thread: 2; 3 conflicts of 4 bytes: 1 + 3."""
    assert shared_penalty(4, 32) == 1.0
    assert shared_penalty(8, 32) == 2.0
    assert shared_penalty(4, 32, conflicts=3) == 4.0


# --- Algorithm 4 -----------------------------------------------------------------------------


def test_blocks_are_summed_and_loops_multiplied() -> None:
    """(1 + 2.5) + 32 x 10 + 3 = 326.5 cycles; a loop of no trip costs nothing: 6.5."""
    blocks = [[1.0, 2.5], [10.0], [3.0]]
    assert kernel_delay(blocks, [1, 32, 1]) == 326.5
    assert kernel_delay(blocks, [1, 0, 1]) == 6.5
    assert kernel_delay([], []) == 0


# --- Algorithm 5 -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("warps", "cores", "rounds"),
    [(1, 192, 1), (6, 192, 1), (8, 192, 2), (32, 192, 6), (8, 64, 4), (3, 16, 3)],
)
def test_issue_rounds(warps: int, cores: int, rounds: int) -> None:
    """192 cores issue 6 warps at once: 256 threads are 8 warps, ceil(8 / 6) = 2. Fewer cores than
    a warp has threads still issue one."""
    assert issue_rounds(warps, cores) == rounds


@pytest.mark.parametrize(
    ("blocks", "resident", "serial"),
    [
        # 13 SMs. One wave of 8 x 13 = 104, then 92 blocks: 8 + ceil(92 / 13) = 8 + 8
        (196, 8, 16),
        (1, 8, 1),
        (13, 8, 1),
        (14, 8, 2),
        # an exact number of waves leaves no rest: 2 x 8
        (208, 8, 16),
        # one resident block: 14 blocks are a wave and one more
        (14, 1, 2),
    ],
)
def test_serial_blocks_on_thirteen_sms(blocks: int, resident: int, serial: int) -> None:
    assert serial_blocks(blocks, 13, resident) == serial


def handed_out(blocks: int, sm_count: int, resident: int) -> int:
    """Lines 6 to 17 of Algorithm 5 as they must be meant: SM after SM until the wave is full,
    then the fullest SM counts and the counters start anew."""
    total = 0
    counters = [0] * sm_count
    for block in range(blocks):
        if block and block % (resident * sm_count) == 0:
            total += max(counters)
            counters = [0] * sm_count
        counters[block % (resident * sm_count) % sm_count] += 1
    return total + max(counters)


@given(st.integers(1, 400), st.integers(1, 20), st.integers(1, 6))
def test_serial_blocks_are_those_handed_out_one_by_one(
    blocks: int, sm_count: int, resident: int
) -> None:
    assert serial_blocks(blocks, sm_count, resident) == handed_out(blocks, sm_count, resident)
    assert serial_blocks(blocks, sm_count, resident) == -(-blocks // sm_count)


# --- memory access parallel degree --------------------------------------------------------------


def test_parallel_degree_and_bottleneck() -> None:
    """208 GB/s, 500 ns, 128 bytes a warp: 128 / 500 ns = 0.256 GB/s a warp, 812.5 warps at once.

    1625 warps take two turns, one of them waiting: 500 ns = 1625 x 128 / 208e9 (1000 ns) less a
    latency. 800 warps do not wait.
    """
    degree = parallel_degree(K20_BANDWIDTH, 128, 500e-9)
    assert degree == pytest.approx(812.5)
    assert bottleneck(1625, degree, 500e-9) == pytest.approx(500e-9)
    assert bottleneck(1625, degree, 500e-9) == pytest.approx(1625 * 128 / K20_BANDWIDTH - 500e-9)
    assert bottleneck(800, degree, 500e-9) == 0
