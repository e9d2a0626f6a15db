"""Divergence, barriers, calls and talk between lanes, on PTX written by hand."""

from __future__ import annotations

import tracemalloc

import numpy as np
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


def test_a_guard_that_holds_nowhere_is_executed_with_no_active_lane() -> None:
    result, out = run(
        """
        setp.gt.u32 %p1, %r2, 1000;
        @%p1 st.global.u32 [%rd3], %r2;
        @!%p1 st.global.u32 [%rd3], %r4;
        ret;
        """
    )
    assert out.tolist() == [32] * 32
    assert counts_of(result, FIRST + 1) == (1, 0)
    assert counts_of(result, FIRST + 2) == (1, 32)
    sectors = result.functions["k"].sectors
    assert sectors[FIRST + 1] == 0
    assert sectors[FIRST + 2] == 4


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


def test_threads_wait_at_barriers_for_the_whole_block() -> None:
    _, out = run(
        """
        shl.b32 %r6, %r2, 2;
        setp.lt.u32 %p1, %r2, 32;
        @%p1 bra $late;
        st.shared.u32 [%r6], %r2;
        bar.sync 0;
        bra $read;
        $late: mov.u32 %r7, 0;
        $spin: add.u32 %r7, %r7, 1;
        setp.lt.u32 %p2, %r7, 50;
        @%p2 bra $spin;
        st.shared.u32 [%r6], %r7;
        bar.sync 0;
        $read: xor.b32 %r6, %r6, 128;
        ld.shared.u32 %r8, [%r6];
        st.global.u32 [%rd3], %r8;
        ret;
        """,
        block=64,
        declarations=".shared .align 4 .b8 buffer[256];",
    )
    assert out.tolist() == list(range(32, 64)) + [50] * 32


def test_threads_that_left_are_not_waited_for() -> None:
    result, out = run(
        """
        setp.lt.u32 %p1, %r2, 40;
        @%p1 ret;
        bar.sync 0;
        st.global.u32 [%rd3], %r2;
        ret;
        """,
        block=64,
    )
    assert out.tolist() == [0] * 40 + list(range(40, 64))
    assert result.sampling.completed
    assert codes(result) == set()


def test_device_functions_called_from_both_sides_of_a_branch() -> None:
    before = """
    .func (.param .b32 r) twice(.param .b32 a)
    { .reg .b32 %r<3>; ld.param.u32 %r1, [a]; add.u32 %r2, %r1, %r1; st.param.b32 [r], %r2; ret; }
    """
    call = """
        {{ .param .b32 arg; .param .b32 res; st.param.b32 [arg], {0};
        call.uni (res), twice, (arg); ld.param.b32 %r7, [res]; }}
    """
    _, out = run(
        f"""
        setp.lt.u32 %p1, %r2, 16;
        @%p1 bra $a;
        {call.format("%r4")}
        bra $end;
        $a: {call.format("%r2")}
        $end: st.global.u32 [%rd3], %r7;
        ret;
        """,
        before=before,
    )
    assert out.tolist() == [2 * i if i < 16 else 64 for i in range(32)]


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


def test_shuffles_votes_and_matches() -> None:
    _, out = run(
        """
        shfl.sync.bfly.b32 %r6, %r2, 1, 31, -1;
        setp.lt.u32 %p1, %r2, 5;
        vote.sync.ballot.b32 %r7, %p1, -1;
        and.b32 %r8, %r2, 3;
        match.any.sync.b32 %r9, %r8, -1;
        redux.sync.max.u32 %r10, %r2, -1;
        mul.lo.u32 %r11, %r5, 4;
        mul.wide.u32 %rd4, %r11, 4; add.u64 %rd5, %rd1, %rd4;
        st.global.v4.u32 [%rd5], {%r6, %r7, %r9, %r10};
        ret;
        """,
        words=128,
    )
    table = out.reshape(32, 4)
    lane = np.arange(32)
    np.testing.assert_array_equal(table[:, 0], lane ^ 1)
    assert set(table[:, 1]) == {31}
    np.testing.assert_array_equal(table[:, 2], 0x11111111 << (lane & 3))
    assert set(table[:, 3]) == {31}


def test_lanes_wait_at_a_shuffle_for_those_its_mask_names() -> None:
    result, out = run(
        """
        setp.lt.u32 %p1, %r2, 16;
        mov.u32 %r6, %r2;
        @%p1 bra $meet;
        add.u32 %r6, %r6, 100;
        add.u32 %r6, %r6, 100;
        $meet: shfl.sync.bfly.b32 %r7, %r6, 16, 31, -1;
        st.global.u32 [%rd3], %r7;
        ret;
        """
    )
    assert out.tolist() == [216 + i for i in range(16)] + list(range(16))
    assert counts_of(result, FIRST + 5) == (1, 32)


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


def test_sub_word_and_vector_accesses() -> None:
    _, out = run(
        """
        cvt.u64.u32 %rd4, %r5; add.u64 %rd5, %rd1, %rd4;
        st.global.u8 [%rd5], %r2;
        bar.sync 0;
        ld.global.s8 %r6, [%rd5];
        sub.s32 %r6, %r6, 40;
        ld.global.v2.u16 {%r7, %r8}, [%rd1];
        mad.lo.u32 %r6, %r8, 65536, %r6;
        bar.sync 0;
        st.global.u32 [%rd3], %r6;
        ret;
        """
    )
    wanted = [(0x0302 * 65536 + i - 40) % 2**32 for i in range(32)]
    assert out.tolist() == wanted


def test_local_arrays_are_private_to_each_thread() -> None:
    _, out = run(
        """
        mov.u64 %rd6, array; cvta.local.u64 %rd7, %rd6;
        st.u32 [%rd7+4], %r2;
        ld.local.u32 %r6, [%rd6+4];
        add.u32 %r6, %r6, 1;
        st.global.u32 [%rd3], %r6;
        ret;
        """,
        declarations=".local .align 8 .b8 array[16];",
    )
    assert out.tolist() == list(range(1, 33))


def test_indirect_branches_go_by_the_table() -> None:
    result, out = run(
        """
        and.b32 %r6, %r2, 3;
        $targets: .branchtargets $a, $b, $c, $c;
        brx.idx %r6, $targets;
        $a: mov.u32 %r7, 10; bra $end;
        $b: mov.u32 %r7, 11; bra $end;
        $c: mov.u32 %r7, 12;
        $end: st.global.u32 [%rd3], %r7;
        ret;
        """
    )
    assert out.tolist() == [10, 11, 12, 12] * 8
    assert codes(result) == set()
