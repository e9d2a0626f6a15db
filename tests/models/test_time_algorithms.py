"""Algorithms 6 to 8: worked by hand, and against the printed cycle-by-cycle table."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattcast.features.cfg import BasicBlock, ControlFlowGraph
from wattcast.features.errors import LaunchError
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx.ir import Body
from wattcast.models.papers.thesis.code import (
    Operation,
    WavePlan,
    schedule_block,
    schedule_cfg,
    schedule_in_order,
    start_order,
    wave_plan,
)

K20_UNITS = {"SP": 192, "SFU": 32, "DPU": 64, "LSU": 32, "WS": 128}
K20 = load_gpu("tesla-k20")
"""13 SMs; each holds 2048 threads, 16 blocks, 65536 registers, 49152 bytes of shared memory."""


def op(latency: float, resource: str, *predecessors: int) -> Operation:
    return Operation(latency, resource, predecessors)


# --- Algorithm 6, by hand ---------------------------------------------------------------


def test_the_illustration_of_the_thesis() -> None:
    """Section 4.4.4.2: vector addition on Tesla K20, nTW = 256, L(add) 9, L(ld) 315.

    d(add) = 9 + 1 (ceil(256/192) - 1) = 10;  d(ld) = 315 + 1 (ceil(256/32) - 1) = 322
    C8  0..10    C9 10..20 (SP is taken)    C10 20..30
    M1 10..332 after C8, beside C9: as printed
    M2 waits for the load/store units: 332..654
    C11 waits for M1 (332, as printed) and M2: starts at 654, ends at 664.
    The thesis prints 655 for M2's end, one cycle more than its own steps 6 to 9 give:
    332 + 322 = 654.
    """
    block = [
        op(9, "SP"),  # C8
        op(9, "SP"),  # C9
        op(9, "SP", 1),  # C10
        op(315, "LSU", 0),  # M1
        op(315, "LSU", 2),  # M2
        op(9, "SP", 3, 4),  # C11
    ]
    schedule = schedule_block(block, 256, K20_UNITS)
    assert schedule.starts == pytest.approx((0, 10, 20, 10, 332, 654), abs=1e-9)
    assert schedule.starts[3] + 322 == pytest.approx(332, abs=1e-9)  # printed
    assert schedule.starts[5] + 1 == pytest.approx(655, abs=1e-9)  # printed, less its one cycle
    assert schedule.delay == pytest.approx(664, abs=1e-9)


# --- Algorithm 6, against the printed table ------------------------------------------------


def literal_schedule_block(
    operations: list[Operation], threads: int, units: dict[str, int]
) -> tuple[list[int], int]:
    """Algorithm 6 line by line with a reservation table of single cycles (whole latencies)."""
    table: dict[str, set[int]] = {}
    schedule: list[int] = []
    delay = 0
    for v in operations:
        t = 0
        for u in v.predecessors:
            before = operations[u]
            batches = ceil(threads / units[before.resource])
            t = max(t, schedule[u] + int(before.latency) + 1 * (batches - 1))
        d = int(v.latency) + 1 * (ceil(threads / units[v.resource]) - 1)
        row = table.setdefault(v.resource, set())
        t1 = t
        while any(cycle in row for cycle in range(t1, t1 + d)):
            t1 += 1
        schedule.append(t1)
        row.update(range(t1, t1 + d))
        delay = max(delay, t1 + d)
    return schedule, delay


@st.composite
def blocks(draw: st.DrawFn) -> list[Operation]:
    operations: list[Operation] = []
    for at in range(draw(st.integers(0, 14))):
        before = draw(st.lists(st.integers(0, at - 1), unique=True, max_size=3)) if at else []
        latency = draw(st.integers(1, 25))
        resource = draw(st.sampled_from(["SP", "SFU", "LSU"]))
        operations.append(Operation(latency, resource, tuple(before)))
    return operations


UNITS = st.fixed_dictionaries(
    {"SP": st.integers(1, 200), "SFU": st.integers(1, 32), "LSU": st.integers(1, 32)}
)


@given(blocks(), st.integers(1, 300), UNITS)
def test_interval_reservations_equal_the_cycle_table(
    block: list[Operation], threads: int, units: dict[str, int]
) -> None:
    starts, delay = literal_schedule_block(block, threads, units)
    schedule = schedule_block(block, threads, units)
    assert list(schedule.starts) == starts
    assert schedule.delay == delay


@given(blocks(), st.integers(1, 2048), st.integers(1, 2048), UNITS, st.data())
def test_in_a_fixed_order_more_work_is_never_shorter(
    block: list[Operation], reference: int, threads: int, units: dict[str, int], data: st.DataObject
) -> None:
    order = start_order(schedule_block(block, reference, units))
    delay = schedule_in_order(block, order, threads, units)
    assert schedule_in_order(block, order, threads + data.draw(st.integers(0, 500)), units) >= delay
    longer = [
        Operation(o.latency + data.draw(st.integers(0, 9)), o.resource, o.predecessors)
        for o in block
    ]
    assert schedule_in_order(longer, order, threads, units) >= delay


def test_algorithm_6_itself_has_anomalies() -> None:
    """Why the model fixes the order: here a LONGER first load lets the block end sooner.

    n = 1. With a load of 4: a 0..4; b after it 4..5 on SP; c (5) does not fit before b: 5..10;
    d after c on LSU: 10..30. With a load of 5: b 5..6, so c fits 0..5 and d runs 5..25.
    """
    short = [op(4, "LSU"), op(1, "SP", 0), op(5, "SP"), op(20, "LSU", 2)]
    long = [op(5, "LSU"), *short[1:]]
    assert schedule_block(short, 1, K20_UNITS).delay == 30
    assert schedule_block(long, 1, K20_UNITS).delay == 25
    order = start_order(schedule_block(short, 1, K20_UNITS))
    assert schedule_in_order(short, order, 1, K20_UNITS) == 30
    assert schedule_in_order(long, order, 1, K20_UNITS) == 31


# --- Algorithm 7, by hand ------------------------------------------------------------------


def cfg_delay(
    successors: list[tuple[int, ...]], multipliers: list[float], delays: list[float]
) -> float:
    blocks = tuple(BasicBlock(at, 0, 0, None, to, ()) for at, to in enumerate(successors))
    order = ControlFlowGraph(Body((), (), (), (), {}, ()), blocks, 0, ()).reverse_post_order
    return schedule_cfg(successors, multipliers, order, delays.__getitem__)


def test_the_longer_side_of_a_branch_counts() -> None:
    """0 -> {1, 2} -> 3 with 10, 5, 700.5, 20 cycles: 10 + max(5, 700.5) + 20 = 730.5."""
    delay = cfg_delay([(1, 2), (3,), (3,), ()], [1, 1, 1, 1], [10, 5, 700.5, 20])
    assert delay == pytest.approx(730.5, abs=1e-9)


def test_nested_loops_multiply_and_the_longest_exit_counts() -> None:
    """0 -> 1 (outer, 4 trips) -> 2 (inner, 4 x 8, self loop) -> 3 (outer) -> {1, 4}; 0 -> 5, an
    early exit of 3000 cycles.

    Through the loops: 1 + 4x2 + 32x10 + 4x3 + 5 = 346. The early exit: 1 + 3000 = 3001.
    Without the early exit's weight (0 cycles) the loops decide: 346.
    """
    successors = [(1, 5), (2,), (2, 3), (1, 4), (), ()]
    multipliers = [1, 4, 32, 4, 1, 1]
    late = cfg_delay(successors, multipliers, [1, 2, 10, 3, 5, 3000])
    assert late == pytest.approx(3001, abs=1e-9)
    loops = cfg_delay(successors, multipliers, [1, 2, 10, 3, 5, 0])
    assert loops == pytest.approx(346, abs=1e-9)


def test_unreachable_blocks_and_irreducible_loops() -> None:
    """Block 3 is never reached. 1 and 2 jump to each other, entered at both: the edge that
    goes back in the order is left out, so each counts once: 1 + 2 + 3 = 6."""
    assert cfg_delay([(1, 2), (2,), (1,), (1,)], [1, 1, 1, 1], [1, 2, 3, 999]) == 6


def test_a_chain_of_many_blocks_needs_no_recursion() -> None:
    count = 50_000
    successors = [*((at + 1,) for at in range(count - 1)), ()]
    assert cfg_delay(successors, [1.0] * count, [1.0] * count) == count


# --- Algorithm 8, by hand ------------------------------------------------------------------


def test_waves_by_registers_at_an_exact_multiple() -> None:
    """64 registers x 256 threads = 16384 of 65536: 4 blocks, 1024 threads at once. 104 blocks:
    104 x 256 / 13 = 2048 = 2 x 1024 threads: 2 waves, not the 3 of the printed `>= 0`."""
    plan = wave_plan(K20, Launch.of(104, 256), 64, 0)
    assert plan == WavePlan(2048, 1024, 2)


@pytest.mark.parametrize(
    ("blocks_launched", "threads", "expected"),
    [
        # 16 blocks of 32 at most: 512 threads; 13 x 20 blocks: 640 per SM, 2 waves
        (260, 32, WavePlan(640, 512, 2)),
        # fewer blocks than SMs: the one that works has a whole block
        (1, 256, WavePlan(256, 256, 1)),
        # only whole blocks: 2 of 768 fit into 2048; 39 blocks: 2304 per SM, 2 waves
        (39, 768, WavePlan(2304, 1536, 2)),
        # all at once: 13 x 256 / 13
        (13, 256, WavePlan(256, 256, 1)),
    ],
)
def test_waves_by_other_limits(blocks_launched: int, threads: int, expected: WavePlan) -> None:
    assert wave_plan(K20, Launch.of(blocks_launched, threads), 16, 0) == expected


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "field"),
    [
        (1024, 65, 0, "registers_per_thread"),
        (128, 16, 49153, "shared_bytes"),
        (4096, 1, 0, "block"),
    ],
)
def test_a_block_that_does_not_fit(threads: int, registers: int, shared: int, field: str) -> None:
    with pytest.raises(LaunchError) as caught:
        wave_plan(K20, Launch.of(10, threads), registers, shared)
    assert caught.value.field == field
