"""Reads, writes and def-use edges."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.ptx_text import kernel
from wattcast.features.cfg import build_cfg
from wattcast.features.dataflow import block_edges, reads, writes
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Instruction


def one(text: str) -> Instruction:
    return read_module(kernel(text)).kernel().body.instructions[0]


@pytest.mark.parametrize(
    ("text", "read", "written"),
    [
        ("add.s32 %r1, %r2, %r3;", "%r2 %r3", "%r1"),
        ("fma.rn.f32 %f1, %f1, %f1, 0f3F800000;", "%f1", "%f1"),
        ("mov.u32 %r1, %tid.x;", "", "%r1"),
        ("mov.b64 {%r1, %r2}, %rd1;", "%rd1", "%r1 %r2"),
        ("mov.b64 %rd1, {%r1, %r2};", "%r1 %r2", "%rd1"),
        ("setp.lt.and.s32 %p1|%p2, %r1, %r2, !%p3;", "%r1 %r2 %p3", "%p1 %p2"),
        ("shfl.sync.bfly.b32 %r1|%p1, %r2, 16, 31, -1;", "%r2", "%r1 %p1"),
        ("ld.global.v4.f32 {%f1, %f2, _, %f4}, [%rd1+16];", "%rd1", "%f1 %f2 %f4"),
        ("st.global.v2.f32 [%rd1], {%f1, %f2};", "%rd1 %f1 %f2", ""),
        ("st.shared.u32 [buf], %r1;", "%r1", ""),
        ("red.global.add.u32 [%rd1], %r1;", "%rd1 %r1", ""),
        ("atom.global.cas.b32 %r1, [%rd1], %r2, %r3;", "%rd1 %r2 %r3", "%r1"),
        ("tex.2d.v4.f32.f32 {%f1,%f2,%f3,%f4}, [tex, {%f5,%f6}];", "%f5 %f6", "%f1 %f2 %f3 %f4"),
        ("tex.1d.v4.s32.s32 {%r1,%r2,%r3,%r4}, [%rd1, {%r5}];", "%rd1 %r5", "%r1 %r2 %r3 %r4"),
        ("sust.b.1d.b32.trap [surf, {%r1}], {%r2};", "%r1 %r2", ""),
        ("@%p1 bra L;", "%p1", ""),
        ("bra.uni L;", "", ""),
        ("brx.idx %r1, ts;", "%r1", ""),
        ("@!%p1 mov.u32 %r1, %r2;", "%p1 %r2", "%r1"),
        ("call.uni (%r1), f, (%r2, %r3);", "%r2 %r3", "%r1"),
        ("call (retval0), %rd1, (param0), proto;", "%rd1", ""),
        ("call f, (%r2);", "%r2", ""),
        ("call f;", "", ""),
        ("bar.sync %r1, %r2;", "%r1 %r2", ""),
        ("bar.red.popc.u32 %r1, 0, %p1;", "%p1", "%r1"),
        ("barrier.cta.red.and.pred %p1, 0, %p2;", "%p2", "%p1"),
        ("bar.warp.sync %r1;", "%r1", ""),
        ("prefetch.global.L2 [%rd1];", "%rd1", ""),
        ("cp.async.cg.shared.global [%r1], [%rd1], 16, %r2;", "%r1 %rd1 %r2", ""),
        ("mbarrier.init.shared.b64 [%r1], %r2;", "%r1 %r2", ""),
        ("mbarrier.arrive.shared.b64 %rd1, [%r1];", "%r1", "%rd1"),
        ("mbarrier.try_wait.parity.shared.b64 %p1, [%r1], %r2;", "%r1 %r2", "%p1"),
        ("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r1], {%r2, %r3};", "%r1 %r2 %r3", ""),
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1}, {%r1}, {%r2}, {%f2};",
         "%r1 %r2 %f2", "%f1"),
        ("wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%f1}, %rd1, %rd2, %p1, 1, 1;",
         "%f1 %rd1 %rd2 %p1", "%f1"),
        ("tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r1, %r2}, [%r3];", "%r3", "%r1 %r2"),
        ("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 32;", "%r1", ""),
        ("nanosleep.u32 %r1;", "%r1", ""),
        ("elect.sync _|%p1, -1;", "", "%p1"),
        ("isspacep.global %p1, %rd1;", "%rd1", "%p1"),
        ("unheard.of %r1, %r2;", "%r2", "%r1"),
        ("ret;", "", ""),
    ],
)  # fmt: skip
def test_reads_and_writes(text: str, read: str, written: str) -> None:
    found = one(text)
    assert reads(found) == tuple(read.split())
    assert writes(found) == tuple(written.split())


def edges_of(text: str) -> tuple[tuple[int, int], ...]:
    graph = build_cfg(read_module(kernel(text)).kernel().body)
    return block_edges(graph.body, graph.blocks[0])


def test_golden_edges() -> None:
    assert edges_of(
        "mov.u32 %r1, %tid.x;\n"  # 0
        "add.s32 %r2, %r1, %r9;\n"  # 1
        "setp.lt.s32 %p1, %r2, %r1;\n"  # 2
        "@%p1 mov.u32 %r1, 7;\n"  # 3: keeps the old %r1
        "st.global.u32 [%rd1], %r1;\n"  # 4
        "mov.u32 %r1, 3;\n"  # 5: a new value, no edge
        "@%p1 bra L;\nL: ret;"  # 6
    ) == ((0, 1), (0, 2), (1, 2), (0, 3), (2, 3), (3, 4), (2, 6))


def test_the_carry_flag_is_an_edge() -> None:
    assert edges_of(
        "add.cc.u32 %r1, %r2, %r3;\naddc.cc.u32 %r4, %r5, %r6;\nmul.lo.u32 %r7, %r8, %r8;\n"
        "addc.u32 %r9, %r2, %r3;\nret;"
    ) == ((0, 1), (1, 3))


def test_edges_stay_inside_their_block() -> None:
    graph = build_cfg(
        read_module(kernel("mov.u32 %r1, 1;\nL: add.s32 %r1, %r1, 1;\nbra L;")).kernel().body
    )
    assert [block_edges(graph.body, block) for block in graph.blocks] == [(), ()]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)),
        max_size=30,
    )
)
def test_edges_of_random_blocks(rows: list[tuple[bool, int, int, int]]) -> None:
    """Against the definition: the last write before each read, kept values included."""
    text = "\n".join(
        f"{'@%p0 ' if guarded else ''}add.s32 %r{d}, %r{a}, %r{b};" for guarded, d, a, b in rows
    )
    wanted = set()
    for reader, (guarded, d, a, b) in enumerate(rows):
        for register in {a, b, d} if guarded else {a, b}:
            before = [w for w in range(reader) if rows[w][1] == register]
            if before:
                wanted.add((before[-1], reader))
    found = edges_of(text)
    assert set(found) == wanted
    assert list(found) == sorted(found, key=lambda edge: (edge[1], edge[0]))
