"""Reads, writes and def-use edges."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.ptx_text import kernel
from tests.fixtures.tables import rows
from wattcast.features.cfg import build_cfg
from wattcast.features.dataflow import block_edges, reads, writes
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Instruction


def one(text: str) -> Instruction:
    return read_module(kernel(text)).kernel().body.instructions[0]


@pytest.mark.parametrize(
    ("text", "read", "written"),
    rows("dataflow", "read_and_written"),
)  # fmt: skip
def test_reads_and_writes(text: str, read: str, written: str) -> None:
    found = one(text)
    assert reads(found) == tuple(read.split())
    assert writes(found) == tuple(written.split())


def edges_of(text: str) -> tuple[tuple[int, int], ...]:
    graph = build_cfg(read_module(kernel(text)).kernel().body)
    return block_edges(graph.body, graph.blocks[0])


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
