"""Loops that repeat are worked out: counts equal those of running every iteration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.features.execution_kernels import counted_by_block, run
from tests.fixtures.tables import table
from wattcast.features.execution import ExecutionResult

# Bodies with a loop of n iterations (or of a number that depends on the thread).
UNIFORM = table("bodies", "steady")
OTHERS = table("bodies", "loops")


def both(body: str, n: int, **options: Any) -> tuple[ExecutionResult, ExecutionResult]:
    options |= {"declarations": ".shared .align 4 .b8 s[1024];"} if "shared" in body else {}
    options |= {"n": n, "grid": 6, "block": 64, "exact": False, "effort": None}
    quick, _ = run(body + "\nret;", **options)
    full, _ = run(body + "\nret;", extrapolate=False, **options)
    return quick, full


@pytest.mark.parametrize("name", UNIFORM)
def test_counts_equal_full_execution(name: str) -> None:
    with counted_by_block() as counted:
        quick, full = both(UNIFORM[name], 1200)
    assert quick.loops[0].extrapolated
    assert not any(loop.extrapolated for loop in full.loops)
    np.testing.assert_array_equal(*counted)
    assert [(x.mean, x.entries) for x in quick.loops] == [(x.mean, x.entries) for x in full.loops]
    assert quick.sampling.steps < full.sampling.steps / 5
    assert "loop_extrapolated" in {d.code for d in quick.diagnostics}


def test_a_loop_around_a_steady_loop_is_steady_too() -> None:
    with counted_by_block() as counted:
        quick, full = both(OTHERS["tiles"], 256)
    np.testing.assert_array_equal(*counted)
    assert [(x.mean, x.entries) for x in quick.loops] == [(x.mean, x.entries) for x in full.loops]
    assert quick.sampling.steps < full.sampling.steps / 40


@pytest.mark.parametrize(("body", "each"), [(OTHERS["wrapped"], 16 * 8), (OTHERS["again"], 40 * 8)])
def test_what_comes_round_again_leaves_no_new_sectors(body: str, each: int) -> None:
    """Offsets that wrap, each block's at another time, and a buffer passed through again."""
    with counted_by_block() as counted:
        quick, full = both(body, 300)
    assert any(loop.extrapolated for loop in quick.loops)
    for by_block in counted:
        assert by_block[:, -1].max(axis=1).tolist() == [each] * 6
    before, after = (
        (r.memory.footprint_sectors, r.memory.streams[0].distinct_lines) for r in (full, quick)
    )
    assert after == pytest.approx(before, rel=1e-9)


def test_lanes_that_leave_one_after_another() -> None:
    body = """
        mul.lo.u32 %r10, %r5, 5; add.u32 %r10, %r10, %r1; mov.u32 %r6, 0;
        $loop: ld.global.f32 %f1, [%rd3]; add.u64 %rd3, %rd3, 32; add.u32 %r6, %r6, 1;
        setp.lt.u32 %p1, %r6, %r10; @%p1 bra $loop;
        st.global.u32 [%rd3], %r6;"""
    with counted_by_block() as counted:
        quick, full = both(body, 300)
    np.testing.assert_array_equal(*(by_block[:, :2] for by_block in counted))
    assert quick.loops[0].mean == full.loops[0].mean == 300 + 5 * 383 / 2
    assert quick.functions["k"].sectors.sum() == pytest.approx(
        full.functions["k"].sectors.sum(), rel=0.02
    )


def test_a_loop_of_a_thousand_million_iterations_is_counted() -> None:
    result, _ = run(
        UNIFORM["tested at the top"] + "\nret;", n=10**9, grid=100, exact=False, effort=10_000_000
    )
    assert result.sampling.completed
    assert result.loops[0].mean == 10**9 + 1


BY_NO_EQUAL_STEPS = ("shr.u32 %r9, %r6, 1", "and.b32 %r9, %r6, 4095", "rem.u32 %r9, %r6, 3000")


@pytest.mark.parametrize(
    "body", [OTHERS["by_loaded"], *map(OTHERS["bent"].format, BY_NO_EQUAL_STEPS)]
)
def test_loops_steered_by_loaded_data_or_in_no_equal_steps_are_run(body: str) -> None:
    quick, full = both(body, 500 if body is OTHERS["by_loaded"] else 1200)
    assert not quick.loops[0].extrapolated
    assert quick.loops == full.loops


@pytest.mark.parametrize("bent", ["mul.hi.u32 %r9, %r6, 1048576", "cvt.u32.u8 %r9, %r6",
                                  "mad.hi.u32 %r9, %r6, 1048576, 0"])  # fmt: skip
def test_what_stands_still_for_a_while_is_not_taken_to_stand_for_ever(bent: str) -> None:
    """Quotients by constants, and counters that wrap: 9,999 iterations were told of 4,096."""
    ends = "lt" if "u8" in bent else "ge"
    body = f"""
        mov.u32 %r6, 1;
        $loop: add.u32 %r6, %r6, 3; {bent}; ld.global.u32 %r8, [%rd3];
        setp.{ends}.u32 %p2, %r9, %r1; @%p2 bra $out;
        setp.lt.u32 %p1, %r6, 30000; @%p1 bra $loop; $out:"""
    quick, full = both(body, 3)
    assert not quick.loops[0].extrapolated
    assert quick.loops == full.loops
