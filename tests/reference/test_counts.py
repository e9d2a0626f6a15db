"""Counts of the reference interpreter against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.kernels.data import Shape
from tests.fixtures.kernels.manifest import KERNELS
from tests.reference.counters import conflict_degree, sectors, shared_transactions
from tests.reference.fixtures import ptx_text, run_fixture
from tests.reference.machine import PerInstruction, ReferenceResult, run

HEADER = ".version 8.0\n.target sm_70\n.address_size 64\n"


def of(result: ReferenceResult, start: str) -> list[PerInstruction]:
    """The executed instructions whose opcode begins with ``start``."""
    return [row for row in result.per_instruction
            if row.opcode.startswith(start) and row.warp_executions]  # fmt: skip


def total(rows: list[PerInstruction], field: str) -> int:
    return sum(getattr(row, field) for row in rows)


def fixture(name: str, grid: tuple[int, ...], block: tuple[int, ...], **arguments: Any) -> Any:
    """A fixture kernel on sm_70 (the first target with it) with arguments of one's own."""
    kernel = next(k for k in KERNELS if k.name == name)
    target = "sm_80" if name.startswith(("mma", "async")) else "sm_70"
    return run(ptx_text(kernel.source, target), kernel.entry, grid, block, arguments)


@pytest.mark.parametrize(("stride", "expected"), [(1, 4), (2, 8), (4, 16), (8, 32), (9, 32)])
def test_a_stride_spreads_a_warp_over_more_sectors(stride: int, expected: int) -> None:
    result = fixture(
        "strided", (1,), (32,), out=np.zeros(32, np.float32),
        **{"in": np.zeros(32 * stride, np.float32)}, n=np.int32(32), stride=np.int32(stride),
    )  # fmt: skip
    (load,), (store,) = of(result, "ld.global"), of(result, "st.global")
    assert (load.warp_executions, load.active_lanes, load.sectors) == (1, 32, expected)
    assert store.sectors == 4


def test_an_unaligned_or_partial_warp_touches_the_sectors_it_reaches() -> None:
    # 40 threads in blocks of 20: bytes 0-79 and 80-159 are sectors 0-2 and 2-4.
    result = fixture(
        "copy", (2,), (20,), out=np.zeros(40, np.float32),
        **{"in": np.zeros(40, np.float32)}, n=np.int32(40),
    )  # fmt: skip
    (load,) = of(result, "ld.global")
    assert (load.warp_executions, load.active_lanes, load.sectors) == (2, 40, 6)


@pytest.mark.parametrize(
    ("name", "conflicts", "store_sectors"),
    # 32 rows: a column of the unpadded tile lies in one bank. Stores by columns of the matrix
    # touch one sector per lane, through shared memory four per warp.
    [("transpose_shared", 32, 4), ("transpose_padded", 1, 4), ("transpose_direct", None, 32)],
)
def test_transposes(name: str, conflicts: int | None, store_sectors: int) -> None:
    result = fixture(
        name, (1, 1), (32, 8), out=np.zeros((32, 32), np.float32),
        **{"in": np.zeros((32, 32), np.float32)}, width=np.int32(32), height=np.int32(32),
    )  # fmt: skip
    stores = of(result, "st.global")
    assert total(stores, "warp_executions") == 32
    assert total(stores, "sectors") == 32 * store_sectors
    assert total(of(result, "ld.global"), "sectors") == 32 * 4
    if conflicts is not None:
        assert total(of(result, "st.shared"), "shared_transactions") == 32
        assert total(of(result, "ld.shared"), "shared_transactions") == 32 * conflicts


def test_eight_and_sixteen_bytes_per_lane_go_by_halves_and_quarters() -> None:
    result = fixture(
        "shared_wide", (1,), (64,), out=np.zeros(64), out4=np.zeros((64, 4), np.float32),
        **{"in": np.zeros(256)}, stride=np.int32(2),
    )  # fmt: skip
    # Lane t of a half warp reads words 4 t and 4 t + 1: lanes t and t + 8 share banks. Two
    # transactions per half; the other read, backwards without a stride, takes one per half.
    assert total(of(result, "ld.shared.f64"), "shared_transactions") == 2 * (2 * 2) + 2 * 2
    # Eight lanes of 16 bytes fill the banks once.
    assert total(of(result, "st.shared.v4"), "shared_transactions") == 2 * 4
    # With a stride of two every second 16-byte word: two per quarter.
    assert total(of(result, "ld.shared.v4"), "shared_transactions") == 2 * 4 * 2


@pytest.mark.parametrize(("size", "parts"), [(2, 1), (4, 1), (8, 1), (16, 2)])
def test_a_broadcast_is_read_in_pairs_by_twice_as_many_lanes(size: int, parts: int) -> None:
    assert shared_transactions((lane, 64, size) for lane in range(32)) == parts
    # Lanes of the lower half only: the parts without an active lane cost nothing.
    assert shared_transactions((lane, 64, size) for lane in range(16)) == max(1, parts // 2)


def test_divergence_by_lane_doubles_the_executions_that_divergence_by_warp_has() -> None:
    arguments = {"out": np.zeros(64, np.float32), "in": np.zeros(64, np.float32)}
    by_lane = of(fixture("diverge_lane", (1,), (64,), **arguments), "fma")
    by_warp = of(fixture("diverge_warp", (1,), (64,), **arguments), "fma")
    # Six turns on one side, four on the other; 32 of 64 threads on each.
    assert sorted((r.warp_executions, r.active_lanes) for r in by_lane) == [(8, 128), (12, 192)]
    assert sorted((r.warp_executions, r.active_lanes) for r in by_warp) == [(4, 128), (6, 192)]


def test_a_triangle_runs_as_long_as_its_longest_lane() -> None:
    result = fixture(
        "triangular", (1,), (8,), out=np.zeros(8, np.float32), matrix=np.zeros((8, 8), np.float32),
        x=np.zeros(8, np.float32), n=np.int32(8),
    )  # fmt: skip
    # Row i has i + 1 products, by four and a remainder: 1 + 2 + ... + 8 in all lanes together.
    assert total(of(result, "fma"), "active_lanes") == 36


def test_one_word_for_all_lanes_is_one_sector_and_one_transaction() -> None:
    ptx = (
        HEADER
        + """
    .visible .entry same(.param .u64 p) {
        .reg .b32 %r<4>; .reg .b64 %rd<3>;
        .shared .align 4 .b8 word[4];
        ld.param.u64 %rd1, [p];
        cvta.to.global.u64 %rd2, %rd1;
        mov.u32 %r1, 1;
        atom.global.add.u32 %r2, [%rd2], %r1;
        atom.shared.add.u32 %r3, [word], 1;
        ret;
    }"""
    )
    result = run(ptx, "same", (1,), (32,), {"p": np.zeros(1, np.uint32)})
    assert result.memory["p"][0] == 32
    assert of(result, "atom.global")[0].sectors == 1
    assert of(result, "atom.shared")[0].shared_transactions == 1


def test_an_asynchronous_copy_counts_on_both_sides() -> None:
    result = fixture(
        "async_copy", (1,), (64,), out=np.zeros(64, np.float32),
        **{"in": np.zeros((2, 64, 4), np.float32)}, tiles=np.int32(2),
    )  # fmt: skip
    copies = of(result, "cp.async.cg")
    # Two tiles, two warps, 512 bytes per warp: 16 sectors, a transaction per quarter warp.
    assert total(copies, "sectors") == 2 * 2 * 16
    assert total(copies, "shared_transactions") == 2 * 2 * 4


def test_ldmatrix_takes_one_transaction_per_matrix_unless_rows_collide() -> None:
    half = np.float16
    padded = fixture(
        "mma_inline", (1,), (32,), c=np.zeros((16, 8), np.float32), a=np.zeros((16, 16), half),
        b=np.zeros((16, 8), half), k=np.int32(16),
    )  # fmt: skip
    # Rows 48 bytes apart hit different banks: x4 and x2 matrices.
    assert [r.shared_transactions for r in of(padded, "ldmatrix")] == [4, 2]
    bits = np.uint16
    packed = fixture("mma_bf16", (1,), (32,), c=np.zeros((16, 8), np.float32),
                     a=np.zeros((16, 16), bits), b=np.zeros((16, 8), bits))  # fmt: skip
    # Rows 32 bytes apart: rows r and r + 4 share banks. Rows 16 bytes apart: none do.
    assert [r.shared_transactions for r in of(packed, "ldmatrix")] == [8, 2]


BRANCHES = (
    HEADER
    + """
.func (.param .b32 out) twice(.param .b32 in) {
    .reg .b32 %r<3>;
    ld.param.u32 %r1, [in];
    add.u32 %r2, %r1, %r1;
    st.param.b32 [out], %r2;
    ret;
}
.visible .entry branches(.param .u64 p) {
    .reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<5>;
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p1, %r1, 5;
    setp.gt.u32 %p2, %r1, 99;
    @%p1 bra SMALL;
    add.u32 %r2, %r1, 100;
    bra.uni JOIN;
SMALL:
    { .param .b32 a; st.param.b32 [a], %r1;
      .param .b32 b;
      call.uni (b), twice, (a);
      ld.param.b32 %r2, [b]; }
JOIN:
    ld.param.u64 %rd1, [p];
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    @!%p2 st.global.u32 [%rd3], %r2;
    @%p2 st.global.u32 [%rd3], 7;
    ret;
}"""
)


def test_lanes_meet_again_at_the_smallest_program_counter() -> None:
    result = run(BRANCHES, "branches", (1,), (40,), {"p": np.zeros(40, np.uint32)})
    assert result.memory["p"].tolist() == [0, 2, 4, 6, 8, *range(105, 140)]
    counts = {(r.opcode, r.line): (r.warp_executions, r.active_lanes)
              for r in result.per_instruction}  # fmt: skip
    by_opcode = {opcode: value for (opcode, _), value in counts.items()}
    # 40 threads are two warps; the second warp holds no small thread.
    assert by_opcode["mul.wide.u32"] == (2, 40)
    assert by_opcode["bra"] == (2, 5)
    assert by_opcode["bra.uni"] == (2, 35)
    assert by_opcode["call.uni"] == (1, 5)
    assert by_opcode["st.param.b32"] == (1, 5)
    functions = {r.function for r in result.per_instruction}
    assert functions == {"branches", "twice"}
    # Both stores run by both warps; the guard decides who is active, and what memory sees.
    stores = of(result, "st.global")
    assert [(s.warp_executions, s.active_lanes, s.sectors) for s in stores] == [
        (2, 40, 5), (2, 0, 0),
    ]  # fmt: skip


def test_a_collective_waits_for_the_lanes_it_names() -> None:
    # Lane 0 goes straight to the vote; the others take a way that lies behind it in the text.
    ptx = (
        HEADER
        + """
    .visible .entry wait(.param .u64 p) {
        .reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<5>;
        mov.u32 %r1, %tid.x;
        setp.ne.u32 %p1, %r1, 0;
        @%p1 bra AROUND;
    MEET:
        vote.sync.ballot.b32 %r2, %p1, 0xffffffff;
        ld.param.u64 %rd1, [p];
        mul.wide.u32 %rd2, %r1, 4;
        add.u64 %rd3, %rd1, %rd2;
        st.global.u32 [%rd3], %r2;
        ret;
    AROUND:
        setp.gt.u32 %p1, %r1, 20;
        bra.uni MEET;
    }"""
    )
    result = run(ptx, "wait", (1,), (32,), {"p": np.zeros(32, np.uint32)})
    assert set(result.memory["p"].tolist()) == {0xFFE00000}
    (vote,) = of(result, "vote")
    assert (vote.warp_executions, vote.active_lanes) == (1, 32)


@given(st.lists(st.integers(0, 1 << 20), min_size=1, max_size=32))
def test_sectors_and_conflicts_stay_within_their_bounds(words: list[int]) -> None:
    accesses = [(4 * word, 4) for word in words]
    assert 1 <= sectors(accesses) <= len(set(words))
    assert -(-len(set(words)) // 32) <= conflict_degree(accesses) <= len(set(words))
    lanes = [(lane, address, size) for lane, (address, size) in enumerate(accesses)]
    assert shared_transactions(lanes) == conflict_degree(accesses)


@pytest.mark.parametrize(
    ("words_apart", "degree"),
    # gcd(stride, 32) lanes share a bank; one word for all is a broadcast
    [(0, 1), (1, 1), (2, 2), (3, 1), (4, 4), (6, 2), (16, 16), (32, 32), (33, 1)],
)
def test_conflicts_of_strided_words(words_apart: int, degree: int) -> None:
    assert conflict_degree((4 * words_apart * lane, 4) for lane in range(32)) == degree


def test_no_access_costs_nothing() -> None:
    assert sectors([]) == 0
    assert conflict_degree([]) == 0
    assert shared_transactions([]) == 0


def test_every_instruction_of_the_kernel_is_reported_in_order() -> None:
    kernel = next(k for k in KERNELS if k.name == "device_calls")
    shape: Shape = kernel.shapes[0]
    rows = run_fixture(kernel, shape, "sm_70").per_instruction
    own = [row for row in rows if row.function == kernel.entry]
    assert [row.index for row in own] == list(range(len(own)))
    assert [row.line for row in own] == sorted(row.line for row in own)
    text = ptx_text(kernel.source, "sm_70").splitlines()
    assert all(row.opcode in text[row.line - 1] for row in rows)
