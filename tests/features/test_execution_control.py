"""Divergence, barriers, calls and talk between lanes, on PTX written by hand."""

from __future__ import annotations

import tracemalloc

import pytest

from tests.features.execution_kernels import FIRST, counts_of, run
from wattcast.features.execution import steady, trips


def codes(result) -> set[str]:
    return {d.code for d in result.diagnostics}


def test_lanes_that_part_meet_again_at_the_smallest_instruction() -> None:
    result, out = run(
        """
        setp.lt.u32 %p1, %r2, 10;
        @%p1 bra $less;
        mov.u32 %r6, 7;
        bra $end;
        $less: mov.u32 %r6, 3;
        $end: st.global.u32 [%rd3], %r6;
        ret;
        """,
        block=64,
    )
    assert out.tolist() == [3] * 10 + [7] * 54
    assert counts_of(result, FIRST + 1) == (2, 10)  # the branch: two warps, ten lanes take it
    assert counts_of(result, FIRST + 2) == (2, 54)
    assert counts_of(result, FIRST + 4) == (1, 10)
    assert counts_of(result, FIRST + 5) == (2, 64)


def test_trips_of_a_loop_whose_lanes_leave_one_by_one() -> None:
    result, out = run(
        """
        mov.u32 %r6, 0;
        $loop: add.u32 %r6, %r6, 1;
        setp.le.u32 %p1, %r6, %r2;
        @%p1 bra $loop;
        st.global.u32 [%rd3], %r6;
        ret;
        """
    )
    assert out.tolist() == list(range(1, 33))
    assert counts_of(result, FIRST + 1) == (32, 32 * 33 // 2)
    (loop,) = result.loops
    assert (loop.mean, loop.entries) == (16.5, 32)
    assert not loop.extrapolated


IN_PROGRESS = {
    "called from a loop": """
        and.b32 %r8, %r2, 3;
        $again: call f, (%r2); sub.s32 %r8, %r8, 1; setp.gt.s32 %p1, %r8, -4; @%p1 bra $again;
        ret;""",
    "others before a later loop": """
        setp.lt.u32 %p1, %r2, 9; mov.u32 %r6, 5; @%p1 bra $later;
        $one: sub.s32 %r6, %r6, 1; setp.gt.s32 %p2, %r6, 0; @%p2 bra $one;
        $two: add.s32 %r6, %r6, 1; setp.lt.u32 %p2, %r6, %r2; @%p2 bra $two;
        $later: sub.s32 %r6, %r6, 1; setp.gt.s32 %p2, %r6, 0; @%p2 bra $later;
        ret;""",
    "some leave for the next loop": """
        $one: add.s32 %r6, %r6, 1; setp.lt.s32 %p2, %r6, 3; @%p2 bra $one;
        $two: add.s32 %r6, %r6, 1; setp.gt.u32 %p2, %r6, %r2; @%p2 bra $next; bra $two;
        $next: sub.s32 %r6, %r6, 1; setp.gt.s32 %p2, %r6, 0; @%p2 bra $next;
        ret;""",
}


@pytest.mark.parametrize("body", IN_PROGRESS.values(), ids=IN_PROGRESS)
def test_loops_in_progress_are_not_settled_early(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = """.func f(.reg .u32 %a) { .reg .pred %q; .reg .b32 %b; mov.u32 %b, %a;
        $one: sub.s32 %b, %b, 1; setp.gt.s32 %q, %b, 0; @%q bra $one;
        $two: add.s32 %b, %b, 1; setp.lt.s32 %q, %b, %a; @%q bra $two;
        ret; }
    """
    kept, _ = run(body, before=before)
    monkeypatch.setattr(trips, "MOST_HELD", 0)
    settled, _ = run(body, before=before)
    assert settled.loops == kept.loops
    assert max(loop.mean for loop in kept.loops) > 2


@pytest.mark.parametrize("again", ["setp.lt.u32 %p1, %r6, 0;", "setp.lt.u32 %p1, %r6, 5;"])
def test_memory_for_loops_does_not_grow_with_their_number(
    again: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trips, "MOST_HELD", 4)
    monkeypatch.setattr(steady, "WATCHED_BYTES", 2**20)
    body = "\n".join(
        f"mov.u32 %r6, 0; $l{i}: add.u32 %r6, %r6, 1; {again} @%p1 bra $l{i};" for i in range(200)
    )
    tracemalloc.start()
    run(body, grid=32, block=256, exact=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 0.6 * 200 * 8 * 256 * 32  # of a number per thread and loop


def test_recursion_keeps_a_frame_per_depth() -> None:
    before = """
    .func (.param .b32 r) sum(.param .b32 a)
    { .reg .pred %p<2>; .reg .b32 %r<6>;
      ld.param.u32 %r1, [a]; mov.u32 %r4, 0; setp.eq.u32 %p1, %r1, 0; @%p1 bra $done;
      sub.u32 %r2, %r1, 1;
      { .param .b32 p; .param .b32 q; st.param.b32 [p], %r2;
        call (q), sum, (p); ld.param.b32 %r3, [q]; }
      add.u32 %r4, %r3, %r1;
      $done: st.param.b32 [r], %r4; ret; }
    """
    result, out = run(
        """
        { .param .b32 arg; .param .b32 res; st.param.b32 [arg], %r2;
        call.uni (res), sum, (arg); ld.param.b32 %r7, [res]; }
        st.global.u32 [%rd3], %r7;
        ret;
        """,
        before=before,
    )
    assert out.tolist() == [i * (i + 1) // 2 for i in range(32)]
    assert codes(result) == set()


def test_atomics_act_in_the_order_of_threads() -> None:
    _, out = run(
        """
        add.u64 %rd4, %rd1, 128;
        atom.global.add.u32 %r6, [%rd4], 3;
        atom.global.max.u32 %r7, [%rd4+4], %r2;
        atom.global.cas.b32 %r8, [%rd4+8], 0, 9;
        atom.global.inc.u32 %r9, [%rd4+12], 4;
        red.global.add.u32 [%rd4+16], %r2;
        st.global.u32 [%rd3], %r6;
        ret;
        """,
        words=37,
    )
    assert out[:32].tolist() == [3 * i for i in range(32)]
    assert out[32:].tolist() == [96, 31, 9, 32 % 5, 496]
