"""Trip counts, branches, accesses and samples of small kernels, checked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.features.execution_kernels import kernel
from tests.features.symbolic_programs import known
from tests.fixtures.tables import table
from wattcast.features.errors import LaunchError
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.features.symbolic import AccessInfo, SymbolicResult, TripInfo, analyse_symbolically
from wattcast.features.symbolic import sample as sampling


def analyse(
    body: str, *, grid: int | tuple[int, ...] = 1, block: int | tuple[int, ...] = 32,
    declarations: str = "", **arguments: object,
) -> SymbolicResult:  # fmt: skip
    module = read_module(kernel(body, declarations=declarations))
    launch = Launch.of(grid, block, 0, arguments)  # type: ignore[arg-type]
    return analyse_symbolically(module, module.kernel("k"), launch)


def per_request(result: SymbolicResult, access: AccessInfo) -> float:
    """Sectors of a request to global memory, or transactions of one to shared memory."""
    counts, at = result.functions["k"], access.position
    moved = counts.sectors[at] + counts.shared_transactions[at]
    return float(moved / (counts.requests[at] + counts.shared_requests[at]))


def only_loop(result: SymbolicResult) -> TripInfo:
    (loop,) = result.loops
    return loop


COUNT = """mov.u32 %r8, {start}; L: add.s32 %r8, %r8, {step};
    setp.{how} %p1, %r8, {to}; @%p1 bra L; ret;"""


@pytest.mark.parametrize(
    ("start", "step", "how", "to", "trips"),
    [
        (0, 1, "lt.s32", 10, 10),
        (0, 3, "lt.s32", 10, 4),
        (0, 3, "le.s32", 9, 4),
        (10, -1, "ne.s32", 0, 10),
        (10, -4, "gt.s32", 0, 3),
        (5, 1, "lt.s32", 0, 1),
        ("-1", 1, "lt.u32", 5, 6),
    ],
)
def test_constant_trip_counts(start: object, step: int, how: str, to: int, trips: int) -> None:
    loop = only_loop(analyse(COUNT.format(start=start, step=step, how=how, to=to)))
    assert (loop.how, loop.count, loop.mean) == ("constant", trips, trips)


def test_a_counter_that_wraps_is_followed_or_unknown_but_never_wrong() -> None:
    # From 10 in steps of 3 the counter passes 0 only after wrapping: 10 + 3 k = 2^32 m.
    loop = only_loop(analyse(COUNT.format(start=10, step=3, how="ne.s32", to=0)))
    assert loop.how == "assumed"


def test_a_missing_argument_is_named() -> None:
    result = analyse(COUNT.format(start=0, step=1, how="lt.s32", to="%r1"))
    loop = only_loop(result)
    assert (loop.how, loop.exact) == ("assumed", False)
    assert not result.exact
    assert not known(result)
    assert "trip count of the loop L in line" in (result.unproven or "")
    assert "n is not given" in (result.unproven or "")


def test_a_data_dependent_loop_says_where_the_data_come_from() -> None:
    result = analyse("L: ld.global.u32 %r8, [%rd3]; setp.lt.s32 %p1, %r8, 3; @%p1 bra L; ret;")
    assert only_loop(result).how == "assumed"
    assert "loaded from memory" in (result.unproven or "")


def test_a_loop_that_tests_first_counts_its_body() -> None:
    body = """mov.u32 %r8, 0; L: setp.ge.s32 %p1, %r8, %r1; @%p1 bra E;
        add.s32 %r8, %r8, 1; bra L; E: ret;"""
    loop = only_loop(analyse(body, n=6))
    assert (loop.count, loop.mean) == (6, 7)


def test_geometric_loops_are_followed() -> None:
    body = "mov.u32 %r8, 1; L: shl.b32 %r8, %r8, 1; setp.lt.u32 %p1, %r8, 1000; @%p1 bra L; ret;"
    assert only_loop(analyse(body)).count == 10


def test_a_guard_splits_lanes_and_warps_exactly_over_a_large_grid() -> None:
    # 1000 blocks of 64 threads; 40,010 pass: 1250 whole warps and 10 lanes of another.
    body = "setp.ge.s32 %p1, %r5, %r1; @%p1 bra E; st.global.u32 [%rd3], 1; E: ret;"
    result = analyse(body, grid=1000, block=64, n=40_010)
    counts = result.functions["k"]
    assert (counts.warp_executions[10], counts.active_lanes[10]) == (1251, 40_010)
    assert result.sampling.exact
    assert len(result.sampling.blocks) < 10
    (branch,) = result.branches
    assert branch.known
    assert (branch.taken_warps, branch.other_warps) == pytest.approx((750 / 1251, 1))


def test_a_branch_on_data_is_not_proven() -> None:
    body = """ld.global.u32 %r8, [%rd3]; setp.eq.s32 %p1, %r8, 0; @%p1 bra E;
        st.global.u32 [%rd3], 1; E: ret;"""
    result = analyse(body)
    counts = result.functions["k"]
    assert not counts.counts_known[11]
    assert counts.counts_known[12]  # all meet again
    assert counts.active_lanes[12] == 32
    assert (result.unproven or "").startswith("which way the branch goes in line")


def test_a_branch_by_a_table_is_not_proven() -> None:
    """Under a guard as well, of which the lanes that do not take it go on behind it."""
    body = """T: .branchtargets A, B; setp.ge.s32 %p1, %r2, 7; @%p1 brx.idx %r3, T;
        st.global.u32 [%rd3], 1; A: st.global.u32 [%rd3], 2; B: ret;"""
    result = analyse(body)
    assert "brx.idx" in (result.unproven or "")
    assert not result.functions["k"].counts_known[10:12].any()


@pytest.mark.parametrize(
    ("scale", "offset", "stride", "sectors"),
    [(4, 0, 4, 4), (8, 0, 8, 8), (4, 4, 4, 5), (128, 0, 128, 32), (0, 0, 0, 1)],
)
def test_stride_and_sectors_of_a_load(scale: int, offset: int, stride: int, sectors: int) -> None:
    body = f"""mul.wide.u32 %rd5, %r2, {scale}; add.u64 %rd5, %rd1, %rd5;
        ld.global.f32 %f1, [%rd5+{offset}]; ret;"""
    result = analyse(body)
    (access,) = result.accesses
    assert access.affine
    assert (access.stride_bytes, per_request(result, access)) == (stride, sectors)


@pytest.mark.parametrize(("lane", "sectors"), [(1024, 4), (32, 4), (16, 4), (12, 5)])
def test_a_choice_of_two_buffers_by_place_is_read_like_one(lane: int, sectors: int) -> None:
    """``t < n ? a : b`` (before: 32 sectors, one a lane)."""
    pick = f"""
        ld.param.u64 %rd4, [b]; setp.lt.u32 %p1, %r2, {lane}; selp.b64 %rd5, %rd1, %rd4, %p1;
        add.u64 %rd6, %rd5, %rd2; ld.global.u32 %r9, [%rd6]; ret;"""
    module = read_module(kernel(pick).replace(".param .u32 n)", ".param .u32 n, .param .u64 b)"))
    result = analyse_symbolically(module, module.kernel("k"), Launch.of(1, 32, 0, {}))
    (access,) = result.accesses
    assert access.affine
    assert per_request(result, access) == sectors


@pytest.mark.parametrize(("words", "degree"), [(1, 1), (2, 2), (32, 32), (33, 1)])
def test_bank_conflicts(words: int, degree: int) -> None:
    body = f"mul.lo.u32 %r8, %r2, {4 * words}; st.shared.u32 [%r8], 1; ret;"
    result = analyse(body, declarations=".shared .align 4 .b8 s[8192];")
    (access,) = result.accesses
    assert (access.affine, per_request(result, access)) == (True, degree)


def test_alignment_that_changes_with_the_iteration_is_averaged_exactly() -> None:
    # 4 bytes further each time: of eight iterations one is aligned (4 sectors), seven not (5).
    body = """mul.wide.u32 %rd5, %r2, 4; add.u64 %rd5, %rd1, %rd5; mov.u32 %r8, 0;
        L: ld.global.f32 %f1, [%rd5]; add.u64 %rd5, %rd5, 4; add.u32 %r8, %r8, 1;
        setp.ne.s32 %p1, %r8, 16; @%p1 bra L; ret;"""
    result = analyse(body)
    (access,) = result.accesses
    assert access.affine
    assert per_request(result, access) == pytest.approx((4 + 7 * 5) / 8)


def test_gathered_addresses_are_unknown_with_the_reason() -> None:
    body = """ld.global.u32 %r8, [%rd3]; mul.wide.u32 %rd5, %r8, 4; add.u64 %rd5, %rd1, %rd5;
        ld.global.f32 %f1, [%rd5]; ret;"""
    result = analyse(body)
    first, second = result.accesses
    assert first.affine
    assert not second.affine
    assert "the address in line" in (result.unproven or "")
    assert "loaded from memory" in (result.unproven or "")


def test_an_argument_that_no_parameter_has_is_refused() -> None:
    with pytest.raises(LaunchError, match="no parameter 'm'"):
        analyse("ret;", m=1)


BODIES = table("bodies", "blocks_of_each_kind")


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("n", [1, 333, 4000, 9001, 20000])
def test_one_block_of_each_kind_tells_what_all_blocks_do(
    name: str, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = analyse(BODIES[name], grid=96, block=96, n=n)
    assert few.sampling.exact
    assert len(few.sampling.blocks) < 96
    monkeypatch.setattr(sampling, "ALL_LANES", 1 << 20)
    every = analyse(BODIES[name], grid=96, block=96, n=n)
    assert len(every.sampling.blocks) == 96
    for what in ("warp_executions", "active_lanes", "sectors"):
        np.testing.assert_allclose(
            getattr(few.functions["k"], what), getattr(every.functions["k"], what), err_msg=what
        )
